//! One tensor that a copy has taken.

use std::ptr::NonNull;

use crate::backend::{Runs, StridedPlace};
use crate::cast::cast::Cast;
use crate::dtype::DType;
use crate::tensor::storage::Storage;

/// What a copy must know of one tensor.
pub(crate) struct Leaf {
    pub(crate) storage: Storage,
    /// Where the first element lies in the storage, in bytes.
    pub(crate) offset: usize,
    /// Where the first element lies on the host, if it lies there.
    pub(crate) host: Option<HostAddress>,
    /// Bytes of the elements, of the type that they get.
    pub(crate) payload: usize,
    /// Present where the elements do not lie in one run, or are cast.
    pub(crate) special: Option<Box<Special>>,
}

/// What most leaves are not.
pub(crate) struct Special {
    /// Present where the elements do not lie in one run.
    pub(crate) strided: Option<Strided>,
    /// Present where they are cast.
    pub(crate) cast: Option<CastLeaf>,
}

/// How the elements of a leaf on the host are converted while they are staged.
pub(crate) struct CastLeaf {
    pub(crate) cast: Cast,
    /// How they lie.
    pub(crate) runs: Runs,
}

/// How the elements of a leaf lie that are not in one run.
pub(crate) struct Strided {
    pub(crate) place: StridedPlace,
    /// Whether they are in one run where they are copied to: sources on the host are gathered while they are staged, those on a
    /// device where a kernel gathers them (`Scan::gathers`). Others are copied with the gaps.
    pub(crate) is_gathered: bool,
}

/// An address that may be sent to the thread that reads there.
#[derive(Clone, Copy)]
pub(crate) struct HostAddress(pub(crate) NonNull<u8>);

// SAFETY: an address alone does nothing. `read` in `transfer/stage.rs` says why it may read there.
unsafe impl Send for HostAddress {}

// SAFETY: as for `Send`: an address alone does nothing.
unsafe impl Sync for HostAddress {}

impl Leaf {
    /// Bytes from the first element to behind the last.
    #[inline]
    pub(crate) fn span(&self) -> usize {
        self.strided().map_or(self.payload, |strided| strided.place.runs.span())
    }

    /// How the elements lie, where they are not in one run.
    #[inline]
    pub(crate) fn strided(&self) -> Option<&Strided> {
        self.special.as_ref()?.strided.as_ref()
    }

    /// The type that the elements get, where that is another one.
    #[inline]
    pub(crate) fn cast_to(&self) -> Option<DType> {
        Some(self.special.as_ref()?.cast.as_ref()?.cast.to_dtype())
    }

    /// Where the first element lies on the host. Memory that a copy was filling may be mapped only after the leaf was taken.
    #[inline]
    pub(crate) fn host_pointer(&self) -> Option<NonNull<u8>> {
        match self.host {
            Some(address) => Some(address.0),
            None => self.storage.host_address(self.offset),
        }
    }

    /// How many bytes are copied: the elements where they are gathered, else all that lies between the first and the last as
    /// well.
    #[inline]
    pub(crate) fn copied_bytes(&self) -> usize {
        if self.is_gathered() { self.payload } else { self.span() }
    }

    /// Whether the elements lie in one run where they are copied to.
    #[inline]
    pub(crate) fn is_gathered(&self) -> bool {
        self.strided().is_none_or(|strided| strided.is_gathered)
    }

    /// The elements that a kernel gathers.
    #[inline]
    pub(crate) fn gathered(&self) -> Option<&StridedPlace> {
        let strided = self.strided().filter(|strided| strided.is_gathered)?;
        self.storage.device().map(|_| &strided.place)
    }
}
