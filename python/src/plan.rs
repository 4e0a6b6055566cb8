//! Which leaves share a chunk, and where in it. Pure arithmetic.

/// The largest leaf that shares a chunk, in bytes.
pub const LARGEST_PACKED: usize = 256 << 10;
/// Gaps up to so many bytes are copied along with the leaves around them.
const LARGEST_GAP: u64 = 512;

/// How leaves are packed.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// Whether they are.
    pub on: bool,
    /// The least alignment of a leaf in its chunk, in bytes; any number.
    pub alignment: usize,
    /// The largest chunk of several leaves, in bytes.
    pub max_chunk: usize,
}

/// What the packer knows of a leaf.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub bytes: usize,
    /// Of one element.
    pub element: usize,
    pub is_contiguous: bool,
    /// Where its first element is.
    pub address: u64,
    /// Where the allocation starts that it is a part of, if that is known.
    pub allocation: Option<u64>,
}

/// Where each leaf goes: the number of its chunk and its offset there, in bytes; `None` for those that get memory of their own. And how large the chunks are.
#[derive(Debug, Default)]
pub struct Plan {
    pub places: Vec<Option<(u32, usize)>>,
    pub chunks: Vec<usize>,
}

/// Packs leaves of 1 byte to 256 KiB without gaps, if there are two at least: the largest elements first, so that little is lost between them.
pub fn pack(leaves: &[Size], packing: Packing) -> Plan {
    let mut plan = Plan { places: vec![None; leaves.len()], chunks: Vec::new() };
    if !is_worth_it(leaves, packing) {
        return plan;
    }
    let mut chunk = None;
    for bucket in [16, 8, 4, 2, 1] {
        for (number, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.element == bucket) {
            if is_packable(leaf) {
                plan.places[number] = Some(plan.place(leaf, packing, &mut chunk));
            }
        }
    }
    plan
}

/// The same for leaves of a device: those that lie side by side in one allocation do so in their chunk, so that one range has all of them.
pub fn pack_side_by_side(leaves: &[Size], packing: Packing) -> Plan {
    let mut plan = Plan { places: vec![None; leaves.len()], chunks: Vec::new() };
    if !is_worth_it(leaves, packing) {
        return plan;
    }
    let mut numbers: Vec<usize> = (0..leaves.len()).filter(|number| is_packable(&leaves[*number])).collect();
    numbers.sort_by_key(|number| (leaves[*number].allocation, leaves[*number].address));
    let (mut chunk, mut before) = (None, None);
    for number in numbers {
        let leaf = &leaves[number];
        let beside = before.and_then(|before| plan.place_beside(before, leaf, packing));
        let place = beside.unwrap_or_else(|| plan.place(leaf, packing, &mut chunk));
        plan.places[number] = Some(place);
        before = Some((*leaf, place));
    }
    plan
}

fn is_worth_it(leaves: &[Size], packing: Packing) -> bool {
    packing.on && leaves.iter().filter(|leaf| is_packable(leaf)).take(2).count() == 2
}

fn is_packable(leaf: &Size) -> bool {
    leaf.is_contiguous && (1..=LARGEST_PACKED).contains(&leaf.bytes)
}

impl Size {
    /// How far behind the start of `before` this leaf starts, if it lies behind the end of that one, close to it, and in the same allocation.
    pub fn distance_from(&self, before: &Self) -> Option<usize> {
        let end = before.address.checked_add(before.bytes as u64)?;
        let gap = self.address.checked_sub(end)?;
        let is_close =
            self.allocation.is_some() && self.allocation == before.allocation && gap <= LARGEST_GAP;
        is_close.then_some(before.bytes + gap as usize)
    }
}

impl Plan {
    /// Places a leaf as far behind the one before it as it lies behind that, if this is aligned and its chunk has room.
    fn place_beside(
        &mut self,
        (before, place): (Size, (u32, usize)),
        leaf: &Size,
        packing: Packing,
    ) -> Option<(u32, usize)> {
        let (number, start) = place;
        let offset = start.checked_add(leaf.distance_from(&before)?)?;
        let end = offset.checked_add(leaf.bytes)?;
        let is_aligned = offset
            .is_multiple_of(packing.alignment.max(leaf.element).checked_next_multiple_of(leaf.element)?);
        let last = self.chunks.get_mut(number as usize).filter(|_| is_aligned && end <= packing.max_chunk)?;
        *last = end;
        Some((number, offset))
    }

    fn place(&mut self, leaf: &Size, packing: Packing, chunk: &mut Option<usize>) -> (u32, usize) {
        let alignment = packing.alignment.max(leaf.element).checked_next_multiple_of(leaf.element);
        let fits = chunk.and_then(|number: usize| {
            let offset = self.chunks[number].checked_next_multiple_of(alignment?)?;
            let end = offset.checked_add(leaf.bytes)?;
            (end <= packing.max_chunk).then_some((number, offset, end))
        });
        let (number, offset, end) = fits.unwrap_or_else(|| {
            self.chunks.push(0);
            (self.chunks.len() - 1, 0, leaf.bytes)
        });
        self.chunks[number] = end;
        *chunk = Some(number);
        // There are fewer chunks than leaves, and fewer leaves than 2^32.
        (number as u32, offset)
    }
}
