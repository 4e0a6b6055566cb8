//! Invariant: dropping, forgetting or aborting anything never blocks, and neither do starting and polling.

use std::time::{Duration, Instant};

use transship_core::{CopyHandle, CopyOptions, Device, Stream, start_copy};

use crate::bed::{self, bytes, down};
use crate::detection::{self, Sample};
use crate::driver::{RawStream, stream_from_raw};
use crate::stall::Stall;
use crate::suite::Outcome;

const STALL: Duration = Duration::from_millis(200);
/// A build without optimisation starts a copy of 528 tensors in up to one millisecond.
const LIMIT: Duration = Duration::from_millis(5);
const ROUNDS: usize = 7;

pub(crate) fn nothing_waits_for_a_stalled_stream() -> Outcome {
    let device = bed::warm_device(0);
    let raw = RawStream::of(&device);
    // SAFETY: the stream outlives what is made of it, which is dropped before it and waited for.
    let stream = unsafe { stream_from_raw(&device, raw.handle)? };
    let mut batch = detection::batch(0)?;
    batch.truncate(8);
    let bench = Bench { device: &device, raw: &raw, stream: &stream, batch };
    bench.warm_up()?;
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        bench.round(&mut times)?;
    }
    // Copies whose handle was dropped keep what is on the books of the caller's stream until they are settled.
    stream.synchronize()?;
    device.synchronize()?;
    times.print();
    times.check()
}

struct Bench<'a> {
    device: &'a Device,
    raw: &'a RawStream,
    stream: &'a Stream,
    batch: Vec<Sample>,
}

impl Bench<'_> {
    /// More copies at a time than a round has: pools, events and the memory of the device are there then.
    fn warm_up(&self) -> Outcome {
        let host = Device::host();
        for target in [self.device, &host].repeat(2) {
            let source =
                if target.is_host() { bed::up(self.batch.clone(), self.device) } else { self.batch.clone() };
            let stall = Stall::on(self.device, self.raw.handle);
            let options = || CopyOptions::default().stream(self.stream);
            let handles = [(); 8].map(|()| start_copy(source.clone(), target, options()));
            stall.release();
            let copied = handles.map(|handle| handle.and_then(CopyHandle::wait));
            assert!(copied.iter().all(Result::is_ok));
        }
        Ok(())
    }

    fn round(&self, times: &mut Times) -> Outcome {
        let options = || CopyOptions::default().stream(self.stream);
        let start = || start_copy(self.batch.clone(), self.device, options());
        let mut used = bed::up(self.batch.clone(), self.device);
        let stall = Stall::on(self.device, self.raw.handle);

        let value = self.batch.clone();
        let mut first = times.of("start_copy", || start_copy(value, self.device, options()))?;
        let ready = times.of("first poll", || bed::poll_once(&mut first));
        assert!(!ready, "a copy on a stalled stream is done");
        assert!(!times.of("is_ready", || first.is_ready())?);
        times.of("drop of the handle", || drop(first));

        let second = start()?;
        let handle = start()?;
        let filling = times.of("wait_on", || handle.wait_on(self.stream))?;
        let value = filling.clone();
        let host = Device::host();
        let back =
            times.of("start_copy of results down", || start_copy(value, &host, CopyOptions::default()))?;
        let abandoned = start_copy(filling.clone(), &host, CopyOptions::default())?;
        times.of("drop of a handle down", || drop(abandoned));
        times.of("drop of results in flight", || drop(filling));
        for tensor in detection::leaves(&mut used)? {
            tensor.record_stream(self.stream)?;
        }
        times.of("drop of results in use", || drop(used));

        assert!(!second.report().background && !back.report().background, "the pools were not warm");
        assert!(!second.is_ready()? && !back.is_ready()?, "a copy overtook a stalled stream");
        stall.release_after(STALL);
        let expected = bytes(self.batch.clone());
        assert_eq!(bytes(down(second.wait()?)), expected);
        assert_eq!(bytes(back.wait()?), expected);
        Ok(())
    }
}

/// How long each call took in each round.
#[derive(Default)]
struct Times(Vec<(&'static str, Vec<Duration>)>);

impl Times {
    fn of<R>(&mut self, what: &'static str, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let time = start.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == what) {
            Some((_, times)) => times.push(time),
            None => self.0.push((what, vec![time])),
        }
        result
    }

    fn print(&mut self) {
        println!("with the stream stalled, in microseconds: median (least - most of {ROUNDS})");
        for (what, times) in &mut self.0 {
            times.sort();
            let us = |index: usize| times[index].as_secs_f64() * 1e6;
            println!("  {what:<28} {:>7.1} ({:.1} - {:.1})", us(ROUNDS / 2), us(0), us(ROUNDS - 1));
        }
    }

    /// None may wait for the stream, not even once. Beside that each is fast; on a machine with more to do, wherever a
    /// thread that a call has woken takes its place, a call is slow now and then.
    fn check(&self) -> Outcome {
        for (what, times) in &self.0 {
            if times[1] > LIMIT || times[ROUNDS - 1] > STALL / 2 {
                return Err(format!("{what} took {times:?}").into());
            }
        }
        Ok(())
    }
}
