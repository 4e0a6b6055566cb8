//! What burn's queue is given.

use std::sync::{Arc, Mutex, PoisonError};

use burn_fusion::observer::{BlockOperations, FusionObservation, FusionObserver};
use burn_ir::{CustomOpIr, OperationIr};
use burn_tensor::Tensor;
use transship::Tensor as Leaf;
use transship_burn::SharedDevice;

use crate::cases::{Outcome, numbers, up};

/// burn keeps a plan for each look of an operation that it has met. Fails where the operation has the tensors' shapes, and where it is one for
/// each tensor.
pub(crate) fn a_structure_is_few_operations_of_few_looks(gpu: &SharedDevice) -> Outcome {
    let leaves: Vec<_> = (0..528).map(|number| Leaf::from(numbers(1 + number % 97, number))).collect();
    let leaves = up(leaves, gpu)?;
    gpu.burn().sync()?;
    let seen = Arc::<Seen>::default();
    let observation = FusionObservation::new(seen.clone());
    let tensors: Vec<Tensor<1>> = gpu.to_burn_all(&leaves)?;
    gpu.burn().sync()?;
    drop(observation);
    drop(tensors);
    let seen = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(seen.len(), 528_usize.div_ceil(64));
    assert!(seen.iter().flat_map(|operation| &operation.outputs).all(|output| output.shape[..] == [1]));
    Ok(())
}

#[derive(Default)]
struct Seen(Mutex<Vec<CustomOpIr>>);

impl FusionObserver for Seen {
    fn registered(&self, operation: &OperationIr) {
        if let OperationIr::Custom(operation) = operation {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(operation.clone());
        }
    }

    fn block_starts(&self, _: BlockOperations<'_>) {}

    fn block_ran(&self) {}
}
