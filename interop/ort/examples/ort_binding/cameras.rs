//! The requests, as a program has them, and the answers that a plain computation gives.

use transship::prelude::*;
use transship::{Error, Result};

use crate::model::{BOXES, WEIGHTS};

/// What one camera has seen, in ordinary memory. All values are small and whole, so that sums are exact in any order.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) boxes: Vec<f32>,
    pub(crate) depths: Vec<f32>,
    pub(crate) classes: Vec<i64>,
}

/// The same as tensors: `0.boxes` is an input of the model, and so on.
#[derive(TensorTree)]
pub(crate) struct Camera {
    pub(crate) boxes: Tensor,
    pub(crate) depths: Tensor,
    pub(crate) classes: Tensor,
}

impl TryFrom<Seen> for Camera {
    type Error = Error;

    /// Copies nothing.
    fn try_from(seen: Seen) -> Result<Self> {
        Ok(Self {
            boxes: Tensor::from_vec(seen.boxes, &[BOXES, 4])?,
            depths: Tensor::from_vec(seen.depths, &[BOXES, 1])?,
            classes: Tensor::from_vec(seen.classes, &[BOXES, 1])?,
        })
    }
}

/// Another one for each number.
pub(crate) fn request(number: usize, cameras: usize) -> Vec<Seen> {
    (0..cameras)
        .map(|camera| {
            let small = |index: usize| (number * 7 + camera * 5 + index * 3) % 8;
            Seen {
                boxes: (0..BOXES * 4).map(|index| small(index) as f32).collect(),
                depths: (0..BOXES).map(|index| small(index + 1) as f32).collect(),
                classes: (0..BOXES).map(|index| small(index + 2) as i64).collect(),
            }
        })
        .collect()
}

/// The score of each box, one camera behind the other.
pub(crate) fn scores(request: &[Seen]) -> Vec<f32> {
    request.iter().flat_map(scores_of).collect()
}

fn scores_of(seen: &Seen) -> Vec<f32> {
    let rows = seen.boxes.chunks(WEIGHTS.len()).zip(seen.depths.iter().zip(&seen.classes));
    rows.map(|(row, (depth, class))| dot(row) + depth + *class as f32).collect()
}

fn dot(row: &[f32]) -> f32 {
    row.iter().zip(WEIGHTS).map(|(value, weight)| value * weight).sum()
}
