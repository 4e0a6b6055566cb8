//! A `Batcher` whose batches are on the GPU before the loop asks for them: on wgpu, or on CUDA with the argument `cuda`.
//!
//! One structure is the batch on the host and on the device. The loader's threads make it in ordinary memory; `try_prefetch` takes each
//! one up in one copy, while the loop computes on the one before.

use std::error::Error;
use std::sync::Arc;

use burn_core::data::dataloader::DataLoaderBuilder;
use burn_core::data::dataloader::batcher::Batcher;
use burn_core::data::dataset::InMemDataset;
use burn_tensor::{Device, Int, Tensor};
use transship::prelude::*;
use transship::{Prefetch, PrefetchError, PrefetchOptions};
use transship_burn::SharedDevice;

#[derive(Clone, Debug)]
struct Item {
    image: Vec<f32>,
    label: i32,
}

/// On the host and on the device.
#[derive(Clone, Debug, TensorTree)]
struct Batch {
    images: transship::Tensor,
    labels: transship::Tensor,
}

struct ToBatch;

/// What a loader of burn hands out can be cloned, errors too.
type Made = Result<Batch, Arc<transship::Error>>;

impl Batcher<Item, Made> for ToBatch {
    /// The device does not matter: the batch stays on the host.
    fn batch(&self, items: Vec<Item>, _: &Device) -> Made {
        let images: Vec<f32> = items.iter().flat_map(|item| item.image.iter().copied()).collect();
        let labels: Vec<i32> = items.iter().map(|item| item.label).collect();
        let images = transship::Tensor::from_vec(images, &[items.len(), 28, 28])?;
        Ok(Batch { images, labels: transship::Tensor::from(labels) })
    }
}

/// `cuda` as the argument, or wgpu.
fn open() -> Result<SharedDevice, Box<dyn Error + Send + Sync>> {
    match std::env::args().nth(1).as_deref() {
        #[cfg(feature = "cuda")]
        Some("cuda") => Ok(SharedDevice::open_cuda(0)?),
        #[cfg(feature = "wgpu")]
        None | Some("wgpu") => Ok(SharedDevice::open(Device::wgpu_options())?),
        _ => Err("give cuda or wgpu, and build with the feature of that name".into()),
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let gpu = open()?;
    let items = (0..256).map(|label| Item { image: vec![label as f32; 28 * 28], label }).collect();
    let loader =
        DataLoaderBuilder::new(ToBatch).batch_size(32).num_workers(2).build(InMemDataset::new(items));

    let batches = loader.iter().map(|batch| -> Result<Batch, Box<dyn Error + Send + Sync>> { Ok(batch??) });
    let options = PrefetchOptions::default().copy(gpu.copy_options());
    let mut batches = batches.try_prefetch(gpu.device(), options);
    for batch in &mut batches {
        let Batch { images, labels } = batch.map_err(PrefetchError::into_error)?;
        let (images, labels): (Tensor<3>, Tensor<1, Int>) = gpu.to_burn_all(&(images, labels))?;
        // A model and its loss would be here.
        let means = images.mean_dims(&[1, 2]).squeeze_dims::<1>(&[1, 2]);
        let difference = (means - labels.float()).abs().max().into_scalar::<f32>();
        assert!(difference < 1e-3, "{difference}");
    }
    println!("{}", batches.stats());
    Ok(())
}
