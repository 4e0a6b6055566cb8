//! Loads the weights of a small model into a `VarMap`, and runs it: once by transship, once by candle's own loader.
//!
//! `cargo run --example mlp`, on a GPU with `--features cuda`.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};

struct Mlp {
    first: Linear,
    second: Linear,
}

impl Mlp {
    fn new(weights: &VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            first: linear(64, 128, weights.pp("first"))?,
            second: linear(128, 10, weights.pp("second"))?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, input: &Tensor) -> candle_core::Result<Tensor> {
        self.second.forward(&self.first.forward(input)?.relu()?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cuda_if_available(0)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("mlp.safetensors");
    let trained = VarMap::new();
    Mlp::new(&VarBuilder::from_varmap(&trained, DType::F32, &Device::Cpu))?;
    trained.save(&file)?;

    // By transship: all weights at once, in one allocation.
    let weights = candle_core::safetensors::load(&file, &Device::Cpu)?;
    let weights = transship_candle::start_copy(weights, &device)?.wait()?;
    let mut variables = VarMap::new();
    let model = Mlp::new(&VarBuilder::from_varmap(&variables, DType::F32, &device))?;
    variables.set(weights.iter())?;

    // By candle: each weight by itself.
    let mut candles = VarMap::new();
    let reference = Mlp::new(&VarBuilder::from_varmap(&candles, DType::F32, &device))?;
    candles.load(&file)?;

    let input = Tensor::rand(-1_f32, 1.0, (3, 64), &device)?;
    let (ours, theirs) = (model.forward(&input)?, reference.forward(&input)?);
    let difference = (ours - theirs)?.abs()?.max_all()?.to_scalar::<f32>()?;
    if difference != 0.0 {
        return Err(format!("the outputs differ by {difference}").into());
    }
    println!(
        "{} weights on {:?}: the outputs are those of candle's own loader",
        weights.len(),
        device.location()
    );
    Ok(())
}
