//! What one would write without transship, and the limit of the hardware.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod prepared;
#[cfg(feature = "wgpu")]
mod wgpu;

use transship::{Device, Tensor};

use crate::Result;
use crate::measure::{Contender, Method};
use crate::rivals::prepared::Preparation;
use crate::table::{Kind, Line, Outcome};

/// Above it, the limit is one copy of as many bytes that lie in pinned memory already.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
const SMALLEST_BULK: usize = 4 << 20;

/// A batch of so many bytes from the host to `device`.
pub(crate) fn up<S: 'static>(device: &Device, bytes: usize) -> Result<Vec<Contender<S>>> {
    match device.id().driver() {
        "host" => Ok(host::rivals()),
        #[cfg(feature = "cuda")]
        "cuda" => cuda::up(device.id().ordinal(), bytes),
        #[cfg(feature = "wgpu")]
        "wgpu" => wgpu::up(device, bytes),
        driver => Ok(vec![none_for(driver)]),
    }
}

/// The same for tensors that are not contiguous: gathered on the host first.
pub(crate) fn up_gathered<S: 'static>(device: &Device, bytes: usize) -> Result<Vec<Contender<S>>> {
    Ok(up(device, bytes)?.into_iter().map(|rival| prepared::first(prepared::GATHERED, rival)).collect())
}

/// The same for tensors that `cast` makes others of, on the host and first. `bytes`: as many as arrive.
pub(crate) fn up_cast<S: 'static>(
    device: &Device,
    bytes: usize,
    cast: fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Contender<S>>> {
    let preparation = || Preparation { done: "cast by this thread", are: "cast", prepare: cast };
    Ok(up(device, bytes)?.into_iter().map(|rival| prepared::first(preparation(), rival)).collect())
}

/// The same for large tensors, page-locked where they lie as well.
pub(crate) fn up_registered<S: 'static>(device: &Device, bytes: usize) -> Result<Vec<Contender<S>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => cuda::up_registered(device.id().ordinal(), bytes),
        _ => up(device, bytes),
    }
}

/// Tensors on `device`, each with memory of its own, to the host.
pub(crate) fn down<S: 'static>(device: &Device, bytes: usize) -> Result<Vec<Contender<S>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => cuda::down(device.id().ordinal(), bytes),
        #[cfg(feature = "wgpu")]
        "wgpu" => wgpu::down(device),
        driver => Ok(vec![none_for(driver)]),
    }
}

/// Matrices on the host, or on `device`, into columns of others on `device`, which are `held`.
pub(crate) fn pitched(
    device: &Device,
    held: Vec<Tensor>,
    within: bool,
) -> Result<Option<Contender<Vec<Tensor>>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => cuda::pitched(device.id().ordinal(), held, within).map(Some),
        _ => {
            let _ = (held, within);
            Ok(None)
        }
    }
}

/// Tensors on `from`, each with memory of its own, to `to`.
pub(crate) fn between<S: 'static>(from: &Device, to: &Device) -> Result<Vec<Contender<S>>> {
    match (from.id().driver(), to.id().driver()) {
        #[cfg(feature = "cuda")]
        ("cuda", "cuda") => cuda::between(from.id().ordinal(), to.id().ordinal()),
        (driver, _) => Ok(vec![none_for(driver)]),
    }
}

/// A batch from the host to both devices.
pub(crate) fn to_both<S: 'static>(devices: [&Device; 2], bytes: usize) -> Result<Vec<Contender<S>>> {
    let [first, second] = devices.map(Device::id);
    match (first.driver(), second.driver()) {
        #[cfg(feature = "cuda")]
        ("cuda", "cuda") => cuda::to_both([first.ordinal(), second.ordinal()], bytes),
        (driver, _) => Ok(vec![none_for(driver)]),
    }
}

/// As many bytes as the first tensor of a pair has up, as the second has down, both from and to pinned memory.
pub(crate) fn both_ways(device: &Device) -> Result<Vec<Contender<(Tensor, Tensor)>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => cuda::both_ways(device.id().ordinal()),
        driver => Ok(vec![none_for(driver)]),
    }
}

/// The hand-written packed copy of a small batch, for a thread of its own.
pub(crate) fn packed<S: 'static>(device: &Device) -> Result<Option<Box<dyn Method<S>>>> {
    match device.id().driver() {
        "host" => Ok(Some(Box::new(host::packed()))),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Some(Box::new(cuda::packed(device.id().ordinal())?))),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Some(Box::new(wgpu::packed(device)?))),
        _ => Ok(None),
    }
}

/// A large batch through two pinned blocks of 2 MiB, for a thread of its own.
pub(crate) fn ring<S: 'static>(device: &Device) -> Result<Option<Box<dyn Method<S>>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Some(Box::new(cuda::ring(device.id().ordinal())?))),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Some(Box::new(wgpu::ring(device)?))),
        _ => Ok(None),
    }
}

/// Tensors on the device to pinned memory, a copy each, for a thread of its own.
pub(crate) fn each_down<S: 'static>(device: &Device) -> Result<Option<Box<dyn Method<S>>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Some(Box::new(cuda::each_down(device.id().ordinal())?))),
        _ => Ok(None),
    }
}

/// A large batch through one ring of pinned blocks that so many threads fill, which spin or sleep while there is nothing to do.
pub(crate) fn team<S: 'static>(
    device: &Device,
    threads: usize,
    spin: bool,
) -> Result<Option<Box<dyn Method<S>>>> {
    match device.id().driver() {
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Some(Box::new(cuda::team(device.id().ordinal(), threads, spin)?))),
        _ => Ok(None),
    }
}

/// In the place of a limit that is not written for this device.
pub(crate) fn no_limit(way: &str, device: &Device) -> Line {
    let outcome = Outcome::NotMeasured(none_written(device.id().driver()));
    Line { kind: Kind::Limit, way: way.to_owned(), outcome }
}

fn none_for<S>(driver: &str) -> Contender<S> {
    Contender::missing(Kind::Rival, "by hand", none_written(driver))
}

fn none_written(driver: &str) -> String {
    format!("no rival is written for this work on {driver}")
}
