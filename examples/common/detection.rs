//! The batch of a multi-camera detector: 16 samples of 6 cameras each, 528 small tensors of four types, 153,628 bytes.

use transship::{Result, Tensor, TensorTree, for_each_tensor};

/// How many tensors the batch has.
pub(crate) const LEAVES: usize = 528;
/// How many bytes they have together.
pub(crate) const BYTES: usize = 153_628;

/// Objects in the scene, and how many of them each camera sees.
const SCENES: [(usize, [usize; 6]); 4] = [
    (60, [30, 20, 40, 10, 50, 20]),
    (100, [60, 40, 30, 70, 20, 50]),
    (45, [10, 20, 10, 30, 20, 10]),
    (120, [80, 50, 60, 40, 70, 30]),
];
const SAMPLES: usize = 16;

/// What one camera sees.
#[derive(Clone, TensorTree)]
pub(crate) struct Camera {
    name: String,
    bounding_boxes: Tensor,
    class_ids: Tensor,
    active: Tensor,
    depths: Tensor,
    proj_mat: Tensor,
}

/// What there is in the scene.
#[derive(Clone, TensorTree)]
pub(crate) struct GroundTruth {
    bounding_boxes_3d: Tensor,
    class_ids: Tensor,
    active: Tensor,
}

/// One moment, seen by all cameras.
#[derive(Clone, TensorTree)]
pub(crate) struct Sample {
    cams_gt: Vec<Camera>,
    gt_data: GroundTruth,
}

/// The batch, its elements random and the same for the same seed. The seed also says with which scene it begins: shapes
/// change from one batch to the next, the sizes of all together do not.
pub(crate) fn batch(seed: usize) -> Result<Vec<Sample>> {
    let mut random = Random(seed as u64);
    let scenes = SCENES.iter().cycle().skip(seed % SCENES.len()).take(SAMPLES);
    let mut batch = scenes.map(|scene| sample(scene, &mut random)).collect::<Result<Vec<_>>>()?;
    let leaves = leaves(&mut batch)?;
    assert_eq!(leaves.len(), LEAVES);
    assert_eq!(leaves.iter().map(Tensor::nbytes).sum::<usize>(), BYTES);
    Ok(batch)
}

/// All tensors of the batch, sharing its memory.
pub(crate) fn leaves(batch: &mut Vec<Sample>) -> Result<Vec<Tensor>> {
    let mut leaves = Vec::with_capacity(LEAVES);
    for_each_tensor(batch, |tensor| {
        leaves.push(tensor.clone());
        Ok(())
    })?;
    Ok(leaves)
}

fn sample((objects, visible): &(usize, [usize; 6]), random: &mut Random) -> Result<Sample> {
    let cameras = visible.iter().enumerate().map(|(index, &count)| {
        Ok(Camera {
            name: format!("camera {index}"),
            bounding_boxes: random.floats(&[count, 4])?,
            class_ids: random.classes(count)?,
            active: random.flags(count)?,
            depths: random.floats(&[count])?,
            proj_mat: random.floats(&[3, 4])?,
        })
    });
    Ok(Sample {
        cams_gt: cameras.collect::<Result<_>>()?,
        gt_data: GroundTruth {
            bounding_boxes_3d: random.floats(&[*objects, 7])?,
            class_ids: random.classes(*objects)?,
            active: random.flags(*objects)?,
        },
    })
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn floats(&mut self, shape: &[usize]) -> Result<Tensor> {
        let count = shape.iter().product();
        Tensor::from_vec(self.many(count, |bits| (bits >> 40) as f32 / (1_u64 << 24) as f32), shape)
    }

    fn classes(&mut self, count: usize) -> Result<Tensor> {
        Tensor::from_vec(self.many(count, |bits| (bits % 10) as i64), &[count])
    }

    fn flags(&mut self, count: usize) -> Result<Tensor> {
        Tensor::from_vec(self.many(count, |bits| bits & 1 == 1), &[count])
    }

    fn many<T>(&mut self, count: usize, make: impl Fn(u64) -> T) -> Vec<T> {
        (0..count).map(|_| make(self.next())).collect()
    }
}
