//! The header of a file: what is where. It is read without the tensors, and believed only if it is exact.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use safetensors::tensor::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, MapAccess, Visitor};
use transship_core::DType;

use crate::error::{LoadError, Place, printable};
use crate::open_file::OpenFile;

/// The length of the header comes before the header.
pub(crate) const LENGTH_BYTES: u64 = 8;
/// The longest header that the format allows, in bytes.
pub(crate) const MOST_HEADER_BYTES: u64 = 100_000_000;
pub(crate) const METADATA: &str = "__metadata__";

/// What a file says of itself. Its tensors lie one behind the other, in order, up to the end of the file.
pub(crate) struct Header {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) entries: Vec<Entry>,
}

/// One tensor of a file.
pub(crate) struct Entry {
    pub(crate) name: String,
    dtype: ElementType,
    pub(crate) shape: Vec<usize>,
    /// Where it begins in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

/// What a tensor holds.
#[derive(Clone)]
enum ElementType {
    Known(Dtype),
    /// A name that the format did not have when this was written.
    Unknown(String),
}

impl Header {
    pub(crate) fn read(file: &OpenFile) -> Result<Self, LoadError> {
        let wrong = |offset, reason| LoadError::Header { path: file.path.clone(), offset, reason };
        let read = |to: &mut [u8], offset| {
            file.read_exact_at(to, offset).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    wrong(offset, "the file ends within its header".to_owned())
                }
                _ => LoadError::Read { path: file.path.clone(), offset, source: error },
            })
        };
        let mut length = [0; LENGTH_BYTES as usize];
        read(&mut length, 0)?;
        let length = u64::from_le_bytes(length);
        if length > MOST_HEADER_BYTES {
            return Err(wrong(0, why_too_long(length)));
        }
        let data = LENGTH_BYTES + length;
        if data > file.bytes {
            let reason = format!("a header of {length} bytes is promised in a file of {}", file.bytes);
            return Err(wrong(0, reason));
        }
        let mut text = vec![0; length as usize];
        read(&mut text, LENGTH_BYTES)?;
        let parsed: Parsed = serde_json::from_slice(&text)
            .map_err(|error| wrong(LENGTH_BYTES + place_of(&error, &text), printable(&error.to_string())))?;
        parsed.checked(file, data)
    }
}

/// What a file is whose first bytes make no length of a header.
fn why_too_long(length: u64) -> String {
    match &length.to_le_bytes() {
        b"version " => {
            "it begins as a pointer of git-lfs does, in place of the file: fetch that by `git lfs pull`"
                .to_owned()
        }
        [b'{', ..] => {
            "it begins as JSON does: an index is loaded by `load`, under a name that ends with .json"
                .to_owned()
        }
        _ => format!("a header of {length} bytes is promised, and {MOST_HEADER_BYTES} are allowed"),
    }
}

/// The byte of `text` where it was noticed.
fn place_of(error: &serde_json::Error, text: &[u8]) -> u64 {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    (before + error.column().saturating_sub(1)) as u64
}

impl Entry {
    /// Its type, if transship knows it.
    pub(crate) fn known_dtype(&self, file: &OpenFile) -> Result<DType, LoadError> {
        let unknown = || LoadError::UnknownDType {
            path: file.path.clone(),
            tensor: self.name.clone(),
            offset: self.offset,
            dtype: match &self.dtype {
                ElementType::Known(dtype) => dtype.to_string(),
                ElementType::Unknown(name) => printable(name),
            },
        };
        match self.dtype {
            ElementType::Known(dtype) => dtype_of(dtype).ok_or_else(unknown),
            ElementType::Unknown(_) => Err(unknown()),
        }
    }

    pub(crate) fn device_error(&self, file: &OpenFile, source: transship_core::Error) -> LoadError {
        let (path, tensor, offset) = (file.path.clone(), self.name.clone(), self.offset);
        LoadError::Device { at: Box::new(Place { path, tensor, offset }), source }
    }
}

/// A header as it is written.
struct Parsed {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, Info)>,
}

/// A tensor, as it is written.
#[derive(serde::Deserialize)]
struct Info {
    dtype: ElementType,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for ElementType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Dtype::deserialize(name.as_str().into_deserializer());
        Ok(known.map_or_else(|_: serde::de::value::Error| Self::Unknown(name.clone()), Self::Known))
    }
}

impl Parsed {
    /// Fails unless the tensors cover the file from `data` to its end, each with the bytes of its shape and type.
    fn checked(mut self, file: &OpenFile, data: u64) -> Result<Header, LoadError> {
        // Of two that begin at the same place, the empty one comes first.
        self.tensors.sort_by(|(a, one), (b, other)| (one.data_offsets, a).cmp(&(other.data_offsets, b)));
        let (mut names, mut entries) = (HashSet::new(), Vec::with_capacity(self.tensors.len()));
        let mut end = data;
        for (name, info) in &self.tensors {
            let entry = checked(file, data, end, name, info)?;
            if !names.insert(name) {
                return Err(wrong_tensor(file, &entry.name, entry.offset, "is there twice".to_owned()));
            }
            end = entry.offset + entry.bytes as u64;
            entries.push(entry);
        }
        match file.bytes - end {
            0 => Ok(Header { metadata: self.metadata, entries }),
            bytes => Err(LoadError::Trailing { path: file.path.clone(), offset: end, bytes }),
        }
    }
}

/// A tensor that begins at byte `expected`, in a file whose tensors begin at `data`.
fn checked(file: &OpenFile, data: u64, expected: u64, name: &str, info: &Info) -> Result<Entry, LoadError> {
    let (start, end) = info.data_offsets;
    let offset = data.saturating_add(start as u64);
    let wrong = |reason| Err(wrong_tensor(file, name, offset, reason));
    if end < start {
        return wrong(format!("ends before it begins, at byte {}", data.saturating_add(end as u64)));
    }
    if offset < expected {
        return wrong(format!("overlaps the one before it, which ends at byte {expected}"));
    }
    if offset > expected {
        return wrong(format!("has a hole before it, from byte {expected} on"));
    }
    if data.saturating_add(end as u64) > file.bytes {
        let (path, tensor) = (file.path.clone(), name.to_owned());
        return Err(LoadError::Truncated { path, tensor, offset, bytes: file.bytes });
    }
    let bytes = end - start;
    if let ElementType::Known(dtype) = info.dtype {
        let size = check_size(&info.shape, dtype, bytes);
        size.map_err(|reason| wrong_tensor(file, name, offset, reason))?;
    }
    Ok(Entry { name: name.to_owned(), dtype: info.dtype.clone(), shape: info.shape.clone(), offset, bytes })
}

fn check_size(shape: &[usize], dtype: Dtype, bytes: usize) -> Result<(), String> {
    let elements = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    match elements.and_then(|elements| elements.checked_mul(dtype.bitsize())) {
        None => Err(format!("of shape {shape:?} has more bits than a machine word can count")),
        Some(bits) if bits % 8 == 0 && bits / 8 == bytes => Ok(()),
        Some(bits) => Err(format!("has {bytes} bytes, and shape {shape:?} of {dtype} needs {bits} bits")),
    }
}

fn wrong_tensor(file: &OpenFile, name: &str, offset: u64, reason: String) -> LoadError {
    LoadError::Tensor { path: file.path.clone(), tensor: name.to_owned(), offset, reason: printable(&reason) }
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ParsedVisitor)
    }
}

/// Keeps every entry: a map would forget one of two of the same name.
struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let (mut metadata, mut tensors) = (None, Vec::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                let read: Option<BTreeMap<_, _>> = map.next_value()?;
                if metadata.replace(read.unwrap_or_default()).is_some() {
                    return Err(A::Error::custom(format!("{METADATA} is there twice")));
                }
            } else {
                let info = map
                    .next_value()
                    .map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
                tensors.push((name, info));
            }
        }
        Ok(Parsed { metadata: metadata.unwrap_or_default(), tensors })
    }
}

/// Types of the format that transship has as well.
const DTYPES: [(Dtype, DType); 17] = [
    (Dtype::BOOL, DType::Bool),
    (Dtype::U8, DType::U8),
    (Dtype::U16, DType::U16),
    (Dtype::U32, DType::U32),
    (Dtype::U64, DType::U64),
    (Dtype::I8, DType::I8),
    (Dtype::I16, DType::I16),
    (Dtype::I32, DType::I32),
    (Dtype::I64, DType::I64),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
    (Dtype::F8_E4M3, DType::F8E4M3FN),
    (Dtype::F8_E5M2, DType::F8E5M2),
    (Dtype::F8_E8M0, DType::F8E8M0FNU),
    (Dtype::C64, DType::Complex64),
];

fn dtype_of(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(format, _)| *format == dtype).map(|(_, known)| *known)
}

pub(crate) fn format_of(dtype: DType) -> Option<Dtype> {
    DTYPES.iter().find(|(_, known)| *known == dtype).map(|(format, _)| *format)
}
