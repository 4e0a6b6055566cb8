//! One write of the library's for all bytes, between memory that is registered.

use std::ffi::CString;
use std::time::{Duration, Instant};

use transship::backend::Buffer;
use transship::{
    CopyOptions, DType, Device, Layout, MemoryKind, RawMemory, SharedOwner, Tensor, start_copy_into,
};

use crate::nixl::agent::{RawAgent, Request, Status};
use crate::nixl::library::Nixl;
use crate::nixl::place::{Home, Place};
use crate::other::Other;
use crate::ours::LIMIT;
use crate::trees::check;
use crate::way::{Side, Way, step};
use crate::{BYTES, Result};

pub(crate) struct Raw {
    agent: RawAgent,
    /// Goes behind the agent.
    memory: Memory,
    place: Place,
    device: Device,
    request: Option<Request>,
}

enum Memory {
    Host(Vec<u8>),
    Gpu(Box<dyn Buffer>),
}

impl Raw {
    pub(crate) fn that_writes(way: &Way, other: &mut Other) -> Result<Self> {
        let mut raw = Self::new("raw sender", way, Side::Sender, 2)?;
        let metadata = raw.agent.metadata()?;
        let receiver = raw.agent.load(&other.swap(&metadata)?)?;
        let there = other.swap(&[0])?;
        let number = |at: usize| {
            Ok::<_, std::array::TryFromSliceError>(u64::from_le_bytes(there[at..at + 8].try_into()?))
        };
        let place = match raw.place {
            Place::Host => Place::Host,
            Place::Gpu(_) => Place::Gpu(u32::try_from(number(8)?)?),
        };
        let (from, to) = (raw.memory.address()?, usize::try_from(number(0)?)?);
        raw.request = Some(raw.agent.write_request(&receiver, from, (place, to), BYTES)?);
        step("the library can write");
        Ok(raw)
    }

    pub(crate) fn that_is_written_to(way: &Way, other: &mut Other) -> Result<Self> {
        let mut raw = Self::new("raw receiver", way, Side::Receiver, 1)?;
        let metadata = raw.agent.metadata()?;
        let sender = other.swap(&metadata)?;
        raw.agent.load(&sender)?;
        let there = [raw.memory.address()? as u64, raw.place.number()].map(u64::to_le_bytes).concat();
        other.swap(&there)?;
        Ok(raw)
    }

    fn new(name: &str, way: &Way, side: Side, byte: u8) -> Result<Self> {
        // SAFETY: the library that the loader finds under its own name.
        let nixl = unsafe { Nixl::open("libnixl_capi.so") }?;
        let text = |text: &str| CString::new(text);
        let parameters =
            way.parameter().map(|(key, value)| Ok::<_, std::ffi::NulError>((text(key)?, text(value)?)));
        let parameters: Vec<_> = parameters.into_iter().collect::<Result<_, _>>()?;
        let device = way.device(side)?;
        let mut agent = RawAgent::new(nixl, Home::new(&device), &text(name)?, c"UCX", &parameters)?;
        step(&format!("the library has made {name:?}"));
        // Behind it: UCX takes memory of a GPU that it has not seen allocated for that of the host.
        let (memory, place) = Memory::filled(&device, byte)?;
        let address = memory.address()?;
        // SAFETY: the memory goes behind the agent.
        let registered = unsafe { agent.register(place, address, BYTES) };
        registered.map_err(|error| format!("256 MiB on {}: {error}", device.id()))?;
        step(&format!("{name:?} has registered 256 MiB on {}", device.id()));
        Ok(Self { agent, memory, place, device, request: None })
    }

    pub(crate) fn write(&mut self) -> Result<Duration> {
        let request = self.request.as_ref().ok_or("nothing to write")?;
        let begun = Instant::now();
        // SAFETY: the memory is not touched before the end.
        let mut status = unsafe { self.agent.post(request) };
        while status == Status::UnderWay {
            if begun.elapsed() > LIMIT {
                return Err("one write of the library was not done in its time".into());
            }
            std::thread::yield_now();
            status = self.agent.status(request);
        }
        let time = begun.elapsed();
        if status == Status::Done {
            Ok(time)
        } else {
            Err(format!("the write has failed: {status:?}").into())
        }
    }

    /// Whether all bytes of the other side are here.
    pub(crate) fn check(&self) -> Result<()> {
        let expected = [Tensor::from(vec![2_u8; BYTES])];
        let (address, kind) = (self.memory.address()? as u64, self.memory.kind());
        let memory = RawMemory::new(address, BYTES, kind);
        // SAFETY: the memory lives longer than the tensor.
        let arrived = unsafe {
            SharedOwner::new((), &self.device)
                .tensor_over_shared(memory, Layout::contiguous(DType::U8, &[BYTES])?)
        }?;
        check(&[arrived], &expected).map_err(|error| format!("one write of the library: {error}").into())
    }
}

impl Memory {
    fn filled(device: &Device, byte: u8) -> Result<(Self, Place)> {
        if device.is_host() {
            return Ok((Self::Host(vec![byte; BYTES]), Place::Host));
        }
        let buffer = device.backend().allocate_alone(BYTES)?;
        let memory = RawMemory::new(buffer.address().ok_or("no address")?, BYTES, MemoryKind::Device);
        // SAFETY: the buffer lives longer than the tensor, and nobody else knows of it.
        let held = unsafe { Tensor::from_raw_mut(memory, Box::new(()), &[BYTES], DType::U8, device) }?;
        drop(start_copy_into(Tensor::from(vec![byte; BYTES]), held, CopyOptions::default())?.wait()?);
        Ok((Self::Gpu(buffer), Place::Gpu(u32::try_from(device.id().ordinal())?)))
    }

    fn address(&self) -> Result<usize> {
        match self {
            Self::Host(bytes) => Ok(bytes.as_ptr().expose_provenance()),
            Self::Gpu(buffer) => Ok(usize::try_from(buffer.address().ok_or("no address")?)?),
        }
    }

    fn kind(&self) -> MemoryKind {
        match self {
            Self::Host(_) => MemoryKind::Pageable,
            Self::Gpu(_) => MemoryKind::Device,
        }
    }
}
