//! Tensors of which it is known what they hold, wherever they are.

use std::sync::Arc;

use transship::{CopyHandle, CopyOptions, DType, Device, Tensor, start_copy};

use crate::data::{Contents, Random, assert_same};

/// Mostly small, as in a batch; some go in several pieces.
const SIZES: [(u64, usize); 4] = [(70, 300), (20, 20_000), (8, 300_000), (2, 5 << 20)];

pub(crate) struct Item {
    pub(crate) tensors: Vec<Tensor>,
    expected: Arc<Vec<Contents>>,
    /// The number of the owner of some of its memory that panics when it goes; there is at most one.
    pub(crate) panics: Option<u64>,
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
        Self::of(tensors)
    }

    /// The same with some of its tensors over memory of owners, as `lend` makes them: whether one may panic, and does.
    pub(crate) fn lent(
        mut self,
        owner: u64,
        random: &mut Random,
        mut lend: impl FnMut(&Tensor, bool, &mut Random) -> (Tensor, bool),
    ) -> Self {
        for tensor in &mut self.tensors {
            if random.next().is_multiple_of(2) && tensor.nbytes() > 0 {
                let (lent, panics) = lend(tensor, self.panics.is_none(), random);
                *tensor = lent;
                self.panics = self.panics.or(panics.then_some(owner));
            }
        }
        self
    }

    /// What another copy of its tensors came to.
    pub(crate) fn twin(&self, tensors: Vec<Tensor>) -> Self {
        Self { tensors, expected: self.expected.clone(), ..*self }
    }

    /// New tensors on the host, none of which is a part of another.
    pub(crate) fn whole(random: &mut Random) -> Self {
        let largest = size_class(random).min(SIZES[2].1);
        Self::of((0..1 + random.next() % 10).map(|_| whole(random, largest)).collect())
    }

    /// New tensors of the same shapes as those of another one.
    pub(crate) fn like(other: &Self, random: &mut Random) -> Self {
        Self::of(other.tensors.iter().map(|tensor| random.tensor(tensor.dtype(), tensor.shape())).collect())
    }

    fn of(mut tensors: Vec<Tensor>) -> Self {
        let expected = Arc::new(Contents::of_all(&mut tensors));
        Self { tensors, expected, panics: None, may_fail: false }
    }

    /// The same item after its tensors went somewhere.
    pub(crate) fn moved(mut self, tensors: Vec<Tensor>) -> Self {
        // Here and not at the end: what a function returns is leaked if what it drops then panics (rust-lang/rust#47949).
        self.tensors = tensors;
        self
    }

    /// Copies the tensors to the host and compares every byte; the error if the copy that filled them has failed.
    pub(crate) fn check(&self) -> transship::Result<()> {
        let copy = start_copy(self.tensors.clone(), &Device::host(), CopyOptions::default());
        let mut found = copy.and_then(CopyHandle::wait)?;
        assert_same(&self.expected, &Contents::of_all(&mut found));
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.nbytes() as u64).sum()
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
