//! What a user of the CUDA driver would write by hand. Device memory is one allocation for all tensors, out of a pool that
//! keeps its memory.

mod batch;
mod both_ways;
mod devices;
mod down;
mod driver;
mod pitched;
mod ring;
mod up;

use std::ffi::c_int;
use std::rc::Rc;

use transship::Tensor;

use super::SMALLEST_BULK;
use crate::Result;
use crate::measure::Contender;
use crate::table::Kind;
use driver::Cuda;

/// Up to this size one would pack by hand, on one thread.
const LARGEST_PACKED: usize = 32 << 20;
const NO_BATCH: &str = "the driver has no cuMemcpyBatchAsync_v2";

pub(super) fn up<S: 'static>(ordinal: usize, bytes: usize) -> Result<Vec<Contender<S>>> {
    let cuda = open(ordinal)?;
    let mut contenders = vec![Contender::new(
        Kind::Rival,
        "cuMemcpyHtoDAsync for each, one synchronize",
        up::Each::new(cuda.clone()),
    )];
    contenders.push(match batch::function() {
        Some(function) => Contender::new(
            Kind::Rival,
            "cuMemcpyBatchAsync, one synchronize",
            up::Batch::new(cuda.clone(), function),
        ),
        None => Contender::missing(Kind::Rival, "cuMemcpyBatchAsync, one synchronize", NO_BATCH),
    });
    if bytes <= LARGEST_PACKED {
        let way = "by hand: packed into one pinned block, one copy, one event";
        contenders.push(Contender::new(Kind::Limit, way, up::Packed::new(cuda.clone())?));
    }
    if bytes >= SMALLEST_BULK {
        let way = "as many bytes that are pinned already, one copy";
        contenders.push(Contender::new(Kind::Limit, way, up::Pinned::new(cuda)));
    }
    Ok(contenders)
}

pub(super) fn up_registered<S: 'static>(ordinal: usize, bytes: usize) -> Result<Vec<Contender<S>>> {
    let cuda = open(ordinal)?;
    let way = "cuMemHostRegister, cuMemcpyHtoDAsync, one synchronize, cuMemHostUnregister for each";
    let mut contenders = vec![Contender::new(Kind::Rival, way, up::Registered::new(cuda))];
    contenders.extend(up(ordinal, bytes)?);
    Ok(contenders)
}

pub(super) fn down<S: 'static>(ordinal: usize, bytes: usize) -> Result<Vec<Contender<S>>> {
    let cuda = open(ordinal)?;
    let each = |way, landing| Contender::new(Kind::Rival, way, down::Each::new(cuda.clone(), landing));
    let mut contenders = vec![
        each("cuMemcpyDtoHAsync for each, into pinned memory", down::Landing::Pinned),
        each("cuMemcpyDtoHAsync for each, into memory touched before", down::Landing::Touched),
    ];
    if bytes >= SMALLEST_BULK {
        contenders.push(each("cuMemcpyDtoHAsync for each, into fresh memory", down::Landing::Fresh));
    }
    contenders.push(match batch::function() {
        Some(function) => Contender::new(
            Kind::Rival,
            "cuMemcpyBatchAsync into pinned memory",
            down::Batch::new(cuda.clone(), function),
        ),
        None => Contender::missing(Kind::Rival, "cuMemcpyBatchAsync into pinned memory", NO_BATCH),
    });
    let way = "as many bytes in one place, one copy into pinned memory";
    contenders.push(Contender::new(Kind::Limit, way, down::One::new(cuda)));
    Ok(contenders)
}

pub(super) fn pitched(ordinal: usize, held: Vec<Tensor>, within: bool) -> Result<Contender<Vec<Tensor>>> {
    let way = "cuMemcpy2DAsync for each, one synchronize";
    if !batch::has(b"cuMemcpy2DAsync_v2") {
        return Ok(Contender::missing(Kind::Rival, way, "the driver has no cuMemcpy2DAsync_v2"));
    }
    Ok(Contender::new(Kind::Rival, way, pitched::Pitched::new(open(ordinal)?, held, within)))
}

pub(super) fn each_down(ordinal: usize) -> Result<down::Each> {
    Ok(down::Each::new(open(ordinal)?, down::Landing::Pinned))
}

pub(super) fn between<S: 'static>(from: usize, to: usize) -> Result<Vec<Contender<S>>> {
    let (from, to) = (open(from)?, open(to)?);
    if let Err(error) = to.reach(&from) {
        return Ok(vec![Contender::missing(
            Kind::Rival,
            "cuMemcpyPeerAsync",
            format!("no peer access: {error}"),
        )]);
    }
    Ok(vec![
        Contender::new(
            Kind::Rival,
            "cuMemcpyPeerAsync for each, one synchronize",
            devices::Each::new(from.clone(), to.clone()),
        ),
        Contender::new(
            Kind::Limit,
            "as many bytes in one place, one cuMemcpyPeerAsync",
            devices::One::new(from, to),
        ),
    ])
}

pub(super) fn to_both<S: 'static>(ordinals: [usize; 2], bytes: usize) -> Result<Vec<Contender<S>>> {
    let [first, second] = [open(ordinals[0])?, open(ordinals[1])?];
    let way = "cuMemcpyHtoDAsync for each to the one and to the other, one synchronize each";
    let each = devices::Pair(up::Each::new(first.clone()), up::Each::new(second.clone()));
    let mut contenders = vec![Contender::new(Kind::Rival, way, each)];
    contenders.push(match bytes < SMALLEST_BULK {
        true => Contender::new(
            Kind::Limit,
            "by hand: packed once, a copy to each",
            devices::Both::packed(first, second),
        ),
        false => Contender::new(
            Kind::Limit,
            "as many bytes that are pinned already, a copy to each",
            devices::Both::pinned(first, second),
        ),
    });
    Ok(contenders)
}

pub(super) fn both_ways(ordinal: usize) -> Result<Vec<Contender<(Tensor, Tensor)>>> {
    let cuda = open(ordinal)?;
    both_ways::contenders(&cuda)
}

pub(super) fn packed(ordinal: usize) -> Result<up::Packed> {
    up::Packed::new(open(ordinal)?)
}

/// Two blocks of a thread's own.
pub(super) fn ring(ordinal: usize) -> Result<ring::Own> {
    ring::Own::new(open(ordinal)?)
}

/// One ring for so many threads, which spin or sleep while there is nothing to do.
pub(super) fn team(ordinal: usize, threads: usize, spin: bool) -> Result<ring::Team> {
    Ok(ring::Team::new(open(ordinal)?, threads, spin))
}

fn open(ordinal: usize) -> Result<Rc<Cuda>> {
    Ok(Rc::new(Cuda::new(c_int::try_from(ordinal)?)?))
}
