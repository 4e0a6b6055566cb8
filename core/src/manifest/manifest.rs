//! A manifest, and questions about it.

use std::fmt;

use crate::error::Result;
use crate::manifest::difference::{compare, compare_places};
use crate::manifest::format::{HASH_BYTES, hash};
use crate::manifest::leaf::ManifestLeaf;
use crate::manifest::reader;
use crate::manifest::reader::{Front, Leaves};

/// A structure without its bytes: path, type and shape of each tensor, and where it lies in which of so many chunks.
///
/// It is as small as it gets (about 40 bytes for each tensor), has a [documented, versioned form](Self::to_bytes), and depends on nothing of this
/// process, neither addresses nor the order of its maps: leaves are in the order of their paths. Two sides that compare theirs first move no byte
/// into the wrong tensor.
///
/// ```
/// use std::collections::BTreeMap;
/// use transship_core::{Alignment, Error, Manifest, Tensor};
///
/// let here = BTreeMap::from([("bias", Tensor::from(vec![0.0_f32; 4])), ("weight", Tensor::from(vec![0_u8; 100]))]);
/// let manifest = Manifest::packed(&here, Alignment::new(64).unwrap())?;
/// let sent = manifest.to_bytes().to_vec();
///
/// let received = Manifest::from_bytes(sent)?;
/// assert_eq!((received.len(), received.chunks()), (2, &[164][..]));
///
/// let there = BTreeMap::from([("bias", Tensor::from(vec![0.0_f32; 5])), ("weight", Tensor::from(vec![0_u8; 100]))]);
/// let error = received.check_tensors(&Manifest::of(&there)?).unwrap_err();
/// assert!(matches!(error, Error::ManifestMismatch { path, .. } if path == r#"["bias"]"#));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest {
    bytes: Vec<u8>,
    chunks: Vec<usize>,
    leaves: usize,
    /// Where the first leaf is written.
    start: usize,
}

impl Manifest {
    /// What was written there, whose leaves begin at `start`.
    pub(crate) fn new(bytes: Vec<u8>, chunks: Vec<usize>, leaves: usize, start: usize) -> Self {
        Self { bytes, chunks, leaves, start }
    }

    /// Reads what [`to_bytes`](Self::to_bytes) gives, from whomever: whatever it says, it needs no more memory than a few machine words for
    /// each of `bytes` (so much has a chunk, or a dimension, that is written in one byte), and time in proportion. Every leaf lies in its chunk.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidManifest`](crate::Error::InvalidManifest) for all else.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let Front { chunks, leaves, start } = reader::read(&bytes)?;
        Ok(Self::new(bytes, chunks, leaves, start))
    }

    /// Its form for others, which `docs/MANIFEST.md` describes. Equal manifests have equal bytes.
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A hash of all of it (XXH3, 64 bits): two sides with the same one have the same manifest, unless one of them means to deceive the other.
    pub fn hash(&self) -> u64 {
        self.bytes.last_chunk::<HASH_BYTES>().map_or_else(|| hash(&[]), |hash| u64::from_le_bytes(*hash))
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.leaves
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.leaves == 0
    }

    /// The size of each chunk, in bytes.
    pub fn chunks(&self) -> &[usize] {
        &self.chunks
    }

    /// Shows all tensors to `look`, in the order of their paths (by bytes).
    ///
    /// # Errors
    ///
    /// What `look` returns.
    pub fn for_each_leaf(&self, mut look: impl FnMut(&ManifestLeaf<'_>) -> Result<()>) -> Result<()> {
        let mut leaves = self.leaves();
        while let Some(leaf) = leaves.next()? {
            look(&leaf)?;
        }
        Ok(())
    }

    /// Fails unless `other` has the same tensors: paths, types and shapes. They may lie otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::ManifestMismatch`](crate::Error::ManifestMismatch) with the first one that differs.
    pub fn check_tensors(&self, other: &Self) -> Result<()> {
        if self == other {
            return Ok(());
        }
        compare(self.leaves(), other.leaves())
    }

    /// Fails unless `other` is the same: the tensors, and where they lie in which chunks.
    ///
    /// # Errors
    ///
    /// As [`check_tensors`](Self::check_tensors); where chunks alone differ, with the path of the last tensor.
    pub fn check_same(&self, other: &Self) -> Result<()> {
        if self == other {
            return Ok(());
        }
        compare(self.leaves(), other.leaves())?;
        compare_places((self.leaves(), &self.chunks), (other.leaves(), &other.chunks))
    }

    pub(crate) fn leaves(&self) -> Leaves<'_> {
        Leaves::of(&self.bytes, self.start, self.leaves)
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest")
            .field("leaves", &self.leaves)
            .field("chunks", &self.chunks)
            .field("hash", &format_args!("{:016x}", self.hash()))
            .finish()
    }
}
