//! Writing a manifest, one tensor after the other, by order of their paths.

use crate::error::{Error, Result};
use crate::manifest::format::{HASH_BYTES, HEAD, LARGEST_EXPANSION, STRIDED, code, hash, shared};
use crate::manifest::leaf::LeafPlace;
use crate::manifest::manifest::Manifest;
use crate::tensor::layout::Layout;

#[derive(Default)]
pub(crate) struct Writer {
    leaves: Vec<u8>,
    count: usize,
    path: String,
    /// The bytes of all paths.
    path_bytes: usize,
}

impl Writer {
    /// The next tensor, whose path is not before that of the last one.
    pub(crate) fn leaf(&mut self, path: &str, layout: &Layout, place: Option<LeafPlace>) {
        let shared = shared(&self.path, path);
        let rest = path.as_bytes().get(shared..).unwrap_or_default();
        let strides = layout.explicit_strides();
        put(&mut self.leaves, shared);
        put(&mut self.leaves, rest.len());
        self.leaves.extend_from_slice(rest);
        self.leaves.push(code(layout.dtype()) | if strides.is_some() { STRIDED } else { 0 });
        put(&mut self.leaves, layout.rank());
        layout.shape().iter().for_each(|size| put(&mut self.leaves, *size));
        strides.into_iter().flatten().for_each(|stride| put(&mut self.leaves, *stride));
        match place {
            None => put(&mut self.leaves, 0),
            Some(LeafPlace { chunk, offset }) => {
                put(&mut self.leaves, chunk.saturating_add(1));
                put(&mut self.leaves, offset);
            }
        }
        self.count = self.count.saturating_add(1);
        self.path_bytes = self.path_bytes.saturating_add(path.len());
        self.path.clear();
        self.path.push_str(path);
    }

    /// All tensors are written, and lie in `chunks`, of so many bytes each.
    pub(crate) fn finish(self, chunks: Vec<usize>) -> Result<Manifest> {
        let mut bytes = HEAD.to_vec();
        put(&mut bytes, chunks.len());
        chunks.iter().for_each(|chunk| put(&mut bytes, *chunk));
        put(&mut bytes, self.count);
        let start = bytes.len();
        bytes.extend_from_slice(&self.leaves);
        bytes.extend_from_slice(&hash(&bytes).to_le_bytes());
        if self.path_bytes > bytes.len().saturating_mul(LARGEST_EXPANSION) {
            let at = bytes.len().saturating_sub(HASH_BYTES);
            let reason = "the paths of the structure are too long for its tensors; nest it less deeply";
            return Err(Error::InvalidManifest { at, reason });
        }
        Ok(Manifest::new(bytes, chunks, self.count, start))
    }
}

/// A number, seven bits a byte, the lowest first; every byte but the last has its highest bit set.
fn put(bytes: &mut Vec<u8>, number: usize) {
    let mut left = number;
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
}
