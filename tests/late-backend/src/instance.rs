//! The state of one simulated driver, and what makes its streams move.

mod memory;
pub(crate) mod registered;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use transship_core::backend::{Counters, Direction, Ticket};
use transship_core::{DeviceId, Error, Result};

use crate::calls::{Call, Calls, failure};
use crate::config::LateConfig;
use crate::instance::memory::Most;
use crate::instance::registered::Registered;
use crate::memory::{Block, Life};
use crate::queue::{Op, Queue};
use crate::stream::LateStream;
use crate::sync::{Condvar, Instant, Mutex, MutexGuard};

/// One simulated driver.
pub(crate) struct Instance {
    pub(crate) config: LateConfig,
    pub(crate) devices: Vec<DeviceId>,
    state: Mutex<State>,
    /// Told whenever a stall ends, or the device breaks.
    changed: Condvar,
    pub(crate) streams_held: AtomicUsize,
    /// Whether streams panic when they are asked.
    pub(crate) panics: AtomicBool,
}

pub(crate) struct State {
    pub(crate) calls: Calls,
    pub(crate) counters: Vec<Counters>,
    pub(crate) streams: Vec<Queue>,
    /// Device memory that is alive, by number; numbers and addresses are never used twice.
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Staging blocks that are alive, by number.
    pub(crate) staging: BTreeMap<u64, Occupancy>,
    /// Memory of the program that is registered, by number.
    pub(crate) registered: BTreeMap<u64, Registered>,
    /// Memory of each device that is held idle.
    pub(crate) hoards: Vec<usize>,
    most: Vec<Most>,
    pub(crate) violations: Vec<String>,
    pub(crate) stall: Stall,
    retired: Vec<Retired>,
    random: u64,
    next_id: u64,
    next_address: u64,
}

/// Device memory.
pub(crate) struct Allocation {
    pub(crate) device: usize,
    pub(crate) address: u64,
    pub(crate) block: Block,
    /// Whether the stream that it was allocated on has come by.
    pub(crate) usable: bool,
}

/// What a staging block is for, and what uses it.
pub(crate) struct Occupancy {
    direction: Direction,
    /// A stream and the position behind the last submission that uses the block.
    last: Option<(usize, u64)>,
}

/// Whether all streams stand still.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    No,
    UntilReleased,
    Until(Instant),
}

/// Memory that was let go of, and what its end waits for.
struct Retired {
    life: Life,
    /// Streams of this driver, by number: holding the tickets themselves would be a cycle.
    own: Vec<(usize, u64)>,
    foreign: Vec<Ticket>,
}

impl Instance {
    pub(crate) fn new(config: LateConfig) -> Result<Self> {
        let devices = (0..config.devices).map(|ordinal| DeviceId::new(config.name, ordinal));
        let state = State {
            calls: Calls::default(),
            counters: vec![Counters::default(); config.devices],
            streams: Vec::new(),
            allocations: BTreeMap::new(),
            staging: BTreeMap::new(),
            registered: BTreeMap::new(),
            hoards: vec![0; config.devices],
            most: vec![Most::default(); config.devices],
            violations: Vec::new(),
            stall: Stall::No,
            retired: Vec::new(),
            random: config.seed.unwrap_or(0),
            next_id: 0,
            next_address: 1 << 40,
        };
        Ok(Self {
            devices: devices.collect::<Result<_, _>>()?,
            config,
            state: Mutex::new(state),
            changed: Condvar::new(),
            streams_held: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Notes a call on a device, fails it if that was asked for, and goes on under the lock.
    pub(crate) fn enter(&self, call: Call, blocking: bool, device: usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.admit();
        state.calls.enter(call, blocking, self.devices[device])?;
        state.counters[device].driver_calls += 1;
        Ok(state)
    }

    /// The state, for a call that is being made: the one that is to be held up waits here.
    pub(crate) fn admit(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.calls.hold.meets() {
            while state.calls.hold.is_on() {
                self.changed.wait(&mut state);
            }
        }
        state
    }

    /// Changes the state and wakes whoever waits for it to change.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Fails while somebody captures the stream.
    pub(crate) fn check_uncaptured(&self, stream: usize, state: &State) -> Result<()> {
        let queue = &state.streams[stream];
        match queue.captured {
            false => Ok(()),
            true => Err(Error::StreamCaptured {
                device: self.devices[queue.device],
                why: "which this device only pretends",
            }),
        }
    }

    /// Records a breach of the contract and makes an error of it.
    pub(crate) fn violation(&self, device: usize, what: String) -> Error {
        self.lock().violations.push(what.clone());
        failure(self.devices[device], what)
    }

    /// Device memory that becomes usable when `stream` has come by, or at once without one: its number and its address.
    pub(crate) fn allocate(&self, device: usize, bytes: usize, stream: Option<usize>) -> Result<(u64, u64)> {
        self.collect();
        let mut state = self.enter(Call::Allocate, false, device)?;
        let held = state.counters[device].device_bytes;
        self.check_memory(device, "device", bytes, held, self.config.device_memory)?;
        stream.map_or(Ok(()), |stream| self.check_uncaptured(stream, &state))?;
        let block = Block::new(bytes).ok_or_else(|| self.no_heap(device, "device", bytes))?;
        let (id, address) = (state.new_id(), state.next_address);
        // Far above what any device has, and still countable.
        let step = (self.config.buffer_alignment.bytes() as u64).clamp(256, 1 << 32);
        state.next_address += (bytes as u64).next_multiple_of(step) + step;
        state.counters[device].device_bytes += bytes as u64;
        state.note_most(device);
        state.allocations.insert(id, Allocation { device, address, block, usable: stream.is_none() });
        if let Some(stream) = stream {
            state.streams[stream].pending.push_back(Op::Allocate(id));
        }
        Ok((id, address))
    }

    /// A staging block and its number.
    pub(crate) fn allocate_staging(
        &self,
        device: usize,
        bytes: usize,
        direction: Direction,
    ) -> Result<(u64, Block)> {
        let mut state = self.enter(Call::Staging, true, device)?;
        let held = state.counters[device].staging_bytes;
        self.check_memory(device, "pinned", bytes, held, self.config.staging_memory)?;
        let block = Block::new(bytes).ok_or_else(|| self.no_heap(device, "pinned", bytes))?;
        let id = state.new_id();
        state.staging.insert(id, Occupancy { direction, last: None });
        let counters = &mut state.counters[device];
        counters.staging_allocations += 1;
        counters.staging_bytes += bytes as u64;
        counters.staging_high_water = counters.staging_high_water.max(counters.staging_bytes);
        Ok((id, block))
    }

    pub(crate) fn drop_staging(&self, device: usize, id: u64, bytes: usize) {
        let mut state = self.admit();
        state.calls.note(Call::DropStaging, true);
        state.staging.remove(&id);
        state.counters[device].staging_bytes -= bytes as u64;
    }

    /// Ends `life` once every ticket is reached.
    pub(crate) fn retire(self: &Arc<Self>, life: Life, after: &[Ticket]) {
        let (mut own, mut foreign) = (Vec::new(), Vec::new());
        for ticket in after {
            match LateStream::of(&*ticket.stream, self) {
                Some(stream) => own.push((stream.index, ticket.position)),
                None => foreign.push(ticket.clone()),
            }
        }
        let mut state = self.admit();
        state.calls.note(Call::Release, false);
        if let (Life::Owner { .. }, []) = (&life, after) {
            // Here: in the list another thread might find it, which is none of its owner's.
            drop(state);
            drop(life);
            return self.collect();
        }
        state.retired.push(Retired { life, own, foreign });
        drop(state);
        self.collect();
    }

    /// Ends what has nothing to wait for any more. Foreign streams are asked, and owners dropped, without the lock.
    pub(crate) fn collect(&self) {
        let candidates = self.lock().take_settled();
        let mut owners = Vec::new();
        for mut retired in candidates {
            retired.foreign.retain(|ticket| !ticket.is_reached().unwrap_or(false));
            let mut state = self.lock();
            match retired.life {
                _ if !retired.foreign.is_empty() => state.retired.push(retired),
                Life::Allocation(id) => state.free(id),
                owner @ Life::Owner { .. } => owners.push(owner),
            }
        }
    }

    fn check_memory(
        &self,
        device: usize,
        kind: &'static str,
        asked: usize,
        held: u64,
        limit: usize,
    ) -> Result<()> {
        let device = self.devices[device];
        if asked > limit {
            return Err(Error::TooLarge { device, kind, requested: asked, limit });
        }
        let free = limit - held as usize;
        if asked > free {
            return Err(Error::OutOfMemory { device, kind, requested: asked, free, total: limit });
        }
        Ok(())
    }

    fn no_heap(&self, device: usize, kind: &'static str, requested: usize) -> Error {
        Error::OutOfMemory { device: self.devices[device], kind, requested, free: 0, total: 0 }
    }
}

impl State {
    /// A submission uses `blocks` until a position is reached.
    pub(crate) fn occupy(&mut self, blocks: &[u64], stream: usize, position: u64) {
        for block in blocks {
            if let Some(occupancy) = self.staging.get_mut(block) {
                occupancy.last = Some((stream, position));
            }
        }
    }

    /// Whether the host has access to a mapped block: no copy uses it, and something has been put into it.
    pub(crate) fn is_mapped(&self, block: u64) -> bool {
        self.staging.get(&block).is_some_and(|occupancy| match occupancy.last {
            None => occupancy.direction == Direction::Upload,
            Some((stream, position)) => self.streams[stream].reached >= position,
        })
    }

    /// Whether a submission uses a block.
    pub(crate) fn is_occupied(&self, block: u64) -> bool {
        let last = self.staging.get(&block).and_then(|occupancy| occupancy.last);
        last.is_some_and(|(stream, position)| self.streams[stream].reached < position)
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn take_settled(&mut self) -> Vec<Retired> {
        let streams = &self.streams;
        let settled =
            |retired: &mut Retired| retired.own.iter().all(|(stream, at)| streams[*stream].reached >= *at);
        self.retired.extract_if(.., settled).collect()
    }

    fn free(&mut self, allocation: u64) {
        if let Some(gone) = self.allocations.remove(&allocation) {
            self.counters[gone.device].device_bytes -= gone.block.bytes() as u64;
        }
    }
}
