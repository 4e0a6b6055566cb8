//! Contexts, and the capture mode of a thread.

use driver_sim_engine::{CaptureMode, Failure, PRIORITIES, exchange_capture_mode};

use crate::abi::{Out, exports};

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) |sim| context.take(|| sim.retain_primary(device));

    fn cuDevicePrimaryCtxRelease_v2(device: i32) |sim| sim.release_primary(device);

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |sim| {
        flags.put(0)?;
        active.put(i32::from(sim.is_primary_active(device)?))
    };

    fn cuCtxCreate_v2(context: Out<u64>, _flags: u32, device: i32) |sim| {
        context.take(|| sim.create_context(device))
    };

    fn cuCtxDestroy_v2(context: u64) |sim| sim.destroy_context(context);

    fn cuCtxPushCurrent_v2(context: u64) |sim| sim.push_context(context);

    fn cuCtxPopCurrent_v2(context: Out<u64>) |sim| {
        context.put_if_asked(sim.pop_context()?);
        Ok(())
    };

    fn cuCtxGetCurrent(context: Out<u64>) |sim| context.put(sim.current_context()?.unwrap_or(0));

    fn cuCtxSetCurrent(context: u64) |sim| sim.set_context((context != 0).then_some(context));

    fn cuCtxGetDevice(device: Out<i32>) |sim| device.put(sim.current_device()? as i32);

    fn cuCtxSynchronize() |sim| sim.synchronize_context();

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |sim| {
        sim.current_device()?;
        least.put_if_asked(PRIORITIES.0);
        greatest.put_if_asked(PRIORITIES.1);
        Ok(())
    };

    fn cuCtxEnablePeerAccess(peer: u64, _flags: u32) |sim| sim.enable_peer(peer);

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_sim| {
        let before = exchange_capture_mode(capture_mode(mode.read()?)?);
        mode.put(before as u32)
    };
}

pub(crate) fn capture_mode(number: u32) -> Result<CaptureMode, Failure> {
    [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed]
        .into_iter()
        .find(|mode| *mode as u32 == number)
        .ok_or(Failure::InvalidValue)
}
