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

/// The same for leaves of a device, by where they lie: those that are neighbours there are copied as one.
pub fn pack_by_address(leaves: &[Size], packing: Packing) -> Plan {
    let mut plan = Plan { places: vec![None; leaves.len()], chunks: Vec::new() };
    if !is_worth_it(leaves, packing) {
        return plan;
    }
    let mut numbers: Vec<usize> = (0..leaves.len()).filter(|number| is_packable(&leaves[*number])).collect();
    numbers.sort_by_key(|number| leaves[*number].address);
    let mut chunk = None;
    for number in numbers {
        plan.places[number] = Some(plan.place(&leaves[number], packing, &mut chunk));
    }
    plan
}

fn is_worth_it(leaves: &[Size], packing: Packing) -> bool {
    packing.on && leaves.iter().filter(|leaf| is_packable(leaf)).take(2).count() == 2
}

fn is_packable(leaf: &Size) -> bool {
    leaf.is_contiguous && (1..=LARGEST_PACKED).contains(&leaf.bytes)
}

impl Plan {
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
