//! Chrome trace events: a list of objects, by hand.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

use crate::device_id::DeviceId;
use crate::timeline::records::{Records, Submitted};

/// The process that threads are shown in. Devices come behind it.
const THREADS: usize = 1;

/// All that `records` know. What has not ended ends `now`.
pub(crate) fn json(mut records: Records, now: u64) -> String {
    let mut events =
        Events { text: String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":["), is_empty: true };
    let flights = flights(&records, now);
    let on_devices = flights.iter().map(|flight| flight.device);
    let devices: BTreeMap<DeviceId, usize> = on_devices
        .chain(records.samples.iter().map(|sample| sample.device))
        .map(|device| (device, 0))
        .collect();
    let devices: BTreeMap<DeviceId, usize> =
        devices.into_keys().enumerate().map(|(index, device)| (device, THREADS + 1 + index)).collect();
    let process = |device: &DeviceId| devices.get(device).copied().unwrap_or(0);

    events.name("process_name", THREADS, 0, "threads");
    for (thread, name) in &records.threads {
        events.name("thread_name", THREADS, track(*thread as u64), name);
    }
    for (device, process) in &devices {
        events.name("process_name", *process, 0, &device.to_string());
    }
    // Those of one stream lie side by side.
    let mut streams: Vec<_> = flights.iter().map(|flight| (flight.device, flight.stream)).collect();
    streams.dedup();
    for (device, stream) in streams {
        events.name("thread_name", process(&device), track(stream), &format!("stream {stream}"));
    }
    // What others lie in comes first.
    records.phases.sort_by_key(|phase| (phase.begin, Reverse(phase.end)));
    for phase in &records.phases {
        let args = format_args!("\"copy\":{}", phase.copy);
        events.span(phase.name, THREADS, track(phase.thread as u64), [phase.begin, phase.end], args);
    }
    for flight in &flights {
        let args = format_args!("\"copy\":{},\"bytes\":{}", flight.copy, flight.bytes);
        let name = format!("copy {}", flight.copy);
        events.span(&name, process(&flight.device), track(flight.stream), [flight.begin, flight.end], args);
    }
    for sample in &records.samples {
        events.counter(sample.of, process(&sample.device), sample.at, sample.bytes);
    }
    events.text.push_str("\n]}\n");
    events.text
}

/// The number of a thread or stream in its process. Perfetto takes 0 for the number of the process: two would share a track, and what
/// does not nest there is dropped.
fn track(number: u64) -> u64 {
    number.saturating_add(1)
}

/// A copy on a stream.
struct Flight {
    copy: u64,
    device: DeviceId,
    stream: u64,
    last: u64,
    bytes: u64,
    begin: u64,
    end: u64,
}

/// What was on its way when, by stream and time. A stream does one thing after the other: a copy ends before the one behind it does,
/// whenever that was seen, and begins when the one before it has ended.
fn flights(records: &Records, now: u64) -> Vec<Flight> {
    let mut flights = BTreeMap::<(u64, u64), Flight>::new();
    for &Submitted { copy, device, stream, position, begin, bytes } in &records.submissions {
        let end = records.ends.get(&copy).copied().unwrap_or(now);
        let new = || Flight { copy, device, stream, last: position, bytes: 0, begin, end };
        let flight = flights.entry((stream, copy)).or_insert_with(new);
        flight.last = flight.last.max(position);
        flight.begin = flight.begin.min(begin);
        flight.bytes += bytes;
    }
    let mut flights: Vec<Flight> = flights.into_values().collect();
    flights.sort_by_key(|flight| (flight.stream, flight.last));
    for of_one in flights.chunk_by_mut(|a, b| a.stream == b.stream) {
        let mut behind = u64::MAX;
        for flight in of_one.iter_mut().rev() {
            flight.end = flight.end.min(behind);
            behind = flight.end;
        }
        let mut before = 0;
        for flight in of_one {
            flight.begin = flight.begin.max(before).min(flight.end);
            before = flight.end;
        }
    }
    flights
}

/// The list, as far as it is written.
struct Events {
    text: String,
    is_empty: bool,
}

impl Events {
    /// The name of a process, or of a thread in it.
    fn name(&mut self, what: &str, process: usize, thread: u64, name: &str) {
        let name = Quoted(name);
        self.add(format_args!(
            "{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"{what}\",\"args\":{{\"name\":{name}}}}}"
        ));
    }

    fn span(
        &mut self,
        name: &str,
        process: usize,
        thread: u64,
        [begin, end]: [u64; 2],
        args: fmt::Arguments<'_>,
    ) {
        let (name, ts, dur) = (Quoted(name), Microseconds(begin), Microseconds(end.saturating_sub(begin)));
        self.add(format_args!(
            "{{\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur},\"pid\":{process},\"tid\":{thread},\"name\":{name},\"args\":{{{args}}}}}"
        ));
    }

    fn counter(&mut self, name: &str, process: usize, at: u64, bytes: u64) {
        let (name, ts) = (Quoted(name), Microseconds(at));
        self.add(format_args!(
            "{{\"ph\":\"C\",\"ts\":{ts},\"pid\":{process},\"name\":{name},\"args\":{{\"bytes\":{bytes}}}}}"
        ));
    }

    fn add(&mut self, event: fmt::Arguments<'_>) {
        self.text.push_str(if self.is_empty { "\n" } else { ",\n" });
        self.is_empty = false;
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(event);
    }
}

/// Nanoseconds, written as microseconds.
struct Microseconds(u64);

impl Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A string of JSON.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    /// When each of three copies on a stream was on its way, whose ends were seen at these times.
    fn spans(seen: [u64; 3]) -> [[u64; 2]; 3] {
        let device = DeviceId::new("late", 0).unwrap();
        let submissions = [1, 2, 3].map(|copy| Submitted {
            copy,
            device,
            stream: 7,
            position: copy,
            begin: 10 * copy,
            bytes: 64,
        });
        let ends = [1, 2, 3].into_iter().zip(seen).collect();
        let records = Records { submissions: submissions.into(), ends, ..Records::default() };
        flights(&records, 1000)
            .iter()
            .map(|flight| [flight.begin, flight.end])
            .collect::<Vec<_>>()
            .try_into()
            .unwrap()
    }

    /// catches: 362-the-late-end-of-a-copy-covers-the-next
    #[test]
    fn a_copy_ends_before_the_one_behind_it_whenever_that_is_seen() {
        assert_eq!(spans([40, 50, 60]), [[10, 40], [40, 50], [50, 60]]);
        assert_eq!(spans([60, 50, 40]), [[10, 40], [40, 40], [40, 40]]);
        assert_eq!(spans([15, 70, 65]), [[10, 15], [20, 65], [65, 65]]);
    }
}
