//! Nested structures of tensors of Python to devices and back: the module `transship._transship`.
//!
//! | | |
//! |---|---|
//! | `tree` | takes structures apart, and puts them together again |
//! | `forebear` | what is a leaf and what a container, for `multi_tensor_copier` |
//! | `torch/` | PyTorch, found at run time: tensors in, memory, tensors out |
//! | `named_device` | devices by the names that programs give them |
//! | `leaf`, `dtype`, `place`, `kinds` | what is known of a leaf |
//! | `row_by_row` | most leaves, looked at without being described first |
//! | `leaf_slots` | the leaves of a structure, and what they come to |
//! | `modules` | what the program has imported |
//! | `fetch` | hints for the processor, of what comes soon |
//! | `by_place` | the leaves of one place, in parts |
//! | `misaligned` | leaves that are copied before anything else looks at them |
//! | `plan` | which leaves share a chunk |
//! | `pieces` | which leaves are copied as one |
//! | `start`, `transfer`, `order` | from leaves to copies of the library |
//! | `calls`, `typed`, `casts`, `shipment`, `torch_memory` | leaves that are cast, or go to several devices |
//! | `into`, `destinations` | copies into memory of the program |
//! | `gather`, `on_source` | the leaves of a chunk become one tensor, on the host or on the device that they are on |
//! | `progress`, `handle`, `paused`, `give_up` | copies that run, their results, and their end |
//! | `slots`, `slot_batch`, `description` | memory that worker processes of loaders fill: who has it, and batches in it |
//! | `released` | objects that were let go of without the GIL |
//! | `forked` | locks in children of `fork` |
//! | `room`, `kept_blocks` | how long lists will be, and their memory, kept for the next call |

mod by_place;
mod calls;
mod casts;
#[cfg(target_os = "linux")]
mod description;
mod destinations;
mod dlpack;
mod dtype;
mod errors;
mod fetch;
mod forebear;
mod forked;
mod gather;
mod give_up;
mod handle;
mod into;
mod kept_blocks;
mod kinds;
mod leaf;
mod leaf_slots;
mod misaligned;
mod modules;
mod named_device;
mod on_source;
mod once;
mod order;
mod ours;
mod paused;
mod pieces;
mod place;
mod plan;
mod progress;
mod released;
mod room;
mod row_by_row;
mod shipment;
#[cfg(target_os = "linux")]
mod slot_batch;
#[cfg(target_os = "linux")]
mod slots;
#[cfg(unix)]
mod socket;
mod start;
mod tensor;
mod torch;
mod torch_memory;
mod transfer;
mod tree;
mod typed;

use pyo3::prelude::*;

use crate::kept_blocks::KeptBlocks;

#[global_allocator]
static ALLOCATOR: KeptBlocks = KeptBlocks::new();

#[pymodule(gil_used = false)]
mod _transship {
    use std::collections::{HashMap, HashSet};
    use std::path::PathBuf;
    use std::time::Instant;

    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    use transship::safetensors::{LoadOptions, load_files};

    use crate::errors;
    use crate::forebear::Forebear;
    use crate::leaf_slots;
    use crate::named_device;
    use crate::ours::Ours;
    use crate::place;
    use crate::plan::Packing;
    use crate::released;
    use crate::start::{Request, Started, start};
    use crate::torch::Torch;
    use crate::transfer::How;
    use crate::tree::Skeleton;

    #[pymodule_export]
    use crate::calls::{start_copies, start_copy_into};
    #[pymodule_export]
    use crate::errors::Error;
    #[pymodule_export]
    use crate::handle::Handle;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::slot_batch::SlotPacker;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::slots::{ClaimedSlot, SlotFiller, SlotLease, Slots};
    #[pymodule_export]
    use crate::tensor::Tensor;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::forked::watch();
        module.getattr("Error")?.setattr("kind", format!("{:?}", errors::KIND_OF_OTHERS))
    }

    /// `multi_tensor_copier.start_copy`: its keywords, defaults and limits.
    #[pyfunction]
    #[expect(clippy::too_many_arguments, reason = "they are those of multi_tensor_copier")]
    #[pyo3(signature = (data, device, *, use_pinned_staging, pack_cpu_tensors, min_packed_alignment_bytes,
        max_packed_chunk_bytes, use_background_thread, always=false))]
    fn start_copy_as_forebear(
        data: &Bound<'_, PyAny>,
        device: &Bound<'_, PyAny>,
        use_pinned_staging: bool,
        pack_cpu_tensors: bool,
        min_packed_alignment_bytes: i64,
        max_packed_chunk_bytes: i64,
        use_background_thread: bool,
        always: bool,
    ) -> PyResult<Handle> {
        let py = data.py();
        released::drain(py);
        let torch = Torch::import(py)?;
        let (device, target) = torch.device(device)?;
        let mut rules = Forebear::new(torch, device, target, always);
        let begin = Instant::now();
        let skeleton = Skeleton::of(data, &mut rules)?;
        let read = begin.elapsed();
        let mut slots = rules.slots;
        leaf_slots::ROOM.note(&mut slots);
        let at_least_one = |number: i64| usize::try_from(number.max(1)).unwrap_or(usize::MAX);
        let packing = Packing {
            on: pack_cpu_tensors,
            alignment: at_least_one(min_packed_alignment_bytes),
            max_chunk: at_least_one(max_packed_chunk_bytes),
        };
        let how = How { pinned_staging: use_pinned_staging, background: use_background_thread };
        let request = |target| Request { target, packing, how, own_memory: false, behind: None };
        let mut started = match target {
            Some(target) => start(py, Some(torch), request(target), &mut slots)?,
            None => Started::default(),
        };
        started.by_torch = torch.behind_copies(py, target)?;
        Ok(Handle::new((skeleton, slots), started, read, target, None))
    }

    /// `transship.start_copy`. `convert` makes results out of tensors in memory of the library; without it that is PyTorch's. `present` makes
    /// them out of what is on the target already; without it that goes through. `behind` is the handle of a stream of the target that leaves
    /// there come behind.
    #[pyfunction]
    #[expect(clippy::too_many_arguments, reason = "they are those of start_copy")]
    #[pyo3(signature = (tree, device, *, refused, own_memory, convert, present, packing, alignment, max_chunk_bytes, pinned,
        background, always, behind=None))]
    fn start_copy(
        tree: &Bound<'_, PyAny>,
        device: &str,
        refused: Vec<String>,
        own_memory: bool,
        convert: Option<Py<PyAny>>,
        present: Option<Bound<'_, PyAny>>,
        packing: bool,
        alignment: usize,
        max_chunk_bytes: usize,
        pinned: bool,
        background: bool,
        always: bool,
        behind: Option<usize>,
    ) -> PyResult<Handle> {
        let py = tree.py();
        released::drain(py);
        let target = named_device::opened(py, device)?;
        let torch = if own_memory { Torch::loaded(py)? } else { Some(Torch::import(py)?) };
        let begin = Instant::now();
        let mut rules = Ours::new(py, torch, target, always, present)?.without(&refused);
        let skeleton = Skeleton::of(tree, &mut rules)?;
        let read = begin.elapsed();
        let mut slots = rules.slots;
        leaf_slots::ROOM.note(&mut slots);
        let packing = Packing { on: packing, alignment: alignment.max(1), max_chunk: max_chunk_bytes.max(1) };
        let request =
            Request { target, packing, how: How { pinned_staging: pinned, background }, own_memory, behind };
        let mut started = start(py, torch, request, &mut slots)?;
        if let Some(torch) = torch {
            started.by_torch = torch.behind_copies(py, Some(target))?;
        }
        Ok(Handle::new((skeleton, slots), started, read, Some(target), convert))
    }

    /// `transship.load_safetensors`.
    #[pyfunction]
    #[pyo3(signature = (paths, device, *, convert, names))]
    fn load_safetensors(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        device: &str,
        convert: Option<&Bound<'_, PyAny>>,
        names: Option<HashSet<String>>,
    ) -> PyResult<Py<PyDict>> {
        released::drain(py);
        let target = named_device::place_of(py, device)?;
        let mut options = LoadOptions::default();
        if let Some(names) = names {
            options = options.filter(move |name| names.contains(name));
        }
        let device = py.detach(|| target.device()).map_err(|error| errors::of(py, &error))?;
        let loaded = py.detach(|| load_files(paths, &device, options));
        let tensors = PyDict::new(py);
        for (name, tensor) in loaded.map_err(|error| errors::of_files(py, &error))? {
            let tensor = Tensor::of_library(tensor).map_err(|error| errors::of(py, &error))?;
            let tensor = Bound::new(py, tensor)?.into_any();
            let given = convert.map_or(Ok(tensor.clone()), |convert| convert.call1((tensor,)));
            let named = |error: &PyErr| errors::note(py, error, &format!("the tensor {name:?} of the files"));
            let given = given.inspect_err(named)?;
            tensors.set_item(name, given)?;
        }
        Ok(tensors.unbind())
    }

    /// The devices that there are, by name, beside the host.
    #[pyfunction]
    fn devices() -> Vec<String> {
        transship::Device::list().iter().filter(|id| !id.is_host()).map(ToString::to_string).collect()
    }

    /// What the library holds, in bytes, by device: tensors in its memory, page-locked blocks in use; and how much it has leaked.
    #[pyfunction]
    fn held(py: Python<'_>) -> HashMap<String, u64> {
        released::drain(py);
        let mut held = HashMap::from([("leaked".to_owned(), transship::runtime_stats().leaked_bytes)]);
        for device in place::opened() {
            let tensors = device.memory().ok().and_then(|memory| memory.tensors);
            let blocks = device.staging_usage().in_use + device.result_usage().in_use;
            held.insert(format!("{}, tensors", device.id()), tensors.unwrap_or(0));
            held.insert(format!("{}, blocks", device.id()), blocks as u64);
        }
        held
    }

    /// Which ways PyTorch is used by.
    #[pyfunction]
    fn torch_ways(py: Python<'_>) -> PyResult<Option<Py<PyDict>>> {
        Torch::loaded(py)?.map(|torch| torch.ways(py)).transpose()
    }

    /// The interpreter ends.
    #[pyfunction]
    fn close(py: Python<'_>) {
        released::close(py);
        py.detach(place::close);
    }
}
