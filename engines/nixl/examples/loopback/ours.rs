//! Trees, by this crate.

use std::time::{Duration, Instant};

use transship::{Device, Tensor};
use transship_nixl::{Agent, AgentOptions, Nixl, Peer};

use crate::other::Other;
use crate::trees::check;
use crate::way::{Side, Way, step};
use crate::{BYTES, Result};

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Ours {
    agent: Agent,
    peer: Peer,
}

impl Ours {
    /// One for each arena of the way.
    pub(crate) fn all(way: &Way, side: Side, other: &mut Other) -> Result<Vec<Self>> {
        let device = way.device(side)?;
        let one = |arena: &str| {
            let device = if arena == "host" { Device::host() } else { device.clone() };
            let role = if side == Side::Sender { "sender" } else { "receiver" };
            Self::new(&format!("{role} {arena}"), way, &device, other)
        };
        way.arenas().into_iter().map(one).collect()
    }

    fn new(name: &str, way: &Way, device: &Device, other: &mut Other) -> Result<Self> {
        // What lies between 2,000 tensors.
        let mut options = AgentOptions::default().arena_bytes(BYTES + (1 << 20)).arena_on(device);
        if let Some((key, value)) = way.parameter() {
            options = options.parameter(key, value);
        }
        let failed = |error| format!("an agent with an arena on {}: {error}", device.id());
        let agent = Agent::new(&Nixl::load()?, name, options).map_err(failed)?;
        step(&format!("{name:?} has its arena on {}", device.id()));
        let peer = agent.add_peer(&other.swap(&agent.metadata()?)?)?;
        step(&format!("{name:?} knows {peer}"));
        Ok(Self { agent, peer })
    }

    /// How long it takes until the peer has all of it where it belongs.
    pub(crate) fn send(&self, tree: &Vec<Tensor>) -> Result<Duration> {
        let begun = Instant::now();
        self.agent.start_send(tree, &self.peer, LIMIT)?.wait()?;
        Ok(begun.elapsed())
    }

    pub(crate) fn receive(&self, say: &str, expected: &[Tensor], other: &mut Other) -> Result<Duration> {
        let started = self.agent.start_receive(&self.peer, LIMIT)?;
        other.say(say)?;
        let received = started.wait()?;
        let time = other.hear_time()?;
        let mut shown = expected.to_vec();
        received.put_into(&mut shown)?;
        check(&shown, expected)?;
        Ok(time)
    }

    pub(crate) fn receive_into(
        &self,
        say: &str,
        held: &mut Vec<Tensor>,
        expected: &[Tensor],
        other: &mut Other,
    ) -> Result<Duration> {
        let started = self.agent.start_receive_into(std::mem::take(held), &self.peer, LIMIT)?;
        other.say(say)?;
        *held = started.wait()?;
        let time = other.hear_time()?;
        check(held, expected)?;
        Ok(time)
    }
}
