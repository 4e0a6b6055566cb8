//! Streams and events.

use std::ffi::c_void;

use driver_sim_engine::Failure;

use crate::abi::{Out, exports};
use crate::contexts::capture_mode;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const CAPTURE_ACTIVE: u32 = 1;
const CAPTURE_INVALIDATED: u32 = 2;

exports! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) |sim| {
        stream.take(|| sim.create_stream(flags & NON_BLOCKING == 0, 0))
    };

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |sim| {
        stream.take(|| sim.create_stream(flags & NON_BLOCKING == 0, priority))
    };

    fn cuStreamDestroy_v2(stream: u64) |sim| sim.destroy_stream(stream);

    fn cuStreamQuery(stream: u64) |sim| ready(sim.query_stream(stream)?);

    fn cuStreamSynchronize(stream: u64) |sim| sim.synchronize_stream(stream);

    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) |sim| sim.wait_event(stream, event);

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) |sim| context.put(sim.stream_context(stream)?);

    fn cuStreamGetPriority(stream: u64, priority: Out<i32>) |sim| priority.put(sim.stream_priority(stream)?);

    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) |sim| {
        status.put(match sim.capture_status(stream)? {
            None => 0,
            Some(true) => CAPTURE_ACTIVE,
            Some(false) => CAPTURE_INVALIDATED,
        })
    };

    fn cuStreamGetCaptureInfo_v2(
        stream: u64, status: Out<u32>, _id: *mut u64, graph: Out<u64>, _nodes: *mut *const u64, _count: *mut usize,
    ) |sim| {
        let captured = sim.captured_graph(stream)?;
        graph.put_if_asked(captured.unwrap_or(0));
        status.put(match (sim.capture_status(stream)?, captured) {
            (None, _) => 0,
            (_, Some(_)) => CAPTURE_ACTIVE,
            (_, None) => CAPTURE_INVALIDATED,
        })
    };

    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) |sim| sim.begin_capture(stream, capture_mode(mode)?);

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) |sim| graph.put(sim.end_capture(stream)?);

    fn cuLaunchHostFunc(stream: u64, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) |sim| {
        sim.launch_host(stream, function.ok_or(Failure::InvalidValue)?, data)
    };

    fn cuEventCreate(event: Out<u64>, flags: u32) |sim| event.take(|| sim.create_event(flags & DISABLE_TIMING == 0));

    fn cuEventDestroy_v2(event: u64) |sim| sim.destroy_event(event);

    fn cuEventRecord(event: u64, stream: u64) |sim| sim.record_event(event, stream);

    fn cuEventQuery(event: u64) |sim| ready(sim.query_event(event)?);

    fn cuEventSynchronize(event: u64) |sim| sim.synchronize_event(event);

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) |sim| {
        milliseconds.put(sim.elapsed(start, end)?)
    };

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) |sim| {
        milliseconds.put(sim.elapsed(start, end)?)
    };
}

fn ready(ready: bool) -> Result<(), Failure> {
    if ready { Ok(()) } else { Err(Failure::NotReady) }
}
