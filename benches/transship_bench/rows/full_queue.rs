//! Copies on a stream that stands still: which call waits for it, since the driver's launch queue is full.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use transship::backend::StreamPriority;
use transship::cuda::cu_stream;
use transship::cuda::cudarc::driver::result;
use transship::{CopyHandle, CopyOptions, DType, Device, Error, Tensor, start_copy};

use super::Work;
use crate::Result;
use crate::bed::{Bed, Needs};
use crate::table::{Kind, Line, Row};

pub(super) const ROWS: &[Work] = &[Work {
    name: "full-queue",
    title: "10,000 copies of 1 KiB on a stream that stands still for 2 s",
    needs: Needs::Device,
    run,
}];

const COPIES: usize = 10_000;
/// The driver is told that the stream may go on so long after.
const STALL: Duration = Duration::from_secs(2);
/// Longer than any call that waits for nothing.
const LONG: Duration = Duration::from_millis(100);

fn run(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    let device = &bed.device;
    if device.id().driver() != "cuda" || bed.quick {
        let reason = "it needs cuda, and full sizes".to_owned();
        return Ok(vec![Row::not_measured(work.name, work.title, reason)]);
    }
    let mut row = Row::new(work.name, work.title, 0, 0);
    let pinned = Tensor::empty_pinned(&[1024], DType::U8, device)?;
    let ordinary = Tensor::from(vec![1_u8; 1024]);
    let small = vec![Tensor::from(vec![1_u8; 512]), Tensor::from(vec![2_u8; 512])];
    device.set_staging_budget(1 << 30)?;
    device.prepare(1 << 20)?;
    lines(&mut row, "out of pinned memory", device, || pinned.clone())?;
    lines(&mut row, "staged", device, || ordinary.clone())?;
    lines(&mut row, "two tensors, staged", device, || small.clone())?;
    device.set_staging_budget(64 << 20)?;
    Ok(vec![row])
}

fn lines<S: transship::TensorTree>(
    row: &mut Row,
    what: &str,
    device: &Device,
    value: impl Fn() -> S,
) -> Result<()> {
    let stream = device.create_stream(StreamPriority::Normal)?;
    let options = CopyOptions::default().stream(&stream);
    // SAFETY: the stream is alive; the function calls no driver and reads nothing.
    unsafe { result::stream::launch_host_function(cu_stream(&stream)?, stall, std::ptr::null_mut())? };
    let begin = Instant::now();
    let mut copies = Vec::<CopyHandle<S>>::with_capacity(COPIES);
    let (mut longest, mut which) = (Duration::ZERO, 0);
    while copies.len() < COPIES && begin.elapsed() < STALL / 2 {
        let started = Instant::now();
        copies.push(start_copy(value(), device, options.clone()).map_err(Error::from)?);
        if started.elapsed() > longest {
            (longest, which) = (started.elapsed(), copies.len());
        }
    }
    let background = copies.iter().filter(|copy| copy.report().background).count();
    let mut figure = |name: &str, value, unit| {
        row.lines.push(Line::figure(Kind::Ours, format!("{what}: {name}"), value, unit));
    };
    figure("copies started in the first second", copies.len() as f64, "");
    figure("of which workers carry out", background as f64, "");
    figure("longest call", longest.as_secs_f64() * 1e6, "us");
    if longest > LONG {
        figure("which call that was", which as f64, "");
    }
    for copy in copies {
        drop(copy.wait().map_err(Error::from)?);
    }
    Ok(())
}

unsafe extern "C" fn stall(_: *mut c_void) {
    std::thread::sleep(STALL);
}
