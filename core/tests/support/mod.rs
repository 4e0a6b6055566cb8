//! What the tests of the invariants share: simulated devices, tensors that tell when they are gone, and time limits.

#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) mod held;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use late_backend::{LateConfig, LateHandle};
use transship_core::backend::{CopyOp, Direction, HostSide, Staging};
use transship_core::{CopyOptions, DType, Device, Stream, Tensor, start_copy};

/// Longer than anything here takes, however slow the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(if cfg!(miri) { 300 } else { 30 });

/// A simulated device that no other test uses.
pub(crate) fn late() -> (LateHandle, Device) {
    with(LateConfig::new("late"))
}

pub(crate) fn with(config: LateConfig) -> (LateHandle, Device) {
    let late = LateHandle::new(config).unwrap();
    let device = Device::from_backend(late.backend(0)).unwrap();
    (late, device)
}

/// Two devices of one driver.
pub(crate) fn two(config: LateConfig) -> (LateHandle, Device, Device) {
    let late = LateHandle::new(LateConfig { devices: 2, ..config }).unwrap();
    let device = |ordinal| Device::from_backend(late.backend(ordinal)).unwrap();
    (late.clone(), device(0), device(1))
}

/// The bytes of a tensor, wherever it lies.
pub(crate) fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let host = start_copy(tensor.clone(), &Device::host(), CopyOptions::default()).unwrap();
    host.wait().unwrap().to_bytes().unwrap()
}

/// A tensor on `device`, there already.
pub(crate) fn on(device: &Device, bytes: &[u8]) -> Tensor {
    start_copy(Tensor::from(bytes.to_vec()), device, CopyOptions::default()).unwrap().wait().unwrap()
}

/// How many owners of memory were dropped.
#[derive(Clone, Default)]
pub(crate) struct Drops(Arc<AtomicUsize>);

struct Owner {
    bytes: Vec<u8>,
    drops: Drops,
}

impl Drops {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// A tensor on the host that counts here when its memory goes.
    pub(crate) fn tensor(&self, bytes: Vec<u8>) -> Tensor {
        let shape = [bytes.len()];
        Tensor::from_owner(Owner { bytes, drops: self.clone() }, DType::U8, &shape).unwrap()
    }
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Work on a stream that reads a tensor: what a kernel would do.
pub(crate) struct Kernel {
    block: Box<dyn Staging>,
    bytes: usize,
    stream: Stream,
    position: u64,
}

impl Kernel {
    pub(crate) fn launch(tensor: &Tensor, stream: &Stream) -> Self {
        Self::read(tensor, tensor.offset(), tensor.nbytes(), stream)
    }

    /// The same for all of the memory that the tensor lies in.
    pub(crate) fn of_whole_memory(tensor: &Tensor, stream: &Stream) -> Self {
        Self::read(tensor, 0, tensor.buffer().unwrap().bytes(), stream)
    }

    fn read(tensor: &Tensor, from_offset: usize, bytes: usize, stream: &Stream) -> Self {
        let backend = stream.device().backend();
        let block = backend.allocate_staging(bytes, Direction::Download).unwrap();
        let op = CopyOp::Download {
            from: tensor.buffer().unwrap(),
            from_offset,
            to: HostSide::Staging(&*block, 0),
            bytes,
        };
        // SAFETY: the range lies in the memory of the tensor; the block lives until `result`; the memory of the tensor is kept
        // alive for this stream by the crate, which is what the tests are about (the simulated device notices if it is not).
        let submission = unsafe { backend.submit(&[op], &**stream.backend_stream()) }.unwrap();
        Self { block, bytes, stream: stream.clone(), position: submission.position }
    }

    /// What it read.
    pub(crate) fn result(self) -> Vec<u8> {
        assert!(self.stream.backend_stream().wait(self.position, Some(PATIENCE)).unwrap());
        let start = self.block.contents().unwrap();
        // SAFETY: the block has so many bytes, all of them initialised by the simulated device, whose copy into it is done.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.bytes) }.to_vec()
    }
}

/// Waits for something that another thread is about to bring about.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        thread::yield_now();
    }
}

/// Whatever a test does within a time, a busy machine may need longer for: tried again with more and more of it.
pub(crate) fn given_time<R>(mut attempt: impl FnMut(Duration) -> Option<R>) -> R {
    let mut limit = Duration::from_millis(20);
    loop {
        if let Some(result) = attempt(limit) {
            return result;
        }
        assert!(limit < PATIENCE, "not even within {limit:?}");
        limit *= 4;
    }
}

/// Fails, and does not hang, if `work` does not come to its end.
pub(crate) fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = mpsc::channel();
    let worker = thread::spawn(move || drop(done.send(work())));
    match result.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not come to its end"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = worker.join().expect_err("a result is sent unless there is a panic");
            std::panic::resume_unwind(panic)
        }
    }
}

#[track_caller]
pub(crate) fn no_violations(late: &LateHandle) {
    assert!(late.violations().is_empty(), "{:?}", late.violations());
}
