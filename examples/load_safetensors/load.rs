//! Reading a `.safetensors` file as a structure of tensors, without copying it.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use safetensors::{SafeTensorError, SafeTensors};
use transship::{DType, Device, Tensor, Value};

#[cfg(target_endian = "big")]
compile_error!("the elements of a .safetensors file are little-endian");

/// The length of the header comes before the header.
const LENGTH_BYTES: usize = 8;

/// A file, opened.
pub(crate) struct Loaded {
    /// Every tensor by name, in the order of the file.
    pub(crate) tensors: Value,
    /// Bytes of all of them.
    pub(crate) bytes: usize,
    /// Tensors that the file does not align for their elements, and that were copied to where they are.
    pub(crate) realigned: usize,
}

/// Opens a file: its tensors lie in a map of it, and the pages are read when the tensors are.
///
/// The file must not be changed or truncated while a tensor of it is in use.
pub(crate) fn open(path: &Path) -> Result<Loaded, LoadError> {
    let problem = |problem| LoadError { path: path.to_owned(), problem: Box::new(problem) };
    let map = map(path).map_err(|error| problem(Problem::Io(error)))?;
    read(&Arc::new(map)).map_err(problem)
}

/// A file that cannot be loaded.
#[derive(Debug)]
pub(crate) struct LoadError {
    path: PathBuf,
    problem: Box<Problem>,
}

#[derive(Debug)]
enum Problem {
    Io(std::io::Error),
    /// Truncated, not a `.safetensors` file, or one whose header does not say what is there.
    Header(SafeTensorError),
    OutOfFile {
        name: String,
        range: Range<usize>,
        bytes: usize,
    },
    UnsupportedDType {
        name: String,
        dtype: Dtype,
    },
    Tensor {
        name: String,
        error: transship::Error,
    },
}

fn map(path: &Path) -> std::io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: a map is only sound while nobody changes the file, which no program can rule out for another one: `open`
    // asks it of the user. This one opens the file read-only and never writes to it.
    unsafe { Mmap::map(&file) }
}

fn read(map: &Arc<Mmap>) -> Result<Loaded, Problem> {
    let (header, metadata) = SafeTensors::read_metadata(map).map_err(Problem::Header)?;
    let mut loaded = Loaded { tensors: Value::dict::<&str>([]), bytes: 0, realigned: 0 };
    let mut tensors = Vec::new();
    for (name, info) in in_file_order(&metadata) {
        let tensor = tensor(map, LENGTH_BYTES + header, &name, info, &mut loaded.realigned)?;
        loaded.bytes += tensor.nbytes();
        tensors.push((name, Value::from(tensor)));
    }
    loaded.tensors = Value::dict(tensors);
    Ok(loaded)
}

fn in_file_order(metadata: &Metadata) -> Vec<(String, &TensorInfo)> {
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    tensors.sort_by(|(a, one), (b, other)| (one.data_offsets, a).cmp(&(other.data_offsets, b)));
    tensors
}

fn tensor(
    map: &Arc<Mmap>,
    data: usize,
    name: &str,
    info: &TensorInfo,
    realigned: &mut usize,
) -> Result<Tensor, Problem> {
    let name = || name.to_owned();
    let dtype =
        dtype_of(info.dtype).ok_or_else(|| Problem::UnsupportedDType { name: name(), dtype: info.dtype })?;
    let (start, end) = info.data_offsets;
    let range = data.saturating_add(start)..data.saturating_add(end);
    let bytes = map.get(range.clone()).ok_or_else(|| Problem::OutOfFile {
        name: name(),
        range: range.clone(),
        bytes: map.len(),
    })?;
    let part = MapRange { map: map.clone(), range };
    let tensor = match Tensor::from_owner(part, dtype, &info.shape) {
        Err(transship::Error::Misaligned { .. }) => {
            *realigned += 1;
            copy_of(bytes, dtype, &info.shape)
        }
        tensor => tensor,
    };
    tensor.map_err(|error| Problem::Tensor { name: name(), error })
}

/// The same bytes in memory that is aligned for the elements.
fn copy_of(bytes: &[u8], dtype: DType, shape: &[usize]) -> transship::Result<Tensor> {
    let mut tensor = Tensor::empty(shape, dtype, &Device::host())?;
    tensor.as_mut_bytes()?.copy_from_slice(bytes);
    Ok(tensor)
}

/// A part of a map, which it keeps alive.
struct MapRange {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl AsRef<[u8]> for MapRange {
    fn as_ref(&self) -> &[u8] {
        self.map.get(self.range.clone()).unwrap_or_default()
    }
}

fn dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::C64 => DType::Complex64,
        _ => return None,
    })
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &*self.problem {
            Problem::Io(error) => write!(f, "cannot be read: {error}"),
            Problem::Header(error) => {
                write!(f, "is truncated or no .safetensors file: {error}; fetch or write it again")
            }
            Problem::OutOfFile { name, range, bytes } => write!(
                f,
                "tensor {name:?} lies at bytes {}..{} of a file of {bytes}; fetch or write it again",
                range.start, range.end
            ),
            Problem::UnsupportedDType { name, dtype } => write!(
                f,
                "tensor {name:?} holds {dtype}, which transship does not know; convert it to another type"
            ),
            Problem::Tensor { name, error } => write!(f, "tensor {name:?}: {error}"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.problem {
            Problem::Io(error) => Some(error),
            Problem::Header(error) => Some(error),
            Problem::Tensor { error, .. } => Some(error),
            Problem::OutOfFile { .. } | Problem::UnsupportedDType { .. } => None,
        }
    }
}
