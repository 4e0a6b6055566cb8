//! What a user of wgpu would write by hand, on the same device. Device memory is one new buffer for all tensors.

mod down;
mod gpu;
mod up;

use transship::Device;

use super::SMALLEST_BULK;
use crate::Result;
use crate::measure::Contender;
use crate::table::Kind;
use gpu::Gpu;

pub(super) fn up<S: 'static>(device: &Device, bytes: usize) -> Result<Vec<Contender<S>>> {
    let gpu = Gpu::new(device)?;
    let mut contenders = vec![
        Contender::new(Kind::Rival, "Queue::write_buffer for each", up::Each::new(gpu.clone())),
        Contender::new(Kind::Rival, "StagingBelt, a write for each", up::Belt::new(gpu.clone())),
    ];
    contenders.push(match bytes < SMALLEST_BULK {
        true => Contender::new(
            Kind::Limit,
            "by hand: packed into one mapped block, one copy",
            up::Packed::new(gpu),
        ),
        false => Contender::new(
            Kind::Limit,
            "as many bytes in a staging buffer already, one copy",
            up::Full::new(gpu),
        ),
    });
    Ok(contenders)
}

pub(super) fn down<S: 'static>(device: &Device) -> Result<Vec<Contender<S>>> {
    let gpu = Gpu::new(device)?;
    Ok(vec![
        Contender::new(Kind::Rival, "DownloadBuffer for each, one poll", down::Downloads::new(gpu.clone())),
        Contender::new(
            Kind::Rival,
            "a copy for each into a fresh MAP_READ buffer, to_vec",
            down::Each::new(gpu.clone()),
        ),
        Contender::new(
            Kind::Limit,
            "as many bytes in one place, one copy into a mapped buffer",
            down::One::new(gpu),
        ),
    ])
}

pub(super) fn packed(device: &Device) -> Result<up::Packed> {
    Ok(up::Packed::new(Gpu::new(device)?))
}

pub(super) fn ring(device: &Device) -> Result<up::Ring> {
    Ok(up::Ring::new(Gpu::new(device)?))
}
