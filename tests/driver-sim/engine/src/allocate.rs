//! Allocating and freeing at once: device memory, and page-locked memory of the host.

use crate::failure::Failure;
use crate::faults::Limited;
use crate::memory::{Block, Kind, Life};
use crate::pages;
use crate::shared::Piece;
use crate::sim::Sim;

/// What an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The device that it lies on; `None` for page-locked memory of the host.
    pub device: Option<usize>,
    /// Where its allocation begins.
    pub start: u64,
    /// How large that is.
    pub bytes: usize,
    /// The context that has allocated it.
    pub context: u64,
    /// The pool that it is of.
    pub pool: Option<u64>,
}

impl Sim {
    /// Allocates device memory at once.
    pub fn allocate(&mut self, bytes: usize) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        self.check_capture()?;
        let device = self.context(context)?.device;
        self.make_room(device, None, bytes)?;
        self.devices[device].plain_bytes += bytes as u64;
        let kind = Kind::Device { device, pool: None };
        let block = Block::new(bytes, kind, context, Life::Alive, self.call);
        Ok(self.memory.add_device(block, device).1)
    }

    /// Frees device memory at once. Work that still uses it is a violation.
    pub fn free(&mut self, address: u64) -> Result<(), Failure> {
        if address == 0 {
            return Ok(());
        }
        self.usable_context()?;
        self.check_capture()?;
        let block = self.starting_at(address, false)?;
        self.check_unused(block);
        let call = self.call;
        self.remove_block(block, call);
        Ok(())
    }

    /// Allocates page-locked memory.
    pub fn allocate_pinned(&mut self, bytes: usize, portable: bool) -> Result<u64, Failure> {
        let kind = Kind::Pinned { portable, registered: false, read_only: false };
        let block = self.new_pinned(bytes, kind)?;
        let address = self.memory.add_pinned(block).ok_or(Failure::OutOfMemory)?;
        self.counters.pinned(bytes);
        Ok(address)
    }

    /// Page-locks memory of the program where it lies. What is mapped read-only must be meant to be read only.
    pub fn register_pinned(
        &mut self,
        address: u64,
        bytes: usize,
        portable: bool,
        read_only: bool,
    ) -> Result<(), Failure> {
        if address == 0 || !pages::are_mapped(address as usize, bytes, !read_only) {
            return Err(Failure::InvalidValue);
        }
        let block = self.new_pinned(bytes, Kind::Pinned { portable, registered: true, read_only })?;
        self.memory.add_registered(address, block).ok_or(Failure::AlreadyRegistered)?;
        self.counters.pinned(bytes);
        Ok(())
    }

    fn new_pinned(&mut self, bytes: usize, kind: Kind) -> Result<Block, Failure> {
        let context = self.usable_context()?;
        self.check_capture()?;
        let in_all = self.counters.figure("pinned").unwrap_or(0) + bytes as u64;
        if bytes == 0 {
            return Err(Failure::InvalidValue);
        }
        if self.faults.exceeds(Limited::Pinned, in_all) {
            return Err(Failure::OutOfMemory);
        }
        Ok(Block::new(bytes, kind, context, Life::Alive, self.call))
    }

    /// Frees page-locked memory of the driver's own. Work that still uses it is a violation.
    pub fn free_pinned(&mut self, address: u64) -> Result<(), Failure> {
        self.end_pinned(address, false)
    }

    /// Unlocks memory that was registered. Work that still uses it is a violation.
    pub fn unregister_pinned(&mut self, address: u64) -> Result<(), Failure> {
        self.end_pinned(address, true)
    }

    fn end_pinned(&mut self, address: u64, was_registered: bool) -> Result<(), Failure> {
        self.usable_context()?;
        self.check_capture()?;
        let block = self.starting_at(address, true)?;
        let kind = self.memory.block(block).map(|block| block.kind);
        if !matches!(kind, Some(Kind::Pinned { registered, .. }) if registered == was_registered) {
            self.violation(format!("{address:#x} is page-locked memory that ends by the other call"));
            return Err(Failure::InvalidValue);
        }
        self.check_unused(block);
        let call = self.call;
        self.remove_block(block, call);
        Ok(())
    }

    /// Bytes of the current device that are free, and all of them.
    pub fn memory_info(&mut self) -> Result<(u64, u64), Failure> {
        let device = self.current_device()?;
        Ok((self.available(device), self.settings.memory))
    }

    /// Bytes of a device.
    pub fn total_memory(&mut self, ordinal: i32) -> Result<u64, Failure> {
        self.device(ordinal)?;
        Ok(self.settings.memory)
    }

    /// What lies at an address; `None` for memory that the driver does not know.
    pub fn place(&mut self, address: u64) -> Result<Option<Place>, Failure> {
        self.check_initialised()?;
        let found = self.memory.find(address).and_then(|(number, _)| self.memory.block(number));
        Ok(found.map(|block| {
            let (device, pool) = match block.kind {
                Kind::Device { device, pool } => (Some(device), pool),
                Kind::Pinned { .. } => (None, None),
            };
            Place { device, start: block.address, bytes: block.bytes, context: block.context, pool }
        }))
    }

    /// Takes an allocation away and gives its bytes back to where they came from.
    pub(crate) fn remove_block(&mut self, block: u64, call: &'static str) {
        let Some(block) = self.memory.remove(block, call) else { return };
        if let Some(Err(wrong)) = block.piece().map(Piece::end) {
            self.violation(wrong.to_owned());
        }
        match block.kind {
            Kind::Pinned { .. } => self.counters.unpinned(block.bytes),
            Kind::Device { pool: Some(pool), .. } => {
                if let Some(owner) = self.pools.get_mut(&pool) {
                    owner.used -= block.bytes as u64;
                }
                self.settle(pool);
            }
            Kind::Device { device, pool: None } => {
                let plain = &mut self.devices[device].plain_bytes;
                *plain = plain.saturating_sub(block.bytes as u64);
            }
        }
    }

    /// The allocation that begins at an address and is not freed yet.
    pub(crate) fn starting_at(&mut self, address: u64, pinned: bool) -> Result<u64, Failure> {
        let found = match self.memory.find(address) {
            Some((number, 0)) => {
                self.memory.block(number).map(|block| (number, block.is_pinned(), block.freeing))
            }
            _ => None,
        };
        let what = match found {
            Some((number, is_pinned, None)) if is_pinned == pinned => return Ok(number),
            Some((_, _, Some(call))) => format!("{address:#x} is freed twice: by {call} before"),
            Some(_) => format!("{address:#x} is memory of another kind"),
            None => match self.memory.grave(address) {
                Some(call) => format!("{address:#x} is freed twice: by {call} before"),
                None => format!("no allocation begins at {address:#x}"),
            },
        };
        self.violation(what);
        Err(Failure::InvalidValue)
    }

    /// Nothing that is submitted may use memory that is freed at once.
    fn check_unused(&mut self, block: u64) {
        let ops =
            self.active.iter().filter_map(|stream| self.streams.get(stream)).flat_map(|stream| &stream.queue);
        let user = ops.filter(|op| op.work.blocks().contains(&block)).map(|op| op.call).next();
        if let Some(call) = user {
            self.violation(format!("the memory is freed while {call} still uses it"));
        }
    }
}
