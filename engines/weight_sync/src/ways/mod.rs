//! The ways that weights go: what is different between them, and nothing else.

mod ipc;
mod nccl;
mod nixl;
mod window;

use crate::Result;
use crate::options::{By, Options};
use crate::weights::Weights;

/// The trainer's end.
pub(crate) trait Sender {
    /// What inference processes need to meet it.
    fn hello(&mut self) -> Result<Vec<u8>>;
    /// An inference process, which meets it at the same time.
    fn meet(&mut self, number: usize, hello: &[u8]) -> Result<()>;
    /// All have met: there are so many processes.
    fn begin(&mut self, processes: usize) -> Result<()>;
    /// Sends the weights to all of them, and waits until they have them. Gives the numbers of those that did not get them, with the reason. What was sent can
    /// be changed from then on.
    fn send(&mut self, weights: &Weights) -> Vec<(usize, String)>;
    /// An inference process has gone. Gives what the others need to meet it anew, if they must.
    fn lose(&mut self, number: usize) -> Result<Option<Vec<u8>>>;
}

/// The end of an inference process.
pub(crate) trait Receiver {
    /// What the trainer needs to meet it.
    fn hello(&mut self) -> Result<Vec<u8>>;
    /// The trainer, which meets it at the same time, or has met it before, if another process has gone since.
    fn meet(&mut self, hello: &[u8]) -> Result<()>;
    /// All have met: it is the process of this number among so many.
    fn begin(&mut self, number: usize, processes: usize) -> Result<()>;
    /// Waits for what must not be waited for with weights that are locked.
    fn arrive(&mut self) -> Result<()> {
        Ok(())
    }
    /// Gets the next weights into the memory of `held`.
    fn receive(&mut self, held: &mut Weights) -> Result<()>;
    /// No request reads `held` any more, which the next weights come into: what the trainer waits for can go before it has them.
    fn retire(&mut self, _held: &mut Weights) {}
}

pub(crate) fn sender(options: &Options) -> Result<Box<dyn Sender>> {
    Ok(match options.by {
        By::Ipc => Box::new(ipc::Sender::new(options)?),
        By::Window => Box::new(window::Sender::new(options)),
        By::Nixl => Box::new(nixl::Sender::new(options)?),
        By::Nccl => Box::new(nccl::Sender::new(options)?),
    })
}

pub(crate) fn receiver(options: &Options, number: usize) -> Result<Box<dyn Receiver>> {
    Ok(match options.by {
        By::Ipc => Box::new(ipc::Receiver::new(options, number)?),
        By::Window => Box::new(window::Receiver::new(options, number)?),
        By::Nixl => Box::new(nixl::Receiver::new(options, number)?),
        By::Nccl => Box::new(nccl::Receiver::new(options, number)?),
    })
}
