//! What a timeline has of copies.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{late, no_violations};
use transship_core::{
    BackgroundWork, CopyOptions, CopyPolicy, CopyReport, Device, Tensor, Timeline, start_copy,
    start_copy_into, start_copy_to_all,
};

fn options(timeline: &Timeline, background: BackgroundWork) -> CopyOptions {
    CopyOptions::default().policy(CopyPolicy::Always).background(background).timeline(timeline)
}

fn batch(bytes: usize) -> Vec<Tensor> {
    vec![Tensor::from(vec![1_u8; bytes]), Tensor::from(vec![1.0_f32, 2.0])]
}

fn events(timeline: &Timeline) -> Vec<Value> {
    let json: Value = serde_json::from_str(&timeline.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap().clone();
    opens_in_perfetto(&events);
    events
}

/// What Perfetto's trace processor demands, or drops events for: complete events of a track nest; no thread has the number 0, which is
/// that of its process there; each track has one name; a counter is a number of a process.
///
/// catches: 630-threads-have-the-number-of-their-process, 631-a-stream-is-named-for-each-copy
fn opens_in_perfetto(events: &[Value]) {
    let mut names = BTreeMap::<_, Vec<&str>>::new();
    for event in events.iter().filter(|event| event["ph"] == "M") {
        let [process, thread] = ["pid", "tid"].map(|number| event[number].as_u64().unwrap());
        let name = event["args"]["name"].as_str().unwrap();
        names.entry((event["name"].as_str().unwrap(), process, thread)).or_default().push(name);
    }
    assert!(names.values().all(|names| names.len() == 1), "{names:?}");
    for (track, spans) in tracks(events) {
        let (process, thread) = track;
        assert!(process > 0 && thread > 0, "{track:?} {spans:?}");
        assert!(names.contains_key(&("thread_name", process, thread)), "{track:?} of {names:?}");
        assert!(names.contains_key(&("process_name", process, 0)), "{track:?} of {names:?}");
        nest(&spans);
    }
    for counter in events.iter().filter(|event| event["ph"] == "C") {
        let process = counter["pid"].as_u64().unwrap();
        assert!(names.contains_key(&("process_name", process, 0)), "{counter} of {names:?}");
        assert!(counter["ts"].is_number() && counter["args"]["bytes"].is_number(), "{counter}");
    }
}

/// What lies on each track: process and thread.
fn tracks(events: &[Value]) -> BTreeMap<(u64, u64), Vec<Span>> {
    let mut tracks = BTreeMap::<_, Vec<_>>::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        tracks.entry(track).or_default().push(Span::of(event));
    }
    tracks
}

/// In nanoseconds.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    copy: u64,
    begin: u64,
    end: u64,
}

impl Span {
    fn of(event: &Value) -> Self {
        let ns = |field: &str| (event[field].as_f64().unwrap() * 1e3).round() as u64;
        let (name, copy) =
            (event["name"].as_str().unwrap().to_owned(), event["args"]["copy"].as_u64().unwrap());
        Self { name, copy, begin: ns("ts"), end: ns("ts") + ns("dur") }
    }

    fn time(&self) -> u64 {
        self.end - self.begin
    }

    fn is_in(&self, outer: &Self) -> bool {
        outer.begin <= self.begin && self.end <= outer.end
    }
}

/// The events of each track come in order, and two of them lie one in the other or apart.
fn nest(spans: &[Span]) {
    assert!(spans.is_sorted_by_key(|span| span.begin), "{spans:?}");
    let mut open = Vec::<&Span>::new();
    for span in spans {
        while open.last().is_some_and(|outer| outer.end <= span.begin) {
            open.pop();
        }
        assert!(open.last().is_none_or(|outer| span.is_in(outer)), "{span:?} in {open:?}");
        open.push(span);
    }
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}: {spans:?}"))
}

#[test]
fn phases_of_a_copy_are_those_of_its_report() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let timeline = Timeline::new();
    let handle = start_copy(batch(64), &device, options(&timeline, BackgroundWork::Auto)).unwrap();
    let (_, report): (_, CopyReport) = handle.wait_with_report().unwrap();
    let events = events(&timeline);
    let tracks = tracks(&events);
    let [(_, here), (_, stream)] = &tracks.iter().collect::<Vec<_>>()[..] else { panic!("{tracks:?}") };
    let call = named(here, "start_copy");
    let phases = ["traverse", "plan", "allocate", "stage", "submit"].map(|name| named(here, name));
    assert!(phases.iter().all(|phase| phase.is_in(call)), "{here:?}");
    assert!(phases.iter().map(|phase| phase.time()).sum::<u64>() <= call.time(), "{here:?}");
    let times = [report.traverse, report.plan, report.allocate, report.stage, report.submit];
    for (phase, time) in phases.iter().zip(times) {
        // Both ends are cut to nanoseconds.
        assert!(phase.time().abs_diff(time.as_nanos() as u64) <= 1, "{phase:?} {time:?}");
    }
    assert!(named(here, "finish").is_in(named(here, "wait")), "{here:?}");
    let [flight] = &stream[..] else { panic!("{stream:?}") };
    assert!(flight.begin >= named(here, "stage").end && flight.end <= named(here, "wait").end, "{flight:?}");
    no_violations(&late);
}

#[test]
fn threads_and_streams_do_one_thing_after_the_other() {
    let (late, device) = late();
    let timeline = Timeline::new();
    for background in [BackgroundWork::Auto, BackgroundWork::Always] {
        let options = || options(&timeline, background);
        let copies = [64, 3 << 20, 200].map(|bytes| start_copy(batch(bytes), &device, options()).unwrap());
        let [first, second, third] = copies;
        // That the others are done is seen later.
        let [third, second, first] = [third, second, first].map(|copy| copy.wait().unwrap());
        let first = start_copy_into(batch(64), first, options()).unwrap().wait().unwrap();
        for up in [first, second, third] {
            start_copy(up, &Device::host(), options()).unwrap().wait().unwrap();
        }
        for copy in start_copy_to_all(batch(64), &[device.clone(), device.clone()], options()).unwrap() {
            copy.wait().unwrap();
        }
    }
    let events = events(&timeline);
    let tracks = tracks(&events);
    let threads = tracks.keys().filter(|(process, _)| *process == 1).count();
    assert!(threads > 1, "workers have tracks of their own: {tracks:?}");
    for (_, spans) in tracks.iter().filter(|((process, _), _)| *process > 1) {
        assert!(spans.is_sorted_by(|a, b| a.end <= b.begin), "{spans:?}");
    }
    let copies = tracks.values().flatten().map(|span| span.copy).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(copies, (1..=18).collect(), "each copy has a number");
    no_violations(&late);
}

/// catches: 570-a-timeline-waits-to-be-asked
#[test]
fn a_copy_that_nobody_asks_for_ends_when_it_is_done() {
    let (late, device) = late();
    let timeline = Timeline::new();
    let copy = start_copy(batch(1 << 20), &device, options(&timeline, BackgroundWork::Never)).unwrap();
    let end = || {
        let tracks = tracks(&events(&timeline));
        tracks.values().flatten().find(|span| span.name.starts_with("copy ")).unwrap().end
    };
    let asked = Instant::now();
    let mut seen = end();
    // What has not ended ends when the timeline is asked.
    loop {
        assert!(asked.elapsed() < Duration::from_secs(20), "the copy ends at {seen} ns and later");
        thread::sleep(Duration::from_millis(10));
        let before = std::mem::replace(&mut seen, end());
        if before == seen {
            break;
        }
    }
    copy.wait().unwrap();
    assert_eq!(end(), seen);
    no_violations(&late);
}

#[test]
fn memory_in_use_is_counted() {
    let (late, device) = late();
    let timeline = Timeline::new();
    let up =
        start_copy(batch(4096), &device, options(&timeline, BackgroundWork::Auto)).unwrap().wait().unwrap();
    let _down =
        start_copy(up, &Device::host(), options(&timeline, BackgroundWork::Auto)).unwrap().wait().unwrap();
    let events = events(&timeline);
    for name in ["pinned staging in use", "pinned results in use", "device memory in use"] {
        let of_name = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
        let bytes = of_name.map(|event| event["args"]["bytes"].as_u64().unwrap()).collect::<Vec<_>>();
        assert!(bytes.iter().any(|bytes| *bytes >= 4096), "{name}: {bytes:?}");
    }
    no_violations(&late);
}

/// catches: 361-names-are-not-escaped
#[test]
fn names_are_what_they_were() {
    let name = "a \"thread\" \\ of\nthe\u{1} prögram \u{1f680}";
    let timeline = Timeline::new();
    let copies = timeline.clone();
    let copy = move || {
        let options = options(&copies, BackgroundWork::Never);
        start_copy(batch(8), &Device::host(), options).unwrap().wait().unwrap();
    };
    thread::Builder::new().name(name.to_owned()).spawn(copy).unwrap().join().unwrap();
    let events = events(&timeline);
    let mut names = events.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == 1);
    assert_eq!(names.next().unwrap()["args"]["name"], name);
}
