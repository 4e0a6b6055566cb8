//! At which NUMA node of the host devices have their staging memory, and the workers that fill it.

use crate::backend::Backend;
use crate::runtime::topology::{Node, Topology};

/// The node that the device is plugged in at, if it is one of several. Its driver is asked then only.
pub(crate) fn of(backend: &dyn Backend, topology: &'static Topology) -> Option<&'static Node> {
    let said = topology.has_choice().then(|| backend.properties().ok()?.host_node)?;
    topology.node(said?)
}

/// Where workers run that fill staging memory at all of `nodes`; `None` if these are several, or one is not known.
pub(crate) fn of_workers(mut nodes: impl Iterator<Item = Option<&'static Node>>) -> Option<&'static Node> {
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}
