//! What a storage holds: a buffer, or a part of what one owner has lent.

use std::any::Any;
use std::sync::Arc;

use crate::backend::Buffer;
use crate::backend::host::foreign_memory::ForeignMemory;
use crate::in_flight::memory_budget::Allocated;
use crate::runtime::lent_collector;
use crate::tensor::parts::{Joined, Split};
use crate::tensor::storage::Storage;

/// The memory of a storage.
pub(crate) enum Memory {
    Buffer(Allocated),
    /// Memory of the host whose owner has lent more of it: counting it costs less than a box for each.
    Part(ForeignMemory<Owner>),
    /// A part of the memory of another storage.
    Split(Split),
    /// All parts of the memory of another storage.
    Joined(Box<Joined>),
}

/// What keeps all parts.
pub(crate) type Owner = Arc<Box<dyn Any + Send + Sync>>;

impl Memory {
    #[inline]
    pub(crate) fn buffer(&self) -> &dyn Buffer {
        match self {
            Self::Buffer(memory) => &*memory.buffer,
            Self::Part(part) => part,
            Self::Split(part) => part.buffer(),
            Self::Joined(joined) => joined.whole().storage().buffer(),
        }
    }

    /// Whether nobody holds it through another storage.
    pub(crate) fn is_exclusive(&self) -> bool {
        match self {
            Self::Buffer(_) | Self::Part(_) => true,
            Self::Split(part) => part.is_exclusive(),
            Self::Joined(joined) => joined.parts().iter().all(Storage::is_exclusive),
        }
    }

    /// The other storages whose uses are uses of it.
    pub(crate) fn also_used(&self) -> &[Storage] {
        match self {
            Self::Buffer(_) | Self::Part(_) => &[],
            Self::Split(part) => part.also_used().map_or(&[], std::slice::from_ref),
            Self::Joined(joined) => joined.parts(),
        }
    }
}

/// Lets go of memory that nobody uses any more. The owner goes with its last part.
pub(crate) fn let_go(part: ForeignMemory<Owner>) {
    if let Some(owner) = Arc::into_inner(part.into_owner()) {
        lent_collector::let_go(owner);
    }
}
