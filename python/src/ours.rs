//! What `transship.start_copy` takes for a container, and what for a leaf.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::PyTypeObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
#[cfg(target_os = "linux")]
use pyo3::types::PyCapsule;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use crate::dlpack;
use crate::dtype;
use crate::forebear;
use crate::leaf::Leaf;
use crate::leaf_slots::{self, At, Slot};
use crate::modules;
use crate::once::get_or_make;
use crate::place::Place;
#[cfg(target_os = "linux")]
use crate::slot_batch;
use crate::tensor::Tensor;
use crate::torch::Torch;
use crate::tree::{Entries, Found, Opened, Rules};

/// Every container that is registered or known; every tensor that speaks DLPack.
pub struct Ours<'py> {
    torch: Option<&'py Torch>,
    /// `torch.device`, if there is PyTorch.
    device: Option<Bound<'py, PyAny>>,
    target: Place,
    /// Whether tensors that are there already are copied as well.
    always: bool,
    /// Says how objects of a class are taken apart.
    find: Bound<'py, PyAny>,
    /// Makes what the caller asked for out of what is there already, if he did.
    present: Option<Bound<'py, PyAny>>,
    /// Whether nothing is done with tensors but to copy them.
    takes_plainly: bool,
    kinds: Kinds<'py>,
    /// The class of the last object that went through as it is, if there was one. All of this class do.
    passing: *const PyTypeObject,
    pub slots: Vec<Slot>,
    /// Types that results must not have: numbers of [`dtype::ALL`].
    refused: Vec<usize>,
    /// The leaves as they came, if they are asked for: then what is on the target already is read as well.
    pub originals: Option<Vec<Bound<'py, PyAny>>>,
}

/// What a container holds, what makes another one, and what it calls what it holds.
type Taken<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// By class.
type Kinds<'py> =
    HashMap<*mut PyTypeObject, (Bound<'py, PyType>, Kind<'py>), BuildHasherDefault<AddressHasher>>;

/// Addresses of classes are hashed for each object of a structure: one multiplication does.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, number: usize) {
        // A prime near 2^64 divided by the golden ratio. The table takes its bits from both ends.
        let product = u128::from(self.0 ^ number as u64) * 0x9E37_79B9_7F4A_7C55;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[derive(Clone)]
pub enum Kind<'py> {
    List,
    Tuple,
    Dict,
    Torch,
    Own,
    /// It may be a leaf in a slot of a loader, for copies alone.
    #[cfg(target_os = "linux")]
    Capsule,
    Dlpack,
    /// An array of numpy's with a mask, which is no part of a tensor.
    Masked,
    /// What takes it apart.
    Container(Bound<'py, PyAny>),
    Same,
}

impl<'py> Ours<'py> {
    pub fn new(
        py: Python<'py>,
        torch: Option<&'py Torch>,
        target: Place,
        always: bool,
        present: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let device = torch.map(|torch| torch.device_at(py, target)).transpose()?;
        static FIND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let find =
            get_or_make(&FIND, py, || Ok(py.import("transship._containers")?.getattr("find")?.unbind()))?;
        let find = find.bind(py).clone();
        let (kinds, slots) = (Kinds::default(), leaf_slots::ROOM.list());
        Ok(Self {
            torch,
            device,
            target,
            always,
            find,
            takes_plainly: present.is_none(),
            present,
            kinds,
            passing: ptr::null(),
            slots,
            refused: Vec::new(),
            originals: None,
        })
    }

    /// The same, where results of these types are an error.
    pub fn without(mut self, refused: &[String]) -> Self {
        self.takes_plainly &= refused.is_empty();
        self.refused = refused.iter().filter_map(|name| dtype::number_of_name(name)).collect();
        self
    }

    /// The same, with the leaves as they came.
    pub fn with_originals(mut self) -> Self {
        self.takes_plainly = false;
        self.originals = Some(Vec::new());
        self
    }

    pub fn target(&self) -> Place {
        self.target
    }

    /// What is on the target already, as the caller asked for it.
    pub fn presented(&self, object: &Bound<'py, PyAny>) -> PyResult<Slot> {
        Ok(Slot::There(match &self.present {
            Some(present) => present.call1((object,))?.unbind(),
            None => object.clone().unbind(),
        }))
    }

    pub fn kind(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Kind<'py>> {
        if self.torch.is_some_and(|torch| torch.is_exact(object)) {
            return Ok(Kind::Torch);
        }
        if let Some((_, kind)) = self.kinds.get(&object.get_type_ptr()) {
            return Ok(kind.clone());
        }
        let kind = self.find_out(object)?;
        // The class is kept: another one cannot come to lie where it is.
        self.kinds.insert(object.get_type_ptr(), (object.get_type(), kind.clone()));
        Ok(kind)
    }

    fn find_out(&self, object: &Bound<'py, PyAny>) -> PyResult<Kind<'py>> {
        if object.is_exact_instance_of::<PyList>() {
            return Ok(Kind::List);
        }
        if object.is_exact_instance_of::<PyTuple>() {
            return Ok(Kind::Tuple);
        }
        if object.is_exact_instance_of::<PyDict>() {
            return Ok(Kind::Dict);
        }
        if self.torch.is_some_and(|torch| torch.is_tensor(object)) {
            return Ok(Kind::Torch);
        }
        if object.is_exact_instance_of::<Tensor>() {
            return Ok(Kind::Own);
        }
        #[cfg(target_os = "linux")]
        if object.is_exact_instance_of::<PyCapsule>() {
            return Ok(Kind::Capsule);
        }
        let container = self.find.call1((object.get_type(),))?;
        if !container.is_none() {
            return Ok(Kind::Container(container));
        }
        let class = object.get_type();
        Ok(match class.hasattr("__dlpack__")? && class.hasattr("__dlpack_device__")? {
            true if is_masked(object)? => Kind::Masked,
            true => Kind::Dlpack,
            false => Kind::Same,
        })
    }

    /// What becomes of a leaf, with what is there already as the caller asked for it.
    #[inline]
    fn settled(&self, object: &Bound<'py, PyAny>, kind: &Kind<'py>) -> PyResult<Option<Slot>> {
        let slot = match (self.slot(object, kind)?, &self.present) {
            (Some(Slot::There(there)), Some(_)) => Some(self.presented(there.bind(object.py()))?),
            (slot, _) => slot,
        };
        let is_kept = matches!(&slot, Some(Slot::There(there)) if there.is(object));
        if matches!(kind, Kind::Masked) && !is_kept {
            let text = "a masked array: a copy would have no mask; copy its `data` and its `mask`, or what `filled` gives";
            return Err(PyTypeError::new_err(text));
        }
        match &slot {
            Some(Slot::Leaf(At::Source(_), leaf)) if !self.refused.is_empty() => {
                self.check_type(leaf).map(|()| slot)
            }
            _ => Ok(slot),
        }
    }

    fn check_type(&self, leaf: &Leaf) -> PyResult<()> {
        match self.refused.contains(&leaf.element()) {
            true => Err(not_given(leaf.type_of_elements().name)),
            false => Ok(()),
        }
    }

    #[inline]
    fn slot(&self, object: &Bound<'py, PyAny>, kind: &Kind<'py>) -> PyResult<Option<Slot>> {
        match (kind, self.torch, &self.device) {
            (Kind::Torch, Some(torch), Some(device)) => {
                let reads = self.originals.is_some() && torch.read(object)?.is_some();
                let always = self.always || reads;
                forebear::slot(torch, object, device, Some(self.target), always).map(Some)
            }
            (Kind::Own, _, _) => {
                let tensor = object.cast::<Tensor>()?.get();
                let slot = self.slot_of(object, object, tensor.leaf().clone());
                if matches!(slot, Slot::Leaf(..)) {
                    tensor.put_in_order(object.py(), self.torch)?;
                }
                Ok(Some(slot))
            }
            #[cfg(target_os = "linux")]
            (Kind::Capsule, _, _) => {
                let leaf = slot_batch::leaf_of(object);
                Ok(leaf.map(|leaf| Slot::Leaf(At::Source(object.clone().unbind()), leaf.clone())))
            }
            (Kind::Dlpack | Kind::Masked, _, _) => {
                let (capsule, leaf) = dlpack::read(object, self.torch)?;
                match (self.torch, &self.device) {
                    (Some(torch), Some(device)) if forebear::is_gathered_between(&leaf, self.target) => {
                        let tensor = object.py().import("torch")?.call_method1("from_dlpack", (object,))?;
                        forebear::slot(torch, &tensor, device, Some(self.target), self.always).map(Some)
                    }
                    _ => Ok(Some(self.slot_of(object, &capsule, leaf))),
                }
            }
            _ => Ok(None),
        }
    }

    fn slot_of(&self, object: &Bound<'py, PyAny>, keeper: &Bound<'py, PyAny>, leaf: Leaf) -> Slot {
        if leaf.place == self.target && !self.always && self.originals.is_none() {
            return Slot::There(object.clone().unbind());
        }
        Slot::Leaf(At::Source(keeper.clone().unbind()), leaf)
    }
}

impl<'py> Rules<'py> for Ours<'py> {
    #[inline]
    fn take_plain(&mut self, object: Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.torch.filter(|_| self.takes_plainly) {
            Some(torch) => {
                forebear::take_plain(torch, object, Some(self.target), self.always, &mut self.slots)
            }
            None => Ok(Some(object)),
        }
    }

    #[inline]
    fn expect(&self, list: &Bound<'py, PyList>, index: usize) {
        if let Some(torch) = self.torch.filter(|_| self.takes_plainly) {
            torch.expect(list, index);
        }
    }

    #[inline]
    fn expect_values(&self, entries: &Entries<'py>) {
        if let Some(torch) = self.torch.filter(|_| self.takes_plainly) {
            torch.expect_values(entries);
        }
    }

    fn take(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Found<'py>> {
        if self.passing == object.get_type_ptr() {
            return Ok(Found::Same);
        }
        #[cfg(target_os = "linux")]
        if self.takes_plainly
            && let Some(leaf) = slot_batch::leaf_of(object)
        {
            self.slots.push(Slot::Leaf(At::Source(object.clone().unbind()), leaf.clone()));
            return Ok(Found::Leaf);
        }
        let kind = self.kind(object)?;
        if let Some(opened) = kind.open(object)? {
            return Ok(Found::Container(opened));
        }
        let Some(slot) = self.settled(object, &kind)? else {
            if matches!(kind, Kind::Same) {
                // Its class is kept by `kinds`.
                self.passing = object.get_type_ptr();
            }
            return Ok(Found::Same);
        };
        if let Some(originals) = &mut self.originals {
            originals.push(object.clone());
        }
        self.slots.push(slot);
        Ok(Found::Leaf)
    }
}

impl<'py> Kind<'py> {
    /// What an object of this kind holds, and what puts another one like it together; `None` if it is no container.
    pub fn open(&self, object: &Bound<'py, PyAny>) -> PyResult<Option<Opened<'py>>> {
        Ok(match self {
            Self::List => Some(Opened::List),
            Self::Tuple => Some(Opened::Tuple),
            Self::Dict => Some(Opened::Dict),
            Self::Container(open) => {
                let (held, rebuild, names) = open.call1((object,))?.extract::<Taken<'py>>()?;
                let held = held.cast_into::<PyList>().map_err(|_| {
                    PyTypeError::new_err("what takes a container apart gives a list, a function and names")
                })?;
                Some(Opened::Other(held, rebuild, names))
            }
            #[cfg(target_os = "linux")]
            Self::Capsule => None,
            Self::Torch | Self::Own | Self::Dlpack | Self::Masked | Self::Same => None,
        })
    }
}

/// The error for a type that arrays of numpy do not have.
pub fn not_given(name: &str) -> PyErr {
    // 8-bit floating point and complex32 are not cast.
    let other = if name == "bfloat16" { "another one with cast=, or for " } else { "" };
    let cure = format!(
        "install an ml_dtypes that adds that type to numpy, or ask for {other}like=\"torch\" or like=\"dlpack\""
    );
    PyTypeError::new_err(format!("arrays of numpy have no {name}: {cure}"))
}

fn is_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match modules::imported(intern!(object.py(), "numpy.ma")) {
        Some(masked) => object.is_instance(&masked.getattr("MaskedArray")?),
        None => Ok(false),
    }
}
