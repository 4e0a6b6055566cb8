//! One tensor that a copy has taken.

use std::ptr::NonNull;

use crate::backend::{Buffer, Elements};
use crate::dtype::DType;
use crate::tensor::device_list::DeviceList;
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
    /// The elements, which do not lie in one run or are cast.
    pub(crate) elements: Elements,
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
    /// The type that the elements get, where that is another one.
    #[inline]
    pub(crate) fn cast_to(&self) -> Option<DType> {
        Some(self.special.as_ref()?.elements.cast.as_ref()?.to_dtype())
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
        match &self.special {
            Some(special) if !special.is_gathered => special.elements.runs.span(),
            _ => self.payload,
        }
    }

    /// Whether the elements lie in one run where they are copied to.
    #[inline]
    pub(crate) fn is_gathered(&self) -> bool {
        self.special.as_ref().is_none_or(|special| special.is_gathered)
    }

    /// The elements that a kernel gathers.
    #[inline]
    pub(crate) fn gathered(&self) -> Option<&Elements> {
        let special = self.special.as_ref().filter(|special| special.is_gathered)?;
        self.storage.device().map(|_| &special.elements)
    }

    /// The list that it is a part of, if it lies in one.
    pub(crate) fn list(&self) -> Option<&DeviceList> {
        DeviceList::of_storage(&self.storage)
    }

    /// The buffer of this number in that list.
    pub(crate) fn listed_buffer(&self, number: u32) -> &dyn Buffer {
        self.list().and_then(|list| list.buffer(number)).unwrap_or_else(|| self.storage.buffer())
    }
}
