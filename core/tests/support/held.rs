//! What the tests of copies into held memory share.

use super::bytes_of;
use transship_core::{
    BackgroundWork, CopyOptions, DType, Device, Error, Tensor, TensorTree, start_copy, start_copy_into,
};

pub(crate) const MODES: [BackgroundWork; 3] =
    [BackgroundWork::Auto, BackgroundWork::Always, BackgroundWork::Never];

pub(crate) fn options() -> CopyOptions {
    CopyOptions::default()
}

/// Tensors of several types and sizes, none and less than a granule included, with bytes of `seed`.
pub(crate) fn batch(seed: u8) -> Vec<Tensor> {
    let bytes = |len: u8| (0..len).map(|index| index.wrapping_mul(7) ^ seed).collect::<Vec<_>>();
    let words = bytes(6).into_iter().map(u32::from).collect::<Vec<_>>();
    vec![
        Tensor::from(bytes(5)),
        Tensor::from_vec(words, &[2, 3]).unwrap(),
        Tensor::from(Vec::<u16>::new()),
        Tensor::from(bytes(40)),
        Tensor::from(bytes(1)),
    ]
}

pub(crate) fn bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(bytes_of).collect()
}

pub(crate) fn up<S: TensorTree>(value: S, device: &Device) -> S {
    start_copy(value, device, options()).unwrap().wait().unwrap()
}

pub(crate) fn into<S: TensorTree>(value: S, into: S, options: CopyOptions) -> S {
    start_copy_into(value, into, options).unwrap().wait().unwrap()
}

/// Each tensor with memory of its own that a `Vec` owned.
pub(crate) fn ordinary(tensors: &[Tensor]) -> Vec<Tensor> {
    let like = |tensor: &Tensor| {
        let zeros = Tensor::from(vec![0_u8; tensor.nbytes()]);
        match tensor.dtype() {
            DType::U8 => zeros,
            dtype => Tensor::empty(tensor.shape(), dtype, &Device::host()).unwrap(),
        }
    };
    tensors.iter().map(like).collect()
}

#[track_caller]
pub(crate) fn unsuited(error: &Error) -> (usize, &'static str, &Error) {
    match error {
        Error::UnsuitedTensor { index, role, error, .. } => (*index, role, error),
        other => panic!("{other}"),
    }
}

/// Refused, with both structures as they were.
#[track_caller]
pub(crate) fn refused(value: Vec<Tensor>, destination: Vec<Tensor>) -> Error {
    let places = |tensors: &[Tensor]| {
        tensors.iter().map(|tensor| (tensor.address().unwrap(), tensor.offset())).collect::<Vec<_>>()
    };
    let before = (places(&value), places(&destination));
    let failed = start_copy_into(value, destination, options()).unwrap_err();
    let error = failed.error().clone();
    let (value, destination) = failed.into_both();
    assert_eq!((places(&value.unwrap()), places(destination.as_ref().unwrap())), before, "{error}");
    assert!(destination.unwrap().iter().all(|tensor| tensor.is_ready().unwrap()), "{error}");
    error
}
