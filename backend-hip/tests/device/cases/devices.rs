//! The caller's device, and streams of other devices.

use transship_core::Error;
use transship_hip::stream_from_raw;

use super::guard::every_call;
use crate::bed;
use crate::driver::{Current, RawStream, current, last_error};
use crate::suite::Outcome;

pub(crate) fn the_first_device_stays_current() -> Outcome {
    assert_eq!(current(), 0, "the thread of a case begins with the first device");
    every_call(no_error_is_left)
}

pub(crate) fn another_device_stays_current() -> Outcome {
    let _current = Current::ordinal(1);
    assert_eq!(current(), 1);
    every_call(no_error_is_left)
}

/// The runtime keeps the last error of a thread; the next one who asks would take ours for his.
fn no_error_is_left(call: &str) {
    assert_eq!(last_error(), 0, "the last error of the thread after {call}");
}

pub(crate) fn a_stream_of_another_device_is_refused() -> Outcome {
    let (first, second) = (bed::device(0), bed::device(1));
    let raw = RawStream::of(&second);
    // SAFETY: the stream outlives the call, which refuses it.
    let refused = unsafe { stream_from_raw(&first, raw.handle) };
    assert!(matches!(refused, Err(Error::WrongStream { .. })), "{refused:?}");
    Ok(())
}
