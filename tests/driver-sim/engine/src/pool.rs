//! Pools of device memory, and allocating and freeing out of them in stream order.

use std::collections::BTreeSet;

use crate::failure::Failure;
use crate::faults::Limited;
use crate::memory::{Block, Kind, Life};
use crate::shared::PoolFile;
use crate::sim::{self, Sim};
use crate::stream::Work;

/// A pool of device memory.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    pub(crate) used: u64,
    reserved: u64,
    most_used: u64,
    most_reserved: u64,
    threshold: u64,
    /// Other devices that may use its memory.
    pub(crate) access: BTreeSet<usize>,
    /// It is that of the device, and never destroyed.
    pub(crate) default: bool,
    /// Destroyed; it goes with its last allocation.
    pub(crate) destroyed: bool,
    /// Where its memory lies, if another process may have it as well.
    file: Option<PoolFile>,
    pub(crate) call: &'static str,
}

/// A figure of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFigure {
    /// Bytes that it keeps although nobody uses them.
    Threshold,
    /// Bytes held from the device.
    Reserved,
    /// Bytes in use.
    Used,
    /// The most that was ever held, since the pool was made or this was reset.
    MostReserved,
    /// The most that was ever in use, since then.
    MostUsed,
}

impl Sim {
    /// Whether devices have pools.
    pub fn has_pools(&self) -> bool {
        self.settings.pools
    }

    /// Creates a pool on a device.
    pub fn create_pool(&mut self, ordinal: i32) -> Result<u64, Failure> {
        self.device(ordinal)?;
        self.add_pool(ordinal as usize, false, None)
    }

    /// Whether other processes can import pools.
    pub fn has_shared_pools(&self) -> bool {
        self.settings.pools && self.settings.shared_pools
    }

    /// Creates a pool that another process can import.
    pub fn create_shared_pool(&mut self, ordinal: i32) -> Result<u64, Failure> {
        self.device(ordinal)?;
        if !self.has_shared_pools() {
            return Err(Failure::NotSupported);
        }
        let file = PoolFile::new(ordinal as usize).ok_or(Failure::OutOfMemory)?;
        self.add_pool(ordinal as usize, false, Some(file))
    }

    /// A descriptor by which another process imports such a pool.
    pub fn export_pool(&mut self, pool: u64) -> Result<i32, Failure> {
        let file = self.pool(pool)?.file.as_ref().filter(|file| !file.imported);
        file.ok_or(Failure::InvalidValue)?.export().ok_or(Failure::Unknown)
    }

    /// The pool of another process. Nothing can be allocated out of it. Whoever imports it again gets the same one (H100, driver 580).
    pub fn import_pool(&mut self, descriptor: i32) -> Result<u64, Failure> {
        self.check_initialised()?;
        if !self.has_shared_pools() {
            return Err(Failure::NotSupported);
        }
        let (file, device) = PoolFile::import(descriptor).ok_or(Failure::InvalidValue)?;
        self.device(device as i32)?;
        let is_there = |pool: &Pool| {
            !pool.destroyed && pool.file.as_ref().is_some_and(|there| there.is_same_import(&file))
        };
        if let Some((number, _)) = self.pools.iter().find(|(_, pool)| is_there(pool)) {
            return Ok(*number);
        }
        self.add_pool(device, false, Some(file))
    }

    /// The name of memory of such a pool.
    pub fn export_pointer(&mut self, address: u64) -> Result<[u64; 8], Failure> {
        self.check_initialised()?;
        let block = self.memory.find(address).filter(|(_, offset)| *offset == 0);
        let block = block.and_then(|(block, _)| self.memory.block(block));
        block.and_then(|block| block.piece()?.name()).ok_or(Failure::InvalidValue)
    }

    /// Memory of a pool that was imported. A driver maps it once: whoever imports it again gets the same address (H100, driver 580).
    pub fn import_pointer(&mut self, pool: u64, name: &[u64; 8]) -> Result<u64, Failure> {
        let context = self.usable_context()?;
        self.check_capture()?;
        let imported = self.pool(pool)?;
        let device = imported.device;
        let file = imported.file.as_ref().filter(|file| file.imported).ok_or(Failure::InvalidValue)?;
        let (piece, bytes) = file.find(name).ok_or(Failure::InvalidValue)?;
        let is_there = |block: &Block| block.piece().is_some_and(|there| there.is_same_import(&piece));
        if let Some((_, there)) = self.memory.blocks().find(|(_, block)| is_there(block)) {
            piece.end().map_err(|_| Failure::Unknown)?;
            return Ok(there.address);
        }
        let imported = self.pool(pool)?;
        imported.used += bytes as u64;
        let kind = Kind::Device { device, pool: Some(pool) };
        let block = Block::new(bytes, kind, context, Life::Alive, self.call);
        Ok(self.memory.add_device(block.in_piece(Some(piece)), device).1)
    }

    /// The pool that a device has of itself.
    pub fn default_pool(&mut self, ordinal: i32) -> Result<u64, Failure> {
        if let Some(pool) = self.device(ordinal)?.default_pool {
            return Ok(pool);
        }
        let pool = self.add_pool(ordinal as usize, true, None)?;
        self.device(ordinal)?.default_pool = Some(pool);
        Ok(pool)
    }

    /// Destroys a pool; memory out of it that is in use stays.
    pub fn destroy_pool(&mut self, pool: u64) -> Result<(), Failure> {
        let gone = self.pool(pool)?;
        if gone.default {
            return Err(Failure::InvalidValue);
        }
        gone.destroyed = true;
        gone.threshold = 0;
        self.settle(pool);
        Ok(())
    }

    /// Gives what nobody uses back to the device, but for so many bytes.
    pub fn trim_pool(&mut self, pool: u64, keep: u64) -> Result<(), Failure> {
        let pool = self.pool(pool)?;
        pool.reserved = pool.used.max(keep.min(pool.reserved));
        Ok(())
    }

    /// A figure of a pool.
    pub fn pool_figure(&mut self, pool: u64, figure: PoolFigure) -> Result<u64, Failure> {
        let pool = self.pool(pool)?;
        Ok(match figure {
            PoolFigure::Threshold => pool.threshold,
            PoolFigure::Reserved => pool.reserved,
            PoolFigure::Used => pool.used,
            PoolFigure::MostReserved => pool.most_reserved,
            PoolFigure::MostUsed => pool.most_used,
        })
    }

    /// Begins to count the most that a pool had, of one kind, from nothing: what it has now counts with the next allocation only.
    pub fn reset_pool_figure(&mut self, pool: u64, figure: PoolFigure) -> Result<(), Failure> {
        let pool = self.pool(pool)?;
        match figure {
            PoolFigure::MostReserved => pool.most_reserved = 0,
            PoolFigure::MostUsed => pool.most_used = 0,
            PoolFigure::Threshold | PoolFigure::Reserved | PoolFigure::Used => {
                return Err(Failure::InvalidValue);
            }
        }
        Ok(())
    }

    /// Sets how many unused bytes a pool keeps.
    pub fn set_pool_threshold(&mut self, pool: u64, bytes: u64) -> Result<(), Failure> {
        self.pool(pool)?.threshold = bytes;
        Ok(())
    }

    /// Lets another device use the memory of a pool, or no more.
    pub fn set_pool_access(&mut self, pool: u64, ordinal: i32, allowed: bool) -> Result<(), Failure> {
        self.device(ordinal)?;
        let (peers, device) = (self.settings.peers, ordinal as usize);
        let pool = self.pool(pool)?;
        match (device == pool.device, allowed) {
            (true, _) => {}
            (false, true) if !peers => return Err(Failure::PeerUnsupported),
            (false, true) => drop(pool.access.insert(device)),
            (false, false) => drop(pool.access.remove(&device)),
        }
        Ok(())
    }

    /// Whether a device may use the memory of a pool.
    pub fn pool_access(&mut self, pool: u64, ordinal: i32) -> Result<bool, Failure> {
        self.device(ordinal)?;
        let pool = self.pool(pool)?;
        Ok(pool.device == ordinal as usize || pool.access.contains(&(ordinal as usize)))
    }

    /// Allocates out of a pool, or out of that of the stream's device, in stream order.
    pub fn allocate_ordered(&mut self, bytes: usize, pool: Option<u64>, stream: u64) -> Result<u64, Failure> {
        let stream = self.stream_of_current(stream)?;
        self.check_uncaptured(stream)?;
        let context = self.usable_context()?;
        let ordinal = self.context(context)?.device as i32;
        let pool = match pool {
            Some(pool) => pool,
            None => self.default_pool(ordinal)?,
        };
        let device = self.pool(pool)?.device;
        self.make_room(device, Some(pool), bytes)?;
        let used = self.pool(pool)?;
        let piece = match &mut used.file {
            Some(file) if file.imported => return Err(Failure::InvalidValue),
            Some(file) => Some(file.take(bytes).ok_or(Failure::OutOfMemory)?),
            None => None,
        };
        used.used += bytes as u64;
        used.reserved = used.reserved.max(used.used);
        used.most_used = used.most_used.max(used.used);
        used.most_reserved = used.most_reserved.max(used.reserved);
        let kind = Kind::Device { device, pool: Some(pool) };
        let block = Block::new(bytes, kind, context, Life::Ordered, self.call);
        let (number, address) = self.memory.add_device(block.in_piece(piece), device);
        self.submit(stream, Work::Allocate { block: number }, Vec::new())?;
        Ok(address)
    }

    /// Frees memory of a pool in stream order.
    pub fn free_ordered(&mut self, address: u64, stream: u64) -> Result<(), Failure> {
        let stream = self.stream_of_current(stream)?;
        self.check_uncaptured(stream)?;
        let block = self.starting_at(address, false)?;
        let call = self.call;
        if let Some(freed) = self.memory.block_mut(block) {
            if freed.pool().is_none() {
                self.violation(format!("{address:#x} was not allocated in stream order"));
                return Err(Failure::InvalidValue);
            }
            freed.freeing = Some(call);
        }
        self.submit(stream, Work::Free { block }, Vec::new()).map(drop)
    }

    /// Fails unless there is room for so many bytes; work that frees some may run first.
    pub(crate) fn make_room(
        &mut self,
        device: usize,
        pool: Option<u64>,
        bytes: usize,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Err(Failure::InvalidValue);
        }
        let used: u64 = self.own_pools(device).map(|pool| pool.used).sum();
        let in_all = used + self.devices[device].plain_bytes + bytes as u64;
        if self.faults.exceeds(Limited::Device, in_all) {
            return Err(Failure::OutOfMemory);
        }
        if self.has_room(device, pool, bytes) {
            return Ok(());
        }
        while self.step(None) {}
        for idle in self.pools.values_mut().filter(|pool| pool.device == device) {
            idle.reserved = idle.used;
        }
        match self.has_room(device, pool, bytes) {
            true => Ok(()),
            false => Err(Failure::OutOfMemory),
        }
    }

    fn has_room(&self, device: usize, pool: Option<u64>, bytes: usize) -> bool {
        let idle = pool.and_then(|pool| self.pools.get(&pool)).map_or(0, |pool| pool.reserved - pool.used);
        (bytes as u64).saturating_sub(idle) <= self.available(device)
    }

    /// Memory of pools that were imported is another process's.
    fn own_pools(&self, device: usize) -> impl Iterator<Item = &Pool> {
        let is_imported = |pool: &&Pool| pool.file.as_ref().is_some_and(|file| file.imported);
        self.pools.values().filter(move |pool| pool.device == device && !is_imported(pool))
    }

    /// Bytes that nothing holds; a sixteenth of the device is the driver's own.
    pub(crate) fn available(&self, device: usize) -> u64 {
        let held =
            self.own_pools(device).map(|pool| pool.reserved).sum::<u64>() + self.devices[device].plain_bytes;
        (self.settings.memory - self.settings.memory / 16).saturating_sub(held)
    }

    fn add_pool(&mut self, device: usize, default: bool, file: Option<PoolFile>) -> Result<u64, Failure> {
        if !self.settings.pools {
            return Err(Failure::NotSupported);
        }
        let number = self.new_handle(sim::Kind::Pool);
        let pool = Pool {
            device,
            used: 0,
            reserved: 0,
            most_used: 0,
            most_reserved: 0,
            threshold: 0,
            access: BTreeSet::new(),
            default,
            destroyed: false,
            file,
            call: self.call,
        };
        self.pools.insert(number, pool);
        Ok(number)
    }

    fn pool(&mut self, pool: u64) -> Result<&mut Pool, Failure> {
        self.check_initialised()?;
        if self.pools.get(&pool).is_none_or(|pool| pool.destroyed) {
            return Err(self.missing(sim::Kind::Pool, pool));
        }
        self.pools.get_mut(&pool).ok_or(Failure::InvalidHandle)
    }

    /// Gives back what a pool does not keep; a destroyed one goes once it is empty.
    pub(crate) fn settle(&mut self, number: u64) {
        let Some(pool) = self.pools.get_mut(&number) else { return };
        pool.reserved = pool.used.max(pool.threshold.min(pool.reserved));
        if pool.destroyed && pool.used == 0 {
            self.pools.remove(&number);
        }
    }
}

impl Block {
    pub(crate) fn pool(&self) -> Option<u64> {
        match self.kind {
            Kind::Device { pool, .. } => pool,
            Kind::Pinned { .. } => None,
        }
    }
}
