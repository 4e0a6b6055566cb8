//! The loader of the example `tokio_loader`, and what the book says of errors, on a simulated device that stands still when told to.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

// Its `main` does not run here.
#[allow(dead_code)]
#[path = "../examples/tokio_loader.rs"]
mod tokio_loader;

use std::error::Error as StdError;
use std::time::{Duration, Instant};

use late_backend::{LateConfig, LateHandle};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_loader::{Batch, Loader, batch, shut_down, stop};
use transship::prelude::*;
use transship::{CopyError, Error, ErrorKind};

/// Longer than anything here takes, unless the device stands still.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn late(name: &'static str) -> (LateHandle, Device) {
    let late = late_backend::install(LateConfig::new(name)).unwrap();
    let device = Device::open(format!("{name}:0").parse().unwrap()).unwrap();
    // A stall finds copies that are submitted.
    device.prepare(4 << 20).unwrap();
    (late, device)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// A channel with so many batches in it.
fn batches(count: usize) -> mpsc::Receiver<Batch> {
    let (sender, receiver) = mpsc::channel(count);
    (0..count).for_each(|number| sender.try_send(batch(number)).unwrap());
    receiver
}

fn is_right(number: usize, (found, images, labels): &Batch) -> bool {
    let (_, sent, _) = batch(number);
    *found == number
        && images.iter().zip(&sent).all(|(one, other)| one.to_bytes().unwrap() == other.to_bytes().unwrap())
        && labels.to_vec::<i64>().unwrap() == [number as i64; 16]
}

async fn down(batch: Batch) -> Batch {
    transship::start_copy(batch, &Device::host(), CopyOptions::default()).unwrap().await.unwrap()
}

#[test]
fn batches_arrive_in_order() {
    let (late, device) = late("in-order");
    runtime().block_on(async {
        let loader = Loader::new(&device, LONG).unwrap();
        let (mut copies, starter) = loader.start(batches(9));
        for number in 0..9 {
            let arrived = loader.arrive(copies.recv().await.unwrap()).await.unwrap();
            assert_eq!(arrived.2.device_id().unwrap(), device.id());
            assert!(is_right(number, &down(arrived).await));
        }
        assert!(copies.recv().await.is_none());
        starter.await.unwrap().unwrap();
        shut_down(&device, LONG).await.unwrap();
    });
    assert_eq!(late.violations(), Vec::<String>::new());
}

#[test]
fn no_more_than_two_are_in_flight() {
    let (late, device) = late("two-in-flight");
    runtime().block_on(async {
        let loader = Loader::new(&device, LONG).unwrap();
        late.stall();
        late.clear_calls();
        let (mut copies, starter) = loader.start(batches(9));
        let first = copies.recv().await.unwrap();
        let second = async {
            while copies.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        second.await;
        // A third one would have been started by now.
        tokio::time::sleep(SHORT).await;
        let submissions =
            late.calls().iter().filter(|record| record.call == late_backend::Call::Submit).count();
        assert_eq!(submissions, 2);
        late.release();
        assert!(is_right(0, &down(loader.arrive(first).await.unwrap()).await));
        assert!(stop(copies, LONG).await.unwrap() >= 1);
        starter.await.unwrap().unwrap();
        shut_down(&device, LONG).await.unwrap();
    });
    assert_eq!(late.violations(), Vec::<String>::new());
}

#[test]
fn a_late_copy_is_started_once_more() {
    let (late, device) = late("once-more");
    runtime().block_on(async {
        let loader = Loader::new(&device, Duration::from_secs(1)).unwrap();
        late.stall_for(Duration::from_millis(1200));
        let copy = loader.copy(batch(3)).unwrap();
        let arrived = loader.arrive(copy).await.unwrap();
        assert_eq!(arrived.2.device_id().unwrap(), device.id());
        assert!(is_right(3, &down(arrived).await));
    });
    assert_eq!(late.violations(), Vec::<String>::new());
}

#[test]
fn a_device_that_stands_still_holds_nobody_up() {
    let (late, device) = late("still");
    let runtime = runtime();
    runtime.block_on(async {
        let loader = Loader::new(&device, SHORT).unwrap();
        late.stall();
        let copy = loader.copy(batch(3)).unwrap();
        let error = loader.arrive(copy).await.unwrap_err();
        assert!(error.to_string().contains("stands still"), "{error}");
        let (copies, starter) = loader.start(batches(2));
        while copies.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(stop(copies, SHORT).await.is_err());
        starter.await.unwrap().unwrap();
    });
    runtime.shutdown_timeout(LONG);
    late.release();
    device.drain().unwrap();
    device.synchronize().unwrap();
    assert_eq!(late.violations(), Vec::<String>::new());
}

type Boxed = Box<dyn StdError + Send + Sync>;

/// `?` puts the error into the box as it is: that of the copy, with the structure in it, and the plain one as its source.
fn boxed_as_it_is(device: &Device) -> Result<Vec<Tensor>, Boxed> {
    let batch = vec![Tensor::from(vec![1_u8; 64])];
    Ok(transship::start_copy(batch, device, CopyOptions::default().deadline(SHORT))?.wait()?)
}

fn plain(device: &Device) -> transship::Result<Vec<Tensor>> {
    let batch = vec![Tensor::from(vec![1_u8; 64])];
    Ok(transship::start_copy(batch, device, CopyOptions::default().deadline(SHORT))?.wait()?)
}

fn boxed_plain(device: &Device) -> Result<Vec<Tensor>, Boxed> {
    Ok(plain(device)?)
}

#[test]
fn a_boxed_error_is_what_was_put_into_the_box() {
    let (late, device) = late("boxed");
    late.stall();
    let boxed = boxed_as_it_is(&device).unwrap_err();
    assert!(boxed.downcast_ref::<Error>().is_none());
    let plain = boxed.source().and_then(|source| source.downcast_ref::<Error>());
    assert!(matches!(plain, Some(Error::DeadlineExceeded { limit: SHORT })), "{plain:?}");
    let failed = boxed.downcast_ref::<CopyError<Vec<Tensor>>>().unwrap();
    assert!(matches!(failed.error(), Error::DeadlineExceeded { .. }));

    let boxed = boxed_plain(&device).unwrap_err();
    assert!(matches!(boxed.downcast_ref(), Some(Error::DeadlineExceeded { limit: SHORT })));
    late.release();
    device.synchronize().unwrap();
}

#[test]
fn what_depends_on_a_late_copy_fails_with_it() {
    let (late, device) = late("dependent");
    late.stall();
    let stream = device.create_stream(transship::backend::StreamPriority::Normal).unwrap();
    let options = CopyOptions::default().deadline(SHORT);
    let tensor = Tensor::from(vec![1_u8; 64]);
    let tensor = transship::start_copy(tensor, &device, options).unwrap().wait_on(&stream).unwrap();
    let begin = Instant::now();
    while tensor.is_ready().is_ok() && begin.elapsed() < LONG {
        std::thread::yield_now();
    }
    let failed = transship::start_copy(tensor, &Device::host(), CopyOptions::default()).unwrap_err();
    let Error::CopyFailed(cause) = failed.error() else { panic!("{failed}") };
    assert!(matches!(**cause, Error::DeadlineExceeded { limit: SHORT }));
    assert_eq!(failed.error().kind(), ErrorKind::TimedOut);
    late.release();
    device.synchronize().unwrap();
}
