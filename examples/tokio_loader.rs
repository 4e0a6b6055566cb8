//! A loader under tokio: one task reads batches, another one starts their copies, two at a time, and the consumer gets them in the
//! order in which they were read. A copy that is late is cancelled and started once more. At the end the copies that nobody wants
//! any more are cancelled, and the device is shut down.
//!
//! `cargo run --release --example tokio_loader [DEVICE]`, with `--features cuda`, `hip` or `wgpu` for more devices; without a device
//! named, the best one is taken, which is the host where there is no other.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use transship::backend::StreamPriority;
use transship::prelude::*;

/// What tasks hand to each other must be `Send` and `Sync`, errors included.
pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Its number, its images and their labels.
pub(crate) type Batch = (usize, Vec<Tensor>, Tensor);

/// Batches that there are, and batches that the consumer asks for.
const BATCHES: usize = 12;
const WANTED: usize = 8;
/// A copy that takes longer is late.
const TIME_OUT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match start(std::env::args().nth(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(name: Option<String>) -> Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let result = runtime.block_on(run(name));
    // Dropping the runtime would wait for blocking threads without a limit. One of them may wait for a device that stands still.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn run(name: Option<String>) -> Result<()> {
    let id = match name {
        Some(name) => name.parse()?,
        None => Device::list().first().copied().unwrap_or(DeviceId::HOST),
    };
    // `Device::open` would block the thread while the driver initialises the device.
    let device = Device::open_async(id).await?;
    println!("device     {}: {}", device.id(), device.description());

    let loader = Loader::new(&device, TIME_OUT)?;
    let (read, batches) = mpsc::channel(1);
    let reader = tokio::spawn(read_all(read));
    let (mut copies, starter) = loader.start(batches);
    for number in 0..WANTED {
        let Some(copy) = copies.recv().await else { break };
        let batch = loader.arrive(copy).await?;
        check(number, batch).await?;
    }
    println!("consumed   {WANTED} batches, in order");

    let cancelled = stop(copies, TIME_OUT).await?;
    starter.await??;
    reader.await?;
    println!("cancelled  {cancelled} copies");
    shut_down(&device, TIME_OUT).await?;
    println!("shut down  staging: {:?}", device.staging_usage());
    Ok(())
}

/// Copies batches to a device.
#[derive(Clone)]
pub(crate) struct Loader {
    device: Device,
    options: CopyOptions,
    time_out: Duration,
}

impl Loader {
    /// All copies run on one stream: a task moves from thread to thread, and each thread has a stream of its own otherwise.
    pub(crate) fn new(device: &Device, time_out: Duration) -> Result<Self> {
        let stream = device.create_stream(StreamPriority::Normal)?;
        let options = CopyOptions::default().stream(&stream);
        Ok(Self { device: device.clone(), options, time_out })
    }

    /// Starts the copy of each batch in a task. The channel keeps the order, and its capacity is the bound: it holds one copy while
    /// the consumer waits for another one, which makes two in flight.
    pub(crate) fn start(
        &self,
        mut batches: mpsc::Receiver<Batch>,
    ) -> (mpsc::Receiver<CopyHandle<Batch>>, JoinHandle<Result<()>>) {
        let loader = self.clone();
        let (sender, receiver) = mpsc::channel(1);
        let starter = tokio::spawn(async move {
            while let Some(batch) = batches.recv().await {
                // First the place, then the copy: else a third one would be in flight.
                let Ok(place) = sender.reserve().await else { break };
                place.send(loader.copy(batch)?);
            }
            Ok(())
        });
        (receiver, starter)
    }

    /// Waits for a copy. If it is late, it is cancelled and started once more.
    pub(crate) async fn arrive(&self, mut copy: CopyHandle<Batch>) -> Result<Batch> {
        // A reference, so that the handle is still there after the time-out.
        if let Ok(arrived) = timeout(self.time_out, &mut copy).await {
            return Ok(arrived.map_err(transship::Error::from)?);
        }
        let cancelled = copy.cancel();
        println!("late       {} bytes were submitted", cancelled.report.copied_bytes);
        // Until then the device still uses the memory of the copy. One that is stuck gets no more work.
        let over = timeout(self.time_out, cancelled.in_flight).await;
        over.map_err(|_| format!("{} stands still", self.device.id()))??;
        let batch = cancelled.value.ok_or("the batch went with its copy")?;
        // Tensors that are on the device by now stay there, and the others are copied.
        Ok(self.copy(batch)?.await.map_err(transship::Error::from)?)
    }

    /// `?` turns the error of `start_copy`, which holds the batch, into a plain one.
    pub(crate) fn copy(&self, batch: Batch) -> transship::Result<CopyHandle<Batch>> {
        Ok(transship::start_copy(batch, &self.device, self.options.clone())?)
    }
}

/// Cancels the copies that are in flight, and waits until the device is done with them. Returns how many these were.
pub(crate) async fn stop(mut copies: mpsc::Receiver<CopyHandle<Batch>>, limit: Duration) -> Result<usize> {
    // No further one is started.
    copies.close();
    let mut cancelled = Vec::new();
    while let Some(copy) = copies.recv().await {
        cancelled.push(copy.cancel());
    }
    let count = cancelled.len();
    for copy in cancelled {
        timeout(limit, copy.in_flight).await??;
    }
    Ok(count)
}

/// Waits until nothing of the device is in flight, and frees its idle memory. That blocks: it is for a thread that may.
pub(crate) async fn shut_down(device: &Device, limit: Duration) -> Result<()> {
    let device = device.clone();
    timeout(limit, spawn_blocking(move || device.drain())).await???;
    Ok(())
}

/// Reads all batches, until nobody wants more.
async fn read_all(batches: mpsc::Sender<Batch>) {
    for number in 0..BATCHES {
        // A program reads and decodes files here, in `spawn_blocking`.
        if batches.send(batch(number)).await.is_err() {
            break;
        }
    }
}

pub(crate) fn batch(number: usize) -> Batch {
    let images = (0..16).map(|image| Tensor::from(vec![(number + image) as u8; 40_000]));
    (number, images.collect(), Tensor::from(vec![number as i64; 16]))
}

/// Copies a batch back and compares it with what was sent.
async fn check(number: usize, batch: Batch) -> Result<()> {
    let back = transship::start_copy(batch, &Device::host(), CopyOptions::default());
    let (found, images, labels) =
        back.map_err(transship::Error::from)?.await.map_err(transship::Error::from)?;
    let is_same = |(image, tensor): (usize, &Tensor)| {
        tensor.as_slice::<u8>().is_ok_and(|pixels| pixels == [(number + image) as u8; 40_000])
    };
    let is_right = found == number
        && images.iter().enumerate().all(is_same)
        && labels.to_vec::<i64>()? == [number as i64; 16];
    if is_right { Ok(()) } else { Err(format!("batch {number} came back as another").into()) }
}
