//! The library, looked for at run time and never linked.

use std::error::Error as _;
use std::ffi::{OsStr, c_int};
use std::fmt;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{Error, Result};
use crate::nixl::functions::{Functions, IN_PROGRESS, SUCCESS};

/// What the wheels of PyPI and what is built from source have.
const NAMES: [&str; 2] = ["libnixl_capi.so", "/usr/local/nixl/lib/x86_64-linux-gnu/libnixl_capi.so"];

/// The loaded library. It stays loaded.
#[derive(Clone, Copy)]
pub struct Nixl(&'static Loaded);

struct Loaded {
    functions: Functions,
    name: String,
}

impl Nixl {
    /// The library, from where the loader looks, or where it is installed when it is built from source.
    ///
    /// ```
    /// match transship_nixl::Nixl::load() {
    ///     Ok(nixl) => println!("{nixl:?}"),
    ///     // Which names were tried, and what the loader said to each.
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`].
    pub fn load() -> Result<Self> {
        static NIXL: OnceLock<Result<Nixl>> = OnceLock::new();
        NIXL.get_or_init(|| first_of(&NAMES)).clone()
    }

    /// A library in another place, such as that of a wheel: `.nixl_cu12.mesonpy.libs/libnixl_capi.so`.
    ///
    /// # Safety
    ///
    /// The file is the C interface of NIXL, of version 1.5 or later, or behaves as one.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoaded`].
    pub unsafe fn open(path: impl AsRef<OsStr>) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { open(path.as_ref()) }.map_err(|reason| Error::NotLoaded { tried: vec![reason] })
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        &self.0.functions
    }
}

/// Fails unless the call has succeeded, or is under way.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == SUCCESS || code == IN_PROGRESS { Ok(()) } else { Err(Error::Nixl { call, code }) }
}

fn first_of(names: &[&str]) -> Result<Nixl> {
    let mut tried = Vec::new();
    for name in names {
        // SAFETY: initialisers of NVIDIA's library have no preconditions.
        match unsafe { open(OsStr::new(name)) } {
            Ok(nixl) => return Ok(nixl),
            Err(reason) => tried.push(reason),
        }
    }
    Err(Error::NotLoaded { tried })
}

/// # Safety
///
/// As [`Nixl::open`].
unsafe fn open(path: &OsStr) -> Result<Nixl, String> {
    let name = path.display();
    // SAFETY: the caller's promise.
    let library = unsafe { Library::new(path) }.map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // The loader's own words begin with the name, mostly.
        if reason.contains(&*path.to_string_lossy()) { reason } else { format!("{name}: {reason}") }
    })?;
    // Its threads and tables are not made to go.
    let library: &'static Library = Box::leak(Box::new(library));
    let functions = Functions::of(library).map_err(|reason| format!("{name}: {reason}"))?;
    Ok(Nixl(Box::leak(Box::new(Loaded { functions, name: name.to_string() }))))
}

impl fmt::Debug for Nixl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}
