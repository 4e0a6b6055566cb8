//! What tells the ranks of one communicator from others.

use std::fmt;

use crate::error::Result;
use crate::nccl::functions::{ID_BYTES, RawId};
use crate::nccl::library::Nccl;

/// What tells the ranks of one communicator from others: one process makes it, and gives its bytes to the others by whatever they have,
/// such as a file or a socket. Whoever has the bytes can join.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; ID_BYTES]);

impl UniqueId {
    /// A new one. Its process is where the ranks find each other, and has to live until all have joined.
    ///
    /// # Errors
    ///
    /// [`Error::Nccl`](crate::Error::Nccl), if there is no network device for instance.
    pub fn new(nccl: &Nccl) -> Result<Self> {
        let mut id = RawId([0; ID_BYTES]);
        // SAFETY: the id goes to a local.
        nccl.check("ncclGetUniqueId", unsafe { (nccl.functions().get_unique_id)(&mut id) })?;
        Ok(Self(id.0))
    }

    /// The one that another process has made.
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(bytes)
    }

    /// Its bytes, for other processes.
    pub fn to_bytes(&self) -> [u8; 128] {
        self.0
    }

    pub(crate) fn raw(&self) -> RawId {
        RawId(self.0)
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}
