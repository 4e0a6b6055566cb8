//! Invariant: the caller's context is current again after every call, on errors as well.

use cudarc::driver::sys;

use super::guard::every_call;
use crate::bed;
use crate::driver::{Current, OtherContext, current};
use crate::suite::Outcome;

pub(crate) fn no_context_stays_none() -> Outcome {
    assert!(current_or_none().is_null(), "the thread of a case begins without a context");
    every_call(|_| ())
}

pub(crate) fn another_context_stays_current() -> Outcome {
    drop(bed::device(0));
    let other = OtherContext::create();
    let _current = Current::push(other.0);
    assert_eq!(current(), other.0);
    every_call(|_| ())
}

/// [`current`], on a thread that may be the first to call the driver.
fn current_or_none() -> sys::CUcontext {
    // The driver must be initialised first; opening a device on another thread leaves this one alone.
    let opened = std::thread::spawn(|| drop(bed::device(0))).join();
    assert!(opened.is_ok());
    current()
}
