//! The rows of the table.

mod cast;
mod crowd;
mod devices;
mod down;
#[cfg(feature = "cuda")]
mod full_queue;
mod heavy_tail;
mod host_cost;
mod registered;
mod rest;
mod scatter;
mod steady;
mod strided;
mod sweeps;
mod threads;
mod training_loop;
mod two_ways;
mod up;

use crate::Result;
use crate::bed::{Bed, Needs};
use crate::table::Row;

/// What makes one row, or the rows of a chart.
pub(crate) struct Work {
    /// For `--only`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) needs: Needs,
    pub(crate) run: fn(&Bed, &Work) -> Result<Vec<Row>>,
}

fn all() -> impl Iterator<Item = &'static Work> {
    #[cfg(feature = "cuda")]
    let full_queue = full_queue::ROWS;
    #[cfg(not(feature = "cuda"))]
    let full_queue: &[Work] = &[];
    let modules: [&[Work]; 17] = [
        up::ROWS,
        down::ROWS,
        strided::ROWS,
        scatter::ROWS,
        heavy_tail::ROWS,
        cast::ROWS,
        registered::ROWS,
        two_ways::ROWS,
        devices::ROWS,
        host_cost::ROWS,
        threads::ROWS,
        crowd::ROWS,
        rest::ROWS,
        training_loop::ROWS,
        full_queue,
        steady::ROWS,
        sweeps::ROWS,
    ];
    modules.into_iter().flatten()
}

/// Rows whose name contains one of `names`; all without any.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<&'static Work>> {
    if let Some(name) = names.iter().find(|name| !all().any(|work| work.name.contains(*name))) {
        let there_are = all().map(|work| work.name).collect::<Vec<_>>().join(", ");
        return Err(format!("no row {name:?}; there are: {there_are}").into());
    }
    let is_chosen = |work: &&Work| names.is_empty() || names.iter().any(|name| work.name.contains(name));
    Ok(all().filter(is_chosen).collect())
}
