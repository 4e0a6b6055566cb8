//! Which leaves share a chunk, and where in it. Pure arithmetic.

/// The largest leaf that shares a chunk, in bytes.
pub const LARGEST_PACKED: usize = 256 << 10;

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

impl Packing {
    /// The first place from `offset` on for elements of so many bytes, which are a power of two.
    fn aligned(self, offset: usize, element: usize) -> Option<usize> {
        let alignment = self.alignment.max(element);
        if alignment.is_power_of_two() {
            return Some(offset.checked_add(alignment - 1)? & !(alignment - 1));
        }
        offset.checked_next_multiple_of(alignment.checked_next_multiple_of(element)?)
    }
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
}

/// Where each leaf goes: the number of its chunk and its offset there, in bytes; `None` for those that get memory of their own. And how large the chunks are.
#[derive(Debug)]
pub struct Plan {
    pub places: Vec<Option<(u32, usize)>>,
    pub chunks: Vec<usize>,
    /// The leaves in the order in which they are copied: those of a chunk by their offsets, then the others.
    pub order: Vec<usize>,
}

/// Packs leaves of 1 byte to 256 KiB without gaps, if there are two at least: the largest elements first, so that little is lost between them.
pub fn pack(leaves: &[Size], packing: Packing) -> Plan {
    if !is_worth_it(leaves, packing) {
        return Plan::of(leaves.len());
    }
    let mut chunk = None;
    let order = Vec::with_capacity(leaves.len());
    let mut plan = Plan { places: vec![None; leaves.len()], chunks: Vec::new(), order };
    let is_there = leaves.iter().fold(0, |sizes, leaf| sizes | leaf.element);
    for bucket in [16, 8, 4, 2, 1].into_iter().filter(|bucket| is_there & bucket != 0) {
        for (number, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.element == bucket) {
            if leaf.is_packable() {
                plan.places[number] = Some(plan.place(leaf, packing, &mut chunk));
                plan.order.push(number);
            }
        }
    }
    if plan.order.len() < leaves.len() {
        plan.order.extend((0..leaves.len()).filter(|number| plan.places[*number].is_none()));
    }
    plan
}

/// The same for leaves of a device, by where they lie: those that are neighbours there are copied as one.
pub fn pack_by_address(leaves: &[Size], packing: Packing) -> Plan {
    let mut plan = Plan::of(leaves.len());
    if !is_worth_it(leaves, packing) {
        return plan;
    }
    let where_it_is = |number: &usize| {
        let leaf = &leaves[*number];
        (!leaf.is_packable(), leaf.address, *number)
    };
    plan.order.sort_unstable_by_key(where_it_is);
    let mut chunk = None;
    for position in 0..leaves.len() {
        let number = plan.order[position];
        if !leaves[number].is_packable() {
            break;
        }
        plan.places[number] = Some(plan.place(&leaves[number], packing, &mut chunk));
    }
    plan
}

fn is_worth_it(leaves: &[Size], packing: Packing) -> bool {
    packing.on && leaves.iter().filter(|leaf| leaf.is_packable()).take(2).count() == 2
}

impl Size {
    /// Whether it may share a chunk.
    pub fn is_packable(&self) -> bool {
        self.is_contiguous && (1..=LARGEST_PACKED).contains(&self.bytes)
    }
}

impl Plan {
    fn of(leaves: usize) -> Self {
        Self { places: vec![None; leaves], chunks: Vec::new(), order: (0..leaves).collect() }
    }

    fn place(&mut self, leaf: &Size, packing: Packing, chunk: &mut Option<usize>) -> (u32, usize) {
        let fits = chunk.and_then(|number: usize| {
            let offset = packing.aligned(self.chunks[number], leaf.element)?;
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
