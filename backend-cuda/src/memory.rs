//! Buffers: device memory of the pool, and memory of somebody else.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::{CUmemorytype_enum, CUpointer_attribute, CUpointer_attribute_enum as Attribute};
use transship_core::backend::{Buffer, MemoryKind, RawMemory, Ticket, keep_until};
use transship_core::{Error, Result};

use crate::context::Context;
use crate::heap::{Heap, Held};
use crate::stream::CudaStream;

/// Memory that a CUDA device can use.
pub struct CudaBuffer {
    /// `None` once it was given back, and for no bytes at all.
    held: Option<Held>,
    memory: RawMemory,
    heap: Arc<Heap>,
}

impl CudaBuffer {
    pub(crate) fn allocate(heap: &Arc<Heap>, bytes: usize, stream: &CudaStream) -> Result<Self> {
        let (address, held) = match bytes {
            0 => (0, None),
            _ => heap.allocate(bytes, stream).map(|(address, held)| (address, Some(held)))?,
        };
        let memory = RawMemory { address, bytes, kind: MemoryKind::Device };
        Ok(Self { held, memory, heap: heap.clone() })
    }

    /// Describes memory of somebody else, which is let go of with the buffer.
    pub(crate) fn wrap(
        heap: &Arc<Heap>,
        memory: RawMemory,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        if let Err(error) = check(heap.context(), &memory) {
            // Owners that free device memory find the context current, also when they are refused.
            let _current = heap.context().enter();
            drop(owner);
            return Err(error);
        }
        Ok(Self { held: Some(Held::Lent(owner)), memory, heap: heap.clone() })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.heap.context()
    }
}

// SAFETY: the memory stays where it is until it is given back; the pool hands it out again only behind `after`, and
// the owner of foreign memory is kept until `after` is reached.
unsafe impl Buffer for CudaBuffer {
    fn bytes(&self) -> usize {
        self.memory.bytes
    }

    fn kind(&self) -> MemoryKind {
        self.memory.kind
    }

    fn address(&self) -> Option<u64> {
        let on_device = matches!(self.memory.kind, MemoryKind::Device | MemoryKind::Managed);
        (on_device && self.memory.address != 0).then_some(self.memory.address)
    }

    fn host_pointer(&self) -> Option<(NonNull<u8>, bool)> {
        match self.memory.kind {
            MemoryKind::Pinned | MemoryKind::Managed => {
                let start = usize::try_from(self.memory.address).ok()?;
                Some((NonNull::new(std::ptr::with_exposed_provenance_mut(start))?, false))
            }
            _ => None,
        }
    }

    fn release(mut self: Box<Self>, after: &[Ticket]) {
        let Some(held) = self.held.take() else { return };
        self.held = self.heap.give_back(held, after);
        if self.held.is_some() {
            keep_until(self, after);
        }
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // Nothing is left to wait for.
            let _ = self.heap.give_back(held, &[]);
        }
    }
}

/// Asks the driver about the first and the last byte: memory mapped piece by piece has no other range.
fn check(context: &Context, memory: &RawMemory) -> Result<()> {
    let RawMemory { address, bytes, kind } = *memory;
    let wrong = |reason: String| Error::InvalidMemory { address, bytes, reason };
    let Some(beyond_first) = (bytes as u64).checked_sub(1) else { return Ok(()) };
    let last = address.checked_add(beyond_first).filter(|_| address != 0);
    let last = last.ok_or_else(|| wrong("no memory can lie there".to_owned()))?;
    check_address(context, address, kind).and_then(|()| check_address(context, last, kind)).map_err(wrong)
}

fn check_address(context: &Context, address: u64, kind: MemoryKind) -> Result<(), String> {
    if !matches!(kind, MemoryKind::Device | MemoryKind::Pinned | MemoryKind::Managed) {
        return Err("it is ordinary host memory; wrap it as memory of the host".to_owned());
    }
    let ask = |attribute| attribute_of(context, address, attribute).map_err(|error| error.to_string());
    let is_managed = ask(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED)? != 0;
    let memory_type = ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
    let is_so = match kind {
        MemoryKind::Device => !is_managed && memory_type == CUmemorytype_enum::CU_MEMORYTYPE_DEVICE as u32,
        MemoryKind::Pinned => !is_managed && memory_type == CUmemorytype_enum::CU_MEMORYTYPE_HOST as u32,
        _ => is_managed,
    };
    if !is_so {
        return Err(format!("the driver knows {address:#x} as another kind of memory than {kind:?}"));
    }
    if kind != MemoryKind::Device {
        return Ok(());
    }
    let ordinal = ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)? as usize;
    match ordinal == context.id().ordinal() {
        true => Ok(()),
        false => Err(format!("{address:#x} lies on cuda:{ordinal}, not on {}", context.id())),
    }
}

/// An attribute of at most 32 bits.
fn attribute_of(context: &Context, address: u64, attribute: CUpointer_attribute) -> Result<u32> {
    let mut value = 0_u32;
    // SAFETY: the context is current. The attributes asked for are 32 bits or a bool, written to a local; any address
    // may be asked about.
    unsafe { context.enter()?.pointer_attribute((&raw mut value).cast(), attribute, address)? };
    Ok(value)
}
