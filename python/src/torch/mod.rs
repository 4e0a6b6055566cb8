//! PyTorch, by the fastest way that the installed one has. Nothing of it is linked; it is imported when it is first needed.

mod devices;
mod direct;
mod lazy;
mod memory;
mod order;
mod read;
mod results;
mod symbols;

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use transship::dlpack::{DLDevice, device_type};

pub use results::{Part, Parts};

use crate::dtype;
use crate::modules;
use crate::once::get_or_make;
use crate::place::Place;

/// Set to `slow`, only what every PyTorch has is used: for tests, and where a new PyTorch breaks the fast way.
const WAY: &str = "TRANSSHIP_TORCH";

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// The module `torch`, and what is used of it.
pub struct Torch {
    module: Py<PyAny>,
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    tensor_dispatch: Py<PyAny>,
    no_grad: Py<PyAny>,
    empty: Py<PyAny>,
    empty_strided: Py<PyAny>,
    from_numpy: Py<PyAny>,
    /// `None` for types that this PyTorch does not have.
    dtypes: Vec<Option<Py<PyAny>>>,
    /// Of DLPack's exchange interface (PyTorch 2.10).
    read: Option<read::FromPyObject>,
    /// Reads most tensors faster than that.
    direct: Option<direct::Direct>,
    views: Option<(symbols::Views, Py<PyAny>)>,
    current_stream: Option<symbols::CurrentStream>,
    is_rocm: bool,
    devices: devices::Devices,
    prepared: memory::Prepared,
}

impl Torch {
    /// Imports it.
    pub fn import(py: Python<'_>) -> PyResult<&Self> {
        get_or_make(&TORCH, py, || outside_of_modes(py, || Self::new(py)))
    }

    /// It, if the program has imported it.
    pub fn loaded(py: Python<'_>) -> PyResult<Option<&Self>> {
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        let module = modules::imported(intern!(py, "torch"));
        let is_whole = module.is_some_and(|module| {
            module.hasattr("_C").unwrap_or(false) && module.hasattr("from_numpy").unwrap_or(false)
        });
        if is_whole { Self::import(py).map(Some) } else { Ok(None) }
    }

    fn new(py: Python<'_>) -> PyResult<Self> {
        let module = py.import("torch")?;
        let tensor = module.getattr("Tensor")?.cast_into::<PyType>()?;
        let is_slow = std::env::var_os(WAY).is_some_and(|way| way == "slow");
        let file: PathBuf = module.getattr("__file__")?.extract()?;
        let folder = file.with_file_name("lib");
        let dtypes =
            dtype::ALL.iter().map(|known| module.getattr(known.name).ok().map(Bound::unbind)).collect();
        let read = if is_slow { None } else { read::exchange(&tensor)? };
        let views = if is_slow { None } else { views(&module, &folder)? };
        let is_rocm = module.getattr("version")?.getattr("hip").is_ok_and(|version| !version.is_none());
        let direct = direct(&module, &folder, read, views.as_ref(), is_rocm)?;
        Ok(Self {
            parameter: module.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?.unbind(),
            tensor_dispatch: tensor.getattr("__torch_dispatch__")?.unbind(),
            no_grad: module.getattr("no_grad")?.unbind(),
            empty: module.getattr("empty")?.unbind(),
            empty_strided: module.getattr("empty_strided")?.unbind(),
            from_numpy: module.getattr("from_numpy")?.unbind(),
            dtypes,
            read,
            direct,
            views,
            current_stream: if is_slow { None } else { symbols::current_stream(&folder) },
            is_rocm,
            devices: devices::Devices::default(),
            prepared: memory::Prepared::default(),
            tensor: tensor.unbind(),
            module: module.into_any().unbind(),
        })
    }

    /// Which ways are used: to read tensors, to make them, and to ask for the current stream.
    pub fn ways(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let ways = PyDict::new(py);
        ways.set_item("version", self.module.bind(py).getattr("__version__")?.str()?)?;
        let read = match (&self.direct, &self.read) {
            (Some(_), _) => "aoti",
            (None, Some(_)) => "dlpack exchange api",
            (None, None) => "attributes",
        };
        ways.set_item("read", read)?;
        let make = match &self.views {
            Some((views, _)) if views.part_of.is_some() => "alloc_from_pool in place",
            Some(_) => "alloc_from_pool",
            None => "as_strided",
        };
        ways.set_item("make", make)?;
        ways.set_item(
            "stream",
            if self.current_stream.is_some() { "aoti" } else { "torch.cuda.current_stream" },
        )?;
        Ok(ways.unbind())
    }

    /// Whether this is a tensor of PyTorch's.
    pub fn is_tensor(&self, object: &Bound<'_, PyAny>) -> bool {
        self.is_exact(object) || {
            // SAFETY: both are types, and alive.
            unsafe { ffi::PyType_IsSubtype(object.get_type_ptr(), self.tensor.as_ptr().cast()) != 0 }
        }
    }

    /// Whether its class is `torch.Tensor`, and none derived of it.
    pub fn is_exact(&self, object: &Bound<'_, PyAny>) -> bool {
        object.get_type_ptr() == self.tensor.as_ptr().cast()
    }

    /// Whether a tensor is nothing but elements: no gradient is asked for, and the program has given it no attributes.
    #[cfg(target_os = "linux")]
    pub fn is_bare(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let attributes = tensor.getattr(pyo3::intern!(tensor.py(), "__dict__"))?;
        Ok(attributes.is_empty()?
            && !tensor.getattr(pyo3::intern!(tensor.py(), "requires_grad"))?.is_truthy()?)
    }

    /// Whether it has done anything on a GPU.
    pub fn has_begun(&self, py: Python<'_>) -> PyResult<bool> {
        self.module.bind(py).getattr("cuda")?.call_method0("is_initialized")?.is_truthy()
    }

    /// Whether it records what is done to tensors that require a gradient.
    pub fn records(&self, py: Python<'_>) -> PyResult<bool> {
        self.module.bind(py).call_method0("is_grad_enabled")?.is_truthy()
    }

    /// Tells it that these tensors were written: what it has saved of them for a gradient is not used unnoticed.
    pub fn mark_written(&self, py: Python<'_>, tensors: &[Bound<'_, PyAny>]) -> PyResult<()> {
        let graph = self.module.bind(py).getattr("autograd")?.getattr("graph")?;
        // PyTorch 2.4 and newer.
        let Ok(mark) = graph.getattr("increment_version") else { return Ok(()) };
        for tensor in tensors {
            if !tensor.call_method0("is_inference")?.is_truthy()? {
                mark.call1((tensor,))?;
            }
        }
        Ok(())
    }

    /// `into.copy_(tensor)`, which is not recorded.
    pub fn fill<'py>(&self, tensor: &Bound<'py, PyAny>, into: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = tensor.py();
        let guard = self.no_grad.bind(py).call0()?;
        guard.call_method0("__enter__")?;
        let filled = into.call_method1("copy_", (tensor,));
        guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        order::note_copy();
        filled.map(drop)
    }

    /// The driver's handle of PyTorch's current stream of a device.
    pub fn current_stream(&self, py: Python<'_>, place: Place) -> PyResult<usize> {
        let DLDevice { device_type, device_id } = place.dl_device();
        if let Some(current) = self.current_stream.filter(|_| device_type != device_type::CPU) {
            let mut stream = std::ptr::null_mut();
            // SAFETY: it writes a pointer; its errors are a number.
            if unsafe { current(device_id, &mut stream) } == 0 {
                return Ok(stream.expose_provenance());
            }
        }
        let stream = self.module.bind(py).getattr("cuda")?.call_method1("current_stream", (device_id,))?;
        stream.getattr("cuda_stream")?.extract()
    }

    /// `torch.from_numpy(array)`; of a copy without gaps, where that is refused.
    pub fn tensor_of_numpy<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        let from_numpy = self.from_numpy.bind(py);
        from_numpy.call1((array,)).or_else(|_| {
            from_numpy.call1((py.import("numpy")?.call_method1("ascontiguousarray", (array,))?,))
        })
    }

    /// Copies a tensor by PyTorch's own `to`, on its current streams: what this module cannot copy by itself. Where it is on that device
    /// already, it comes back itself, unless it is `always` copied. Copies carry no gradient.
    pub fn copy_by_torch<'py>(
        &self,
        tensor: &Bound<'py, PyAny>,
        device: &Bound<'py, PyAny>,
        always: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = tensor.py();
        if has_given_up_its_memory(tensor) {
            let text =
                "the tensor's storage has no memory (storage.resize_(0)); give it some before it is copied";
            return Err(PyValueError::new_err(text));
        }
        let named = PyDict::new(py);
        if always {
            named.set_item("copy", true)?;
        }
        let guard = self.no_grad.bind(py).call0()?;
        guard.call_method0("__enter__")?;
        let copy = tensor.call_method("to", (device,), Some(&named));
        guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        if copy.as_ref().is_ok_and(|copy| !copy.is(tensor)) {
            order::note_copy();
        }
        copy
    }
}

/// Whether PyTorch would end the process that reads it. Tensors that have no storage, and those that are zero without one, are no such.
fn has_given_up_its_memory(tensor: &Bound<'_, PyAny>) -> bool {
    let is_empty = || -> PyResult<bool> {
        let bytes: usize = tensor.call_method0("untyped_storage")?.call_method0("nbytes")?.extract()?;
        Ok(bytes == 0
            && tensor.call_method0("numel")?.extract::<usize>()? > 0
            && !tensor.call_method0("_is_zerotensor")?.is_truthy()?)
    };
    is_empty().unwrap_or(false)
}

fn views(
    module: &Bound<'_, PyAny>,
    folder: &std::path::Path,
) -> PyResult<Option<(symbols::Views, Py<PyAny>)>> {
    let handles = module
        .getattr("_C")?
        .getattr("_aoti")
        .and_then(|aoti| aoti.getattr("unsafe_alloc_void_ptrs_from_tensors"));
    let found = symbols::views(folder).zip(handles.ok().map(Bound::unbind));
    let Some((views, handles)) = found else { return Ok(None) };
    let (mut views, handles) = results::tried(module, views, handles)?;
    views.empty = memory::tried(module, &views)?;
    Ok(Some((views, handles)))
}

fn direct(
    module: &Bound<'_, PyAny>,
    folder: &std::path::Path,
    read: Option<read::FromPyObject>,
    views: Option<&(symbols::Views, Py<PyAny>)>,
    is_rocm: bool,
) -> PyResult<Option<direct::Direct>> {
    let Some((read, (views, handles))) = read.zip(views) else { return Ok(None) };
    // SAFETY: it is asked about tensors of PyTorch's.
    let read = |tensor: &Bound<'_, PyAny>| unsafe { read::by_exchange(read, tensor) };
    direct::Direct::find(module, folder, (handles.bind(module.py()), views.delete), is_rocm, &read)
}

/// Without the modes of the program, such as `FakeTensorMode`: under these no tensor is what those are that come later.
fn outside_of_modes<T>(py: Python<'_>, look: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let modes = py.import("torch.utils._python_dispatch")?.getattr("_disable_current_modes");
    // Its name says that it is no promise of PyTorch's.
    let Ok(modes) = modes else { return look() };
    let modes = modes.call0()?;
    modes.call_method0("__enter__")?;
    let found = look();
    modes.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    found
}
