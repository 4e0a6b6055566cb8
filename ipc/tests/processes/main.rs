//! Feeds and loaders, exporters and importers between real processes: this program starts itself as the other one.
//!
//! `TRANSSHIP_TEST_KILLS=200` tries so many seeds of kills.

#![cfg_attr(not(target_os = "linux"), allow(unused))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
mod again;
#[cfg(target_os = "linux")]
mod batches;
#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod claims;
#[cfg(target_os = "linux")]
mod ends;
#[cfg(target_os = "linux")]
mod exported;
#[cfg(target_os = "linux")]
mod feeds_that_go;
#[cfg(target_os = "linux")]
mod filtered;
#[cfg(target_os = "linux")]
mod forks;
#[cfg(target_os = "linux")]
mod hostile_exporter;
#[cfg(target_os = "linux")]
mod hostile_feed;
#[cfg(target_os = "linux")]
mod hostile_importer;
#[cfg(target_os = "linux")]
mod hostile_loader;
#[cfg(target_os = "linux")]
mod interrupted;
#[cfg(target_os = "linux")]
mod kills;
#[cfg(target_os = "linux")]
mod large_windows;
#[cfg(target_os = "linux")]
mod lent;
#[cfg(target_os = "linux")]
mod on_devices;
#[cfg(target_os = "linux")]
mod slots;
#[cfg(target_os = "linux")]
mod support;
#[cfg(target_os = "linux")]
mod tree_child;
#[cfg(target_os = "linux")]
mod tree_kills;
#[cfg(target_os = "linux")]
mod waiting;
#[cfg(target_os = "linux")]
mod windows;
#[cfg(target_os = "linux")]
mod workers;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    if child::is_asked_for() {
        return child::run();
    }
    if tree_child::is_asked_for() {
        return tree_child::run();
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    // They count what the process has open and mapped.
    arguments.test_threads = Some(1);
    let cases = [
        batches::cases(),
        slots::cases(),
        claims::cases(),
        kills::cases(),
        ends::cases(),
        feeds_that_go::cases(),
        hostile_loader::cases(),
        hostile_feed::cases(),
        exported::cases(),
        lent::cases(),
        again::cases(),
        large_windows::cases(),
        tree_kills::cases(),
        hostile_exporter::cases(),
        on_devices::cases(),
        hostile_importer::cases(),
        windows::cases(),
        waiting::cases(),
        forks::cases(),
        interrupted::cases(),
    ];
    libtest_mimic::run(&arguments, cases.into_iter().flatten().collect()).exit();
}
