//! A session whose inputs and outputs stay where they are.

use ort::environment::Environment;
use ort::session::{IoBinding, NoSelectedOutputs, RunOptions, Session};
use transship::backend::StreamPriority;
use transship::prelude::*;
use transship::{CopyHandle, Stream};

use crate::cameras::{Camera, Seen};
use crate::{Result, session};

/// What the model makes of a request: `scores` and `total` are its outputs.
#[derive(TensorTree, Clone)]
pub(crate) struct Answer {
    pub(crate) scores: Tensor,
    pub(crate) total: Tensor,
}

/// One of so many runs waits for the device: ONNX Runtime lets go of what operators have on the host for the runs before in no other one.
const WAITS_EVERY: usize = 64;

/// Fields are dropped in this order: the memory goes after all that knows its addresses, the stream last.
pub(crate) struct Bound {
    binding: IoBinding,
    session: Session,
    options: RunOptions<NoSelectedOutputs>,
    runs: usize,
    /// Where the session reads; nothing after a copy that has failed.
    inputs: Option<Vec<Camera>>,
    outputs: Answer,
    compute: Compute,
}

impl Bound {
    /// Of the structure and shapes of `like`; `rows` scores come out.
    pub(crate) fn new(
        environment: &Environment,
        model: &[u8],
        device: &Device,
        like: Vec<Seen>,
        rows: usize,
    ) -> Result<Self> {
        let compute = Compute::new(device)?;
        let session = match &compute.0 {
            Some(stream) => session::on_stream(environment, model, stream)?,
            None => session::ordinary(environment, model, device)?,
        };
        // Packed into one allocation, which one copy fills from then on, even on the host.
        let packed = CopyOptions::default().policy(CopyPolicy::Always);
        let inputs = compute.hand_over(transship::start_copy(tensors(like)?, device, packed)?)?;
        let outputs = Answer {
            scores: Tensor::zeros(&[rows, 1], DType::F32, device)?,
            total: Tensor::zeros(&[], DType::F32, device)?,
        };
        compute.record(&outputs)?;
        // SAFETY: the struct drops the binding before the memory, which the compute stream was handed. Whatever else uses it
        // is a copy of `request`, which is on that stream, before or behind the runs.
        let binding = unsafe { transship_ort::bind(&session, &inputs, &outputs)? };
        let mut options = RunOptions::new()?;
        if compute.0.is_some() {
            // What comes behind a run is on its stream, and need not be waited for here.
            options.disable_device_sync()?;
        }
        Ok(Self { binding, session, options, inputs: Some(inputs), outputs, compute, runs: 0 })
    }

    /// Copies in, runs, copies out. On a GPU the host waits once, for the answer.
    pub(crate) fn request(&mut self, request: Vec<Seen>) -> Result<Answer> {
        let inputs = self.inputs.take().ok_or("an earlier copy has failed, and its memory is gone")?;
        let filling = transship::start_copy_into(tensors(request)?, inputs, self.compute.options());
        // On an error there are no inputs, and so nothing runs any more on memory that is gone.
        self.inputs = Some(self.compute.hand_over(filling?)?);
        self.runs += 1;
        match self.runs % WAITS_EVERY {
            0 => self.session.run_binding(&self.binding)?,
            _ => self.session.run_binding_with_options(&self.binding, &self.options)?,
        };
        let answer = transship::start_copy(self.outputs.clone(), &Device::host(), self.compute.options())?;
        Ok(answer.wait()?)
    }
}

/// What the last runs have on the host goes while the session is there. With the session it would go in a callback of CUDA, where ONNX Runtime may not free it: that ends
/// the process (1.31).
impl Drop for Bound {
    fn drop(&mut self) {
        if let (Some(stream), Some(_)) = (&self.compute.0, &self.inputs) {
            let _ = self.session.run_binding(&self.binding);
            let _ = stream.synchronize();
        }
    }
}

/// The stream that the session works on; the host has none.
struct Compute(Option<Stream>);

impl Compute {
    fn new(device: &Device) -> Result<Self> {
        let stream = (!device.is_host()).then(|| device.create_stream(StreamPriority::Normal)).transpose()?;
        Ok(Self(stream))
    }

    /// Copies come in the order of runs.
    fn options(&self) -> CopyOptions {
        match &self.0 {
            Some(stream) => CopyOptions::default().stream(stream),
            None => CopyOptions::default(),
        }
    }

    /// What runs from now on finds the tensors filled.
    fn hand_over(&self, copy: CopyHandle<Vec<Camera>>) -> Result<Vec<Camera>> {
        Ok(match &self.0 {
            Some(stream) => copy.wait_on(stream)?,
            None => copy.wait()?,
        })
    }

    /// Keeps the memory until what was submitted here is done.
    fn record(&self, outputs: &Answer) -> Result<()> {
        if let Some(stream) = &self.0 {
            outputs.scores.record_stream(stream)?;
            outputs.total.record_stream(stream)?;
        }
        Ok(())
    }
}

/// Copies nothing.
fn tensors(request: Vec<Seen>) -> Result<Vec<Camera>> {
    Ok(request.into_iter().map(Camera::try_from).collect::<transship::Result<_>>()?)
}
