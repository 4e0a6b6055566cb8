//! Nested structures of tensors of Python to devices and back: the module `transship._transship`.
//!
//! | | |
//! |---|---|
//! | `tree` | takes structures apart, and puts them together again |
//! | `forebear` | what is a leaf and what a container, for `multi_tensor_copier` |
//! | `torch/` | PyTorch, found at run time: tensors in, memory, tensors out |
//! | `leaf`, `dtype`, `place` | what is known of a leaf |
//! | `plan` | which leaves share a chunk |
//! | `start`, `transfer` | from leaves to copies of the library |
//! | `progress`, `handle` | copies that run |
//! | `released` | objects that were let go of without the GIL |

mod dtype;
mod errors;
mod forebear;
mod handle;
mod leaf;
mod place;
mod plan;
mod progress;
mod released;
mod start;
mod torch;
mod transfer;
mod tree;

use pyo3::prelude::*;

#[pymodule]
mod _transship {
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    use crate::forebear::Forebear;
    use crate::plan::Packing;
    use crate::progress::Copies;
    use crate::released;
    use crate::start::{Request, start};
    use crate::torch::Torch;
    use crate::transfer::How;
    use crate::tree::Skeleton;

    #[pymodule_export]
    use crate::errors::Error;
    #[pymodule_export]
    use crate::handle::Handle;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

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
        let device = torch.device(device)?;
        let target = torch.place_of(&device)?;
        let mut rules = Forebear::new(torch, device, target, always)?;
        let skeleton = Skeleton::of(data, &mut rules)?;
        let mut slots = rules.slots;
        let at_least_one = |number: i64| usize::try_from(number.max(1)).unwrap_or(usize::MAX);
        let packing = Packing {
            on: pack_cpu_tensors,
            alignment: at_least_one(min_packed_alignment_bytes),
            max_chunk: at_least_one(max_packed_chunk_bytes),
        };
        let how = How { pinned_staging: use_pinned_staging, background: use_background_thread };
        let (chunks, running) = match target {
            Some(target) => start(py, torch, Request { target, packing, how }, &mut slots)?,
            None => (Vec::new(), Vec::new()),
        };
        Ok(Handle::new(skeleton, slots, chunks, Copies::new(running)))
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
    }
}
