//! libamdhip64, looked for at run time and never linked.

use std::error::Error as _;
use std::sync::OnceLock;

use libloading::Library;
use transship_core::{Error, Result};

use crate::calls::Functions;

/// The word before the colon in `hip:0`.
pub(crate) const NAME: &str = "hip";

/// Where the loader looks, in this order: what the system calls the newest, each version that the prototypes hold for, and
/// where ROCm is installed without telling the loader.
const NAMES: &[&str] = if cfg!(windows) {
    &["amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"]
} else {
    &[
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "/opt/rocm/lib/libamdhip64.so",
    ]
};

/// The functions of the runtime, which is loaded when they are asked for the first time, and never unloaded.
///
/// # Errors
///
/// [`Error::DriverUnavailable`] if there is no runtime, or if it lacks a function, which it names.
pub(crate) fn require() -> Result<&'static Functions> {
    let runtime = runtime().as_ref().map_err(|reason| unavailable(reason.clone()))?;
    Ok(&runtime.functions)
}

/// The library itself, if it is one.
pub(crate) fn loaded() -> Option<&'static Library> {
    runtime().as_ref().ok().map(|Runtime { library, .. }| *library)
}

pub(crate) fn unavailable(reason: String) -> Error {
    Error::DriverUnavailable { driver: NAME, reason }
}

struct Runtime {
    library: &'static Library,
    functions: Functions,
}

fn runtime() -> &'static Result<Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    RUNTIME.get_or_init(|| load(NAMES).and_then(resolve))
}

struct Loaded {
    name: &'static str,
    library: &'static Library,
}

fn load(names: &[&'static str]) -> Result<Loaded, String> {
    let mut broken = String::new();
    for name in names {
        // SAFETY: the initialisers of AMD's runtime have no preconditions.
        match unsafe { Library::new(*name) } {
            // Its threads never end: it stays loaded.
            Ok(library) => return Ok(Loaded { name, library: Box::leak(Box::new(library)) }),
            Err(error) if broken.is_empty() => broken = reason(name, &error),
            Err(_) => {}
        }
    }
    Err(format!("libamdhip64 could not be loaded{broken}; install ROCm's HIP runtime"))
}

/// Why a library that is there could not be loaded: one that it needs is missing, for instance.
fn reason(name: &str, error: &libloading::Error) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    match text.starts_with(&format!("{name}: cannot open shared object file: No such file")) {
        true => String::new(),
        false => format!(" ({text})"),
    }
}

fn resolve(Loaded { name, library }: Loaded) -> Result<Runtime, String> {
    let lacks = |function| format!("{name} lacks {function}; install ROCm 5.2 or later");
    Ok(Runtime { functions: Functions::resolve(library).map_err(lacks)?, library })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn refused(names: &[&'static str]) -> String {
        load(names).map(|loaded| loaded.name).unwrap_err()
    }

    #[test]
    fn no_library_is_just_that() {
        let reason = refused(&["libamdhip64.so.none", "/nowhere/libamdhip64.so"]);
        assert_eq!(reason, "libamdhip64 could not be loaded; install ROCm's HIP runtime");
    }

    #[test]
    fn a_library_that_is_broken_says_why() {
        let file = std::env::temp_dir().join(format!("transship-broken-{}.so", std::process::id()));
        std::fs::write(&file, "this is no library").unwrap();
        let name: &'static str = file.to_str().unwrap().to_owned().leak();
        let reason = refused(&["libamdhip64.so.none", name]);
        std::fs::remove_file(&file).unwrap();
        assert!(reason.starts_with(&format!("libamdhip64 could not be loaded ({name}: ")), "{reason}");
    }
}
