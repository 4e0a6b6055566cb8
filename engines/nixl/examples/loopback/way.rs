//! Between what the bytes go, and what to look at where they do not.

use std::process;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use transship::Device;

use crate::Result;

/// How long one way has.
pub(crate) const LIMIT: Duration = Duration::from_secs(170);

pub(crate) const HINTS: &str = "\
  Each side has said on standard error how far it came. What may help, as variables of both processes:
    NIXL_LOG_LEVEL=DEBUG            what the library does, and why it refuses
    UCX_LOG_LEVEL=info              UCX's modules and transports; UCX_PROTO_INFO=y, which of them carries what
    UCX_TLS=cuda_copy,cuda_ipc,sm,self,tcp   (GPUs want cuda_copy, and cuda_ipc within a machine)
    UCX_MODULE_DIR=.../ucx          where libuct_cuda.so lies; `ldd` of that says what it lacks (libcuda.so.1, libnvidia-ml.so.1)
    UCX_CUDA_IPC_CACHE=y UCX_MEMTYPE_CACHE=n   if memory of a GPU is taken for that of the host";

/// Which process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

/// Between what the bytes go.
pub(crate) enum Way {
    Tcp,
    Shm,
    Gpus(String, String),
}

impl Way {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match (text, text.split_once(',')) {
            ("tcp", _) => Ok(Self::Tcp),
            ("shm", _) => Ok(Self::Shm),
            (_, Some((from, to))) => Ok(Self::Gpus(from.to_owned(), to.to_owned())),
            _ => Err(format!("{text:?} is no way: tcp, shm, or two devices, cuda:0,cuda:1").into()),
        }
    }

    /// Where the tensors of a side lie.
    pub(crate) fn device(&self, side: Side) -> Result<Device> {
        match (self, side) {
            (Self::Gpus(from, _), Side::Sender) => Ok(Device::open(from.parse()?)?),
            (Self::Gpus(_, to), Side::Receiver) => Ok(Device::open(to.parse()?)?),
            _ => Ok(Device::host()),
        }
    }

    /// Where arenas lie, one after the other.
    pub(crate) fn arenas(&self) -> Vec<&'static str> {
        match self {
            Self::Gpus(..) => vec!["GPU", "host"],
            _ => vec!["host"],
        }
    }

    /// A parameter for UCX.
    pub(crate) fn parameter(&self) -> Option<(&'static str, &'static str)> {
        matches!(self, Self::Tcp).then_some(("engine_config", "TLS=tcp"))
    }
}

/// Says how far this process came, and when.
pub(crate) fn step(what: &str) {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let begun = BEGUN.get_or_init(Instant::now);
    let side = if std::env::args().any(|word| word == "--child") { "sender" } else { "receiver" };
    eprintln!("[{side} {}, {:8.3} s] {what}", process::id(), begun.elapsed().as_secs_f64());
}

/// Ends this process when its time is over, wherever it is held up.
pub(crate) fn end_in_time(side: Side) {
    let limit = if side == Side::Sender { LIMIT + Duration::from_secs(5) } else { LIMIT };
    thread::spawn(move || {
        thread::sleep(limit);
        step(&format!("FAILED: not done within {limit:?}; the step above is the last one"));
        process::exit(3);
    });
}

pub(crate) fn print_environment() {
    for (name, value) in std::env::vars() {
        if name.starts_with("UCX_") || name.starts_with("NIXL_") || name == "LD_LIBRARY_PATH" {
            println!("{name}={value}");
        }
    }
}
