//! One copy: from leaves to memory on the target, by the library.

use std::any::Any;

use transship::{
    BackgroundWork, CopyHandle, CopyOptions, DType, Device, Error, Layout, MemoryKind, RawMemory, Result,
    SharedOwner, Stream, Tensor, start_copy_into,
};

use crate::gather::Blocks;
use crate::leaf::{Leaf, Order};
use crate::place::Place;
use crate::plan::Size;
use crate::released::Held;

/// How the library shall copy.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub pinned_staging: bool,
    /// Whether threads of the library may stage what is large.
    pub background: bool,
}

/// A leaf, and where its copy goes.
pub struct Item<'a> {
    pub leaf: &'a Leaf,
    pub size: Size,
    /// Of the leaf: page-locked memory needs no staging.
    pub kind: MemoryKind,
    pub to: To,
}

/// Where a copy goes: memory, and the offset in it, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct To {
    pub memory: usize,
    pub offset: usize,
}

/// Memory on the target.
pub struct Memory {
    pub source: Source,
    /// Of the library's own kinds; only their size matters.
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

/// Whose it is.
pub enum Source {
    /// At an address, kept by an object of Python.
    Lent(u64, MemoryKind, Held),
    /// The library's own, allocated when the copy starts; results on the host are page-locked by this device, if that has room for it.
    Own(Option<Place>),
}

/// Leaves of one place, on their way.
pub struct Group<'a> {
    pub from: Place,
    pub items: Vec<Item<'a>>,
    pub sources: Held,
    pub memory: Vec<Memory>,
    /// The stream that the copy runs on: of the target, or of the source where the target is the host.
    pub stream: Option<Stream>,
    /// What the stream waits for before that.
    pub behind: Option<Stream>,
}

/// A copy that was started.
pub type Running = CopyHandle<Vec<Tensor>>;

/// A copy, and where its results are.
pub struct Launched {
    pub running: Running,
    /// For each item the number of the tensor that it is in, and the offset there, in bytes.
    pub results: Vec<(usize, usize)>,
}

impl Group<'_> {
    /// Starts the copy of all items. Needs no GIL, and takes none.
    pub fn start(self, target: Place, how: How) -> Result<Launched> {
        let device = target.device()?;
        if let (Some(stream), Some(behind)) = (&self.stream, &self.behind) {
            stream.wait_stream(behind)?;
        }
        let gathers = self.from == Place::Host && how.pinned_staging;
        let blocks = if gathers { Blocks::of(&self.items, &self.memory, &device) } else { Blocks::none() };
        let memory =
            self.memory.into_iter().map(|memory| memory.open(&device)).collect::<Result<Vec<_>>>()?;
        let owner = SharedOwner::new(self.sources, &self.from.device()?);
        let is_gathered: Vec<bool> = self.items.iter().map(|item| blocks.add(item)).collect();
        let (mut sources, mut targets, mut results) = (Vec::new(), Vec::new(), Vec::new());
        let mut of_memory = vec![0; memory.len()];
        for (number, block) in blocks.into_tensors() {
            of_memory[number] = sources.len();
            sources.push(block);
            targets.push(memory.get(number).ok_or(Error::Taken)?.clone());
        }
        let (ranges, of_ranges) = ranges(&self.items, &is_gathered);
        for (item, range) in self.items.iter().zip(of_ranges) {
            results.push(match range {
                Some((number, offset)) => (sources.len() + number, offset),
                None => (of_memory[item.to.memory], item.to.offset),
            });
        }
        for range in ranges {
            sources.push(range.source(&owner, self.from)?);
            targets.push(range.target(memory.get(range.first.to.memory).ok_or(Error::Taken)?)?);
        }
        drop((owner, memory));
        let background = if how.background { BackgroundWork::Auto } else { BackgroundWork::Never };
        let mut options = CopyOptions::default().pinned_staging(how.pinned_staging).background(background);
        if let Some(stream) = &self.stream {
            options = options.stream(stream);
        }
        Ok(Launched { running: start(sources, targets, options)?, results })
    }
}

/// What the caller's thread cannot do without waiting is done by threads of the library after all.
fn start(sources: Vec<Tensor>, targets: Vec<Tensor>, options: CopyOptions) -> Result<Running> {
    start_copy_into(sources, targets, options.clone()).or_else(|failed| {
        let is_busy = matches!(failed.error(), Error::Busy { .. });
        match failed.error().clone() {
            error if !is_busy => Err(error),
            error => match failed.into_both() {
                (Some(sources), Some(targets)) => {
                    Ok(start_copy_into(sources, targets, options.background(BackgroundWork::Auto))?)
                }
                _ => Err(error),
            },
        }
    })
}

impl Memory {
    /// Memory for any leaf, or parts of it for several.
    pub fn of_bytes(source: Source, bytes: usize) -> Self {
        Self { source, dtype: DType::U8, shape: vec![bytes], bytes }
    }

    /// Makes it that of a leaf with gaps, which is copied element by element.
    pub fn make_like(&mut self, leaf: &Leaf) {
        (self.dtype, self.shape) = (carrier(leaf), sizes(leaf.shape()));
    }

    /// As a tensor that the library may fill.
    fn open(self, device: &Device) -> Result<Tensor> {
        match self.source {
            Source::Own(None) => Tensor::empty(&self.shape, self.dtype, device),
            Source::Own(Some(locking)) => {
                let pinned = Tensor::empty_pinned(&self.shape, self.dtype, &locking.device()?);
                pinned.or_else(|_| Tensor::empty(&self.shape, self.dtype, device))
            }
            Source::Lent(address, kind, held) => {
                let memory = RawMemory::new(address, self.bytes, kind);
                let owner: Box<dyn Any + Send + Sync> = Box::new(held);
                // SAFETY: PyTorch has made this memory for the copy, `held` keeps it, and nobody else has it before the copy is done.
                unsafe { Tensor::from_raw_mut(memory, owner, &self.shape, self.dtype, device) }
            }
        }
    }
}

/// Leaves that lie side by side in one allocation, and whose copies do so as well: they are copied at once, with what is between them.
struct Range<'a> {
    first: &'a Item<'a>,
    bytes: usize,
}

/// The ranges that items which are not gathered make, and for each of these items the number of its range and the offset there, in bytes.
fn ranges<'a>(items: &'a [Item<'a>], is_gathered: &[bool]) -> (Vec<Range<'a>>, Vec<Option<(usize, usize)>>) {
    let (mut ranges, mut of_items) = (Vec::<Range<'a>>::new(), vec![None; items.len()]);
    let mut numbers: Vec<usize> = (0..items.len()).filter(|number| !is_gathered[*number]).collect();
    numbers.sort_by_key(|number| (items[*number].to.memory, items[*number].to.offset));
    let mut before: Option<&Item<'_>> = None;
    for number in numbers {
        let item = &items[number];
        match ranges.last_mut().filter(|_| before.is_some_and(|before| item.is_beside(before))) {
            Some(range) => range.bytes = item.to.offset - range.first.to.offset + item.leaf.bytes,
            None => ranges.push(Range { first: item, bytes: item.leaf.bytes }),
        }
        let range = ranges.len() - 1;
        of_items[number] = Some((range, item.to.offset - ranges[range].first.to.offset));
        before = Some(item);
    }
    (ranges, of_items)
}

impl Item<'_> {
    /// Whether it lies behind `before`, and its copy as far behind the copy of that.
    fn is_beside(&self, before: &Self) -> bool {
        let is_plain = self.leaf.order != Order::Strided && before.leaf.order != Order::Strided;
        let distance = self.size.distance_from(&before.size);
        let is_same =
            distance.is_some_and(|distance| before.to.offset.checked_add(distance) == Some(self.to.offset));
        is_plain && self.to.memory == before.to.memory && is_same
    }
}

impl Range<'_> {
    fn source(&self, owner: &SharedOwner, from: Place) -> Result<Tensor> {
        let leaf = self.first.leaf;
        let kind = if from == Place::Host { self.first.kind } else { MemoryKind::Device };
        let layout = match leaf.order {
            Order::Contiguous | Order::Dense => Layout::contiguous(DType::U8, &[self.bytes])?,
            Order::Strided => Layout::strided(carrier(leaf), &sizes(leaf.shape()), &sizes(leaf.strides()))?,
        };
        let memory = RawMemory::new(leaf.address, layout.span(), kind);
        // SAFETY: the owner keeps the objects that this memory is of; what is between two of them is of the same allocation. That others may
        // write it meanwhile is said in the documentation, and is the same for every library that takes tensors of Python: it is read
        // through raw pointers.
        unsafe { owner.tensor(memory, layout) }
    }

    fn target(&self, memory: &Tensor) -> Result<Tensor> {
        match self.first.leaf.order {
            Order::Contiguous | Order::Dense => memory.narrow(0, self.first.to.offset, self.bytes),
            Order::Strided => Ok(memory.clone()),
        }
    }
}

/// Elements of the size of those of a leaf. Nothing but their size matters here.
fn carrier(leaf: &Leaf) -> DType {
    match leaf.type_of_elements().bytes() {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        8 => DType::U64,
        _ => DType::Complex128,
    }
}

/// Of a leaf none is negative.
fn sizes(numbers: &[i64]) -> Vec<usize> {
    numbers.iter().map(|number| usize::try_from(*number).unwrap_or(0)).collect()
}
