//! Over NIXL, to another machine as well.

use std::time::Duration;

use transship::Device;
use transship_nixl::{Agent, AgentOptions, Error, Nixl, Peer};

use crate::Result;
use crate::options::Options;
use crate::weights::Weights;

pub(crate) struct Sender {
    agent: Agent,
    peers: Vec<(usize, Peer)>,
    limit: Duration,
}

impl Sender {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let agent = agent(options, "trainer", options.inference, &options.device_of_trainer()?)?;
        Ok(Self { agent, peers: Vec::new(), limit: options.limit })
    }
}

impl super::Sender for Sender {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(self.agent.metadata()?)
    }

    fn meet(&mut self, number: usize, hello: &[u8]) -> Result<()> {
        self.peers.push((number, self.agent.add_peer(hello)?));
        Ok(())
    }

    fn begin(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, weights: &Weights) -> Vec<(usize, String)> {
        let start =
            |(number, peer): &(usize, Peer)| (*number, self.agent.start_send(weights, peer, self.limit));
        let started: Vec<_> = self.peers.iter().map(start).collect();
        let ends = started.into_iter().map(|(number, sent)| (number, sent.and_then(|sent| sent.wait())));
        ends.filter_map(|(number, end)| Some((number, end.err()?.to_string()))).collect()
    }

    fn lose(&mut self, number: usize) -> Result<Option<Vec<u8>>> {
        self.peers.retain(|(other, _)| *other != number);
        Ok(None)
    }
}

pub(crate) struct Receiver {
    agent: Agent,
    trainer: Option<Peer>,
    limit: Duration,
}

impl Receiver {
    pub(crate) fn new(options: &Options, number: usize) -> Result<Self> {
        let device = options.device_of_inference(number)?;
        let agent = agent(options, &format!("inference {number}"), 1, &device)?;
        Ok(Self { agent, trainer: None, limit: options.limit })
    }
}

impl super::Receiver for Receiver {
    fn hello(&mut self) -> Result<Vec<u8>> {
        Ok(self.agent.metadata()?)
    }

    fn meet(&mut self, hello: &[u8]) -> Result<()> {
        self.trainer = Some(self.agent.add_peer(hello)?);
        Ok(())
    }

    fn begin(&mut self, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self, held: &mut Weights) -> Result<()> {
        let trainer = self.trainer.as_ref().ok_or("the trainer was not met")?;
        let received = self.agent.start_receive_into(std::mem::take(held), trainer, self.limit);
        match received.and_then(|received| received.wait()) {
            Ok(weights) => *held = weights,
            Err(failed) => {
                *held = failed.value.ok_or("the memory of the weights is lost")?;
                return Err(failed.error);
            }
        }
        Ok(())
    }
}

/// With memory for the weights so many times, where they are if NIXL takes that.
fn agent(options: &Options, name: &str, times: usize, device: &Device) -> Result<Agent> {
    // Packed, each parameter begins at a line of the caches.
    let bytes = times * (options.bytes + 64 * options.parameters + (1 << 20));
    let mut agent = AgentOptions::default().arena_bytes(bytes);
    if device.id().driver() == "cuda" && !options.through_host {
        agent = agent.arena_on(device);
    }
    if let Some(tls) = &options.tls {
        agent = agent.parameter("engine_config", format!("TLS={tls}"));
    }
    Agent::new(&Nixl::load()?, name, agent).map_err(|error| match error {
        Error::NotRegistered { .. } => format!("{error}; or take --through-host").into(),
        other => other.into(),
    })
}
