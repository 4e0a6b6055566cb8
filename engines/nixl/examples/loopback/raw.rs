//! One write of the library's for all bytes, between memory that is registered.

use std::ffi::CString;
use std::time::{Duration, Instant};

use crate::nixl::agent::{RawAgent, Request, Status};
use crate::nixl::library::Nixl;
use crate::other::Other;
use crate::ours::LIMIT;
use crate::{BYTES, Result};

pub(crate) struct Raw {
    agent: RawAgent,
    /// Goes behind the agent.
    memory: Vec<u8>,
    request: Option<Request>,
}

impl Raw {
    pub(crate) fn that_writes(transport: &str, other: &mut Other) -> Result<Self> {
        let mut raw = Self::new("raw child", transport, 1)?;
        let metadata = raw.agent.metadata()?;
        let parent = raw.agent.load(&other.swap(&metadata)?)?;
        let to = other.swap(&[0])?.try_into().map_err(|_| "no address")?;
        let from = raw.memory.as_ptr().expose_provenance();
        raw.request = Some(raw.agent.write_request(&parent, from, u64::from_le_bytes(to) as usize, BYTES)?);
        Ok(raw)
    }

    pub(crate) fn that_is_written_to(transport: &str, other: &mut Other) -> Result<Self> {
        let mut raw = Self::new("raw parent", transport, 0)?;
        let metadata = raw.agent.metadata()?;
        let child = other.swap(&metadata)?;
        raw.agent.load(&child)?;
        other.swap(&(raw.memory.as_mut_ptr().expose_provenance() as u64).to_le_bytes())?;
        Ok(raw)
    }

    fn new(name: &str, transport: &str, byte: u8) -> Result<Self> {
        // SAFETY: the library that the loader finds under its own name.
        let nixl = unsafe { Nixl::open("libnixl_capi.so") }?;
        let parameters = match transport {
            "tcp" => vec![(c"engine_config".to_owned(), c"TLS=tcp".to_owned())],
            _ => Vec::new(),
        };
        let agent = RawAgent::new(nixl, &CString::new(name)?, c"UCX", &parameters)?;
        let mut raw = Self { agent, memory: vec![byte + 1; BYTES], request: None };
        // SAFETY: the memory goes behind the agent.
        unsafe { raw.agent.register(raw.memory.as_mut_ptr().expose_provenance(), BYTES) }?;
        Ok(raw)
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
}
