//! Tensors on the host: creation, views, reading, and what is refused.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use num_complex::Complex;
use proptest::prelude::*;
use transship_core::backend::MemoryKind;
use transship_core::{DType, DeviceId, Element, Error, Tensor};

/// Lends some of the bytes of aligned words.
struct Shifted {
    words: Vec<u64>,
    bytes: Range<usize>,
}

impl AsRef<[u8]> for Shifted {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.bytes.clone()]
    }
}

fn matrix() -> Tensor {
    Tensor::from_vec((0..12).collect::<Vec<i32>>(), &[3, 4]).unwrap()
}

#[test]
fn a_vector_becomes_a_tensor_in_place() {
    let data = vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let address = data.as_ptr().addr() as u64;
    let tensor = Tensor::from_vec(data, &[2, 3]).unwrap();
    assert_eq!((tensor.dtype(), tensor.shape(), tensor.rank()), (DType::F32, &[2, 3][..], 2));
    assert_eq!((&tensor.strides()[..], tensor.numel(), tensor.nbytes()), (&[3, 1][..], 6, 24));
    assert_eq!((tensor.offset(), tensor.retained_bytes()), (0, 24));
    assert_eq!(tensor.address().unwrap(), Some(address));
    assert_eq!(tensor.device_id().unwrap(), DeviceId::HOST);
    assert_eq!(tensor.memory_kind().unwrap(), MemoryKind::Pageable);
    assert!(tensor.is_contiguous() && tensor.is_ready().unwrap());
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn every_element_type_comes_back_as_it_went_in() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(values: [T; 2], dtype: DType) {
        let tensor = Tensor::from(values.to_vec());
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[2][..]));
        assert_eq!(tensor.as_slice::<T>().unwrap(), values);
        assert_eq!(
            tensor.as_strided(&[2, 2], &[0, 1], 0).unwrap().to_vec::<T>().unwrap(),
            [values, values].concat()
        );
        assert_eq!(Tensor::scalar(values[1]).item::<T>().unwrap(), values[1]);
    }
    check([true, false], DType::Bool);
    check([1_u8, u8::MAX], DType::U8);
    check([1_u16, u16::MAX], DType::U16);
    check([1_u32, u32::MAX], DType::U32);
    check([1_u64, u64::MAX], DType::U64);
    check([-1_i8, i8::MIN], DType::I8);
    check([-1_i16, i16::MIN], DType::I16);
    check([-1_i32, i32::MIN], DType::I32);
    check([-1_i64, i64::MIN], DType::I64);
    check([f16::ONE, f16::MAX], DType::F16);
    check([bf16::ONE, bf16::MAX], DType::BF16);
    check([1.5_f32, f32::MAX], DType::F32);
    check([1.5_f64, f64::MAX], DType::F64);
    check([Complex::new(1.0_f32, 2.0), Complex::new(3.0, 4.0)], DType::Complex64);
    check([Complex::new(1.0_f64, 2.0), Complex::new(3.0, 4.0)], DType::Complex128);
}

/// No type of Rust reads them.
#[test]
fn eight_bit_floats_are_bytes() {
    for dtype in [DType::F8E4M3FN, DType::F8E5M2, DType::F8E8M0FNU] {
        let tensor = Tensor::from_owner([0x38, 0x7f, 0xff, 0x00], dtype, &[2, 2]).unwrap();
        assert_eq!((dtype.size(), dtype.alignment().bytes(), tensor.numel()), (1, 1, 4));
        assert_eq!(tensor.transpose(0, 1).unwrap().to_bytes().unwrap(), [0x38, 0xff, 0x7f, 0x00]);
        assert!(matches!(tensor.as_slice::<u8>(), Err(Error::WrongDType { actual, .. }) if actual == dtype));
    }
}

#[test]
fn a_shape_that_does_not_fit_the_data_is_refused_with_both_sizes() {
    let result = Tensor::from_vec(vec![0_u16; 5], &[2, 3]);
    assert!(matches!(result, Err(Error::ShapeMismatch { expected: 12, actual: 10, .. })));
    let result = Tensor::from_owner([0; 7], DType::F32, &[2]);
    assert!(matches!(result, Err(Error::ShapeMismatch { expected: 8, actual: 7, .. })));
    let result = Tensor::from_vec(vec![0_u16; 5], &[usize::MAX, 2]);
    assert!(matches!(result, Err(Error::SizeOverflow { .. })));
    assert!(matches!(Tensor::from_vec(vec![0_u8; 2], &[]), Err(Error::ShapeMismatch { expected: 1, .. })));
}

#[test]
fn lent_memory_is_read_in_place_and_let_go_of_with_the_last_view() {
    let owner: Arc<[f64]> = Arc::from([1.0, 2.0, 3.0]);
    let tensor = Tensor::from_arc(Arc::clone(&owner), &[3]).unwrap();
    assert_eq!(tensor.as_slice::<f64>().unwrap().as_ptr(), owner.as_ptr());
    let view = tensor.narrow(0, 2, 1).unwrap();
    drop(tensor);
    assert_eq!((Arc::strong_count(&owner), view.item::<f64>().unwrap()), (2, 3.0));
    drop(view);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn lent_memory_is_not_written() {
    let mut tensor = Tensor::from_owner([1, 2], DType::U8, &[2]).unwrap();
    assert!(matches!(tensor.as_mut_slice::<u8>(), Err(Error::NotWritable { .. })));
    assert!(matches!(tensor.as_mut_bytes(), Err(Error::NotWritable { .. })));
}

#[test]
fn memory_that_is_misaligned_for_the_elements_is_refused() {
    for (dtype, shift) in [(DType::U16, 1), (DType::F32, 2), (DType::Complex64, 2), (DType::Complex128, 4)] {
        let owner = Shifted { words: vec![0; 5], bytes: shift..shift + 2 * dtype.size() };
        let result = Tensor::from_owner(owner, dtype, &[2]);
        let alignment = dtype.alignment().bytes();
        assert!(
            matches!(result, Err(Error::Misaligned { alignment: found, .. }) if found == alignment),
            "{dtype}"
        );
    }
    let owner = Shifted { words: vec![0; 2], bytes: 4..12 };
    assert_eq!(Tensor::from_owner(owner, DType::Complex64, &[]).unwrap().shape(), []);
    // Where no element lies, nothing is misaligned.
    let owner = Shifted { words: vec![0; 2], bytes: 1..1 };
    let empty = Tensor::from_owner(owner, DType::F64, &[0]).unwrap();
    assert_eq!(empty.as_slice::<f64>().unwrap(), []);
}

#[test]
fn invalid_bools_are_found_when_they_are_read() {
    let mut tensor = Tensor::from_owner([0, 1, 2, 1], DType::Bool, &[4]).unwrap();
    assert!(matches!(tensor.as_slice::<bool>(), Err(Error::InvalidBits { dtype: DType::Bool })));
    assert!(matches!(tensor.to_vec::<bool>(), Err(Error::InvalidBits { dtype: DType::Bool })));
    assert_eq!(tensor.to_bytes().unwrap(), [0, 1, 2, 1]);
    assert!(tensor.slice(0, 0..4, 2).unwrap().to_vec::<bool>().is_err());
    assert_eq!(tensor.as_strided(&[2], &[3], 0).unwrap().to_vec::<bool>().unwrap(), [false, true]);

    tensor = Tensor::from(vec![true, false]);
    tensor.as_mut_bytes().unwrap()[0] = 3;
    assert!(matches!(tensor.as_mut_slice::<bool>(), Err(Error::InvalidBits { .. })));
    assert!(matches!(tensor.as_slice::<bool>(), Err(Error::InvalidBits { .. })));
    assert!(matches!(tensor.narrow(0, 0, 1).unwrap().item::<bool>(), Err(Error::InvalidBits { .. })));
}

#[test]
fn another_element_type_is_refused() {
    let mut tensor = Tensor::from(vec![1_u32]);
    let refused = |error| matches!(error, Error::WrongDType { actual: DType::U32, asked: DType::F32 });
    assert!(refused(tensor.as_slice::<f32>().unwrap_err()));
    assert!(refused(tensor.as_mut_slice::<f32>().unwrap_err()));
    assert!(refused(tensor.to_vec::<f32>().unwrap_err()));
    assert!(refused(tensor.item::<f32>().unwrap_err()));
}

/// Mutant: nobody asks whether others hold it (104).
#[test]
fn writing_needs_memory_that_nobody_shares() {
    let mut tensor = matrix();
    tensor.as_mut_slice::<i32>().unwrap()[5] = 50;
    let row = tensor.narrow(0, 1, 1).unwrap();
    assert!(matches!(tensor.as_mut_slice::<i32>(), Err(Error::NotWritable { .. })));
    assert_eq!(row.as_slice::<i32>().unwrap(), [4, 50, 6, 7]);
    drop(tensor);
    let mut row = row;
    row.as_mut_slice::<i32>().unwrap()[0] = 40;
    assert_eq!(row.as_slice::<i32>().unwrap(), [40, 50, 6, 7]);
}

#[test]
fn strided_tensors_are_gathered_or_refused() {
    let mut columns = matrix().slice(1, 1..4, 2).unwrap();
    assert!(matches!(columns.as_slice::<i32>(), Err(Error::NotContiguous { .. })));
    assert!(matches!(columns.as_bytes(), Err(Error::NotContiguous { .. })));
    assert!(matches!(columns.as_mut_bytes(), Err(Error::NotContiguous { .. })));
    assert!(matches!(columns.reshape(&[6]), Err(Error::NotContiguous { .. })));
    assert_eq!(columns.to_vec::<i32>().unwrap(), [1, 3, 5, 7, 9, 11]);
    let copy = columns.contiguous().unwrap();
    assert!(copy.is_contiguous() && !copy.shares_memory_with(&columns));
    assert_eq!(copy.as_slice::<i32>().unwrap(), [1, 3, 5, 7, 9, 11]);
    assert_eq!((copy.shape(), copy.retained_bytes(), columns.retained_bytes()), (&[3, 2][..], 24, 48));
    assert!(copy.contiguous().unwrap().shares_memory_with(&copy));
}

#[test]
fn tensors_without_elements_are_read_and_viewed_like_others() {
    let mut tensor = Tensor::from_vec(Vec::<f64>::new(), &[3, 0, 2]).unwrap();
    assert_eq!((tensor.numel(), tensor.nbytes(), tensor.retained_bytes()), (0, 0, 0));
    assert_eq!(tensor.as_slice::<f64>().unwrap(), []);
    assert_eq!(tensor.as_mut_slice::<f64>().unwrap(), []);
    assert_eq!(tensor.to_vec::<f64>().unwrap(), []);
    assert_eq!(tensor.transpose(0, 2).unwrap().contiguous().unwrap().shape(), [2, 0, 3]);
    assert_eq!(tensor.reshape(&[0, usize::MAX]).unwrap().shape(), [0, usize::MAX]);
    assert_eq!(matrix().narrow(0, 3, 0).unwrap().to_vec::<i32>().unwrap(), []);
    assert!(matches!(tensor.item::<f64>(), Err(Error::ShapeMismatch { .. })));
}

#[test]
fn only_one_element_is_an_item() {
    assert_eq!(Tensor::scalar(7_i64).shape(), []);
    assert_eq!(matrix().as_strided(&[1, 1], &[0, 9], 11).unwrap().item::<i32>().unwrap(), 11);
    assert!(matches!(matrix().item::<i32>(), Err(Error::ShapeMismatch { expected: 4, actual: 48, .. })));
}

#[test]
fn views_outside_of_the_tensor_are_refused() {
    const MAX: usize = usize::MAX;
    let tensor = matrix();
    for (dim, start, len) in
        [(2, 0, 0), (MAX, 0, 1), (0, 0, 4), (0, 4, 0), (1, 2, 3), (1, MAX, 1), (1, 1, MAX)]
    {
        assert!(
            matches!(tensor.narrow(dim, start, len), Err(Error::OutOfRange { .. })),
            "{dim} {start} {len}"
        );
    }
    #[allow(clippy::reversed_empty_ranges, reason = "it is refused")]
    let reversed = tensor.slice(0, 2..1, 1);
    assert!(matches!(reversed, Err(Error::OutOfRange { .. })));
    assert!(matches!(tensor.slice(0, 0..3, 0), Err(Error::InvalidOption { .. })));
    assert_eq!(tensor.slice(0, 1..3, MAX).unwrap().to_vec::<i32>().unwrap(), [4, 5, 6, 7]);
    for dim in [2, MAX] {
        assert!(matches!(tensor.transpose(0, dim), Err(Error::OutOfRange { .. })));
        assert!(matches!(tensor.squeeze(dim), Err(Error::OutOfRange { .. })));
        assert!(matches!(tensor.unsqueeze(dim.saturating_add(1)), Err(Error::OutOfRange { .. })));
    }
    for axes in [&[0][..], &[0, 0], &[0, 2], &[0, 1, 2]] {
        assert!(matches!(tensor.permute(axes), Err(Error::InvalidOption { .. })));
    }
    assert!(matches!(tensor.squeeze(0), Err(Error::InvalidOption { .. })));
    assert!(matches!(tensor.reshape(&[13]), Err(Error::ShapeMismatch { expected: 52, actual: 48, .. })));
    assert!(matches!(tensor.reshape(&[MAX, 12]), Err(Error::SizeOverflow { .. })));
}

#[test]
fn strided_views_stay_within_their_tensor() {
    let row = matrix().narrow(0, 1, 1).unwrap();
    assert_eq!(row.as_strided(&[2], &[2], 1).unwrap().to_vec::<i32>().unwrap(), [5, 7]);
    for (shape, strides, offset) in [
        ([5], [1], 0),
        ([2], [4], 0),
        ([1], [0], 4),
        ([0], [0], 5),
        ([1], [0], usize::MAX),
        ([2], [1 << 40], 0),
    ] {
        let view = row.as_strided(&shape, &strides, offset);
        assert!(matches!(view, Err(Error::OutOfRange { .. })), "{shape:?} {strides:?} {offset}");
    }
    assert!(matches!(row.as_strided(&[2], &[usize::MAX], 0), Err(Error::SizeOverflow { .. })));
    assert!(matches!(row.as_strided(&[2], &[1, 1], 0), Err(Error::InvalidOption { .. })));
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where memory does")]
fn a_copy_that_is_larger_than_memory_is_an_error() {
    let tensor = Tensor::from(vec![1_u8]).as_strided(&[isize::MAX as usize - 1000, 1], &[0, 1], 0).unwrap();
    assert!(matches!(tensor.to_bytes(), Err(Error::OutOfMemory { device: DeviceId::HOST, .. })));
    assert!(matches!(tensor.to_vec::<u8>(), Err(Error::OutOfMemory { .. })));
    assert!(matches!(tensor.contiguous(), Err(Error::OutOfMemory { .. })));
}

#[test]
fn debug_tells_what_it_is_and_not_what_is_in_it() {
    let text = format!("{:?}", matrix());
    assert_eq!(text, "Tensor { shape: [3, 4], dtype: int32, device: host }");
}

/// What a view should be: a shape and the elements in row-major order.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    shape: Vec<usize>,
    elements: Vec<u16>,
}

impl Model {
    /// A model of `shape` whose element at an index is that of `self` at `place(index)`.
    fn map(&self, shape: Vec<usize>, place: impl Fn(&[usize]) -> Vec<usize>) -> Self {
        let elements = (0..shape.iter().product())
            .map(|element| {
                let source = place(&indices(&shape, element));
                let at = source.iter().zip(&self.shape).fold(0, |at, (index, size)| at * size + index);
                self.elements[at]
            })
            .collect();
        Self { shape, elements }
    }
}

fn indices(shape: &[usize], mut element: usize) -> Vec<usize> {
    let mut indices = vec![0; shape.len()];
    for (index, size) in indices.iter_mut().zip(shape).rev() {
        *index = element % size;
        element /= size;
    }
    indices
}

/// One view of a random kind, of the tensor and of the model.
fn step(tensor: &Tensor, model: &Model, kind: u8, a: usize, b: usize, c: usize) -> (Tensor, Model) {
    let rank = model.shape.len();
    if kind == 0 || rank == 0 {
        let dim = a % (rank + 1);
        let mut shape = model.shape.clone();
        shape.insert(dim, 1);
        return (tensor.unsqueeze(dim).unwrap(), Model { shape, ..model.clone() });
    }
    let (dim, other) = (a % rank, b % rank);
    let size = model.shape[dim];
    let mut shape = model.shape.clone();
    match kind {
        1 => {
            shape.swap(dim, other);
            let place = |index: &[usize]| {
                let mut index = index.to_vec();
                index.swap(dim, other);
                index
            };
            (tensor.transpose(dim, other).unwrap(), model.map(shape, place))
        }
        2 => {
            let start = b % (size + 1);
            let end = start + c % (size - start + 1);
            let step = 1 + c % 3;
            shape[dim] = (start..end).step_by(step).count();
            let place = |index: &[usize]| {
                let mut index = index.to_vec();
                index[dim] = start + index[dim] * step;
                index
            };
            (tensor.slice(dim, start..end, step).unwrap(), model.map(shape, place))
        }
        3 => {
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.rotate_left(b % rank);
            let place = |index: &[usize]| {
                let mut source = vec![0; rank];
                axes.iter().zip(index).for_each(|(axis, index)| source[*axis] = *index);
                source
            };
            let shape = axes.iter().map(|axis| model.shape[*axis]).collect();
            (tensor.permute(&axes).unwrap(), model.map(shape, place))
        }
        4 if size == 1 => {
            shape.remove(dim);
            (tensor.squeeze(dim).unwrap(), Model { shape, ..model.clone() })
        }
        5 if tensor.is_contiguous() => {
            let shape = vec![model.elements.len()];
            (tensor.reshape(&shape).unwrap(), Model { shape, ..model.clone() })
        }
        _ => {
            let tensor = if c.is_multiple_of(2) { tensor.contiguous().unwrap() } else { tensor.clone() };
            (tensor, model.clone())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 512 }))]

    #[test]
    fn chains_of_views_are_what_the_model_says(
        shape in prop::collection::vec(0_usize..6, 0..5),
        steps in prop::collection::vec((0_u8..7, any::<usize>(), any::<usize>(), any::<usize>()), 0..8),
    ) {
        let elements: Vec<u16> = (0..shape.iter().product::<usize>() as u16).collect();
        let mut tensor = Tensor::from_vec(elements.clone(), &shape).unwrap();
        let mut model = Model { shape, elements };
        for (kind, a, b, c) in steps {
            (tensor, model) = step(&tensor, &model, kind, a, b, c);
            prop_assert_eq!(tensor.shape(), model.shape.as_slice());
            prop_assert_eq!(tensor.numel(), model.elements.len());
            prop_assert_eq!(tensor.to_vec::<u16>().unwrap(), model.elements.as_slice());
            if tensor.is_contiguous() {
                prop_assert_eq!(tensor.as_slice::<u16>().unwrap(), model.elements.as_slice());
            }
        }
    }

    #[test]
    fn no_arguments_make_a_view_panic(
        shape in prop::collection::vec(0_usize..4, 0..4),
        arguments in prop::collection::vec(prop_oneof![0_usize..5, Just(usize::MAX), any::<usize>()], 4),
        other in prop::collection::vec(prop_oneof![0_usize..5, any::<usize>()], 0..4),
    ) {
        let tensor = Tensor::from_vec(vec![0_u64; shape.iter().product()], &shape).unwrap();
        let [a, b, c, d] = arguments.try_into().unwrap();
        let views = [
            tensor.narrow(a, b, c), tensor.slice(a, b..c, d), tensor.transpose(a, b), tensor.permute(&other),
            tensor.reshape(&other), tensor.squeeze(a), tensor.unsqueeze(a), tensor.as_strided(&other, &other, a),
            tensor.as_strided(&[a, b], &[c, d], a),
        ];
        for view in views.into_iter().flatten().filter(|view| view.nbytes() < 10_000) {
            prop_assert_eq!(view.to_bytes().unwrap().len(), view.nbytes());
        }
    }
}

#[test]
fn memory_is_described_without_naming_a_vendor() {
    let tensor = Tensor::zeros(&[4, 4], DType::F32, &transship_core::Device::host()).unwrap();
    let row = tensor.narrow(0, 1, 1).unwrap().memory().unwrap();
    assert_eq!((row.device.to_string().as_str(), row.bytes, row.retained_bytes), ("host", 16, 64));
    assert_eq!(row.kind, transship_core::MemoryKind::Pageable);
    assert_eq!(row.address.map(|address| address % 16), Some(0));
    assert!(row.alignment.bytes() >= 16);
}
