//! What lies where in which file: arithmetic, no files.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use transship_core::Tensor;

use crate::header::{LENGTH_BYTES, METADATA, MOST_HEADER_BYTES};
use crate::save::error::SaveError;
use crate::save::named::Named;

/// The format asks for headers of whole words, padded with spaces.
const WORD: usize = 8;

/// A file to be written.
pub(crate) struct PlannedFile {
    /// With its length in front.
    pub(crate) header: Vec<u8>,
    /// One behind the other, from the end of the header on.
    pub(crate) tensors: Vec<PlannedTensor>,
}

/// A tensor of a file.
pub(crate) struct PlannedTensor {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    /// Where it begins in the file.
    pub(crate) offset: u64,
}

/// Shares tensors out to files, in the order in which they come: each file has at most `shard_bytes` bytes of them, or one tensor. There is
/// one file at least.
pub(crate) fn shards(tensors: Vec<Named>, shard_bytes: u64) -> Vec<Vec<Named>> {
    let (mut shards, mut shard, mut bytes) = (Vec::new(), Vec::new(), 0_u64);
    for tensor in tensors {
        let more = tensor.tensor.nbytes() as u64;
        if bytes.saturating_add(more) > shard_bytes && !shard.is_empty() {
            shards.push(std::mem::take(&mut shard));
            bytes = 0;
        }
        bytes = bytes.saturating_add(more);
        shard.push(tensor);
    }
    shards.push(shard);
    shards
}

impl PlannedFile {
    /// Types with larger elements come first, so that all are aligned, and tensors of a type in the order of their names: the order of the
    /// crate `safetensors`. `path` is for an error.
    pub(crate) fn new(
        mut tensors: Vec<Named>,
        metadata: &BTreeMap<String, String>,
        path: &Path,
    ) -> Result<Self, SaveError> {
        tensors.sort_by(|one, other| other.dtype.cmp(&one.dtype).then_with(|| one.name.cmp(&other.name)));
        let mut end = 0;
        let mut place = |named: &Named| {
            let start = end;
            end += named.tensor.nbytes();
            (start, end)
        };
        let places: Vec<_> = tensors.iter().map(&mut place).collect();
        let header = header(&tensors, &places, metadata, path)?;
        let data = header.len();
        let planned = |(Named { name, tensor, .. }, (start, _)): (Named, (usize, usize))| PlannedTensor {
            name,
            tensor,
            offset: (data + start) as u64,
        };
        Ok(Self { header, tensors: tensors.into_iter().zip(places).map(planned).collect() })
    }

    /// The name of the tensor that the byte at `offset` belongs to, which is none of the header.
    pub(crate) fn tensor_at(&self, offset: u64) -> &str {
        let behind = self.tensors.partition_point(|tensor| tensor.offset <= offset);
        self.tensors.get(behind.saturating_sub(1)).map_or("", |tensor| &tensor.name)
    }
}

fn header(
    tensors: &[Named],
    places: &[(usize, usize)],
    metadata: &BTreeMap<String, String>,
    path: &Path,
) -> Result<Vec<u8>, SaveError> {
    let mut header = vec![0; LENGTH_BYTES as usize];
    // Texts and numbers always have a form, and a vector takes them.
    let _ = serde_json::to_writer(&mut header, &Header { tensors, places, metadata });
    header.resize(header.len().next_multiple_of(WORD), b' ');
    let bytes = header.len() - LENGTH_BYTES as usize;
    if bytes as u64 > MOST_HEADER_BYTES {
        return Err(SaveError::Header { path: path.to_owned(), bytes });
    }
    if let Some(length) = header.first_chunk_mut() {
        *length = (bytes as u64).to_le_bytes();
    }
    Ok(header)
}

struct Header<'a> {
    tensors: &'a [Named],
    places: &'a [(usize, usize)],
    metadata: &'a BTreeMap<String, String>,
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (Named { name, dtype, tensor }, data_offsets) in self.tensors.iter().zip(self.places) {
            let (dtype, shape, data_offsets) = (*dtype, tensor.shape().to_vec(), *data_offsets);
            map.serialize_entry(name, &TensorInfo { dtype, shape, data_offsets })?;
        }
        map.end()
    }
}
