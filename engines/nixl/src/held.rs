//! Tensors that are filled. Those of the host are in parts: what has arrived of a large one is copied while the rest is on its way.

use transship::{Device, Layout, Manifest, ManifestLeaf, Tensor};

use crate::pieces::Pieces;

/// Tensors that are filled, in parts.
pub(crate) struct Held {
    /// Those of the first tensor, of the second one, and so on. `None` where a copy has it.
    parts: Vec<Option<Tensor>>,
    /// How they make tensors again, in the order of their paths.
    wholes: Vec<Whole>,
}

/// A tensor of so many parts.
struct Whole {
    parts: usize,
    /// If it is cut.
    shape: Option<Vec<usize>>,
}

/// Bytes of a packed tree, and the part that they fill.
pub(crate) struct Filling {
    /// Its number among the leaves of the tree.
    pub(crate) leaf: usize,
    pub(crate) part: usize,
    pub(crate) offset: usize,
    pub(crate) layout: Layout,
    /// How many bytes are there, from the first one on, when it can be copied.
    pub(crate) due: usize,
}

impl Filling {
    fn new(leaf: &ManifestLeaf<'_>, part: usize, offset: usize, layout: &Layout) -> Self {
        let due = offset + layout.span();
        Self { leaf: leaf.number(), part, offset, layout: layout.clone(), due }
    }
}

impl Held {
    /// `tensors` are those of `manifest`, in its order. What arrives on `device` is cut as `pieces` are, where that and the tensor are the host's, and no copy has failed
    /// to fill that: parts of which a copy was stopped or has failed are no tensor again before other copies have filled them.
    pub(crate) fn new(
        tensors: Vec<Tensor>,
        manifest: &Manifest,
        pieces: &Pieces,
        device: &Device,
    ) -> (Self, Vec<Filling>) {
        let (mut held, mut fillings) = (Self { parts: Vec::new(), wholes: Vec::new() }, Vec::new());
        let mut tensors = tensors.into_iter();
        let listed = manifest.for_each_leaf(|leaf| {
            if let Some(tensor) = tensors.next() {
                let may_cut = device.is_host() && is_ready_on_host(&tensor);
                let sizes = if may_cut { sizes(leaf, pieces) } else { Vec::new() };
                held.add(tensor, leaf, &sizes, &mut fillings);
            }
            Ok(())
        });
        debug_assert!(listed.is_ok() && tensors.next().is_none());
        held.fill_at_once_what_shares_memory(&mut fillings);
        (held, fillings)
    }

    fn add(&mut self, tensor: Tensor, leaf: &ManifestLeaf<'_>, sizes: &[usize], fillings: &mut Vec<Filling>) {
        let (mut part, mut offset) = (self.parts.len(), leaf.offset());
        match split(tensor, sizes) {
            Ok((parts, shape)) => {
                self.wholes.push(Whole { parts: parts.len(), shape: Some(shape) });
                for tensor in parts {
                    fillings.push(Filling::new(leaf, part, offset, tensor.layout()));
                    (part, offset) = (part + 1, offset + tensor.nbytes());
                    self.parts.push(Some(tensor));
                }
            }
            Err(tensor) => {
                self.wholes.push(Whole { parts: 1, shape: None });
                // What has no elements has a place in memory all the same, if it is a view.
                if leaf.chunk().is_some() || tensor.retained_bytes() > 0 {
                    fillings.push(Filling::new(leaf, part, offset, leaf.layout()));
                }
                self.parts.push(Some(tensor));
            }
        }
    }

    /// Nobody but one copy may hold the memory that it fills: tensors of one memory, such as those of a packed batch, are due when the last of them is.
    fn fill_at_once_what_shares_memory(&self, fillings: &mut [Filling]) {
        let (empty, mut views): (Vec<_>, Vec<_>) = self.views(fillings).into_iter().partition(View::is_empty);
        // Those of one memory come next to each other. Which lie together without an address is not looked for.
        views.sort_unstable_by_key(|view| (view.address, view.filling));
        let runs: Vec<&[View<'_>]> = views.chunk_by(View::lies_with).collect();
        let dues: Vec<usize> = runs
            .iter()
            .map(|run| run.iter().filter_map(|view| Some(fillings.get(view.filling)?.due)).max().unwrap_or(0))
            .collect();
        let mut set = |view: &View<'_>, due: usize| {
            if let Some(filling) = fillings.get_mut(view.filling) {
                filling.due = due;
            }
        };
        for (run, due) in runs.iter().zip(&dues) {
            run.iter().for_each(|view| set(view, *due));
        }
        for view in &empty {
            if let Some(due) = run_of(view, &runs).and_then(|run| dues.get(run)) {
                set(view, *due);
            }
        }
    }

    /// What may share memory. What is all of its memory shares it with views without elements alone.
    fn views(&self, fillings: &[Filling]) -> Vec<View<'_>> {
        let has_empty = fillings.iter().any(|filling| filling.layout.numel() == 0);
        let view = |(number, filling): (usize, &Filling)| {
            let tensor = self.parts.get(filling.part)?.as_ref()?;
            let may_share = has_empty || tensor.retained_bytes() > tensor.nbytes();
            may_share.then(|| View { address: tensor.address().ok().flatten(), filling: number, tensor })
        };
        fillings.iter().enumerate().filter_map(view).collect()
    }

    /// Parts, to be filled.
    pub(crate) fn take(&mut self, parts: impl Iterator<Item = usize>) -> Vec<Tensor> {
        parts.filter_map(|part| self.parts.get_mut(part)?.take()).collect()
    }

    pub(crate) fn put_back(&mut self, parts: impl Iterator<Item = usize>, tensors: Vec<Tensor>) {
        for (part, tensor) in parts.zip(tensors) {
            if let Some(slot) = self.parts.get_mut(part) {
                *slot = Some(tensor);
            }
        }
    }

    /// The tensors, as they were handed in. `None` where a failed copy has kept one, or a part of one.
    pub(crate) fn into_tensors(self) -> Vec<Option<Tensor>> {
        let mut parts = self.parts.into_iter();
        let whole = |whole: Whole| {
            let Some(shape) = whole.shape else { return parts.next()? };
            let of_it: Vec<Option<Tensor>> = parts.by_ref().take(whole.parts).collect();
            let joined = Tensor::join(of_it.into_iter().collect::<Option<_>>()?);
            joined.ok().map(|flat| reshaped(flat, &shape))
        };
        self.wholes.into_iter().map(whole).collect()
    }
}

/// A tensor that is filled, which may share memory with others.
struct View<'a> {
    address: Option<u64>,
    filling: usize,
    tensor: &'a Tensor,
}

impl View<'_> {
    fn is_empty(&self) -> bool {
        self.tensor.numel() == 0
    }

    fn lies_with(&self, other: &Self) -> bool {
        (self.address.is_none() && other.address.is_none()) || self.tensor.shares_memory_with(other.tensor)
    }
}

/// The run that shares the memory of a view without elements. Its address is that of the memory, wherever it was cut out of that, and parts of one tensor (`Tensor::split`) lie in
/// one memory with others.
fn run_of(view: &View<'_>, runs: &[&[View<'_>]]) -> Option<usize> {
    let address = |run: &[View<'_>]| run.first().and_then(|first| first.address);
    let start = view.address.map(|address| address.saturating_sub(view.tensor.offset() as u64));
    let end = start.map(|start| start.saturating_add(view.tensor.retained_bytes() as u64));
    let first = runs.partition_point(|run| address(run) < start);
    let mut near =
        runs.iter().enumerate().skip(first).take_while(|(_, run)| end.is_none() || address(run) < end);
    near.find(|(_, run)| run.first().is_some_and(|first| first.lies_with(view))).map(|(number, _)| number)
}

fn is_ready_on_host(tensor: &Tensor) -> bool {
    tensor.device().is_ok_and(|device| device.is_host()) && tensor.is_ready().unwrap_or(false)
}

/// How many elements of a leaf lie in each of the pieces that it is in.
fn sizes(leaf: &ManifestLeaf<'_>, pieces: &Pieces) -> Vec<usize> {
    let (layout, size) = (leaf.layout(), leaf.layout().dtype().size());
    if !layout.is_contiguous() || pieces.end_at(leaf.offset()) >= leaf.offset() + layout.nbytes() {
        return Vec::new();
    }
    let (mut sizes, mut at, mut left) = (Vec::new(), leaf.offset(), layout.numel());
    while left > 0 {
        // A peer may have put it anywhere.
        let elements = ((pieces.end_at(at) - at) / size).clamp(1, left);
        sizes.push(elements);
        (at, left) = (at + elements * size, left - elements);
    }
    sizes
}

/// In parts of so many elements, with its shape; what cannot be split comes back.
fn split(tensor: Tensor, sizes: &[usize]) -> Result<(Vec<Tensor>, Vec<usize>), Tensor> {
    if sizes.len() < 2 || !tensor.is_contiguous() {
        return Err(tensor);
    }
    let shape = tensor.shape().to_vec();
    let flat = reshaped(tensor, &[sizes.iter().sum()]);
    match flat.split(0, sizes) {
        Ok(parts) => Ok((parts, shape)),
        Err(refused) => Err(reshaped(refused.into_value(), &shape)),
    }
}

/// A contiguous tensor of as many elements in another shape.
fn reshaped(tensor: Tensor, shape: &[usize]) -> Tensor {
    tensor.reshape(shape).unwrap_or(tensor)
}
