//! Random data, and what a tensor held before it was copied.

use transship::{DType, Device, Tensor, TensorTree, for_each_tensor};

/// Numbers that look random (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A tensor on the host with random elements.
    pub(crate) fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let mut tensor = Tensor::empty(shape, dtype, &Device::host()).expect("host memory");
        self.fill(&mut tensor);
        tensor
    }

    /// Random elements that are valid for the type of `tensor`.
    pub(crate) fn fill(&mut self, tensor: &mut Tensor) {
        let mask = if tensor.dtype() == DType::Bool { 0x0101_0101_0101_0101 } else { u64::MAX };
        let (words, rest) = tensor.as_mut_bytes().expect("a host tensor of our own").as_chunks_mut();
        words.iter_mut().for_each(|word| *word = (self.next() & mask).to_le_bytes());
        let last = (self.next() & mask).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// What a tensor is, wherever it lies: its type, its shape, and its elements in order.
#[derive(PartialEq, Eq)]
pub(crate) struct Contents {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Contents {
    /// Of a tensor on the host.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        let bytes = tensor.to_bytes().expect("a tensor on the host");
        Self { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), bytes }
    }

    /// Of every tensor of a structure on the host, in the order of a copy.
    pub(crate) fn of_all<S: TensorTree>(value: &mut S) -> Vec<Self> {
        let mut all = Vec::new();
        for_each_tensor(value, |tensor| {
            all.push(Self::of(tensor));
            Ok(())
        })
        .expect("a structure that can be visited");
        all
    }
}

/// Panics unless `after` is `before`, and says where they differ.
#[track_caller]
pub(crate) fn assert_same(before: &[Contents], after: &[Contents]) {
    assert_eq!(before.len(), after.len(), "tensors before and after");
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        assert_eq!((before.dtype, &before.shape), (after.dtype, &after.shape), "tensor {index}");
        if before.bytes != after.bytes {
            let (was, is) = (&before.bytes, &after.bytes);
            let byte = was.iter().zip(is).position(|(was, is)| was != is).expect("as many bytes");
            panic!(
                "byte {byte} of {} of tensor {index} was {:#x} and is {:#x}",
                was.len(),
                was[byte],
                is[byte]
            );
        }
    }
}
