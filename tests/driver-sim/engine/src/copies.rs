//! Copies and fills: what they may touch is looked at when they are submitted, and again when they run.

use std::ops::Range;

use crate::failure::Failure;
use crate::memory::{Kind, Side};
use crate::sim::Sim;
use crate::stream::{Direction, Work};

/// So much of pageable memory is taken over by the call; more is waited for.
const STAGED: usize = 64 << 10;

/// Whether a call comes back before its work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Return {
    /// As soon as the work is submitted, where the memory allows it.
    AtOnce,
    /// Once the work is done.
    WhenDone,
}

impl Sim {
    /// Copies from the host to a device.
    pub fn copy_up(
        &mut self,
        to: u64,
        from: u64,
        bytes: usize,
        stream: u64,
        back: Return,
    ) -> Result<(), Failure> {
        let context = self.usable_context()?;
        let mut back = back;
        let to = self.device_side(to, bytes, context)?;
        let from = match self.host_side(from, bytes, context)? {
            Side::Pageable { address } if bytes <= STAGED => Side::Staged(staged(address, bytes)),
            Side::Pageable { address } => {
                back = Return::WhenDone;
                Side::Pageable { address }
            }
            pinned => pinned,
        };
        self.copy(from, to, bytes, stream, Direction::Up, back)
    }

    /// Copies from a device to the host.
    pub fn copy_down(
        &mut self,
        to: u64,
        from: u64,
        bytes: usize,
        stream: u64,
        back: Return,
    ) -> Result<(), Failure> {
        let context = self.usable_context()?;
        let from = self.device_side(from, bytes, context)?;
        let to = self.host_side(to, bytes, context)?;
        self.check_written(&to)?;
        let back = if matches!(to, Side::Pageable { .. }) { Return::WhenDone } else { back };
        self.copy(from, to, bytes, stream, Direction::Down, back)
    }

    /// Copies between memory that the current context reaches.
    pub fn copy_between(
        &mut self,
        to: u64,
        from: u64,
        bytes: usize,
        stream: u64,
        back: Return,
    ) -> Result<(), Failure> {
        let context = self.usable_context()?;
        let (from, to) = (self.device_side(from, bytes, context)?, self.device_side(to, bytes, context)?);
        self.copy(from, to, bytes, stream, Direction::Between, back)
    }

    /// Copies from the memory of one context to that of another, whether they reach each other or not.
    pub fn copy_peer(
        &mut self,
        to: (u64, u64),
        from: (u64, u64),
        bytes: usize,
        stream: u64,
    ) -> Result<(), Failure> {
        let mut sides = Vec::new();
        for (address, context) in [from, to] {
            if let Some(lost) = self.context(context)?.lost {
                return Err(lost);
            }
            sides.push(self.device_side(address, bytes, context)?);
        }
        match <[Side; 2]>::try_from(sides) {
            Ok([from, to]) => self.copy(from, to, bytes, stream, Direction::Between, Return::AtOnce),
            Err(_) => Err(Failure::InvalidValue),
        }
    }

    /// Fills memory of the current context.
    pub fn fill(&mut self, to: u64, value: u8, bytes: usize, stream: u64) -> Result<(), Failure> {
        let context = self.usable_context()?;
        let to = self.device_side(to, bytes, context)?;
        let stream = self.stream_of_current(stream)?;
        match bytes {
            0 => Ok(()),
            _ => self.submit(stream, Work::Fill { to, bytes, value }, Vec::new()).map(drop),
        }
    }

    /// The end of a copy in device memory, which the context must reach.
    pub(crate) fn device_side(&mut self, address: u64, bytes: usize, context: u64) -> Result<Side, Failure> {
        if bytes == 0 {
            return Ok(Side::Nothing);
        }
        let Some((block, offset)) = self.memory.find(address) else {
            return self.wrong(format!("no memory of a device is at {address:#x}"));
        };
        self.check_range(block, offset, bytes)?;
        match self.memory.block(block) {
            Some(found) if found.is_pinned() => {
                self.wrong(format!("{address:#x} is page-locked memory and not a device's"))
            }
            Some(found) if self.reaches(context, found.kind, found.context) => {
                Ok(Side::Block { block, offset })
            }
            _ => self.wrong(format!("the context does not reach the memory at {address:#x}")),
        }
    }

    pub(crate) fn host_side(&mut self, address: u64, bytes: usize, context: u64) -> Result<Side, Failure> {
        if bytes == 0 {
            return Ok(Side::Nothing);
        }
        if let Some((block, offset)) = self.memory.find(address) {
            self.check_range(block, offset, bytes)?;
            let found = self.memory.block(block).map(|block| (block.kind, block.context));
            return match found {
                Some((Kind::Pinned { portable, .. }, owner)) if portable || owner == context => {
                    Ok(Side::Block { block, offset })
                }
                Some((Kind::Pinned { .. }, _)) => {
                    self.wrong(format!("{address:#x} was page-locked for another context only"))
                }
                _ => self.wrong(format!("{address:#x} is memory of a device and not the host's")),
            };
        }
        if let Some(call) = self.memory.grave(address) {
            return self.wrong(format!("the page-locked memory at {address:#x} was freed by {call}"));
        }
        match usize::try_from(address) {
            _ if address == 0 => Err(Failure::InvalidValue),
            Ok(start) if !self.memory.any_within(address, bytes) => Ok(Side::Pageable { address: start }),
            _ => self.wrong(format!("{bytes} bytes from {address:#x} run into page-locked memory")),
        }
    }

    /// What is registered for reading only is not written.
    fn check_written(&mut self, to: &Side) -> Result<(), Failure> {
        let kind = match to {
            Side::Block { block, .. } => self.memory.block(*block).map(|block| block.kind),
            _ => None,
        };
        match kind {
            Some(Kind::Pinned { read_only: true, .. }) => {
                self.wrong("memory is written that is registered for reading only".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn check_range(&mut self, block: u64, offset: usize, bytes: usize) -> Result<(), Failure> {
        let Some(found) = self.memory.block(block) else { return Err(Failure::InvalidValue) };
        let (all, call) = (found.bytes, found.call);
        if let Some(freeing) = found.freeing {
            return self.wrong(format!("memory of {call} is used after {freeing}"));
        }
        let range = Range { start: offset, end: offset.saturating_add(bytes) };
        match range.end <= all {
            true => Ok(()),
            false => self.wrong(format!("bytes {range:?} of {all} that {call} has given")),
        }
    }

    fn reaches(&self, context: u64, kind: Kind, owner: u64) -> bool {
        let Some(user) = self.contexts.get(&context) else { return false };
        match kind {
            Kind::Device { device, pool: Some(pool) } => {
                device == user.device
                    || self.pools.get(&pool).is_some_and(|pool| pool.access.contains(&user.device))
            }
            _ => owner == context || user.peers.contains(&owner),
        }
    }

    fn copy(
        &mut self,
        from: Side,
        to: Side,
        bytes: usize,
        stream: u64,
        direction: Direction,
        back: Return,
    ) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        if back == Return::WhenDone {
            self.check_uncaptured(stream)?;
        }
        if bytes == 0 {
            return Ok(());
        }
        let spoilt = std::mem::take(&mut self.spoil).then(|| to.clone());
        let mut submitted =
            self.submit(stream, Work::Copy { from, to, bytes, done: 0, direction }, Vec::new())?;
        if let Some(at) = spoilt {
            submitted = self.submit(stream, Work::Spoil { at }, Vec::new())?;
        }
        match submitted {
            Some(point) if back == Return::WhenDone => self.finish(point),
            _ => Ok(()),
        }
    }

    fn wrong<R>(&mut self, what: String) -> Result<R, Failure> {
        self.violation(what);
        Err(Failure::InvalidValue)
    }
}

fn staged(address: usize, bytes: usize) -> Box<[u8]> {
    let from = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller of the driver promises that so many bytes are there until the call returns.
    unsafe { std::slice::from_raw_parts(from, bytes) }.into()
}
