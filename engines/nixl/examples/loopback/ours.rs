//! Trees, by this crate.

use std::time::{Duration, Instant};

use transship::Tensor;
use transship_nixl::{Agent, AgentOptions, Nixl, Peer};

use crate::other::Other;
use crate::{BYTES, Result};

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Ours {
    agent: Agent,
    peer: Peer,
}

/// So many tensors of together [`BYTES`].
pub(crate) fn tree(tensors: usize, seed: u8) -> Vec<Tensor> {
    (0..tensors).map(|number| Tensor::from(vec![seed + (number % 7) as u8; BYTES / tensors])).collect()
}

impl Ours {
    pub(crate) fn new(name: &str, transport: &str, other: &mut Other) -> Result<Self> {
        let mut options = AgentOptions::default().arena_bytes(BYTES + (1 << 20));
        if transport == "tcp" {
            options = options.parameter("engine_config", "TLS=tcp");
        }
        let agent = Agent::new(&Nixl::load()?, name, options)?;
        let peer = agent.add_peer(&other.swap(&agent.metadata()?)?)?;
        Ok(Self { agent, peer })
    }

    pub(crate) fn send(&self, tree: &Vec<Tensor>) -> Result<()> {
        Ok(self.agent.start_send(tree, &self.peer, LIMIT)?.wait()?)
    }

    pub(crate) fn receive(&self, what: &str, other: &mut Other) -> Result<Duration> {
        let begun = Instant::now();
        other.say(what)?;
        let received = self.agent.start_receive(&self.peer, LIMIT)?.wait()?;
        let time = begun.elapsed();
        drop(received);
        Ok(time)
    }

    pub(crate) fn receive_into(
        &self,
        what: &str,
        held: &mut Vec<Tensor>,
        other: &mut Other,
    ) -> Result<Duration> {
        let begun = Instant::now();
        other.say(what)?;
        *held = self.agent.start_receive_into(std::mem::take(held), &self.peer, LIMIT)?.wait()?;
        let time = begun.elapsed();
        let is_right = |(number, tensor): (usize, &Tensor)| {
            Ok(tensor.as_slice::<u8>()?.last() == Some(&(1 + (number % 7) as u8)))
        };
        match held.iter().enumerate().map(is_right).collect::<transship::Result<Vec<_>>>()? {
            right if right.iter().all(|is_right| *is_right) => Ok(time),
            _ => Err("wrong bytes".into()),
        }
    }
}
