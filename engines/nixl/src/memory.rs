//! The memory of an arena: mapped on the host, or one allocation on a GPU.

use memmap2::MmapMut;
use transship::Device;
use transship::backend::{Buffer, CopyOp, StreamPriority};

use crate::error::{Error, Result};
use crate::nixl::place::Place;

/// It is zero at first, and touched through raw pointers and by devices alone: no reference points there.
pub(crate) struct Memory {
    kept: Kept,
    start: usize,
}

/// What keeps it.
enum Kept {
    Host { _mapping: MmapMut },
    Gpu { _buffer: Box<dyn Buffer>, number: u32 },
}

impl Memory {
    pub(crate) fn new(bytes: usize, device: &Device) -> Result<Self> {
        if !device.is_host() {
            return Self::on_gpu(bytes, device);
        }
        let mut mapping = MmapMut::map_anon(bytes)
            .map_err(|reason| Error::System { what: "memory for an arena", reason: reason.to_string() })?;
        // Whoever writes to memory of another process looks up each of its pages. A refusal is no error: then there are small ones.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise(memmap2::Advice::HugePage);
        let start = mapping.as_mut_ptr().expose_provenance();
        Ok(Self { kept: Kept::Host { _mapping: mapping }, start })
    }

    /// Not of the pool: UCX lets no other process share memory of pools, and would send it by way of the host.
    fn on_gpu(bytes: usize, device: &Device) -> Result<Self> {
        let number = number_of(device)?;
        let buffer = device.backend().allocate_alone(bytes)?;
        clear(&*buffer, device)?;
        let start = buffer.address().and_then(|start| usize::try_from(start).ok());
        let nowhere = Error::UnsuitedDevice { device: device.id(), reason: "its memory has no addresses" };
        Ok(Self { start: start.ok_or(nowhere)?, kept: Kept::Gpu { _buffer: buffer, number } })
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn place(&self) -> Place {
        match self.kept {
            Kept::Host { .. } => Place::Host,
            Kept::Gpu { number, .. } => Place::Gpu(number),
        }
    }
}

/// # Errors
///
/// [`Error::UnsuitedDevice`], if no arena can lie there.
pub(crate) fn check(device: &Device) -> Result<()> {
    if device.is_host() { Ok(()) } else { number_of(device).map(drop) }
}

/// Which GPU of CUDA it is.
fn number_of(device: &Device) -> Result<u32> {
    let id = device.id();
    let reason = if id.driver() != "cuda" {
        "it is no GPU of CUDA"
    } else if !cfg!(feature = "cuda") {
        "transship-nixl was built without its feature cuda"
    } else {
        return u32::try_from(id.ordinal())
            .map_err(|_| Error::UnsuitedDevice { device: id, reason: "its number is too large" });
    };
    Err(Error::UnsuitedDevice { device: id, reason })
}

/// Peers read all of it: nothing of what lay there before is for them.
fn clear(buffer: &dyn Buffer, device: &Device) -> Result<()> {
    let stream = device.create_stream(StreamPriority::Normal)?;
    let zeros = CopyOp::Clear { to: buffer, to_offset: 0, bytes: buffer.bytes() };
    // SAFETY: the range is the buffer, which stays until the stream has come by: if that cannot be seen, the device is lost, and frees nothing.
    unsafe { device.backend().submit(&[zeros], &**stream.backend_stream()) }?;
    Ok(stream.synchronize()?)
}
