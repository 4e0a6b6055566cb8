//! Taking the storages out of a structure and putting copies, or the same ones, in.

use std::ptr::NonNull;

use crate::copy::job::Job;
use crate::copy::survey::Survey;
use crate::room::{List, Room};
use crate::storage::Storage;
use crate::tree::{Stop, TensorTree, Visitor};
use crate::{Error, Layout, Result, Tensor};

/// What a copy must know of one tensor.
pub(crate) struct Leaf {
    pub(crate) storage: Storage,
    /// Where the first element lies in the storage, in bytes.
    pub(crate) offset: usize,
    /// Where the first element lies on the host, if it lies there.
    pub(crate) host: Option<HostAddress>,
    /// Bytes of the elements.
    pub(crate) payload: usize,
    /// Present where the elements do not lie in one run.
    pub(crate) strided: Option<Box<Layout>>,
}

thread_local! {
    static LEAVES: Room<Leaf> = const { Room::new() };
}

/// An address that may be sent to the thread that reads there.
#[derive(Clone, Copy)]
pub(crate) struct HostAddress(NonNull<u8>);

// SAFETY: an address alone does nothing; whoever reads there says why he may (`Transfer::read`).
unsafe impl Send for HostAddress {}
// SAFETY: as above.
unsafe impl Sync for HostAddress {}

/// Takes the storages of all tensors out of `value` and shows them to `survey`. On an error `value` is as it was.
pub(crate) fn take<S: TensorTree>(value: &mut S, survey: &mut Survey<'_>) -> Result<List<Leaf>> {
    let mut leaves = List::new(&LEAVES);
    let mut sink = |tensor: &mut Tensor| {
        let Some(storage) = tensor.take_storage() else { return Err(Stop(Error::Taken)) };
        let (offset, layout) = (tensor.offset(), tensor.layout());
        if !survey.recognizes(&storage, offset, layout) {
            return take_closely(tensor, storage, survey, &mut leaves);
        }
        let host = storage.host_address(offset).map(HostAddress);
        leaves.push(Leaf { storage, offset, host, payload: layout.bytes(), strided: None });
        Ok(())
    };
    match value.visit(&mut Visitor::new(&mut sink)) {
        Ok(()) => Ok(leaves),
        Err(stop) => {
            restore(value, leaves.drain(..).map(|leaf| leaf.storage));
            Err(stop.into_reason())
        }
    }
}

/// Adds a leaf that the survey has to look at: `storage`, which was taken out of `tensor` and is put back on an error.
#[inline(never)]
fn take_closely(
    tensor: &mut Tensor,
    storage: Storage,
    survey: &mut Survey<'_>,
    leaves: &mut List<Leaf>,
) -> Result<(), Stop> {
    let (offset, layout) = (tensor.offset(), tensor.layout());
    if let Err(refused) = survey.look_at(&storage, offset, layout) {
        tensor.put_storage(storage);
        return Err(Stop(refused));
    }
    let host = storage.host_address(offset).map(HostAddress);
    let strided = (!layout.is_contiguous()).then(|| Box::new(layout.clone()));
    leaves.push(Leaf { storage, offset, host, payload: layout.bytes(), strided });
    Ok(())
}

/// Puts `storages` back, in the order in which they were taken.
pub(crate) fn restore<S: TensorTree>(value: &mut S, mut storages: impl Iterator<Item = Storage>) {
    let mut sink = |tensor: &mut Tensor| match storages.next() {
        Some(storage) if fits(tensor, &storage) => {
            tensor.put_storage(storage);
            Ok(())
        }
        _ => Err(Stop(Error::Taken)),
    };
    // It stops where taking did, with the same reason; or where the structure shows other tensors than it did then.
    let _ = value.visit(&mut Visitor::new(&mut sink));
}

/// Puts the sources of `job` back into a structure that its copies were put into.
pub(crate) fn replace<S: TensorTree>(value: &mut S, job: &Job) {
    let mut leaves = job.leaves.iter();
    let mut sink = |tensor: &mut Tensor| match leaves.next() {
        Some(leaf) if tensor.replace(leaf.storage.clone(), leaf.offset, leaf.strided.as_deref()) => Ok(()),
        _ => Err(Stop(Error::Taken)),
    };
    // It stops where the structure shows other tensors than it did before: those stay as they are.
    let _ = value.visit(&mut Visitor::new(&mut sink));
}

/// Whether `storage` can be the one that was taken out of `tensor`.
fn fits(tensor: &Tensor, storage: &Storage) -> bool {
    tensor.is_taken() && storage.check_range(tensor.offset(), tensor.layout().span()).is_ok()
}

/// Puts the copies in.
pub(crate) fn place<S: TensorTree>(value: &mut S, job: &Job) -> Result<()> {
    let leaves = job.leaves.len();
    let mut rest = job.leaves.iter().zip(job.plan.routes());
    let mut placing = job.placing();
    let changed = |second| Error::TreeChanged { first: leaves, second };
    let mut sink = |tensor: &mut Tensor| {
        let visited = leaves - rest.len();
        match rest.next() {
            Some((leaf, route)) if leaf.describes(tensor) && placing.place(leaf, *route, tensor) => Ok(()),
            Some(_) => Err(Stop(changed(visited))),
            None => Err(Stop(changed(visited + 1))),
        }
    };
    value.visit(&mut Visitor::new(&mut sink)).map_err(Stop::into_reason)?;
    if rest.len() == 0 { Ok(()) } else { Err(changed(leaves - rest.len())) }
}

impl Leaf {
    /// Bytes from the first element to behind the last.
    #[inline]
    pub(crate) fn span(&self) -> usize {
        self.strided.as_ref().map_or(self.payload, |layout| layout.span())
    }

    /// Where the first element lies on the host. What a copy fills may be mapped only since the leaf was taken.
    #[inline]
    pub(crate) fn host_pointer(&self) -> Option<NonNull<u8>> {
        match self.host {
            Some(address) => Some(address.0),
            None => self.storage.host_address(self.offset),
        }
    }

    /// How many bytes are copied: the elements where they are gathered, else all that lies between the first and the last as
    /// well.
    #[inline]
    pub(crate) fn copied_bytes(&self) -> usize {
        if self.is_gathered() { self.payload } else { self.span() }
    }

    /// Whether the elements lie in one run where they are copied to. Strided sources on the host are gathered; on a device
    /// they keep their strides.
    #[inline]
    pub(crate) fn is_gathered(&self) -> bool {
        self.strided.is_none() || self.storage.device().is_none()
    }

    /// Whether `tensor` is the one that was taken, or one that the copy fits just as well.
    #[inline]
    fn describes(&self, tensor: &Tensor) -> bool {
        let layout = tensor.layout();
        tensor.is_taken()
            && layout.bytes() == self.payload
            && layout.span() == self.span()
            && tensor.offset() == self.offset
    }
}
