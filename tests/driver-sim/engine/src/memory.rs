//! Memory of the devices and page-locked memory of the host: where it lies, and what an address stands for.
//!
//! Addresses of devices are addresses of nothing: a program that touches one itself is ended by the processor. Behind
//! each allocation lie bytes that only the devices reach.

use std::collections::{BTreeMap, VecDeque};

use crate::pages::Pages;
use crate::random::Random;
use crate::shared::Piece;

/// Outside of what the processor can address, so that nothing else lies there.
const FIRST_ADDRESS: u64 = 0x00d0_0000_0000_0000;
const DEVICE_SHIFT: u32 = 44;
const GRANULARITY: u64 = 512;
/// What new memory is filled with.
const DEVICE_POISON: u8 = 0xcb;
const PINNED_POISON: u8 = 0xcd;
/// So many freed places are kept: a process may have some ten thousand mappings only.
const MOST_GRAVES: usize = 4096;

/// What memory an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a device, out of this pool if out of one.
    Device { device: usize, pool: Option<u64> },
    /// Page-locked memory, known to every context or to its own only; of the driver's own, or registered in place, perhaps for
    /// reading only.
    Pinned { portable: bool, registered: bool, read_only: bool },
}

/// How far an allocation is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its allocation is submitted to a stream and has not run.
    Ordered,
    Alive,
}

/// One allocation.
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) context: u64,
    pub(crate) life: Life,
    /// The call that has submitted its end.
    pub(crate) freeing: Option<&'static str>,
    pub(crate) call: &'static str,
    /// Where it lies, if two processes have it.
    piece: Option<Piece>,
    /// Nothing before it is alive.
    pages: Option<Pages>,
}

/// One end of a copy: which allocation it was meant for when it was submitted.
#[derive(Debug, Clone)]
pub(crate) enum Side {
    /// The end of a copy of no bytes: nothing is there.
    Nothing,
    Block {
        block: u64,
        offset: usize,
    },
    Pageable {
        address: usize,
    },
    /// A copy of what lay in pageable memory at the call.
    Staged(Box<[u8]>),
}

/// Every allocation there is.
pub(crate) struct Memory {
    /// Apart from that of the scheduler, so that places and order do not depend on each other.
    random: Random,
    blocks: BTreeMap<u64, Block>,
    /// The allocation that begins at an address.
    starts: BTreeMap<u64, u64>,
    /// Where freed page-locked memory was, and which call has freed it; the places are kept for a long time.
    graves: BTreeMap<u64, (Pages, usize, &'static str)>,
    /// The oldest first.
    buried: VecDeque<u64>,
    /// Freed places of each device, with their size.
    idle: Vec<Vec<(u64, u64)>>,
    /// The next address of each device.
    next: Vec<u64>,
    serial: u64,
}

impl Memory {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            blocks: BTreeMap::new(),
            starts: BTreeMap::new(),
            graves: BTreeMap::new(),
            buried: VecDeque::new(),
            idle: Vec::new(),
            next: Vec::new(),
            serial: 0,
        }
    }

    /// Adds device memory: at once, or when its allocation runs on its stream. The number of the allocation, and where
    /// it lies.
    pub(crate) fn add_device(&mut self, block: Block, device: usize) -> (u64, u64) {
        let address = self.place(device, block.bytes);
        let number = self.insert(Block { address, ..block });
        if self.blocks.get(&number).is_some_and(|block| block.life == Life::Alive) {
            self.bring_to_life(number);
        }
        (number, address)
    }

    /// Adds page-locked memory; `None` if the host has none left.
    pub(crate) fn add_pinned(&mut self, block: Block) -> Option<u64> {
        let pages = Pages::map(block.bytes, PINNED_POISON)?;
        let address = pages.start().addr() as u64;
        self.insert(Block { address, pages: Some(pages), ..block });
        Some(address)
    }

    /// Adds memory of the program that is page-locked where it lies; `None` if some of it is known already.
    pub(crate) fn add_registered(&mut self, address: u64, block: Block) -> Option<()> {
        if self.find(address).is_some() || self.any_within(address, block.bytes) {
            return None;
        }
        let pages = Some(Pages::of_the_program(address as usize));
        self.insert(Block { address, pages, ..block });
        Some(())
    }

    /// The allocation of this number runs. Its bytes are poison.
    pub(crate) fn bring_to_life(&mut self, number: u64) {
        if let Some(block) = self.blocks.get_mut(&number) {
            block.life = Life::Alive;
            block.pages = match &block.piece {
                Some(piece) => piece.map(block.bytes, DEVICE_POISON),
                None => Pages::map(block.bytes, DEVICE_POISON),
            };
        }
    }

    /// The same for all of a context that were to run.
    pub(crate) fn bring_all_to_life(&mut self, context: u64) {
        let is_one = |block: &Block| block.context == context && block.life == Life::Ordered;
        let ones = self.blocks.iter().filter(|(_, block)| is_one(block)).map(|(number, _)| *number);
        for number in ones.collect::<Vec<_>>() {
            self.bring_to_life(number);
        }
    }

    /// Takes an allocation away. Its place may be used again if it is one of a device.
    pub(crate) fn remove(&mut self, number: u64, call: &'static str) -> Option<Block> {
        let mut block = self.blocks.remove(&number)?;
        self.starts.remove(&block.address);
        match block.kind {
            Kind::Device { device, .. } => {
                if let Some(idle) = self.idle.get_mut(device) {
                    idle.push((block.address, rounded(block.bytes)));
                }
            }
            Kind::Pinned { registered: true, .. } => {}
            Kind::Pinned { .. } => {
                if let Some(pages) = block.pages.take() {
                    self.bury(block.address, pages, block.bytes, call);
                }
            }
        }
        Some(block)
    }

    pub(crate) fn block(&self, number: u64) -> Option<&Block> {
        self.blocks.get(&number)
    }

    pub(crate) fn block_mut(&mut self, number: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&number)
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.blocks.iter().map(|(number, block)| (*number, block))
    }

    /// The allocation that this address lies in, and how far.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, usize)> {
        let (start, number) = self.starts.range(..=address).next_back()?;
        let offset = (address - start) as usize;
        (offset < self.blocks.get(number)?.bytes).then_some((*number, offset))
    }

    /// The call that has freed page-locked memory which this address lay in.
    pub(crate) fn grave(&self, address: u64) -> Option<&'static str> {
        let (start, (_, bytes, call)) = self.graves.range(..=address).next_back()?;
        (address - start < *bytes as u64).then_some(call)
    }

    /// Whether the first allocation behind `address` begins within `bytes` of it.
    pub(crate) fn any_within(&self, address: u64, bytes: usize) -> bool {
        self.starts.range(address..address.saturating_add(bytes as u64)).next().is_some()
    }

    /// Where the bytes of one end of a copy are; what is wrong with it, if something is.
    pub(crate) fn pointer(&self, side: &Side, bytes: usize) -> Result<*mut u8, String> {
        let (number, offset) = match side {
            Side::Block { block, offset } => (*block, *offset),
            Side::Nothing => return Ok(std::ptr::NonNull::dangling().as_ptr()),
            Side::Pageable { address } => return Ok(std::ptr::with_exposed_provenance_mut(*address)),
            Side::Staged(bytes) => return Ok(bytes.as_ptr().cast_mut()),
        };
        let Some(block) = self.blocks.get(&number) else {
            return Err("it runs after its memory was freed".to_owned());
        };
        if block.life == Life::Ordered {
            return Err(format!("it runs before the allocation of its memory by {} has run", block.call));
        }
        let pages = block.pages.as_ref().ok_or("the host has no memory left to simulate a device with")?;
        match offset.checked_add(bytes).is_some_and(|end| end <= block.bytes) {
            true => Ok(pages.start().wrapping_add(offset)),
            false => {
                Err(format!("it reaches {offset} + {bytes} bytes into an allocation of {}", block.bytes))
            }
        }
    }

    /// The place stays guarded until many others were freed after it.
    fn bury(&mut self, address: u64, pages: Pages, bytes: usize, call: &'static str) {
        pages.guard();
        self.graves.insert(address, (pages, bytes, call));
        self.buried.push_back(address);
        if self.buried.len() > MOST_GRAVES
            && let Some(oldest) = self.buried.pop_front()
        {
            self.graves.remove(&oldest);
        }
    }

    fn insert(&mut self, block: Block) -> u64 {
        self.serial += 1;
        self.starts.insert(block.address, self.serial);
        self.blocks.insert(self.serial, block);
        self.serial
    }

    /// A place that was used before more often than not: what is used too late finds something else there.
    fn place(&mut self, device: usize, bytes: usize) -> u64 {
        let wanted = rounded(bytes);
        if self.idle.len() <= device {
            self.idle.resize_with(device + 1, Vec::new);
            self.next.resize(device + 1, 0);
        }
        let fits = |(_, size): &(u64, u64)| *size >= wanted && *size <= wanted * 2;
        let candidates: Vec<usize> =
            (0..self.idle[device].len()).filter(|i| fits(&self.idle[device][*i])).collect();
        if !candidates.is_empty() && !self.random.one_in(4) {
            return self.idle[device].swap_remove(candidates[self.random.below(candidates.len())]).0;
        }
        let offset = self.next[device];
        // A gap behind each, so that whoever runs over the end hits nothing.
        self.next[device] = offset + wanted + GRANULARITY;
        FIRST_ADDRESS + ((device as u64) << DEVICE_SHIFT) + offset
    }
}

impl Block {
    pub(crate) fn new(bytes: usize, kind: Kind, context: u64, life: Life, call: &'static str) -> Self {
        Self { address: 0, bytes, kind, context, life, freeing: None, call, piece: None, pages: None }
    }

    pub(crate) fn piece(&self) -> Option<&Piece> {
        self.piece.as_ref()
    }

    /// The same in memory that two processes have.
    pub(crate) fn in_piece(self, piece: Option<Piece>) -> Self {
        Self { piece, ..self }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.kind, Kind::Pinned { .. })
    }
}

fn rounded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(GRANULARITY)
}
