//! What a stand-in exports beside the functions of the vendor: tests find these by name.

use std::ffi::c_char;

/// Does what a command says; 0, or -1 if there is no such command.
///
/// # Safety
///
/// `command` points to a string that ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn driver_sim_control(command: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { driver_sim_engine::control(command) }
}

/// A figure by its name; -1 if there is none of it.
///
/// # Safety
///
/// `name` points to a string that ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn driver_sim_query(name: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { driver_sim_engine::query(name) }
}
