//! Pinned memory on a machine with several NUMA nodes, which files of the case describe.

use transship_core::{DType, Device, Tensor};

use crate::bed::{self, bytes, down, up};
use crate::machine::Machine;
use crate::suite::Outcome;

/// From so many bytes on, pages of our own may be registered.
const LARGE: usize = 8 << 20;

/// Whether the driver gives out memory while its thread prefers a node, too.
pub(crate) fn pinned_memory_is_placed_where_the_driver_says() -> Outcome {
    let plain = bed::device(0);
    let said = plain.properties()?.host_node;
    let node = said.unwrap_or(0);
    let machine = Machine::with_nodes(&[(node, "0-1023"), (node + 1, "1023")]);
    let device = Device::from_backend_below(machine.root(), plain.backend().clone())?;
    assert_eq!(device.staging_node(), said.filter(|_| cfg!(target_os = "linux")));

    let content: Vec<u8> = (0..=255).cycle().take(LARGE).collect();
    let tensors = vec![Tensor::from(content.clone()), Tensor::from(content[..10_000].to_vec())];
    assert_eq!(bytes(down(up(tensors, &device))), [&content[..], &content[..10_000]]);
    let mut pinned = Tensor::empty_pinned(&[LARGE], DType::U8, &device)?;
    pinned.as_mut_slice::<u8>()?.copy_from_slice(&content);
    assert_eq!(bytes(down(up(pinned, &device))), [&content[..]]);
    assert!(device.result_usage().in_use + device.result_usage().idle >= LARGE, "nothing was pinned");
    Ok(())
}
