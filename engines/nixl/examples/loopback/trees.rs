//! Trees whose bytes tell where they belong.

use transship::{CopyOptions, DType, Device, Tensor, start_copy};

use crate::{BYTES, Result, TENSORS};

/// The same bytes as one tensor and as many, of two seeds.
pub(crate) struct Trees {
    one: [Vec<Tensor>; 2],
    many: [Vec<Tensor>; 2],
}

/// Places for them.
pub(crate) struct Places {
    one: Vec<Tensor>,
    many: Vec<Tensor>,
}

impl Trees {
    pub(crate) fn on_host() -> Result<Self> {
        Self::new(Device::host())
    }

    pub(crate) fn new(device: Device) -> Result<Self> {
        let on = |tensors: usize, seed: u8| {
            Ok::<_, Box<dyn std::error::Error>>(
                start_copy(tree(tensors, seed), &device, CopyOptions::default())?.wait()?,
            )
        };
        Ok(Self { one: [on(1, 0)?, on(1, 0xff)?], many: [on(TENSORS, 0)?, on(TENSORS, 0xff)?] })
    }

    pub(crate) fn tree(&self, what: &str, seed: usize) -> &Vec<Tensor> {
        if what == "one" { &self.one[seed] } else { &self.many[seed] }
    }

    pub(crate) fn places(device: &Device) -> Result<Places> {
        let zeros = |tensors: usize| {
            let zeros = (0..tensors).map(|_| Tensor::zeros(&[BYTES / tensors], DType::U8, device));
            zeros.collect::<transship::Result<Vec<_>>>()
        };
        Ok(Places { one: zeros(1)?, many: zeros(TENSORS)? })
    }
}

impl Places {
    pub(crate) fn slot(&mut self, what: &str) -> &mut Vec<Tensor> {
        if what == "one" { &mut self.one } else { &mut self.many }
    }
}

/// Fails unless all bytes of `tree` are those of `expected`, which lie on the host.
pub(crate) fn check(tree: &[Tensor], expected: &[Tensor]) -> Result<()> {
    let down = start_copy(tree.to_vec(), &Device::host(), CopyOptions::default())?.wait()?;
    for (number, (tensor, expected)) in down.iter().zip(expected).enumerate() {
        let (is, should) = (tensor.as_slice::<u8>()?, expected.as_slice::<u8>()?);
        if is != should {
            let at = is.iter().zip(should).position(|(is, should)| is != should);
            return Err(format!("wrong bytes in tensor {number}, from byte {at:?} on").into());
        }
    }
    Ok(())
}

/// Each byte depends on its tensor and on its place there.
fn tree(tensors: usize, seed: u8) -> Vec<Tensor> {
    let byte = |number: usize, at: usize| ((at * 31 + (at >> 8) * 7 + (at >> 16) + number * 13) as u8) ^ seed;
    let tensor = |number| Tensor::from((0..BYTES / tensors).map(|at| byte(number, at)).collect::<Vec<u8>>());
    (0..tensors).map(tensor).collect()
}
