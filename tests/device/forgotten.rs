//! Views that are forgotten: their memory is kept for ever, and freed never. In a process of its own, at whose end a stand-in is not
//! to look for what is still open.

use std::process::Command;

use crate::suite::{Case, Outcome};

/// Set in the child that has the case which forgets.
const FORGETS: &str = "TRANSSHIP_FORGETS";

pub(crate) fn a_forgotten_view_keeps_its_memory() -> Outcome {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--exact", "forgotten::forgets_views", "--include-ignored"]);
    let output = child.env(FORGETS, "1").env("DRIVER_SIM_LEAKS", "allow").output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    match output.status.success() && said.contains("1 passed") && !said.contains("VIOLATION") {
        true => Ok(()),
        false => {
            Err(format!("the memory of a forgotten view was not kept ({}): {said}", output.status).into())
        }
    }
}

/// The case that only a child of [`a_forgotten_view_keeps_its_memory`] has. What it does differs from driver to driver.
pub(crate) fn of_the_child() -> Option<Case> {
    let case = || Case::new("forgotten::forgets_views", super::forgets_views);
    std::env::var_os(FORGETS).is_some().then(case)
}
