//! Invariant: copies of one thread do not break the capture of a graph on another.

use futures::executor::block_on;
use transship_core::{CopyOptions, Device, Error, Tensor, start_copy};

use crate::bed::{self, down, numbers, up};
use crate::driver::{
    Code, Current, Handle, RawStream, allocate, begin_capture, check, end_capture, free, set_bytes,
    stream_from_raw,
};
use crate::suite::Outcome;

const BYTES: usize = 4096;

pub(crate) fn copies_do_not_break_the_capture_of_another_thread() -> Outcome {
    captured_while(|device| {
        for seed in 0..50 {
            let source = vec![Tensor::from(numbers(3000, seed)), Tensor::from(numbers(7, seed))];
            let copied = block_on(start_copy(source, device, CopyOptions::default())?)?;
            let back = block_on(start_copy(copied, &Device::host(), CopyOptions::default())?)?;
            assert_eq!(back[0].to_vec::<f32>()?, numbers(3000, seed));
        }
        Ok(())
    })
}

pub(crate) fn growing_does_not_break_the_capture_of_another_thread() -> Outcome {
    captured_while(|device| {
        device.prepare(16 << 20)?;
        let large = up(Tensor::from(numbers(4 << 20, 1)), device);
        assert_eq!(down(large).to_vec::<f32>()?, numbers(4 << 20, 1));
        let stream = device.create_stream(Default::default())?;
        stream.synchronize()?;
        device.trim();
        Ok(())
    })
}

/// Captures a stream on this thread while another one does `work`.
fn captured_while(work: impl FnOnce(&Device) -> Outcome + Send) -> Outcome {
    let device = bed::warm_device(0);
    let stream = RawStream::of(&device);
    let memory = Memory::new(&device);
    let _current = Current::of(&device);
    begin_capture(stream.handle);
    let first = memory.try_clear(stream.handle, 1);
    let worked = std::thread::scope(|scope| scope.spawn(|| work(&device)).join());
    let second = memory.try_clear(stream.handle, 2);
    let graph = end_capture(stream.handle);
    worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    check("clearing at the beginning of the capture", first);
    check("clearing after the work of the other thread", second);
    let graph = graph.unwrap_or_else(|code| panic!("the capture was broken: {code:?}"));
    graph.launch(stream.handle);
    Ok(())
}

/// A graph would copy out of staging memory that is in use by others when it is launched.
pub(crate) fn a_copy_on_a_captured_stream_is_refused() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    let memory = Memory::new(&device);
    // SAFETY: the stream outlives what is made of it.
    let stream = unsafe { stream_from_raw(&device, raw.handle)? };
    let graph = {
        let _current = Current::of(&device);
        begin_capture(raw.handle);
        let source = Tensor::from(numbers(3000, 5));
        let refused = start_copy(source, &device, CopyOptions::default().stream(&stream));
        let first = memory.try_clear(raw.handle, 1);
        let graph = end_capture(raw.handle);
        check("clearing after the refusal", first);
        let refused = refused.err().ok_or("a copy was captured")?;
        assert!(matches!(refused.error(), Error::StreamCaptured { .. }), "{refused}");
        let back = refused.into_value().ok_or("the tensor is gone")?;
        assert_eq!(back.as_slice::<f32>()?, numbers(3000, 5));
        graph.unwrap_or_else(|code| panic!("the capture was broken: {code:?}"))
    };
    drop(graph);
    assert_eq!(down(up(Tensor::from(numbers(3000, 6)), &device)).to_vec::<f32>()?, numbers(3000, 6));
    drop(memory);
    Ok(())
}

/// Something for a graph to work on.
struct Memory<'a> {
    device: &'a Device,
    address: u64,
}

impl<'a> Memory<'a> {
    fn new(device: &'a Device) -> Self {
        Self { device, address: allocate(device, &[0; BYTES]) }
    }

    fn try_clear(&self, stream: Handle, value: u8) -> Code {
        // SAFETY: so many bytes are there, and the stream is of the current device.
        unsafe { set_bytes(self.address, value, BYTES, stream) }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _current = Current::of(self.device);
        // SAFETY: allocated by `new`; the graphs over it have run.
        let result = unsafe { free(self.address) };
        if !std::thread::panicking() {
            check("free", result);
        }
    }
}
