//! Copies are made of multiples of 4 bytes, tensors are not.

use transship_core::{CopyOptions, CopyPolicy, DType, Device, Tensor, start_copy};

use super::Outcome;
use crate::bed::{Program, down, up};

pub(crate) fn odd_views_up_down_and_between() -> Outcome {
    let program = Program::new();
    let other = Device::open("wgpu:0".parse()?)?;
    for dtype in [DType::Bool, DType::U8, DType::F16] {
        let base = tensor(dtype, 1001)?;
        let views = || -> transship_core::Result<Vec<Tensor>> {
            let pieces = [(0, 1), (1, 1), (3, 2), (5, 3), (7, 94), (101, 899), (1000, 1), (2, 997)];
            pieces.into_iter().map(|(first, count)| base.narrow(0, first, count)).collect()
        };
        let expected = bytes(views()?)?;
        assert_eq!(bytes(down(up(views()?, &program.target)))?, expected, "{dtype} up and down");

        let there = up(base.clone(), &program.target);
        let on_device = |tensor: &Tensor| -> transship_core::Result<Vec<Tensor>> {
            let pieces = [(0, 1), (1, 1), (3, 2), (5, 3), (7, 94), (101, 899), (1000, 1), (2, 997)];
            pieces.into_iter().map(|(first, count)| tensor.narrow(0, first, count)).collect()
        };
        assert_eq!(bytes(down(on_device(&there)?))?, expected, "{dtype} views down");
        let always = CopyOptions::default().policy(CopyPolicy::Always);
        let within = start_copy(on_device(&there)?, &program.target, always)?.wait()?;
        assert_eq!(bytes(down(within))?, expected, "{dtype} on the device");
        let over = up(on_device(&there)?, &other);
        assert_eq!(bytes(down(over))?, expected, "{dtype} to another device");
    }
    Ok(())
}

/// Bytes that are valid for every type: zeros and ones in no regular order.
fn tensor(dtype: DType, count: usize) -> transship_core::Result<Tensor> {
    let pattern = |index: usize| (index * index / 7 % 2) as u8;
    let bytes = (0..count * dtype.size()).map(pattern).collect::<Vec<_>>();
    Tensor::from_owner(bytes, dtype, &[count])
}

fn bytes(tensors: Vec<Tensor>) -> transship_core::Result<Vec<Vec<u8>>> {
    tensors.iter().map(Tensor::to_bytes).collect()
}
