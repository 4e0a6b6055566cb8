//! NCCL as a program calls it by hand: the limit, and what one call for each tensor costs.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::ptr;

use libloading::Library;
use transship::{Device, Stream, StreamPriority, Tensor};

use crate::Outcome;

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;

const FLOAT: c_int = 7;
const SUM: c_int = 0;

pub(crate) struct Raw {
    nccl: Library,
    comms: [*mut c_void; 2],
    streams: [Stream; 2],
}

impl Raw {
    pub(crate) fn new(devices: &[Device; 2]) -> Outcome<Self> {
        // SAFETY: it is NCCL.
        let nccl = unsafe { Library::new("libnccl.so.2")? };
        let mut comms = [ptr::null_mut(); 2];
        // SAFETY: the prototype of nccl.h; room for two.
        let code = unsafe {
            let init = nccl.get::<unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> c_int>(
                b"ncclCommInitAll",
            )?;
            init(comms.as_mut_ptr(), 2, [0, 1].as_ptr())
        };
        check(code)?;
        let stream = |device: &Device| device.create_stream(StreamPriority::High);
        Ok(Self { nccl, comms, streams: [stream(&devices[0])?, stream(&devices[1])?] })
    }

    /// Adds tensor by tensor, in place: all in one group, or each in one.
    pub(crate) fn all_reduce(&self, trees: &[Vec<Tensor>; 2], one_group: bool) -> Outcome {
        // SAFETY: the prototypes of nccl.h; the tensors are there, and are not read before `synchronize`.
        unsafe {
            let start = self.nccl.get::<unsafe extern "C" fn() -> c_int>(b"ncclGroupStart")?;
            let end = self.nccl.get::<unsafe extern "C" fn() -> c_int>(b"ncclGroupEnd")?;
            let add = self.nccl.get::<AllReduce>(b"ncclAllReduce")?;
            if one_group {
                check(start())?;
            }
            for pair in trees[0].iter().zip(&trees[1]) {
                if !one_group {
                    check(start())?;
                }
                for (rank, tensor) in [pair.0, pair.1].into_iter().enumerate() {
                    let address =
                        ptr::without_provenance_mut::<c_void>(tensor.address()?.unwrap_or(0) as usize);
                    let stream = transship::cuda::cu_stream(&self.streams[rank])?;
                    check(add(
                        address,
                        address,
                        tensor.numel(),
                        FLOAT,
                        SUM,
                        self.comms[rank],
                        stream.cast(),
                    ))?;
                }
                if !one_group {
                    check(end())?;
                }
            }
            if one_group {
                check(end())?;
            }
        }
        Ok(())
    }

    pub(crate) fn synchronize(&self) -> Outcome {
        Ok(self.streams.iter().try_for_each(Stream::synchronize)?)
    }
}

fn check(code: c_int) -> Result<(), Box<dyn Error>> {
    if code == 0 { Ok(()) } else { Err(format!("NCCL says {code}").into()) }
}
