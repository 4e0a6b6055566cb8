//! One tensor out of many pieces of memory of the host. Those of a device are in `gathered_on_a_device.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use support::{bytes_of, eventually, late, no_violations};
use transship_core::{
    Cast, CopyOptions, DType, Device, Error, MemoryKind, RawMemory, Result, SharedOwner, Tensor, start_copy,
    start_copy_into,
};

/// So large that it is copied in many segments, most of which begin within a piece.
const PIECES: usize = 900;

/// Pieces of many sizes, with their offsets: some touch, between others are gaps.
fn pieces() -> Vec<(usize, Vec<u8>)> {
    let mut end = 0;
    let piece = |number: usize| {
        let bytes = number * 7919 % 20_000;
        let offset = end + [0, 3, 64][number % 3];
        end = offset + bytes;
        (offset, (0..bytes).map(|at| (number * 31 + at * 7 + at / 251) as u8).collect())
    };
    (0..PIECES).map(piece).collect()
}

fn memory(bytes: &[u8]) -> RawMemory {
    RawMemory::new(bytes.as_ptr().expose_provenance() as u64, bytes.len(), MemoryKind::Pageable)
}

fn gathered(pieces: &Arc<Vec<(usize, Vec<u8>)>>) -> Result<Tensor> {
    let owner = SharedOwner::new(pieces.clone(), &Device::host());
    // SAFETY: the owner keeps the pieces, which nobody writes.
    unsafe { owner.gathered(pieces.iter().map(|(offset, bytes)| (memory(bytes), *offset))) }
}

/// Deliberate bug: what lies between pieces is not written.
fn assert_copied(copy: &[u8], pieces: &[(usize, Vec<u8>)]) {
    let mut end = 0;
    for (offset, bytes) in pieces {
        assert!(copy[end..*offset].iter().all(|byte| *byte == 0), "in front of {offset}");
        assert!(copy[*offset..][..bytes.len()] == bytes[..], "at {offset}");
        end = offset + bytes.len();
    }
}

/// catches: 636-a-piece-read-from-its-start, 637-behind-the-end-of-a-piece
#[test]
fn each_piece_comes_to_its_offset() {
    let pieces = Arc::new(pieces());
    for pinned_staging in [true, false] {
        let (late, device) = late();
        let options = || CopyOptions::default().pinned_staging(pinned_staging);
        let there = start_copy(gathered(&pieces).unwrap(), &device, options()).unwrap().wait().unwrap();
        assert_copied(&bytes_of(&there), &pieces);
        let here =
            start_copy(gathered(&pieces).unwrap(), &Device::host(), options()).unwrap().wait().unwrap();
        assert_copied(here.as_slice().unwrap(), &pieces);
        let into = Tensor::empty(here.shape(), DType::U8, &device).unwrap();
        let into = start_copy_into(gathered(&pieces).unwrap(), into, options()).unwrap().wait().unwrap();
        assert_copied(&bytes_of(&into), &pieces);
        eventually("the owner goes", || Arc::strong_count(&pieces) == 1);
        no_violations(&late);
    }
}

#[test]
fn parts_of_it_are_copied_and_views_with_other_strides() {
    let bytes: Vec<u8> = (0..60).collect();
    let pieces = Arc::new(vec![(0, bytes[..7].to_vec()), (7, Vec::new()), (7, bytes[7..].to_vec())]);
    let (late, device) = late();
    let whole = gathered(&pieces).unwrap();
    let views = vec![
        whole.narrow(0, 5, 20).unwrap(),
        whole.reshape(&[6, 10]).unwrap().transpose(0, 1).unwrap(),
        whole.narrow(0, 9, 0).unwrap(),
        whole,
    ];
    let there = start_copy(views, &device, CopyOptions::default()).unwrap().wait().unwrap();
    let down = start_copy(vec![there[1].clone()], &Device::host(), CopyOptions::default());
    let down = down.unwrap().wait().unwrap();
    let transposed: Vec<u8> = (0..60).map(|at| bytes[at % 6 * 10 + at / 6]).collect();
    assert_eq!(bytes_of(&there[0]), bytes[5..25]);
    assert_eq!(down[0].to_vec::<u8>().unwrap(), transposed);
    assert_eq!((there[2].numel(), bytes_of(&there[3])), (0, bytes));
    no_violations(&late);
}

#[test]
fn nothing_but_copies_reads_it() {
    let pieces = Arc::new(vec![(0, vec![1, 2]), (2, vec![3])]);
    let tensor = gathered(&pieces).unwrap();
    assert!(matches!(tensor.as_bytes(), Err(Error::SharedMemory)));
    assert!(matches!(tensor.to_bytes(), Err(Error::SharedMemory)));
    let (_, device) = late();
    let cast = CopyOptions::default().cast(Cast::new(DType::U8, DType::U16));
    let failed = start_copy(tensor, &device, cast).unwrap_err();
    assert!(matches!(failed.error(), Error::SharedMemory), "{}", failed.error());
}

/// catches: 638-pieces-in-any-order
#[test]
fn pieces_come_in_the_order_of_their_offsets() {
    let overlapping = gathered(&Arc::new(vec![(0, vec![1, 2]), (1, vec![3])]));
    let text = overlapping.unwrap_err().to_string();
    assert!(text.contains("its offset is 1, and the piece before it ends at 2"), "{text}");
    assert_eq!(gathered(&Arc::new(Vec::new())).unwrap().shape(), [0]);
}
