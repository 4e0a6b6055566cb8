//! Who waits for whom, and that the cases notice when nobody does: each order is tried with a stalled stream, once as it should
//! be and once with the wait left out.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use transship_core::backend::{CopyOp, Direction, HostSide, Staging, StreamPriority};
use transship_core::{CopyOptions, CopyPolicy, Device, Error, Stream, Tensor, start_copy};

use crate::bed::{self, down, numbers};
use crate::driver::{Current, RawStream, begin_capture, check, end_capture, set_bytes, stream_from_raw};

use crate::stall::Stall;
use crate::suite::{Case, Outcome};

use super::memory::lent;

const COUNT: usize = 3000;
const BYTES: usize = 4 * COUNT;
/// Set in the child that has [`a_consumer_that_is_not_told`], which is to fail.
const UNTOLD: &str = "TRANSSHIP_LITMUS_UNTOLD";
/// What the program prints when a consumer has read what was not there yet.
const TOO_EARLY: &str = "litmus: read too early";

/// Producer, copy and consumer on the caller's stream, which is behind all the time.
pub(crate) fn all_on_the_callers_stream() -> Outcome {
    let bench = Bench::new()?;
    for (theirs, round) in [(bench.raw.handle, 1), (std::ptr::null_mut(), 2)] {
        // SAFETY: the default stream is never destroyed; the other one outlives what is made of it.
        let stream = unsafe { stream_from_raw(&bench.device, theirs)? };
        let freed = Arc::default();
        let source = lent(&bench.device, &[0; BYTES], &freed)?;
        let stall = Stall::on(&bench.device, theirs);
        bench.produce(&source, theirs, round);
        source.record_stream(&stream)?;
        let options = CopyOptions::default().stream(&stream).policy(CopyPolicy::Always);
        let copied = start_copy(source, &bench.device, options)?.wait_on(&stream)?;
        let read = Reader::submit(&copied, &stream)?;
        drop(copied);
        stall.release();
        assert_eq!(read.bytes()?, [round; BYTES]);
        stream.synchronize()?;
        // A thread of its own frees the source, in a call of the driver that would wait for the next stall.
        assert!(bed::eventually(|| freed.load(Ordering::SeqCst) == 1), "the source is not given back");
    }
    Ok(())
}

/// The consumer's stream waits for the copy, whose own stream is behind; the results go before the consumer has run.
pub(crate) fn a_consumer_on_another_stream_waits() -> Outcome {
    let bench = Bench::new()?;
    let producer = bench.stream()?;
    let consumer = bench.device.create_stream(StreamPriority::Normal)?;
    let later = bench.device.create_stream(StreamPriority::Normal)?;
    for seed in 0..8 {
        let stall = Stall::on(&bench.device, bench.raw.handle);
        let options = CopyOptions::default().stream(&producer);
        let copied =
            start_copy(Tensor::from(numbers(COUNT, seed)), &bench.device, options)?.wait_on(&consumer)?;
        let first = Reader::submit(&copied, &consumer)?;
        // The handle is gone: another stream is told through the tensor.
        copied.record_stream(&later)?;
        let second = Reader::submit(&copied, &later)?;
        drop(copied);
        assert!(!first.is_done()? && !second.is_done()?, "it did not wait");
        stall.release();
        for read in [first, second] {
            assert_eq!(read.bytes()?, bytes_of(seed));
        }
    }
    // Uses of results are recorded on the streams when those go, and not behind the end of the driver's own.
    [&producer, &consumer, &later].into_iter().try_for_each(Stream::synchronize)?;
    Ok(bench.device.synchronize()?)
}

/// The same without the wait, in a process of its own: it reads too early, and a stand-in says so itself.
pub(crate) fn a_consumer_that_is_not_told_is_caught() -> Outcome {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--exact", "litmus::a_consumer_that_is_not_told", "--include-ignored"]);
    let output = child.env(UNTOLD, "1").output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let is_caught = said.contains("VIOLATION") || said.contains(TOO_EARLY);
    match !output.status.success() && is_caught {
        true => Ok(()),
        false => Err(format!("a missing wait was not noticed ({}): {said}", output.status).into()),
    }
}

/// The case that only a child of [`a_consumer_that_is_not_told_is_caught`] has.
pub(crate) fn of_the_child() -> Option<Case> {
    let case = || Case::new("litmus::a_consumer_that_is_not_told", a_consumer_that_is_not_told);
    std::env::var_os(UNTOLD).is_some().then(case)
}

fn a_consumer_that_is_not_told() -> Outcome {
    let bench = Bench::new()?;
    let producer = bench.stream()?;
    let consumer = bench.device.create_stream(StreamPriority::Normal)?;
    let stall = Stall::on(&bench.device, bench.raw.handle);
    let options = CopyOptions::default().stream(&producer);
    let copied = start_copy(Tensor::from(numbers(COUNT, 1)), &bench.device, options)?.wait_on(&producer)?;
    let reader = Reader::submit(&copied, &consumer)?;
    let read = reader.bytes()?;
    // Freeing pinned memory, that of the reader, would wait for all streams.
    stall.release();
    producer.synchronize()?;
    if read == bytes_of(1) { Ok(()) } else { Err(TOO_EARLY.into()) }
}

/// A copy waits for the producer if the tensor was shown its stream, and only then.
pub(crate) fn a_producer_is_waited_for_if_the_tensor_knows_it() -> Outcome {
    let bench = Bench::new()?;
    let producer = bench.stream()?;
    for is_told in [true, false] {
        let source = bench.lent(3)?;
        let stall = Stall::on(&bench.device, bench.raw.handle);
        bench.produce(&source, bench.raw.handle, 4);
        if is_told {
            source.record_stream(&producer)?;
        }
        let copy = start_copy(source.clone(), &Device::host(), CopyOptions::default())?;
        let stall = (!is_told).then_some(stall);
        let found = copy.wait()?.to_bytes()?;
        assert_eq!(found, vec![if is_told { 4 } else { 3 }; BYTES], "told: {is_told}");
        drop(stall);
        producer.synchronize()?;
    }
    Ok(())
}

/// A stream that is captured can neither wait for a copy nor be waited for: both are refused, and the capture goes on.
pub(crate) fn a_captured_stream_is_not_handed_a_copy() -> Outcome {
    let bench = Bench::new()?;
    let stream = bench.stream()?;
    let behind = bench.device.create_stream(StreamPriority::Normal)?;
    let raw_behind = crate::driver::handle(&behind)?;
    let stall = Stall::on(&bench.device, raw_behind);
    let source = Tensor::from(numbers(COUNT, 5));
    let copy = start_copy(source, &bench.device, CopyOptions::default().stream(&behind))?;
    let graph = {
        let _current = Current::of(&bench.device);
        begin_capture(bench.raw.handle);
        let refused = copy.wait_on(&stream);
        let graph = end_capture(bench.raw.handle);
        let refused = refused.err().ok_or("a captured stream was made to wait")?;
        assert!(matches!(refused.error(), Error::StreamCaptured { .. }), "{refused}");
        graph
    };
    stall.release();
    drop(graph.unwrap_or_else(|code| panic!("the capture was broken: {code:?}")));
    behind.synchronize()?;
    assert_eq!(
        down(bed::up(Tensor::from(numbers(COUNT, 6)), &bench.device)).to_vec::<f32>()?,
        numbers(COUNT, 6)
    );
    Ok(())
}

struct Bench {
    /// Goes before the device, whose context it needs.
    raw: RawStream,
    device: Device,
}

impl Bench {
    fn new() -> Result<Self, libtest_mimic::Failed> {
        let device = bed::warm_device(0);
        let raw = RawStream::of(&device);
        Ok(Self { raw, device })
    }

    fn stream(&self) -> Result<Stream, Error> {
        // SAFETY: the stream outlives what is made of it: the field is dropped behind all that a case makes.
        unsafe { stream_from_raw(&self.device, self.raw.handle) }
    }

    /// Memory of the driver's, filled already.
    fn lent(&self, byte: u8) -> Result<Tensor, Error> {
        lent(&self.device, &[byte; BYTES], &Arc::new(AtomicUsize::new(0)))
    }

    /// What a kernel would do: fills the memory of a tensor on a stream.
    fn produce(&self, tensor: &Tensor, stream: crate::driver::Handle, byte: u8) {
        let address = tensor.address().unwrap().unwrap();
        let _current = Current::of(&self.device);
        // SAFETY: the tensor has so many bytes, and lives until the stream has run.
        check("filling", unsafe { set_bytes(address, byte, BYTES, stream) });
    }
}

/// What a kernel would do: reads a tensor on a stream.
struct Reader {
    block: Box<dyn Staging>,
    stream: Stream,
    position: u64,
}

impl Reader {
    fn submit(tensor: &Tensor, stream: &Stream) -> Result<Self, Error> {
        let backend = stream.device().backend();
        let block = backend.allocate_staging(BYTES, Direction::Download)?;
        let op = CopyOp::Download {
            from: tensor.buffer()?,
            from_offset: tensor.offset(),
            to: HostSide::Staging(&*block, 0),
            bytes: tensor.nbytes(),
        };
        // SAFETY: the range is that of the tensor; the block is kept until the position is reached (`Drop`); that the memory of
        // the tensor stays is what the cases are about.
        let submission = unsafe { backend.submit(&[op], &**stream.backend_stream())? };
        Ok(Self { block, stream: stream.clone(), position: submission.position })
    }

    fn is_done(&self) -> Result<bool, Error> {
        Ok(self.stream.backend_stream().reached()? >= self.position)
    }

    fn bytes(&self) -> Result<Vec<u8>, Error> {
        assert!(self.stream.backend_stream().wait(self.position, None)?);
        let start = self.block.contents().unwrap();
        // SAFETY: the block has room for so many bytes, and the copy into it is done.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), BYTES) }.to_vec())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.stream.backend_stream().wait(self.position, None);
    }
}

fn bytes_of(seed: usize) -> Vec<u8> {
    numbers(COUNT, seed).into_iter().flat_map(f32::to_ne_bytes).collect()
}
