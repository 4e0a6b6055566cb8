//! A subscriber of `tracing` that copies whenever it is told of a span. Alone in its program: what one subscriber wants to see of a
//! place in the code, all others change.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::in_time;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, subscriber};
use transship_core::{BackgroundWork, CopyOptions, CopyPolicy, Device, Tensor, start_copy};

thread_local! {
    static COPIES: Cell<bool> = const { Cell::new(false) };
}

static TOLD: AtomicUsize = AtomicUsize::new(0);

struct Copying;

impl Subscriber for Copying {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "transship"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        TOLD.fetch_add(1, Ordering::Relaxed);
        if !COPIES.replace(true) {
            copy();
            COPIES.set(false);
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn copy() {
    let options = CopyOptions::default().policy(CopyPolicy::Always).background(BackgroundWork::Always);
    let copied = start_copy(Tensor::from(vec![7_u8; 4 << 20]), &Device::host(), options).unwrap();
    assert_eq!(copied.wait().unwrap().as_slice::<u8>().unwrap()[4095], 7);
}

/// `tracing` panics where the subscriber of a thread is changed while it is being called.
///
/// catches: 359-subscriber-changed-in-a-call
#[test]
fn the_subscriber_of_a_thread_is_not_changed_while_it_is_called() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(panicked);
    }));
    in_time(|| {
        // Called by us, and by the program.
        subscriber::with_default(Copying, || {
            copy();
            tracing::debug_span!(target: "transship", "of the program").in_scope(|| ());
        });
    });
    let told = TOLD.load(Ordering::Relaxed);
    assert!(told > 1, "it was told of {told} spans");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}
