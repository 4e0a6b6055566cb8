//! Events.

use std::ptr::null_mut;

use crate::cuda::Cuda;
use crate::say;

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn all(cuda: &Cuda) {
    cuda.start();
    let (stream, event, mut timed, mut later, mut time) = (cuda.stream(), cuda.event(), 0, 0, 0.0);
    // SAFETY: results are written to locals; handles are used before they are destroyed.
    unsafe {
        say("cuEventCreate null", (cuda.cuEventCreate)(null_mut(), 0));
        say("cuEventCreate flags 0xff00", (cuda.cuEventCreate)(&raw mut timed, 0xff00));
        say("cuEventCreate for other processes with times", (cuda.cuEventCreate)(&raw mut timed, 4));
        say("cuEventCreate with times", (cuda.cuEventCreate)(&raw mut timed, 0));
        say("cuEventCreate that blocks", (cuda.cuEventCreate)(&raw mut later, 1));
        say("cuEventQuery unrecorded", (cuda.cuEventQuery)(event));
        say("cuEventSynchronize unrecorded", (cuda.cuEventSynchronize)(event));
        say("cuStreamWaitEvent unrecorded", (cuda.cuStreamWaitEvent)(stream, event, 0));
        say("cuStreamWaitEvent flags 0xff00", (cuda.cuStreamWaitEvent)(stream, event, 0xff00));
        say("cuEventElapsedTime unrecorded", (cuda.cuEventElapsedTime)(&raw mut time, timed, later));
        say("cuEventRecord", (cuda.cuEventRecord)(event, stream));
        say("cuEventSynchronize", (cuda.cuEventSynchronize)(event));
        say("cuEventQuery synchronised", (cuda.cuEventQuery)(event));
        say("cuStreamWaitEvent", (cuda.cuStreamWaitEvent)(stream, event, 0));
        say("cuEventRecord with times", (cuda.cuEventRecord)(timed, stream));
        say("cuEventElapsedTime one unrecorded", (cuda.cuEventElapsedTime)(&raw mut time, timed, later));
        say("cuEventRecord later", (cuda.cuEventRecord)(later, stream));
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(stream));
        say("cuEventElapsedTime", (cuda.cuEventElapsedTime)(&raw mut time, timed, later));
        say("cuEventElapsedTime null", (cuda.cuEventElapsedTime)(null_mut(), timed, later));
        say(
            "cuEventElapsedTime of one without times",
            (cuda.cuEventElapsedTime)(&raw mut time, timed, event),
        );
        say("cuEventRecord on the default stream", (cuda.cuEventRecord)(event, 0));
        say("cuEventSynchronize", (cuda.cuEventSynchronize)(event));
        for event in [event, timed, later] {
            say("cuEventDestroy", (cuda.cuEventDestroy_v2)(event));
        }
    }
}
