//! A copy to each device and back, verified and timed.

use std::time::{Duration, Instant};

use serde::Serialize;
use transship::{CopyHandle, CopyOptions, Device, DeviceId, Error, ErrorKind, Tensor, TimedWait, start_copy};

use crate::Examination;
use crate::finding::{Check, Finding, Level};
use crate::sizes::Size;

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
    /// It has, with this byte wrong.
    Wrong { place: usize, came: u8, expected: u8 },
}

/// Copies to the devices that were named and are there, or else to all, but for the host.
pub(crate) fn check(examination: &Examination, findings: &mut Vec<Finding>) -> Vec<CopyTimes> {
    let is_wanted = |id: &DeviceId| examination.devices.is_empty() || examination.devices.contains(id);
    let devices: Vec<DeviceId> =
        Device::list().into_iter().filter(|id| !id.is_host() && is_wanted(id)).collect();
    let mut copies = Vec::new();
    if devices.is_empty() {
        let none = match examination.devices[..] {
            [] => "there is no device but the host: nothing was copied",
            _ => "none of the named devices is one that is there, but for the host: nothing was copied",
        };
        findings.push(Finding::new(Level::Note, Check::Copy, none));
        return copies;
    }
    let sent = numbers((examination.mib as usize) << 20);
    let limit = Duration::from_secs(examination.timeout.into());
    for id in devices {
        match there_and_back(id, &sent, limit) {
            Ok(times) => {
                findings.push(Finding::new(Level::Ok, Check::Copy, times.words()).of(id));
                copies.push(times);
            }
            Err(failed) => findings.push(failed.finding().of(id)),
        }
    }
    copies
}

/// Bytes of which neighbours, and those of pages and blocks, differ.
fn numbers(bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|index| (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut all: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    all.truncate(bytes);
    all
}

fn there_and_back(id: DeviceId, sent: &[u8], limit: Duration) -> Result<CopyTimes, Failed> {
    let device = Device::open(id)?;
    round(&device, sent, limit)?;
    let (up, down) = round(&device, sent, limit)?;
    let (up_seconds, down_seconds) = (up.as_secs_f64(), down.as_secs_f64());
    let (staging_node, bytes) = (device.staging_node(), sent.len() as u64);
    Ok(CopyTimes { device: id.to_string(), staging_node, bytes, up_seconds, down_seconds })
}

fn round(device: &Device, sent: &[u8], limit: Duration) -> Result<(Duration, Duration), Failed> {
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

fn timed(tensor: Tensor, to: &Device, limit: Duration) -> Result<(Tensor, Duration), Failed> {
    let begin = Instant::now();
    let copy: CopyHandle<Tensor> =
        start_copy(tensor, to, CopyOptions::default()).map_err(|error| error.into_error())?;
    match copy.wait_timeout(limit).map_err(|error| error.into_error())? {
        TimedWait::Done(tensor) => Ok((tensor, begin.elapsed())),
        TimedWait::Pending(_) => Err(Failed::Late(limit)),
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
                format!("it has not come to an end after {} s", limit.as_secs()),
                "look for a program that keeps the device busy, and into the log of the system (dmesg); then reset the device",
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
