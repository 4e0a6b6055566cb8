//! Ends copies that run, for a call that has failed.

use pyo3::prelude::*;
use transship::InFlight;

use crate::progress::LOOK_FOR_SIGNALS;
use crate::released;
use crate::transfer::Running;

/// Ends these copies, and waits until nothing of them is in flight: the program may write its memory again.
pub fn give_up(py: Python<'_>, running: Vec<Running>) -> PyResult<()> {
    let left: Vec<InFlight> = running.into_iter().map(|copy| copy.cancel().in_flight).collect();
    for in_flight in left {
        // A broken device never says when it is over.
        while matches!(py.detach(|| in_flight.wait_timeout(LOOK_FOR_SIGNALS)), Ok(false)) {
            py.check_signals()?;
        }
    }
    released::drain(py);
    Ok(())
}
