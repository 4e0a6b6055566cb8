//! Sizes, numbers and alignments of tensors.

use libtest_mimic::Failed;
use transship::{DType, Error, Tensor, start_copy};

use crate::bed::Bed;
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    let alignments = (0..=8).map(|power| {
        let alignment = 1 << power;
        let name = format!("packed_alignment_{alignment}");
        Case::new(module_path!(), &name, move |bed| packed_alignment(bed, alignment))
    });
    let others = [
        case!(empty_leaf),
        case!(empty_structure),
        case!(bare_tensor_as_root),
        case!(scalar),
        case!(one_leaf),
        case!(leaf_of_exactly_a_chunk),
        case!(leaf_of_a_byte_more_than_a_chunk),
        case!(leaf_of_a_byte_less_than_a_chunk),
        case!(leaves_that_just_fill_a_chunk),
        case!(odd_sizes),
        case!(bytes_next_to_doubles),
        case!(all_packed),
        case!(none_packed),
        case!(large_leaf_over_several_staging_blocks),
        case!(leaves_larger_than_packed_ones),
        case!(two_thousand_leaves_of_4_kib),
        case!(a_hundred_thousand_leaves),
    ];
    others.into_iter().chain(alignments).collect()
}

fn empty_leaf(bed: &Bed) -> Result<(), Failed> {
    let empty = [&[0][..], &[4, 0], &[0, 3, 2]].map(|shape| bed.tensor(DType::F32, shape));
    let trip = bed.round_trip((empty, bed.bytes(5)), bed.options())?;
    assert_eq!((trip.up.empty, trip.up.alone, trip.up.payload_bytes), (3, 1, 5));
    let trip = bed.round_trip(bed.tensor(DType::I64, &[0]), bed.options())?;
    assert_eq!((trip.up.empty, trip.up.copies, trip.up.chunks), (1, 0, 0));
    Ok(())
}

fn empty_structure(bed: &Bed) -> Result<(), Failed> {
    let (value, report) = bed.copy(Vec::<Tensor>::new(), &bed.device, bed.options())?;
    assert!(value.is_empty());
    assert_eq!((report.leaves, report.copies, report.chunks), (0, 0, 0));
    let (value, report) = bed.copy((String::from("no tensor"), 7), &bed.device, bed.options())?;
    assert_eq!((value.0.as_str(), value.1, report.leaves), ("no tensor", 7, 0));
    Ok(())
}

fn bare_tensor_as_root(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(bed.tensor(DType::F64, &[3, 7]), bed.options())?;
    assert_eq!((trip.value.shape(), trip.value.is_contiguous()), (&[3, 7][..], true));
    Ok(())
}

fn scalar(bed: &Bed) -> Result<(), Failed> {
    let there = bed.up(Tensor::scalar(2.5_f64))?;
    assert_eq!(there.rank(), 0);
    assert_eq!(bed.down(there)?.item::<f64>()?, 2.5);
    Ok(())
}

fn one_leaf(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(vec![bed.bytes(1000)], bed.options())?;
    assert_eq!((trip.up.leaves, trip.up.alone, trip.up.packed), (1, 1, 0));
    Ok(())
}

const CHUNK: usize = 4096;

/// A leaf of so many bytes and one of 16 in chunks of 4096: the number of chunks.
fn chunks_beside_a_small_leaf(bed: &Bed, bytes: usize) -> Result<usize, Failed> {
    let options = bed.options().max_chunk_bytes(CHUNK).bindable(false);
    let trip = bed.round_trip((bed.bytes(bytes), bed.bytes(16)), options.clone())?;
    let alone = bed.round_trip(bed.bytes(bytes), options)?;
    assert_eq!((alone.up.chunks, alone.up.payload_bytes), (1, bytes as u64));
    Ok(trip.up.chunks)
}

fn leaf_of_exactly_a_chunk(bed: &Bed) -> Result<(), Failed> {
    assert_eq!(chunks_beside_a_small_leaf(bed, CHUNK)?, 2);
    Ok(())
}

fn leaf_of_a_byte_more_than_a_chunk(bed: &Bed) -> Result<(), Failed> {
    assert_eq!(chunks_beside_a_small_leaf(bed, CHUNK + 1)?, 2);
    Ok(())
}

fn leaf_of_a_byte_less_than_a_chunk(bed: &Bed) -> Result<(), Failed> {
    assert_eq!(chunks_beside_a_small_leaf(bed, CHUNK - 1)?, 2);
    Ok(())
}

fn leaves_that_just_fill_a_chunk(bed: &Bed) -> Result<(), Failed> {
    assert_eq!(chunks_beside_a_small_leaf(bed, CHUNK - 16)?, 1);
    assert_eq!(chunks_beside_a_small_leaf(bed, CHUNK - 15)?, 2);
    Ok(())
}

fn odd_sizes(bed: &Bed) -> Result<(), Failed> {
    let sizes = [1, 3, 5, 7, 9, 15, 17, 31, 33, 63, 65, 127, 255, 257, 4095, 4097, 65_535, 65_537];
    for alignment in [1, 16] {
        let leaves = sizes.map(|size| bed.bytes(size));
        bed.round_trip(leaves, bed.options().packed_alignment(alignment))?;
    }
    for size in sizes {
        bed.round_trip(bed.bytes(size), bed.options())?;
    }
    Ok(())
}

fn bytes_next_to_doubles(bed: &Bed) -> Result<(), Failed> {
    let pair = |count| (bed.bytes(count), bed.tensor(DType::F64, &[count]), bed.tensor(DType::U16, &[count]));
    let leaves: Vec<_> = (1..40).map(pair).collect();
    let trip = bed.round_trip(leaves, bed.options().packed_alignment(1))?;
    assert_eq!(trip.up.chunks, 1);
    assert!(trip.value.iter().all(|(_, double, _)| double.offset() % 8 == 0));
    Ok(())
}

fn all_packed(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(bed.batch(100), bed.options())?;
    assert_eq!((trip.up.packed, trip.up.alone, trip.up.chunks), (100, 0, 1));
    assert_eq!((trip.down.packed, trip.down.alone, trip.down.chunks), (100, 0, 1));
    Ok(())
}

fn none_packed(bed: &Bed) -> Result<(), Failed> {
    let trip = bed.round_trip(bed.batch(100), bed.options().packing(false))?;
    assert_eq!((trip.up.packed, trip.up.alone, trip.up.chunks), (0, 100, 100));
    assert_eq!((trip.down.packed, trip.down.alone, trip.down.chunks), (0, 100, 100));
    Ok(())
}

/// An alignment that buffers of the target do not have cannot be promised, and is refused.
fn packed_alignment(bed: &Bed, alignment: usize) -> Result<(), Failed> {
    let mut leaves = [1, 30, 2, 77, 3, 5].map(|size| bed.bytes(size));
    let expected = Contents::of_all(&mut leaves);
    let options = bed.options().packed_alignment(alignment);
    if alignment > bed.device.limits().buffer_alignment.bytes() {
        let failed = start_copy(leaves, &bed.device, options).expect_err("buffers are aligned less");
        let named = matches!(failed.error(), Error::InvalidOption { name: "packed_alignment", .. });
        assert!(named, "{failed}");
        let mut back = failed.into_value().expect("the structure comes back");
        assert_same(&expected, &Contents::of_all(&mut back));
        return Ok(());
    }
    let (there, report) = bed.copy(leaves, &bed.device, options)?;
    assert_eq!(report.packed, 6);
    for tensor in &there {
        assert_eq!(tensor.offset() % alignment, 0, "offset {}", tensor.offset());
        if let Some(address) = tensor.address()? {
            assert_eq!(address % alignment as u64, 0, "address {address:#x}");
        }
    }
    assert_same(&expected, &Contents::of_all(&mut bed.down(there)?));
    Ok(())
}

fn large_leaf_over_several_staging_blocks(bed: &Bed) -> Result<(), Failed> {
    let bytes = (9 << 20) + 3;
    let trip = bed.round_trip(bed.bytes(bytes), bed.options())?;
    assert_eq!((trip.up.alone, trip.up.payload_bytes), (1, bytes as u64));
    if !bed.device.is_host() {
        assert!(trip.up.copies >= 3, "4 MiB are the largest staging block: {}", trip.up);
    }
    Ok(())
}

fn leaves_larger_than_packed_ones(bed: &Bed) -> Result<(), Failed> {
    let leaves = [100, 1000, 1001, 5000].map(|size| bed.bytes(size));
    let trip = bed.round_trip(leaves, bed.options().max_packed_bytes(1000))?;
    assert_eq!((trip.up.packed, trip.up.alone), (2, 2));
    Ok(())
}

fn two_thousand_leaves_of_4_kib(bed: &Bed) -> Result<(), Failed> {
    let leaves: Vec<Tensor> = (0..2000).map(|_| bed.tensor(DType::F32, &[32, 32])).collect();
    let trip = bed.round_trip(leaves, bed.options())?;
    assert_eq!((trip.up.packed, trip.up.chunks), (2000, 1));
    Ok(())
}

fn a_hundred_thousand_leaves(bed: &Bed) -> Result<(), Failed> {
    let leaves: Vec<Tensor> = (0..100_000).map(|_| bed.tensor(DType::I64, &[])).collect();
    let trip = bed.round_trip(leaves, bed.options().packed_alignment(8))?;
    assert_eq!((trip.up.packed, trip.up.payload_bytes), (100_000, 800_000));
    Ok(())
}
