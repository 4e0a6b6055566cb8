//! Streams, events and captures. Flags and modes have CUDA's numbers, but for those of coherence.

use std::ffi::{c_int, c_uint};

use crate::codes::{answer, check};
use crate::current;
use crate::devices::put;
use crate::exports::forward;

/// Blocking, without timing, between processes; where an event releases memory to means nothing to CUDA.
const EVENT_FLAGS: c_uint = 7;

forward! {
    [creates] fn hipStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) =
        cuStreamCreateWithPriority(stream, flags, priority);
    [destroys] fn hipStreamDestroy(stream: usize) = cuStreamDestroy_v2(stream);
    fn hipStreamSynchronize(stream: usize) = cuStreamSynchronize(stream);
    fn hipStreamQuery(stream: usize) = cuStreamQuery(stream);
    fn hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) = cuStreamWaitEvent(stream, event, flags);
    fn hipStreamGetPriority(stream: usize, priority: *mut c_int) = cuStreamGetPriority(stream, priority);
    fn hipStreamIsCapturing(stream: usize, status: *mut u32) = cuStreamIsCapturing(stream, status);
    fn hipStreamBeginCapture(stream: usize, mode: u32) = cuStreamBeginCapture_v2(stream, mode);
    fn hipStreamEndCapture(stream: usize, graph: *mut usize) = cuStreamEndCapture(stream, graph);
    [creates] fn hipGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: u64) =
        cuGraphInstantiateWithFlags(executable, graph, flags);
    fn hipGraphLaunch(executable: usize, stream: usize) = cuGraphLaunch(executable, stream);
    [destroys] fn hipGraphExecDestroy(executable: usize) = cuGraphExecDestroy(executable);
    fn hipGraphDestroy(graph: usize) = cuGraphDestroy(graph);
    fn hipStreamGetCaptureInfo_v2(
        stream: usize, status: *mut u32, id: *mut u64, graph: *mut usize, nodes: *mut usize, count: *mut usize,
    ) = cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
    fn hipUserObjectCreate(object: *mut usize, data: usize, function: usize, references: c_uint, flags: c_uint) =
        cuUserObjectCreate(object, data, function, references, flags);
    fn hipUserObjectRelease(object: usize, references: c_uint) = cuUserObjectRelease(object, references);
    fn hipGraphRetainUserObject(graph: usize, object: usize, references: c_uint, flags: c_uint) =
        cuGraphRetainUserObject(graph, object, references, flags);
    fn hipLaunchHostFunc(stream: usize, function: usize, argument: usize) =
        cuLaunchHostFunc(stream, function, argument);

    [creates] fn hipEventCreateWithFlags(event: *mut usize, flags: c_uint) =
        cuEventCreate(event, flags & EVENT_FLAGS);
    [destroys] fn hipEventDestroy(event: usize) = cuEventDestroy_v2(event);
    fn hipEventRecord(event: usize, stream: usize) = cuEventRecord(event, stream);
    fn hipEventQuery(event: usize) = cuEventQuery(event);
    fn hipEventSynchronize(event: usize) = cuEventSynchronize(event);
    fn hipEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) =
        cuEventElapsedTime(milliseconds, start, end);
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamGetDevice(stream: usize, device: *mut c_int) -> u32 {
    answer((|| {
        if stream == 0 {
            return put(device, current::device());
        }
        let mut context = 0;
        // SAFETY: the result is written to a local; the stream is the caller's promise.
        check(unsafe { (current::enter()?.cuStreamGetCtx)(stream, &mut context) })?;
        put(device, current::device_of(context)?)
    })())
}
