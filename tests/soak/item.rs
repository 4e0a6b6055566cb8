//! Tensors of which it is known what they hold, wherever they are.

use transship::{CopyHandle, CopyOptions, DType, Device, Tensor, start_copy};

use crate::data::{Contents, Random, assert_same};

/// Mostly small, as in a batch; some go in several pieces.
const SIZES: [(u64, usize); 4] = [(70, 300), (20, 20_000), (8, 300_000), (2, 5 << 20)];

pub(crate) struct Item {
    pub(crate) tensors: Vec<Tensor>,
    expected: Vec<Contents>,
    /// The copy that fills it may fail although it was handed out already.
    pub(crate) may_fail: bool,
}

impl Item {
    /// New tensors on the host.
    pub(crate) fn new(random: &mut Random) -> Self {
        let largest = size_class(random);
        let count = if largest > 100_000 { 1 + random.next() % 2 } else { 1 + random.next() % 12 };
        let mut tensors: Vec<Tensor> = Vec::new();
        for _ in 0..count {
            let tensor = match (tensors.last(), random.next() % 10) {
                (Some(last), 0) => last.clone(),
                (_, kind) => view(whole(random, largest), kind),
            };
            tensors.push(tensor);
        }
        let expected = Contents::of_all(&mut tensors);
        Self { tensors, expected, may_fail: false }
    }

    /// The same item after its tensors went somewhere.
    pub(crate) fn moved(self, tensors: Vec<Tensor>) -> Self {
        Self { tensors, ..self }
    }

    /// Copies the tensors to the host and compares every byte; the error if the copy that filled them has failed.
    pub(crate) fn check(&self) -> transship::Result<()> {
        let copy = start_copy(self.tensors.clone(), &Device::host(), CopyOptions::default());
        let mut found = copy.and_then(CopyHandle::wait)?;
        assert_same(&self.expected, &Contents::of_all(&mut found));
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
    }
}

fn size_class(random: &mut Random) -> usize {
    let mut pick = random.next() % 100;
    for (weight, size) in SIZES {
        if pick < weight {
            return size;
        }
        pick -= weight;
    }
    SIZES[0].1
}

fn whole(random: &mut Random, largest: usize) -> Tensor {
    let dtype = DType::ALL[random.next() as usize % DType::ALL.len()];
    let rows = random.next() as usize % (largest / dtype.size() / 3 + 1);
    random.tensor(dtype, &[rows, 3])
}

fn view(tensor: Tensor, kind: u64) -> Tensor {
    let rows = tensor.shape()[0];
    let view = match kind {
        1 => tensor.transpose(0, 1),
        2 => tensor.slice(0, 0..rows, 2),
        3 => tensor.narrow(0, rows / 2, rows - rows / 2),
        _ => Ok(tensor),
    };
    view.unwrap()
}
