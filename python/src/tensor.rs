//! A tensor in memory of the library, for every library that speaks DLPack.

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use crate::dlpack;
use crate::dtype;
use crate::errors;
use crate::leaf::{Leaf, append_row_major};
use crate::order;
use crate::place::Place;
use crate::torch::Torch;

/// A tensor in memory of transship. ``numpy.from_dlpack``, ``torch.from_dlpack`` and others take it without a copy.
#[pyclass(frozen, module = "transship")]
pub struct Tensor {
    leaf: Leaf,
    memory: transship::Tensor,
}

impl Tensor {
    /// `leaf` describes it as it was copied; the copy is in `memory`, and done.
    pub fn new(leaf: &Leaf, place: Place, memory: transship::Tensor) -> transship::Result<Self> {
        let mut leaf = leaf.copied();
        (leaf.place, leaf.address) = (place, address_of(&memory, place)?);
        Ok(Self { leaf, memory })
    }

    /// A tensor of the library, which is filled, without gaps.
    pub fn of_library(memory: transship::Tensor) -> transship::Result<Self> {
        let device = memory.device_id()?;
        let unsupported = |what| transship::Error::Unsupported { device, what };
        let place = Place::of_id(device).ok_or(unsupported("hold tensors of Python"))?;
        let element =
            dtype::number_of_library(memory.dtype()).ok_or(unsupported("give such elements to Python"))?;
        let sizes = memory.shape().iter().map(|size| i64::try_from(*size).ok());
        let mut numbers: SmallVec<[i64; 8]> =
            sizes.collect::<Option<_>>().ok_or(unsupported("give a dimension of 2^63 and more to Python"))?;
        append_row_major(&mut numbers);
        let address = address_of(&memory, place)?;
        let leaf = Leaf::new(address, place, element, numbers)
            .ok_or(unsupported("describe such a tensor to Python"))?;
        Ok(Self { leaf, memory })
    }

    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }
}

fn address_of(memory: &transship::Tensor, place: Place) -> transship::Result<u64> {
    match place {
        _ if memory.nbytes() == 0 => Ok(0),
        Place::Host if memory.is_contiguous() => Ok(memory.as_bytes()?.as_ptr().expose_provenance() as u64),
        // With gaps on the host as well: such as were copied as they lay.
        _ => Ok(memory.address()?.unwrap_or(0)),
    }
}

#[pymethods]
impl Tensor {
    /// The size of each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.leaf.shape())
    }

    /// From one element to the next along each dimension, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.leaf.strides())
    }

    /// The name of the element type, such as "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.leaf.type_of_elements().name
    }

    /// The device, such as "cuda:0"; "host" for memory of the host.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        self.leaf.place.id().map(|id| id.to_string()).map_err(|error| errors::of(py, &error))
    }

    /// The bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.leaf.bytes
    }

    /// Its memory as unsigned integers of the size of its elements, for libraries that do not have their type.
    fn bits(&self) -> PyResult<Self> {
        let name = match self.leaf.type_of_elements().bytes() {
            1 => "uint8",
            2 => "uint16",
            4 => "uint32",
            8 => "uint64",
            _ => return Err(PyValueError::new_err("there are no integers of that size")),
        };
        let element = dtype::number_of_name(name).unwrap_or(self.leaf.element());
        Ok(Self { leaf: self.leaf.as_elements(element), memory: self.memory.clone() })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let device = self.device(py)?;
        Ok(format!(
            "transship.Tensor(shape={:?}, dtype={}, device={device})",
            self.leaf.shape(),
            self.dtype()
        ))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.leaf.place.dl_device();
        (device.device_type, device.device_id)
    }

    /// ``stream`` is a stream of the consumer's, as DLPack numbers them: it waits for what fills the tensor, and its memory is not used again
    /// before what was submitted there until the last reference to it went. It must not be destroyed before that, nor before the copies that the tensor is
    /// given to. Streams of PyTorch's pools and default streams never are; whoever destroys his own lets go of the tensor and of what was made of it first.
    /// With ``stream=-1`` nothing is ordered, and the consumer waits by himself before he lets go.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(
                "it lies on another device; copy it there with transship.start_copy",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "no copies are made here; copy it with transship.start_copy(..., copy=True)",
            ));
        }
        self.record(py, stream)?;
        dlpack::export(py, &self.leaf, self.memory.clone(), max_version.is_some_and(|(major, _)| major >= 1))
    }
}

impl Tensor {
    /// Lets copies from there, and into it, come behind the one that fills it, which may still run.
    pub fn put_in_order(&self, py: Python<'_>, torch: Option<&Torch>) -> PyResult<()> {
        if self.leaf.place == Place::Host || self.memory.is_ready().unwrap_or(false) {
            return Ok(());
        }
        let handle = order::handle_of(py, torch, self.leaf.place);
        // SAFETY: PyTorch destroys no stream of its pools, and nobody the default one.
        let stream = unsafe { self.leaf.place.stream(handle) };
        let waits = |stream: transship::Stream| self.memory.wait_on_backend(stream.backend_stream());
        py.detach(|| stream.and_then(waits)).map_err(|error| errors::of(py, &error))
    }

    /// Lets the memory not go before what the consumer's stream does with it is done.
    fn record(&self, py: Python<'_>, stream: Option<i64>) -> PyResult<()> {
        let handle = match (self.leaf.place, stream) {
            (Place::Host, _) | (_, Some(-1)) => return Ok(()),
            (Place::Cuda(_), None | Some(1)) | (Place::Hip(_), None | Some(0)) => 0,
            (Place::Cuda(_), Some(0 | 2)) | (Place::Hip(_), Some(1 | 2)) => {
                let text = "a stream that says nothing, or is another one on each thread; give the handle of a stream";
                return Err(PyValueError::new_err(text));
            }
            (_, Some(handle)) => {
                usize::try_from(handle).map_err(|_| PyValueError::new_err("no handle of a stream"))?
            }
        };
        // SAFETY: DLPack's consumers say a stream that is alive now. That it stays so as long as the tensor is there is asked of them by
        // the documentation of `__dlpack__`: the protocol does not. An order at the exchange alone would not do: consumers let go of a
        // tensor before their streams have come by.
        let stream = unsafe { self.leaf.place.stream(handle) };
        stream.and_then(|stream| self.memory.record_stream(&stream)).map_err(|error| errors::of(py, &error))
    }
}
