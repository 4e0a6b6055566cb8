//! Graphs that were captured once, over memory that copies fill again and again.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};
use transship_core::{CopyOptions, DType, Device, Stream, Tensor, start_copy, start_copy_into};
use transship_cuda::{device_ptr, stream_from_cudarc};

use crate::bed::{self, down, numbers};
use crate::driver::cudarc_context;
use crate::kernel::AddOne;
use crate::stall::Stall;
use crate::suite::Outcome;

const COUNT: usize = 10_000;
const STEPS: usize = 20;

/// Captured once, it reads at each launch what was copied there before.
pub(crate) fn a_graph_reads_what_was_copied_into_held_memory() -> Outcome {
    let bench = Bench::new()?;
    let (mut held, result) = (bench.floats(&[1, COUNT])?, bench.floats(&[1, COUNT])?);
    let graph = bench.graph(&held, &result)?;
    let address = held.address()?;
    for step in 0..STEPS {
        held = start_copy_into(input(step)?, held, CopyOptions::default())?.wait_on(&bench.stream)?;
        graph.launch()?;
        assert_eq!(held.address()?, address);
        assert!(down(result.clone()).to_vec::<f32>()? == plus_one(step), "step {step}");
    }
    Ok(bench.stream.synchronize()?)
}

/// As above, with all copies on the stream of the graph, which stands still until both copies and the launch are submitted.
pub(crate) fn a_graph_and_copies_on_its_stream_are_submitted_before_any_runs() -> Outcome {
    let bench = Bench::new()?;
    let (mut held, result) = (bench.floats(&[1, COUNT])?, bench.floats(&[1, COUNT])?);
    let graph = bench.graph(&held, &result)?;
    let on_it = || CopyOptions::default().stream(&bench.stream);
    for step in 0..STEPS {
        let stall = Stall::on(&bench.device, bench.theirs.cu_stream());
        held = start_copy_into(input(step)?, held, on_it())?.wait_on(&bench.stream)?;
        graph.launch()?;
        let copy = start_copy(result.clone(), &Device::host(), on_it())?;
        assert!(!copy.is_ready()?, "the stream stands still");
        stall.release();
        assert!(copy.wait()?.to_vec::<f32>()? == plus_one(step), "step {step}");
    }
    Ok(bench.stream.synchronize()?)
}

/// A ring of two slots, each with a graph of its own: one is filled while the graph of the other one runs.
pub(crate) fn one_slot_is_filled_while_the_graph_of_the_other_one_runs() -> Outcome {
    let bench = Bench::new()?;
    let ring = bench.floats(&[2, COUNT])?;
    let addresses = [ring.address()?, ring.narrow(0, 1, 1)?.address()?];
    let mut slots = ring.split(0, &[1, 1])?.into_iter().collect::<std::collections::VecDeque<_>>();
    let results = bench.floats(&[2, COUNT])?.split(0, &[1, 1])?;
    let graphs = slots.iter().zip(&results).map(|(slot, result)| bench.graph(slot, result));
    let graphs = graphs.collect::<Result<Vec<_>, _>>()?;
    let fill = |step, slot| -> Result<_, libtest_mimic::Failed> {
        Ok(start_copy_into(input(step)?, slot, CopyOptions::default())?)
    };
    let mut filling = fill(0, slots.pop_front().ok_or("two slots")?)?;
    for step in 0..STEPS {
        let slot = filling.wait_on(&bench.stream)?;
        assert_eq!(slot.address()?, addresses[step % 2]);
        slots.push_back(slot);
        // It comes behind the graphs that were launched so far, and not behind the one of this step.
        filling = fill(step + 1, slots.pop_front().ok_or("two slots")?)?;
        graphs[step % 2].launch()?;
        assert!(down(results[step % 2].clone()).to_vec::<f32>()? == plus_one(step), "step {step}");
    }
    let first = filling.wait_on(&bench.stream)?;
    let ring = Tensor::join(vec![first, slots.pop_front().ok_or("two slots")?])?;
    let both = [numbers(COUNT, STEPS), numbers(COUNT, STEPS - 1)].concat();
    assert!(down(ring).to_vec::<f32>()? == both, "each slot has what was copied there last");
    Ok(bench.stream.synchronize()?)
}

fn input(step: usize) -> transship_core::Result<Tensor> {
    Tensor::from_vec(numbers(COUNT, step), &[1, COUNT])
}

fn plus_one(step: usize) -> Vec<f32> {
    numbers(COUNT, step).iter().map(|number| number + 1.0).collect()
}

/// A stream of cudarc's, the same one for copies, and a kernel.
struct Bench {
    device: Device,
    theirs: Arc<CudaStream>,
    stream: Stream,
    kernel: AddOne,
}

impl Bench {
    fn new() -> Result<Self, libtest_mimic::Failed> {
        let device = bed::warm_device(0);
        let context = cudarc_context(&device);
        let theirs = context.new_stream()?;
        let stream = stream_from_cudarc(&device, &theirs)?;
        let kernel = AddOne::load(&context, &theirs);
        Ok(Self { device, theirs, stream, kernel })
    }

    /// Memory on the device, there already.
    fn floats(&self, shape: &[usize]) -> transship_core::Result<Tensor> {
        let zeros = Tensor::zeros(shape, DType::F32, &self.device)?;
        self.device.synchronize()?;
        Ok(zeros)
    }

    /// A graph that adds one to what lies in `from` whenever it is launched. Both are held for as long as the graph.
    fn graph(&self, from: &Tensor, to: &Tensor) -> Result<CudaGraph, libtest_mimic::Failed> {
        // What reads them from now on comes behind the graph.
        from.record_stream(&self.stream)?;
        to.record_stream(&self.stream)?;
        self.theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        // SAFETY: both have so many floats, and the case keeps them until the last launch is done.
        unsafe { self.kernel.launch_at(&self.theirs, device_ptr(from)?, device_ptr(to)?, COUNT) };
        let graph = self
            .theirs
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
        Ok(graph.ok_or("nothing was captured")?)
    }
}
