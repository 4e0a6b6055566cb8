//! Copies that are recorded into a graph: it copies what is there at each launch, and keeps the memory for as long as there is anything of it.

use transship_core::{
    CopyError, CopyHandle, CopyOptions, DType, Device, Error, Stream, Tensor, start_copy, start_copy_into,
};

use crate::bed::{self, down, eventually, numbers, up};
use crate::driver::{Current, Graph, RawStream, begin_capture, end_capture, stream_from_raw};
use crate::stall::Stall;
use crate::suite::Outcome;

const COUNTS: [usize; 3] = [3000, 7, 100_000];

/// A stream that may be captured, and how copies are recorded there.
struct Bench {
    stream: Stream,
    raw: RawStream,
    /// Dropped last: the raw stream is one of its context.
    device: Device,
}

impl Bench {
    fn new() -> Result<Self, Error> {
        let device = bed::warm_device(0);
        let raw = RawStream::of(&device);
        // SAFETY: the stream outlives what is made of it: fields go in their order, and the cases drop this last.
        let stream = unsafe { stream_from_raw(&device, raw.handle)? };
        Ok(Self { stream, raw, device })
    }

    fn recorded(&self) -> CopyOptions {
        // SAFETY: this thread captures, and ends the capture after the call.
        unsafe { CopyOptions::default().stream(&self.stream).into_graph() }
    }

    /// Bytes of tensors on the device, when it has done all there is to do.
    fn used(&self) -> Result<u64, Error> {
        self.device.synchronize()?;
        self.stream.synchronize()?;
        Ok(self.device.memory()?.tensors.unwrap_or(0))
    }

    /// Tensors on the device, in memory of their own, there already.
    fn tensors(&self, seed: usize) -> Result<Vec<Tensor>, Error> {
        let source = floats(seed);
        let options = CopyOptions::default().packing(false);
        Ok(start_copy(source, &self.device, options).and_then(CopyHandle::wait)?)
    }

    /// Captures a copy, and what it has given out; the graph.
    fn capture(&self, from: &[Tensor], to: Vec<Tensor>) -> Result<(Graph, Vec<Tensor>), Error> {
        let _current = Current::of(&self.device);
        begin_capture(self.raw.handle);
        let copied = start_copy_into(from.to_vec(), to, self.recorded()).and_then(|copy| {
            assert!(copy.is_ready().is_ok_and(|ready| ready), "it is recorded, and waits for nothing");
            copy.wait()
        });
        let graph = end_capture(self.raw.handle);
        let copied = copied?;
        Ok((graph.unwrap_or_else(|code| panic!("the capture was broken: {code:?}")), copied))
    }

    fn launch(&self, graph: &Graph) {
        let _current = Current::of(&self.device);
        graph.launch(self.raw.handle);
    }
}

fn floats(seed: usize) -> Vec<Tensor> {
    COUNTS.iter().map(|count| Tensor::from(numbers(*count, seed))).collect()
}

#[track_caller]
fn assert_holds(tensors: &[Tensor], seed: usize) {
    for (tensor, count) in down(tensors.to_vec()).iter().zip(COUNTS) {
        assert!(tensor.to_vec::<f32>().unwrap() == numbers(count, seed), "not the numbers of {seed}");
    }
}

pub(crate) fn a_graph_copies_what_is_there_when_it_is_launched() -> Outcome {
    let bench = Bench::new()?;
    let (mut from, to) = (bench.tensors(1)?, bench.tensors(2)?);
    let (graph, mut to) = bench.capture(&from, to)?;
    assert_holds(&to, 2);
    bench.launch(&graph);
    assert_holds(&to, 1);
    for seed in 3..8 {
        // Both ends are filled anew, as if there were no graph.
        from = start_copy_into(floats(seed), from, CopyOptions::default())?.wait_on(&bench.stream)?;
        to = start_copy_into(floats(100), to, CopyOptions::default())?.wait_on(&bench.stream)?;
        bench.launch(&graph);
        assert_holds(&to, seed);
    }
    drop((graph, from, to));
    bench.used()?;
    Ok(())
}

pub(crate) fn a_graph_keeps_the_memory_of_its_copies() -> Outcome {
    let bench = Bench::new()?;
    let before = bench.used()?;
    let (from, to) = (bench.tensors(1)?, bench.tensors(2)?);
    let parts = Tensor::zeros(&[COUNTS[0]], DType::F32, &bench.device)?.split(0, &[1000, 2000])?;
    let with_tensors = bench.used()?;
    let (graph, to) = bench.capture(&from, to)?;
    let (of_parts, parts) =
        bench.capture(&[from[0].narrow(0, 0, 1000)?, from[0].narrow(0, 1000, 2000)?], parts)?;
    drop((from, to, parts));
    assert_eq!(bench.used()?, with_tensors, "nobody but the graphs knows it");
    // What would be allocated in memory that was freed.
    let others = bench.tensors(9)?;
    bench.launch(&graph);
    bench.launch(&of_parts);
    assert_holds(&others, 9);
    drop(others);
    drop(graph);
    drop(of_parts);
    assert!(eventually(|| bench.used().is_ok_and(|used| used == before)), "memory is never given back");
    Ok(())
}

pub(crate) fn a_launch_keeps_the_memory_of_its_copies() -> Outcome {
    let bench = Bench::new()?;
    let before = bench.used()?;
    let (from, to) = (bench.tensors(1)?, bench.tensors(2)?);
    let (graph, to) = bench.capture(&from, to)?;
    drop((from, to));
    let stall = Stall::on(&bench.device, bench.raw.handle);
    {
        let _current = Current::of(&bench.device);
        graph.launch_and_go(bench.raw.handle);
    }
    let used = bench.device.memory()?.tensors;
    assert!(used.is_some_and(|used| used > before), "{used:?}: the launch has not begun");
    stall.release();
    assert!(eventually(|| bench.used().is_ok_and(|used| used == before)), "memory is never given back");
    Ok(())
}

pub(crate) fn what_a_graph_cannot_hold_is_refused() -> Outcome {
    let bench = Bench::new()?;
    let (from, mut to) = (bench.tensors(1)?, bench.tensors(2)?);
    let square = || up(Tensor::from_vec(numbers(100, 3), &[10, 10]).unwrap(), &bench.device);
    let (columns, into_columns) = (square().narrow(1, 0, 5)?, square().narrow(1, 0, 5)?);
    let stall = Stall::on(&bench.device, bench.raw.handle);
    let filling = start_copy(floats(4), &bench.device, CopyOptions::default().stream(&bench.stream))?;
    let unfilled = filling.wait_on(&bench.stream)?;
    let _current = Current::of(&bench.device);
    begin_capture(bench.raw.handle);
    let without = CopyOptions::default().stream(&bench.stream);
    for (case, source, options) in [
        ("without the option", from.clone(), without),
        ("from the host", floats(1), bench.recorded()),
        ("still being filled", unfilled, bench.recorded()),
    ] {
        let refused = start_copy_into(source, to, options).err().ok_or(case)?;
        assert_refused(case, &refused);
        let (source, into) = refused.into_both();
        assert!(source.is_some(), "{case}");
        to = into.ok_or(case)?;
    }
    let columns = start_copy_into(columns, into_columns, bench.recorded()).err().ok_or("columns")?;
    assert_refused("with gaps", &columns);
    let new =
        start_copy(from.clone(), &bench.device, bench.recorded().policy(transship_core::CopyPolicy::Always));
    assert_refused("new memory", &new.err().ok_or("new memory")?);
    let graph =
        end_capture(bench.raw.handle).unwrap_or_else(|code| panic!("the capture was broken: {code:?}"));
    stall.release();
    graph.launch(bench.raw.handle);
    let to = start_copy_into(from, to, CopyOptions::default())?.wait()?;
    assert_holds(&to, 1);
    drop(to);
    bench.used()?;
    Ok(())
}

#[track_caller]
fn assert_refused<S>(case: &str, refused: &CopyError<S>) {
    assert!(matches!(refused.error(), Error::StreamCaptured { .. }), "{case}: {refused:#}");
}
