//! What a machine without NIXL says.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use transship_nixl::{Error, Nixl};

/// Deliberate bug: a name is not tried, or not said.
#[test]
fn a_library_that_is_not_there_is_an_error_with_all_names() {
    match Nixl::load() {
        Ok(nixl) => assert!(format!("{nixl:?}").contains("libnixl_capi.so")),
        Err(Error::NotLoaded { tried }) => {
            assert_eq!(tried.len(), 2, "{tried:?}");
            assert!(tried[0].starts_with("libnixl_capi.so:"), "{tried:?}");
            assert!(tried[1].contains("/usr/local/nixl/"), "{tried:?}");
        }
        Err(other) => unreachable!("{other}"),
    }
    // SAFETY: there is no such file.
    let missing = unsafe { Nixl::open("/nowhere/libnixl_capi.so") }.unwrap_err();
    assert!(missing.to_string().contains("/nowhere/libnixl_capi.so"), "{missing}");
    // SAFETY: it is the library that every program has.
    let other = unsafe { Nixl::open("libc.so.6") }.unwrap_err();
    assert!(other.to_string().contains("libc.so.6: it has no nixl_capi_create_agent"), "{other}");
}
