//! 256 MiB to each wgpu device and back, against what wgpu offers for that.
//!
//! `cargo bench --bench wgpu_bulk --features wgpu [-- [DEVICE] [ROUNDS]]`
//!
//! The ways take turns in one process; the first round is not timed. Memory of the device is allocated anew for each copy
//! and given back outside of the time, as it is in a program that keeps what it copies.
#![allow(missing_docs, clippy::unwrap_used, reason = "a failed unwrap ends the benchmark")]

use std::error::Error;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use transship::wgpu::wgpu;
use transship::{CopyOptions, DType, Device, Tensor, start_copy};
use wgpu::{BufferUsages, MapMode, PollType};

const BYTES: usize = 256 << 20;
const ROUNDS: usize = 9;
const BELT_CHUNK: u64 = 4 << 20;

type Way = (&'static str, fn(&mut Bench) -> Result<Duration, Box<dyn Error>>);

const WAYS: [Way; 7] = [
    ("up: start_copy, until wait() returns", up),
    ("up: Queue::write_buffer", up_write_buffer),
    ("up: StagingBelt, in pieces of 4 MiB", up_belt),
    ("down: start_copy, until wait() returns", down),
    ("down: start_copy without pinned staging, into ordinary memory", down_pageable),
    ("down: DownloadBuffer", down_download_buffer),
    ("down: a fresh MAP_READ buffer, to_vec", down_to_vec),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let only = arguments.next().map(|name| name.parse::<transship::DeviceId>()).transpose()?;
    let rounds = arguments.next().map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let rounds = if is_bench { rounds } else { 1 };
    for adapter in transship::wgpu::adapters()? {
        if only.is_none_or(|only| only == adapter.id) {
            println!("\n{}: {}, {} MiB", adapter.id, adapter.description, BYTES >> 20);
            measure(&Device::open(adapter.id)?, rounds)?;
        }
    }
    Ok(())
}

fn measure(device: &Device, rounds: usize) -> Result<(), Box<dyn Error>> {
    let mut bench = Bench::new(device)?;
    let mut times = WAYS.map(|_| Vec::new());
    for round in 0..=rounds {
        for ((_, way), times) in WAYS.iter().zip(&mut times) {
            let time = way(&mut bench)?;
            if round > 0 {
                times.push(time);
            }
        }
    }
    for ((name, _), mut times) in WAYS.into_iter().zip(times) {
        times.sort_unstable();
        let median = times[times.len() / 2].as_secs_f64();
        println!("{name:64} {:8.1} ms {:6.2} GB/s", median * 1e3, BYTES as f64 / median / 1e9);
    }
    Ok(())
}

struct Bench {
    target: Device,
    device: wgpu::Device,
    queue: wgpu::Queue,
    belt: wgpu::util::StagingBelt,
    source: Tensor,
    /// The same on the device, for the ways down.
    there: Tensor,
}

impl Bench {
    fn new(target: &Device) -> Result<Self, Box<dyn Error>> {
        let (device, queue) = transship::wgpu::wgpu_device(target)?;
        let bytes: Vec<u8> = (0..BYTES).map(|index| (index * 31 / 17) as u8).collect();
        let source = Tensor::from_owner(bytes, DType::U8, &[BYTES])?;
        let there = start_copy(source.clone(), target, CopyOptions::default())?.wait()?;
        // Room for the result and the one before it.
        target.set_result_budget(3 * BYTES)?;
        let belt = wgpu::util::StagingBelt::new(device.clone(), BELT_CHUNK);
        Ok(Self { target: target.clone(), device, queue, belt, source, there })
    }

    fn buffer(&self, usage: BufferUsages) -> wgpu::Buffer {
        let size = BYTES as u64;
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    fn destination(&self) -> wgpu::Buffer {
        self.buffer(BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC)
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn run(&self, commands: Option<wgpu::CommandBuffer>) -> Result<(), wgpu::PollError> {
        let submission = self.queue.submit(commands);
        self.device.poll(PollType::Wait { submission_index: Some(submission), timeout: None }).map(drop)
    }

    fn check(&self, bytes: &[u8]) {
        assert!(self.source.as_bytes().unwrap() == bytes, "other bytes came back");
    }
}

fn up(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let there = start_copy(bench.source.clone(), &bench.target, CopyOptions::default())?.wait()?;
    let time = started.elapsed();
    drop(there);
    Ok(time)
}

fn up_write_buffer(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let to = bench.destination();
    bench.queue.write_buffer(&to, 0, bench.source.as_bytes()?);
    bench.run(None)?;
    Ok(started.elapsed())
}

fn up_belt(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let to = bench.destination();
    let mut encoder = bench.encoder();
    let mut offset = 0;
    for piece in bench.source.as_bytes()?.chunks(BELT_CHUNK as usize) {
        if let Some(size) = wgpu::BufferSize::new(piece.len() as u64) {
            bench.belt.write_buffer(&mut encoder, &to, offset, size).copy_from_slice(piece);
        }
        offset += piece.len() as u64;
    }
    bench.belt.finish_and_recall_on_submit(&encoder);
    bench.run(Some(encoder.finish()))?;
    Ok(started.elapsed())
}

fn down(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    down_with(bench, CopyOptions::default())
}

fn down_pageable(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    down_with(bench, CopyOptions::default().pinned_staging(false))
}

fn down_with(bench: &Bench, options: CopyOptions) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let back = start_copy(bench.there.clone(), &Device::host(), options)?.wait()?;
    let time = started.elapsed();
    bench.check(back.as_bytes()?);
    Ok(time)
}

fn down_download_buffer(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    let view = transship::wgpu::wgpu_view(&bench.there)?;
    let started = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let part = view.buffer.slice(view.offset..view.offset + view.bytes);
    wgpu::util::DownloadBuffer::read_buffer(&bench.device, &bench.queue, &part, move |read| {
        drop(sender.send(read));
    });
    bench.device.poll(PollType::wait_indefinitely())?;
    let read = receiver.recv()??;
    let time = started.elapsed();
    bench.check(&read);
    Ok(time)
}

fn down_to_vec(bench: &mut Bench) -> Result<Duration, Box<dyn Error>> {
    let view = transship::wgpu::wgpu_view(&bench.there)?;
    let started = Instant::now();
    let to = bench.buffer(BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let mut encoder = bench.encoder();
    encoder.copy_buffer_to_buffer(&view.buffer, view.offset, &to, 0, view.bytes);
    encoder.map_buffer_on_submit(&to, MapMode::Read, .., |mapped| mapped.unwrap());
    bench.run(Some(encoder.finish()))?;
    let bytes = to.get_mapped_range(..)?.to_vec();
    let time = started.elapsed();
    bench.check(&bytes);
    Ok(time)
}
