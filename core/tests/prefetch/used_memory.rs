//! Items in memory that the program has given back.

use futures::executor::block_on;
use futures::stream::{self, StreamExt};
use late_backend::Call;
use transship_core::backend::StreamPriority;
use transship_core::{Device, Lent, Prefetch, PrefetchStream, Tensor};

use crate::support::{Kernel, bytes_of, late, no_violations, on};
use crate::{item, number, options};

/// The addresses of an item.
fn addresses(item: &[Tensor]) -> Vec<Option<u64>> {
    item.iter().map(|tensor| tensor.address().unwrap()).collect()
}

/// catches: 173-lent-memory-does-not-come-back
#[test]
fn memory_that_comes_back_is_used_again() {
    let (late, simulated) = late();
    for (device, depth) in
        [Device::host(), simulated].iter().flat_map(|device| [0, 1, 3].map(|depth| (device, depth)))
    {
        let mut items = (0..20).map(item).prefetch(device, options().depth(depth)).reuse();
        let mut seen: Vec<Vec<Option<u64>>> = Vec::new();
        for turn in 0..20 {
            let item = items.next().unwrap().unwrap();
            // A copy down would have a share of the memory for a while.
            if device.id().is_host() {
                assert_eq!(item[0].as_slice::<u8>().unwrap(), [turn; 100]);
            }
            let there = addresses(&item);
            if !seen.contains(&there) {
                seen.push(there);
            }
        }
        assert!(items.next().is_none());
        assert!(seen.len() <= depth + 2, "{} places for a depth of {depth}", seen.len());
        assert_eq!(items.stats().reused, 20 - seen.len() as u64);
    }
    no_violations(&late);
}

#[test]
fn what_is_in_used_memory_is_the_next_item() {
    let (late, device) = late();
    for (turn, item) in (0..20).map(item).prefetch(&device, options()).reuse().enumerate() {
        assert_eq!(number(&item.unwrap()), turn);
    }
    let items = stream::iter((0..20).map(item)).prefetch(&device, options()).reuse();
    let numbers = block_on(items.map(|item| number(&item.unwrap())).collect::<Vec<_>>());
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    no_violations(&late);
}

#[test]
fn memory_that_somebody_keeps_is_not_written_again() {
    let (late, device) = late();
    let mut items = (0..12).map(item).prefetch(&device, options().depth(1)).reuse();
    let mut clones = Vec::new();
    let mut kept = Vec::new();
    for turn in 0..12 {
        let item = items.next().unwrap().unwrap();
        match turn % 3 {
            0 => clones.push((turn, item[0].clone())),
            1 => kept.push((turn, Lent::into_inner(item))),
            _ => {}
        }
    }
    assert!(items.stats().reused < 12);
    drop(items);
    for (turn, tensor) in clones {
        assert_eq!(bytes_of(&tensor), vec![turn as u8; 100]);
    }
    for (turn, item) in kept {
        assert_eq!(number(&item), turn);
    }
    no_violations(&late);
}

#[test]
fn items_of_other_shapes_get_memory_of_their_own() {
    let sizes = [100, 100, 100, 100, 50, 100, 7, 7, 7, 7, 7, 0, 0, 100];
    let source = sizes.iter().enumerate().map(|(turn, bytes)| Tensor::from(vec![turn as u8; *bytes]));
    let mut items = source.prefetch(&Device::host(), options().depth(1)).reuse();
    for (turn, bytes) in sizes.into_iter().enumerate() {
        let item = items.next().unwrap().unwrap();
        assert_eq!(item.to_bytes().unwrap(), vec![turn as u8; bytes]);
    }
    assert!(items.stats().reused >= 3, "{items:?}");
}

#[test]
fn lent_items_outlive_their_iterator() {
    let (late, device) = late();
    let mut items = (0..5).map(item).prefetch(&device, options()).reuse();
    let first = items.next().unwrap().unwrap();
    let second = items.next().unwrap().unwrap();
    drop(items);
    assert_eq!(number(&first), 0);
    drop(first);
    assert_eq!(number(&Lent::into_inner(second)), 1);
    no_violations(&late);
}

/// Memory goes back while a stream still works on it: the next copy waits for that on the device.
#[test]
fn memory_is_written_again_behind_the_work_of_its_stream() {
    let (late, device) = late();
    device.prepare(4096).unwrap();
    let consumer = device.create_stream(StreamPriority::Normal).unwrap();
    let mut items = (0..6).map(item).prefetch(&device, options().depth(0)).hand_over(&consumer).reuse();
    let mut kernels = Vec::new();
    for _ in 0..6 {
        let item = items.next().unwrap().unwrap();
        kernels.push(Kernel::launch(&item[0], &consumer));
    }
    assert!(items.stats().reused > 0, "{items:?}");
    for (number, kernel) in kernels.into_iter().enumerate() {
        assert_eq!(kernel.result(), vec![number as u8; 100]);
    }
    no_violations(&late);
}

/// catches: 174-memory-that-does-not-fit-is-dropped
#[test]
fn shapes_that_alternate_find_memory_of_their_own() {
    for depth in 0..5 {
        let sizes = (0..60).map(|turn| (turn, [100, 40][turn % 2]));
        let source = sizes.clone().map(|(turn, bytes)| Tensor::from(vec![turn as u8; bytes]));
        let mut items = source.prefetch(&Device::host(), options().depth(depth)).reuse();
        for (turn, bytes) in sizes {
            assert_eq!(items.next().unwrap().unwrap().to_bytes().unwrap(), vec![turn as u8; bytes]);
        }
        assert!(items.stats().reused >= 60 - 2 * (depth as u64 + 2), "{items:?}");
    }
}

/// What does not fit gets other memory; any other failure is the item's.
#[test]
fn a_copy_into_used_memory_that_fails_is_an_error_in_its_place() {
    for in_turn in 0..12 {
        let (late, device) = late();
        device.prepare(1024).unwrap();
        late.fail_next(Call::Submit, in_turn);
        let items = (0..12).map(item).prefetch(&device, options()).reuse();
        let failed: Vec<_> = items.map(|item| item.map(drop).is_err()).collect();
        assert_eq!(failed.iter().position(|failed| *failed), Some(in_turn));
        assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
        no_violations(&late);
    }
}

#[test]
fn reused_items_share_no_memory_with_what_the_program_keeps() {
    let (late, device) = late();
    let resident: Vec<_> = (0..8_u8).map(|byte| on(&device, &[byte; 100])).collect();
    let mut items = resident.clone().into_iter().prefetch(&device, options()).reuse();
    for tensor in &resident {
        let item = items.next().unwrap().unwrap();
        assert_ne!(item.address().unwrap(), tensor.address().unwrap());
        assert_eq!(bytes_of(&item), bytes_of(tensor));
    }
    no_violations(&late);
}
