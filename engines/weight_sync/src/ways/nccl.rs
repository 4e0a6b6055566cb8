//! Over NCCL, between GPUs: a broadcast.

use std::time::Duration;

use transship::Device;
use transship_nccl::{Communicator, Error, Failed, Nccl, Pending, UniqueId};

use crate::Result;
use crate::options::Options;
use crate::weights::Weights;

pub(crate) struct Sender {
    nccl: Nccl,
    device: Device,
    /// For those that will join.
    id: Option<UniqueId>,
    communicator: Option<Communicator>,
    met: Vec<usize>,
    limit: Duration,
}

impl Sender {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let device = options.device_of_trainer()?;
        let nccl = Nccl::of(&device)?;
        Ok(Self { nccl, device, id: None, communicator: None, met: Vec::new(), limit: options.limit })
    }
}

impl super::Sender for Sender {
    fn hello(&mut self) -> Result<Vec<u8>> {
        let id = UniqueId::new(&self.nccl)?;
        let bytes = id.to_bytes().to_vec();
        self.id = Some(id);
        Ok(bytes)
    }

    fn meet(&mut self, number: usize, _: &[u8]) -> Result<()> {
        self.met.push(number);
        Ok(())
    }

    fn begin(&mut self, processes: usize) -> Result<()> {
        let id = self.id.take().ok_or("nobody has said hello")?;
        self.communicator =
            Some(Communicator::join(&self.nccl, &id, 0, processes, &self.device, self.limit)?);
        Ok(())
    }

    fn send(&mut self, weights: &Weights) -> Vec<(usize, String)> {
        let sent = broadcast(self.communicator.as_mut(), weights);
        // One that is missing is the end of all.
        let reason = sent.err().map(|error| error.to_string());
        reason
            .map_or_else(Vec::new, |reason| self.met.iter().map(|number| (*number, reason.clone())).collect())
    }

    fn lose(&mut self, number: usize) -> Result<Option<Vec<u8>>> {
        self.met.retain(|other| *other != number);
        leave(&mut self.communicator);
        self.hello().map(Some)
    }
}

pub(crate) struct Receiver {
    nccl: Nccl,
    device: Device,
    id: Option<UniqueId>,
    communicator: Option<Communicator>,
    limit: Duration,
}

impl Receiver {
    pub(crate) fn new(options: &Options, number: usize) -> Result<Self> {
        let device = options.device_of_inference(number)?;
        let nccl = Nccl::of(&device)?;
        Ok(Self { nccl, device, id: None, communicator: None, limit: options.limit })
    }
}

impl super::Receiver for Receiver {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn meet(&mut self, hello: &[u8]) -> Result<()> {
        leave(&mut self.communicator);
        self.id = Some(UniqueId::from_bytes(hello.try_into().map_err(|_| "no id of NCCL")?));
        Ok(())
    }

    fn begin(&mut self, number: usize, processes: usize) -> Result<()> {
        let id = self.id.take().ok_or("the trainer was not met")?;
        let joined = Communicator::join(&self.nccl, &id, 1 + number, processes, &self.device, self.limit)?;
        self.communicator = Some(joined);
        Ok(())
    }

    fn receive(&mut self, held: &mut Weights) -> Result<()> {
        let there = broadcast(self.communicator.as_mut(), held)?;
        Ok(there.copy_into(held)?)
    }
}

/// A rank has died: it is not waited for.
fn leave(communicator: &mut Option<Communicator>) {
    if let Some(communicator) = communicator.take() {
        communicator.abort();
    }
}

/// The weights of the trainer. They come in memory of their own.
fn broadcast(communicator: Option<&mut Communicator>, weights: &Weights) -> Result<Weights> {
    let communicator = communicator.ok_or("no communicator")?;
    let pending: Result<Pending<Weights>, Failed<Weights>> = communicator.broadcast(weights.clone(), 0);
    Ok(pending.map_err(Error::from)?.wait()?)
}
