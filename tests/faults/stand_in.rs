//! Telling the stand-in for libcuda what to do.

use std::ffi::{CString, c_char};

use libloading::{Library, Symbol};

type Exported = unsafe extern "C" fn(*const c_char) -> i64;

/// The stand-in, loaded.
pub(crate) struct StandIn(Library);

impl StandIn {
    /// Loads it; why there is none, if there is none.
    pub(crate) fn load() -> Result<Self, String> {
        // SAFETY: the initialisers of neither libcuda nor the stand-in have preconditions.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(|_| "there is no libcuda here")?;
        let stand_in = Self(library);
        match stand_in.exported(b"driver_sim_control") {
            Ok(_) => Ok(stand_in),
            Err(_) => Err("libcuda is the driver's and not the stand-in".to_owned()),
        }
    }

    /// Adds `count` devices; the number of the first.
    pub(crate) fn add_devices(&self, count: u64) -> usize {
        let there = self.ask("devices");
        self.tell(&format!("devices {}", there + count));
        there as usize
    }

    /// Does what a command says.
    pub(crate) fn tell(&self, command: &str) {
        assert_eq!(self.call(b"driver_sim_control", command), 0, "{command}");
    }

    /// A figure by its name.
    pub(crate) fn ask(&self, name: &str) -> u64 {
        u64::try_from(self.call(b"driver_sim_query", name)).unwrap_or_else(|_| panic!("no figure {name}"))
    }

    fn call(&self, function: &[u8], text: &str) -> i64 {
        let text = CString::new(text).unwrap();
        // SAFETY: a string with a zero behind it.
        unsafe { self.exported(function).unwrap()(text.as_ptr()) }
    }

    fn exported(&self, name: &[u8]) -> Result<Symbol<'_, Exported>, libloading::Error> {
        // SAFETY: the stand-in's functions of this name have this prototype; libcuda has none of this name.
        unsafe { self.0.get(name) }
    }
}
