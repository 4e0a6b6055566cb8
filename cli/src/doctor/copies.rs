//! A copy to each device and back, verified and timed.

use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use transship::{CopyHandle, CopyOptions, Device, DeviceId, Error, ErrorKind, Tensor, TimedWait, start_copy};

use crate::Examination;
use crate::doctor::Said;
use crate::finding::{Check, Finding, Level};
use crate::sizes::Size;
use crate::within;

/// How long the second copy each way took: the first one pays for staging.
#[derive(Serialize)]
pub(crate) struct CopyTimes {
    device: String,
    /// Where its pinned memory lies on the host, if that was chosen.
    staging_node: Option<u32>,
    bytes: u64,
    up_seconds: f64,
    down_seconds: f64,
}

/// Why a copy is none.
enum Failed {
    /// Its device or its driver says so.
    Refused(Error),
    /// It has not come to an end.
    Late(Duration),
    /// So many bytes are more than what is free of this memory.
    NoRoom { bytes: u64, free: u64, of: &'static str },
    /// It has, with this byte wrong.
    Wrong { place: usize, came: u8, expected: u8 },
}

/// Copies to those devices of `there` that were named, or else to all, but for the host.
pub(crate) fn check(examination: &Examination, there: &[DeviceId], end: Instant, say: &mut dyn FnMut(Said)) {
    let is_wanted = |id: &DeviceId| examination.devices.is_empty() || examination.devices.contains(id);
    let devices: Vec<DeviceId> = there.iter().copied().filter(|id| !id.is_host() && is_wanted(id)).collect();
    if devices.is_empty() {
        let none = match examination.devices[..] {
            [] => "there is no device but the host: nothing was copied",
            _ => "none of the named devices is one that is there, but for the host: nothing was copied",
        };
        return say(Said::Found(Finding::new(Level::Note, Check::Copy, none)));
    }
    let (bytes, sent) = ((examination.mib as usize) << 20, Arc::<OnceLock<_>>::default());
    for (number, id) in devices.iter().enumerate() {
        say(Said::LooksAt(Check::Copy, Some(*id)));
        let limit = share(end.saturating_duration_since(Instant::now()), devices.len() - number);
        let sent = sent.clone();
        let copies = move |id, says: &Sender<_>| {
            let sent = || sent.get_or_init(|| numbers(bytes)).as_slice();
            drop(says.send(there_and_back(id, bytes as u64, &sent, limit)));
        };
        // A device that hangs may do so before there is a copy to wait for.
        let came = within::each([*id], Instant::now() + limit, copies).pop();
        match came.unwrap_or(Err(Failed::Late(limit))) {
            Ok(times) => {
                say(Said::Found(Finding::new(Level::Ok, Check::Copy, times.words()).of(id)));
                say(Said::Copied(times));
            }
            Err(failed) => say(Said::Found(failed.finding().of(id))),
        }
    }
}

/// What one of so many devices may take of the time that is left: one that hangs leaves some to the others.
fn share(left: Duration, devices: usize) -> Duration {
    left / u32::try_from(devices.max(1)).unwrap_or(u32::MAX)
}

/// Bytes of which neighbours, and those of pages and blocks, differ.
fn numbers(bytes: usize) -> Vec<u8> {
    let words = (1_u64..).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut all = vec![0; bytes];
    for (place, word) in all.chunks_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
    }
    all
}

fn there_and_back<'a>(
    id: DeviceId,
    bytes: u64,
    sent: &dyn Fn() -> &'a [u8],
    limit: Duration,
) -> Result<CopyTimes, Failed> {
    let end = Instant::now() + limit;
    let device = Device::open(id)?;
    // Before a byte is made: a driver that runs out of memory says so late. Where it does not tell, it is tried.
    let free = |device: &Device| device.memory().ok().and_then(|memory| memory.free);
    fits(bytes, free(&device), "of the device's memory")?;
    // What is sent, what is copied of it, and what comes back.
    fits(bytes * 3, free(&Device::host()), "of the host's memory, for three times as much as is copied")?;
    let sent = sent();
    let limit = Limit { end, of: limit };
    round(&device, sent, &limit)?;
    let (up, down) = round(&device, sent, &limit)?;
    let (up_seconds, down_seconds) = (up.as_secs_f64(), down.as_secs_f64());
    let staging_node = device.staging_node();
    Ok(CopyTimes { device: id.to_string(), staging_node, bytes, up_seconds, down_seconds })
}

/// Until when a device has time, and how much it had.
struct Limit {
    end: Instant,
    of: Duration,
}

fn fits(bytes: u64, free: Option<u64>, of: &'static str) -> Result<(), Failed> {
    match free {
        Some(free) if bytes > free => Err(Failed::NoRoom { bytes, free, of }),
        _ => Ok(()),
    }
}

fn round(device: &Device, sent: &[u8], limit: &Limit) -> Result<(Duration, Duration), Failed> {
    let (there, up) = timed(Tensor::from(sent), device, limit)?;
    let (back, down) = timed(there, &Device::host(), limit)?;
    let came = back.as_slice::<u8>()?;
    if came == sent {
        return Ok((up, down));
    }
    let pairs = came.iter().zip(sent).enumerate();
    let wrong =
        pairs.map(|(place, (came, expected))| (place, *came, *expected)).find(|(_, came, sent)| came != sent);
    let (place, came, expected) = wrong.unwrap_or_default();
    Err(Failed::Wrong { place, came, expected })
}

fn timed(tensor: Tensor, to: &Device, limit: &Limit) -> Result<(Tensor, Duration), Failed> {
    let begin = Instant::now();
    let copy: CopyHandle<Tensor> =
        start_copy(tensor, to, CopyOptions::default()).map_err(|error| error.into_error())?;
    match copy.wait_timeout(limit.end.saturating_duration_since(begin)).map_err(|error| error.into_error())? {
        TimedWait::Done(tensor) => Ok((tensor, begin.elapsed())),
        TimedWait::Pending(_) => Err(Failed::Late(limit.of)),
    }
}

impl CopyTimes {
    fn words(&self) -> String {
        let rate = |seconds: f64| format!("{:.1} GB/s", self.bytes as f64 / 1e9 / seconds.max(1e-9));
        let (up, down) = (rate(self.up_seconds), rate(self.down_seconds));
        let node = self.staging_node.map(|node| format!(", through memory of host node {node}"));
        let node = node.unwrap_or_default();
        format!("{} there at {up}, back at {down}{node}, every byte right", Size(self.bytes))
    }
}

impl Failed {
    fn finding(&self) -> Finding {
        let (what, cure) = match self {
            Self::Refused(error) => (error.to_string(), cure(error.kind())),
            Self::Late(limit) => (
                format!("not through after {:.1} s, its part of --timeout", limit.as_secs_f64()),
                "look for a program that keeps the device busy, and into the log of the system (dmesg); then reset the device; or allow more time (--timeout), or copy less (--mib)",
            ),
            Self::NoRoom { bytes, free, of } => (
                format!("{} do not fit: {} are free {of}", Size(*bytes), Size(*free)),
                cure(ErrorKind::OutOfMemory),
            ),
            Self::Wrong { place, came, expected } => (
                format!("byte {place} came back as {came} instead of {expected}"),
                "do not trust this device: look for memory errors (nvidia-smi -q -d ECC, rocm-smi --showrasinfo), and test the host's memory",
            ),
        };
        Finding::new(Level::Problem, Check::Copy, what).cure(cure)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

fn cure(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::OutOfMemory => {
            "end the programs that hold its memory (nvidia-smi, rocm-smi), or copy less (--mib)"
        }
        ErrorKind::DeviceLost => {
            "look into the log of the system (dmesg), reset the device or restart the machine"
        }
        ErrorKind::Driver => {
            "look the code up in the vendor's reference, and into the log of the system (dmesg)"
        }
        _ => "`transship devices` says what there is",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn bytes_differ_from_their_neighbours() {
        let all = numbers(1 << 16);
        assert_eq!((all.len(), numbers(13).len()), (1 << 16, 13));
        assert!(
            all.chunks(4096).collect::<std::collections::BTreeSet<_>>().len() == 16,
            "a page is there twice"
        );
    }

    #[test]
    fn a_device_that_hangs_leaves_time_to_the_others() {
        let limit = Duration::from_secs(60);
        assert_eq!((share(limit, 4), share(limit, 1)), (limit / 4, limit));
        assert_eq!(share(Duration::ZERO, 2), Duration::ZERO);
    }

    #[test]
    fn what_is_larger_than_free_memory_does_not_fit() {
        assert!(fits(10, Some(10), "").is_ok() && fits(u64::MAX, None, "").is_ok());
        let Err(refused) = fits(1500 << 20, Some(960 << 20), "of it") else { panic!("it does not fit") };
        assert_eq!(refused.finding().what, "1.5 GiB do not fit: 960.0 MiB are free of it");
    }

    #[test]
    fn a_node_is_named_if_there_is_a_choice() {
        let words = |staging_node| {
            let (device, bytes) = ("cuda:0".to_owned(), 4 << 20);
            CopyTimes { device, staging_node, bytes, up_seconds: 1e-3, down_seconds: 1e-3 }.words()
        };
        assert!(words(Some(1)).contains("memory of host node 1") && !words(None).contains("node"));
    }

    #[test]
    fn what_is_wrong_names_the_byte() {
        let found = Failed::Wrong { place: 7, came: 1, expected: 2 }.finding();
        assert_eq!(
            (found.level, found.what.as_str()),
            (Level::Problem, "byte 7 came back as 1 instead of 2")
        );
    }
}
