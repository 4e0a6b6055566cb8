//! What a storage holds: a buffer, or a part of what one owner has lent.

use std::any::Any;
use std::sync::Arc;

use crate::backend::Buffer;
use crate::backend::host::foreign_memory::ForeignMemory;
use crate::runtime::lent_collector;

/// The memory of a storage.
pub(crate) enum Memory {
    Buffer(Box<dyn Buffer>),
    /// Memory of the host whose owner has lent more of it: counting it costs less than a box for each.
    Part(ForeignMemory<Owner>),
}

/// What keeps all parts.
pub(crate) type Owner = Arc<Box<dyn Any + Send + Sync>>;

impl Memory {
    #[inline]
    pub(crate) fn buffer(&self) -> &dyn Buffer {
        match self {
            Self::Buffer(buffer) => &**buffer,
            Self::Part(part) => part,
        }
    }

    pub(crate) fn into_buffer(self) -> Box<dyn Buffer> {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Part(part) => Box::new(part),
        }
    }
}

/// Lets go of memory that nobody uses any more. The owner goes with its last part.
pub(crate) fn let_go(part: ForeignMemory<Owner>) {
    if let Some(owner) = Arc::into_inner(part.into_owner()) {
        lent_collector::let_go(owner);
    }
}
