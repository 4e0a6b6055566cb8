//! Tensors over one piece of memory that others may write: they share it, and none of them ever has it alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use support::{bytes_of, eventually, late, no_violations};
use transship_core::{
    CopyOptions, DType, Device, Error, Layout, MemoryKind, RawMemory, SharedMemory, SharedOwner, Tensor,
    start_copy, start_copy_into,
};

const EACH: usize = 8;

/// Four tensors over memory whose owner is counted.
struct Lent {
    tensors: Vec<Option<Tensor>>,
    counted: Arc<Vec<u8>>,
}

impl Lent {
    fn new() -> Self {
        let counted = Arc::new((0..4 * EACH as u8).collect::<Vec<u8>>());
        let memory = memory_of(&counted, counted.clone());
        let tensor = |number: usize| {
            let layout = Layout::contiguous(DType::U8, &[EACH]).unwrap();
            Some(memory.tensor(number * EACH, layout).unwrap())
        };
        Self { tensors: (0..4).map(tensor).collect(), counted }
    }

    fn take(&mut self, number: usize) -> Tensor {
        self.tensors[number].take().unwrap()
    }

    fn is_held(&self) -> bool {
        Arc::strong_count(&self.counted) > 1
    }
}

fn memory_of(bytes: &[u8], owner: Arc<Vec<u8>>) -> SharedMemory {
    let address = bytes.as_ptr().expose_provenance() as u64;
    let memory = RawMemory::new(address, bytes.len(), MemoryKind::Pageable);
    // SAFETY: the owner keeps the bytes, which nobody writes.
    unsafe { SharedOwner::new(owner, &Device::host()).shared_memory(memory) }.unwrap()
}

fn values(number: usize) -> Vec<u8> {
    (0..EACH).map(|at| (number * EACH + at) as u8).collect()
}

/// Deliberate bugs: the owner goes with the first tensor, or with the one that was made last; it never goes.
#[test]
fn memory_is_given_back_with_the_last_tensor_in_whatever_order_they_go() {
    let orders = (0..256).map(|code| [code % 4, code / 4 % 4, code / 16 % 4, code / 64]);
    let orders: Vec<_> = orders.filter(|order| (0..4).all(|number| order.contains(&number))).collect();
    assert_eq!(orders.len(), 24);
    for order in orders {
        let mut lent = Lent::new();
        for (gone, number) in order.into_iter().enumerate() {
            assert!(lent.is_held(), "{gone} of {order:?} have gone");
            assert_eq!(bytes_of(lent.tensors[number].as_ref().unwrap()), values(number));
            drop(lent.take(number));
        }
        eventually("the owner has gone", || !lent.is_held());
    }
    // The memory itself is one more.
    let counted = Arc::new(vec![1_u8; EACH]);
    let memory = memory_of(&counted, counted.clone());
    drop(memory.tensor(0, Layout::contiguous(DType::U8, &[EACH]).unwrap()).unwrap());
    assert_eq!(Arc::strong_count(&counted), 2);
    drop(memory);
    eventually("the owner has gone", || Arc::strong_count(&counted) == 1);
}

/// With its neighbours alive and after the last of them has gone.
///
/// Deliberate bugs: memory for copies alone may be written, or is read in place; it is said to lie in no vector.
#[test]
fn no_tensor_is_written_or_read_in_place() {
    for has_neighbours in [true, false] {
        let mut lent = Lent::new();
        let mut tensor = lent.take(1);
        if !has_neighbours {
            lent.tensors.clear();
        }
        assert!(matches!(tensor.as_mut_bytes(), Err(Error::NotWritable { .. })));
        assert!(matches!(tensor.as_bytes(), Err(Error::SharedMemory)));
        let (error, tensor) = tensor.into_vec::<u8>().unwrap_err().into_parts();
        assert!(matches!(error, Error::SharedMemory), "{error}");
        let source = Tensor::from(vec![77_u8; EACH]);
        assert!(start_copy_into(source, tensor, CopyOptions::default()).is_err());
        assert_eq!(*lent.counted, (0..4 * EACH as u8).collect::<Vec<u8>>());
    }
}

/// Deliberate bug: what comes of a tensor that is alone in its memory lies there.
#[test]
fn a_copy_is_memory_of_its_own_and_keeps_all_of_it_while_it_runs() {
    let (late, device) = late();
    for target in [&device, &Device::host()] {
        let mut lent = Lent::new();
        let copy = start_copy(lent.take(2), target, CopyOptions::default()).unwrap();
        let rest: Vec<Tensor> = lent.tensors.drain(..).flatten().collect();
        drop(rest);
        let there = copy.wait().unwrap();
        assert_eq!(bytes_of(&there), values(2));
        eventually("the owner has gone", || !lent.is_held());
        assert_eq!(bytes_of(&there), values(2));
    }
    no_violations(&late);
}

/// Memory that nobody writes is read in place.
#[test]
fn parts_of_memory_to_be_read_share_it() {
    let counted = Arc::new((0..40_u8).collect::<Vec<u8>>());
    let address = counted.as_ptr().expose_provenance() as u64;
    let memory = RawMemory::new(address, counted.len(), MemoryKind::Pageable);
    let owner = SharedOwner::new(counted.clone(), &Device::host());
    // SAFETY: the owner keeps the bytes, which nobody writes.
    let memory = unsafe { owner.memory(memory) }.unwrap();
    let layout = || Layout::contiguous(DType::U8, &[EACH]).unwrap();
    let mut tensors = [0, 8, 32].map(|offset| memory.tensor(offset, layout()).unwrap());
    assert!(matches!(memory.tensor(33, layout()), Err(Error::OutOfRange { .. })));
    drop((memory, owner));
    assert!(tensors[0].shares_memory_with(&tensors[2]));
    assert_eq!(tensors[2].as_slice::<u8>().unwrap(), [32, 33, 34, 35, 36, 37, 38, 39]);
    assert!(tensors[1].as_mut_bytes().is_err());
    assert_eq!(Arc::strong_count(&counted), 2);
    drop(tensors);
    assert_eq!(Arc::strong_count(&counted), 1);
}

/// Deliberate bug: where a tensor ends, or begins, is not looked at.
#[test]
fn a_tensor_lies_within_the_memory() {
    let counted = Arc::new(vec![0_u8; EACH]);
    let memory = memory_of(&counted, counted.clone());
    let layout = |dtype, count| Layout::contiguous(dtype, &[count]).unwrap();
    for (offset, count) in [(0, EACH + 1), (1, EACH), (EACH, 1), (usize::MAX, 1)] {
        let refused = memory.tensor(offset, layout(DType::U8, count));
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    }
    let (odd, even) = if counted.as_ptr().addr().is_multiple_of(2) { (1, 0) } else { (0, 1) };
    assert!(matches!(memory.tensor(odd, layout(DType::U16, 1)), Err(Error::Misaligned { .. })));
    assert_eq!(memory.tensor(even, layout(DType::U16, 1)).unwrap().nbytes(), 2);
}
