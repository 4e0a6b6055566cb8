//! The library, looked for at run time and never linked.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_int};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use transship::Device;

use crate::error::{Error, Result};
use crate::nccl::functions::{Functions, IN_PROGRESS, SUCCESS};

/// What the wheel of PyPI and Debian's package have, and what the package for building has.
const NCCL_NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
const RCCL_NAMES: [&str; 3] = ["librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"];

/// A loaded library: NCCL of NVIDIA's or RCCL of AMD's. It stays loaded.
#[derive(Clone, Copy)]
pub struct Nccl(&'static Loaded);

struct Loaded {
    functions: Functions,
    name: String,
    version: c_int,
    /// Held while a thread calls for its ranks: two threads that call for the same ranks would do that in different orders.
    calling: Mutex<()>,
}

impl Nccl {
    /// NCCL, from where the loader looks.
    ///
    /// ```
    /// match transship_nccl::Nccl::load() {
    ///     Ok(nccl) => println!("{nccl:?}"),
    ///     // Which names were tried, and what the loader said to each.
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`].
    pub fn load() -> Result<Self> {
        static NCCL: OnceLock<Result<Nccl>> = OnceLock::new();
        NCCL.get_or_init(|| first_of(&NCCL_NAMES)).clone()
    }

    /// RCCL, from where the loader looks.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`].
    pub fn load_rccl() -> Result<Self> {
        static RCCL: OnceLock<Result<Nccl>> = OnceLock::new();
        RCCL.get_or_init(|| first_of(&RCCL_NAMES)).clone()
    }

    /// The one for the driver of `device`.
    ///
    /// # Errors
    ///
    /// [`Error::UnsuitedDevices`] for devices of other drivers; [`Error::NotLoaded`].
    pub fn of(device: &Device) -> Result<Self> {
        match device.id().driver() {
            "cuda" => Self::load(),
            "hip" => Self::load_rccl(),
            _ => Err(Error::UnsuitedDevices {
                devices: device.id().to_string(),
                reason: "it knows devices of CUDA and HIP only",
            }),
        }
    }

    /// A library of another name or in another place, such as that of a wheel: `nvidia/nccl/lib/libnccl.so.2`.
    ///
    /// # Safety
    ///
    /// The file is NCCL or RCCL, of version 2.14 or later, or behaves as one.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`].
    pub unsafe fn open(path: impl AsRef<OsStr>) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { open(path.as_ref()) }.map_err(|reason| Error::NotLoaded { tried: vec![reason] })
    }

    /// Its version, as it is written: 22,304 is 2.23.4.
    pub fn version(&self) -> i32 {
        self.0.version
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        &self.0.functions
    }

    /// Fails unless the call has succeeded, or is under way.
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the function takes any number, and gives a text that stays.
        let words = unsafe { (self.functions().get_error_string)(code) };
        let words = if words.is_null() {
            c"no words for it"
        } else {
            // SAFETY: it is not null, and ends with a zero.
            unsafe { CStr::from_ptr(words) }
        };
        Err(Error::Nccl { call, code, words: words.to_string_lossy().into_owned() })
    }

    /// Makes the calls of `calls` one, in which ranks of this thread do not wait for each other.
    pub(crate) fn grouped(&self, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        let _calling = self.0.calling.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: each start has its end below, on this thread.
        self.check("ncclGroupStart", unsafe { (self.functions().group_start)() })?;
        let made = calls();
        // SAFETY: as above.
        let ended = self.check("ncclGroupEnd", unsafe { (self.functions().group_end)() });
        made.and(ended)
    }
}

fn first_of(names: &[&str]) -> Result<Nccl> {
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: initialisers of NVIDIA's and AMD's library have no preconditions.
        match unsafe { open(OsStr::new(name)) } {
            Ok(nccl) => return Ok(nccl),
            Err(reason) => tried.push(reason),
        }
    }
    Err(Error::NotLoaded { tried })
}

/// # Safety
///
/// As [`Nccl::open`].
unsafe fn open(path: &OsStr) -> Result<Nccl, String> {
    let name = path.display();
    // SAFETY: the caller's promise.
    let library = unsafe { Library::new(path) }.map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // The loader's own words begin with the name, mostly.
        if reason.contains(&*path.to_string_lossy()) { reason } else { format!("{name}: {reason}") }
    })?;
    // Its threads and tables are not made to go.
    let library: &'static Library = Box::leak(Box::new(library));
    let functions = Functions::of(library).map_err(|missing| format!("{name}: it has no {missing}"))?;
    let mut version = 0;
    // SAFETY: the version goes to a local.
    let code = unsafe { (functions.get_version)(&mut version) };
    if code != SUCCESS {
        return Err(format!("{name}: ncclGetVersion says {code}"));
    }
    Ok(Nccl(Box::leak(Box::new(Loaded {
        functions,
        name: name.to_string(),
        version,
        calling: Mutex::new(()),
    }))))
}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, version {}", self.0.name, self.0.version)
    }
}
