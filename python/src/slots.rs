//! Memory that worker processes of loaders fill: `transship.LoaderRing` is written over this.

use std::num::NonZero;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use transship::ipc::{self, IpcError};
use transship::{MemoryKind, RawMemory};

use crate::errors::{self, Error};
use crate::forked;
use crate::leaf::Leaf;
use crate::named_device;
use crate::slot_batch;

/// All that are there. A child that has lost the lock knows none, and copies what lies there as it copies other memory.
static ALL: Mutex<Vec<Weak<ipc::Slots>>> = Mutex::new(Vec::new());
/// Whether there ever were any: most programs have none.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// The slots, in the process that copies from them.
#[pyclass(frozen, module = "transship")]
pub struct Slots(Arc<ipc::Slots>);

/// A slot that a worker has handed over; it is the workers' again when this goes, and the leaves that were read of it.
#[pyclass(frozen, module = "transship")]
pub struct SlotLease(Arc<ipc::SlotLease>);

/// Where a slot lies in this process.
#[derive(Debug, Clone, Copy)]
pub struct SlotRange {
    pub address: u64,
    pub size: usize,
}

/// The slots, in a worker.
#[pyclass(frozen, module = "transship")]
pub struct SlotFiller(ipc::SlotFiller);

/// A slot that a worker writes; it is free again when this goes, unless it was handed over.
#[pyclass(module = "transship")]
pub struct ClaimedSlot(Option<ipc::ClaimedSlot>);

#[pymethods]
impl Slots {
    #[new]
    fn new(py: Python<'_>, slot_bytes: usize, slots: usize) -> PyResult<Self> {
        let slots =
            Arc::new(py.detach(|| ipc::Slots::new(slot_bytes, slots)).map_err(|error| of(py, error))?);
        let mut all = forked::lock(&ALL).ok_or_else(|| of(py, IpcError::Forked))?;
        all.retain(|slots| slots.strong_count() > 0);
        all.push(Arc::downgrade(&slots));
        IN_USE.store(true, Ordering::Relaxed);
        Ok(Self(slots))
    }

    fn fileno(&self) -> RawFd {
        self.0.descriptor().as_raw_fd()
    }

    #[getter]
    fn slot_bytes(&self) -> usize {
        self.0.slot_bytes()
    }

    #[getter]
    fn slots(&self) -> usize {
        self.0.slots()
    }

    /// How many nobody has.
    fn free(&self) -> usize {
        self.0.free()
    }

    /// Page-locks them for a device.
    fn page_lock(&self, py: Python<'_>, device: &str) -> PyResult<()> {
        let target = named_device::place_of(py, device)?;
        py.detach(|| target.device().map_err(IpcError::from).and_then(|device| self.0.page_lock(&device)))
            .map_err(|error| of(py, error))
    }

    fn is_page_locked(&self) -> bool {
        self.0.kind() != MemoryKind::Pageable
    }

    fn lease(&self, slot: usize, claim: u64) -> Option<SlotLease> {
        self.0.lease(slot, claim).map(Arc::new).map(SlotLease)
    }

    fn take_back(&self, owner: u32) -> PyResult<usize> {
        Ok(self.0.take_back(owner_of(owner)?))
    }
}

#[pymethods]
impl SlotLease {
    #[getter]
    fn address(&self) -> u64 {
        self.0.memory().address
    }

    /// Whether `start_copy` finds each leaf of `for_copies` in a batch.
    #[staticmethod]
    fn are_found(batch: &Bound<'_, PyAny>) -> PyResult<bool> {
        slot_batch::are_found(batch)
    }

    /// What `SlotPacker.finish` has described, for `start_copy` alone.
    fn for_copies<'py>(&self, py: Python<'py>, described: &[u8]) -> PyResult<Vec<Bound<'py, PyCapsule>>> {
        slot_batch::for_copies(py, &self.0, described)
    }

    /// The same as tensors and arrays. `whole` is a tensor of the bytes of the slot, and `buffer` an object whose buffer they are; both keep this.
    fn leaves(
        &self,
        described: &[u8],
        whole: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Py<PyAny>>> {
        slot_batch::leaves(SlotRange::of(&self.0), described, whole, buffer)
    }
}

impl SlotRange {
    pub fn of(lease: &ipc::SlotLease) -> Self {
        let RawMemory { address, bytes, .. } = lease.memory();
        Self { address, size: bytes }
    }

    /// The offset of a leaf that lies here, in bytes: a multiple of the size of its elements.
    pub fn offset_of(&self, leaf: &Leaf) -> Option<usize> {
        let offset = usize::try_from(leaf.address.checked_sub(self.address)?).ok()?;
        let end = offset.checked_add(leaf.span())?;
        let is_aligned = offset.is_multiple_of(leaf.type_of_elements().bytes());
        (leaf.bytes > 0 && end <= self.size && is_aligned).then_some(offset)
    }
}

#[pymethods]
impl SlotFiller {
    /// Maps what the descriptor is of, which may be closed afterwards.
    #[new]
    fn new(py: Python<'_>, descriptor: RawFd, slot_bytes: usize, slots: usize) -> PyResult<Self> {
        if descriptor < 0 {
            return Err(PyValueError::new_err("a descriptor is not negative"));
        }
        // SAFETY: it is used for this call only. One that is closed meanwhile, or is of something else, is an error of the system's, or of
        // memory without the seals and the size that are looked for.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        ipc::SlotFiller::of(descriptor, slot_bytes, slots).map(Self).map_err(|error| of(py, error))
    }

    fn claim(&self, owner: u32) -> PyResult<Option<ClaimedSlot>> {
        Ok(self.0.claim(owner_of(owner)?).map(Some).map(ClaimedSlot))
    }
}

#[pymethods]
impl ClaimedSlot {
    /// `None` once it was handed over.
    #[getter]
    fn address(&self) -> Option<u64> {
        self.0.as_ref().map(|slot| slot.memory().address)
    }

    /// The numbers of the slot and of the claim.
    fn hand_over(&mut self) -> Option<(usize, u64)> {
        self.0.take().map(ipc::ClaimedSlot::hand_over)
    }

    /// Frees it.
    fn give_up(&mut self) {
        self.0 = None;
    }
}

/// All slots that there are, for the leaves of a call.
#[derive(Default)]
pub struct AllSlots(Vec<(Arc<ipc::Slots>, MemoryKind)>);

impl AllSlots {
    pub fn now() -> Self {
        if !IN_USE.load(Ordering::Relaxed) {
            return Self::default();
        }
        let with_kind = |slots: Arc<ipc::Slots>| {
            let kind = slots.kind();
            (slots, kind)
        };
        let all = forked::lock(&ALL);
        Self(all.iter().flat_map(|all| all.iter()).filter_map(Weak::upgrade).map(with_kind).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The address of the slot that these bytes lie in, and which kind of memory it is.
    #[inline]
    pub fn slot_of(&self, address: u64, bytes: usize) -> Option<(u64, MemoryKind)> {
        self.0.iter().find_map(|(slots, kind)| Some((slots.slot_of(address, bytes)?, *kind)))
    }
}

fn owner_of(owner: u32) -> PyResult<NonZero<u32>> {
    NonZero::new(owner).ok_or_else(|| PyValueError::new_err("an owner is not 0"))
}

fn of(py: Python<'_>, error: IpcError) -> PyErr {
    match error {
        IpcError::Tensors(error) => errors::of(py, &error),
        error => Error::new_err(error.to_string()),
    }
}
