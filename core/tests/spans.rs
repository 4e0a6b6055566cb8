//! What a subscriber of `tracing` sees of copies, and that it may do whatever it likes meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use support::{bytes_of, eventually, in_time, late, no_violations};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Subscriber, subscriber};
use transship_core::{
    BackgroundWork, CopyOptions, Device, Tensor, start_copy, start_copy_into, start_copy_to_all,
};

/// What a subscriber does by itself.
type Act = fn(&Device);

/// Notes spans, and acts at each call.
struct Looker {
    seen: Arc<Mutex<Seen>>,
    act: Option<(Act, Device)>,
}

#[derive(Default)]
struct Seen {
    spans: Vec<SeenSpan>,
    entered: HashMap<ThreadId, Vec<usize>>,
}

#[derive(Clone, Debug)]
struct SeenSpan {
    metadata: &'static Metadata<'static>,
    fields: BTreeMap<&'static str, String>,
    parent: Option<usize>,
    thread: ThreadId,
    references: usize,
}

impl SeenSpan {
    fn name(&self) -> &'static str {
        self.metadata.name()
    }
}

impl Visit for SeenSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Seen {
    fn here(&mut self) -> &mut Vec<usize> {
        self.entered.entry(thread::current().id()).or_default()
    }

    fn named(&self, name: &str) -> Vec<(usize, SeenSpan)> {
        let spans = self.spans.iter().cloned().enumerate();
        spans.filter(|(_, span)| span.name() == name).collect()
    }

    #[track_caller]
    fn only(&self, name: &str) -> (usize, SeenSpan) {
        let named = self.named(name);
        assert_eq!(named.len(), 1, "{name}: {:?}", self.spans);
        named.into_iter().next().unwrap()
    }

    /// The names of what a span lies in.
    fn path(&self, span: usize) -> Vec<&'static str> {
        let parent = |span: &usize| self.spans[*span].parent;
        std::iter::successors(Some(span), parent).skip(1).map(|span| self.spans[span].name()).collect()
    }
}

thread_local! {
    /// What a subscriber causes is not looked at by itself.
    static ACTS: Cell<bool> = const { Cell::new(false) };
}

impl Looker {
    fn new() -> (Self, Arc<Mutex<Seen>>) {
        let seen = Arc::<Mutex<Seen>>::default();
        (Self { seen: seen.clone(), act: None }, seen)
    }

    fn act(&self) {
        if let Some((act, device)) = &self.act
            && !ACTS.replace(true)
        {
            let _acts = Acts;
            act(device);
        }
    }
}

struct Acts;

impl Drop for Acts {
    fn drop(&mut self) {
        ACTS.set(false);
    }
}

fn number(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap() - 1
}

impl Subscriber for Looker {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "transship" && !ACTS.get()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.act();
        let mut seen = self.seen.lock().unwrap();
        let parent = match attributes.parent() {
            Some(parent) => Some(number(parent)),
            None if attributes.is_contextual() => seen.here().last().copied(),
            None => None,
        };
        let (metadata, thread) = (attributes.metadata(), thread::current().id());
        let mut span = SeenSpan { metadata, fields: BTreeMap::new(), parent, thread, references: 1 };
        attributes.record(&mut span);
        seen.spans.push(span);
        Id::from_u64(seen.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.act();
        values.record(&mut self.seen.lock().unwrap().spans[number(span)]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        self.act();
        self.seen.lock().unwrap().here().push(number(span));
    }

    fn exit(&self, span: &Id) {
        self.act();
        let left = self.seen.lock().unwrap().here().pop();
        assert_eq!(left, Some(number(span)), "spans are left in another order");
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.act();
        self.seen.lock().unwrap().spans[number(span)].references += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        self.act();
        let mut seen = self.seen.lock().unwrap();
        let references = &mut seen.spans[number(&span)].references;
        *references -= 1;
        *references == 0
    }
}

fn batch(bytes: usize) -> Vec<Tensor> {
    vec![Tensor::from(vec![1_u8; bytes]), Tensor::from(vec![1.0_f32, 2.0])]
}

fn always() -> CopyOptions {
    CopyOptions::default().background(BackgroundWork::Always)
}

/// The copies of all spans are over.
fn all_are_closed(seen: &Mutex<Seen>) {
    eventually("all spans are closed", || seen.lock().unwrap().spans.iter().all(|span| span.references == 0));
}

#[test]
fn a_small_copy_shows_its_phases_within_its_call() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let (looker, seen) = Looker::new();
    let up = subscriber::with_default(looker, || {
        start_copy(batch(4), &device, CopyOptions::default()).unwrap().wait().unwrap()
    });
    assert_eq!(bytes_of(&up[0]), [1; 4]);
    let seen = seen.lock().unwrap();
    let (_, call) = seen.only("start_copy");
    let name = device.id().to_string();
    assert_eq!((call.fields["device"].as_str(), call.fields["leaves"].as_str()), (name.as_str(), "2"));
    assert_eq!((call.fields["bytes"].as_str(), call.parent), ("12", None));
    for phase in ["plan", "allocate", "stage", "submit"] {
        let (span, _) = seen.only(phase);
        assert_eq!(seen.path(span), ["start_copy"], "{phase}");
    }
    let (_, submit) = seen.only("submit");
    assert_eq!((submit.fields["device"].as_str(), submit.fields["copies"].as_str()), (name.as_str(), "1"));
    assert!(submit.fields["bytes"].parse::<usize>().unwrap() >= 12 && submit.fields.contains_key("stream"));
    let (_, wait) = seen.only("wait");
    assert_eq!((&wait.fields["copy"], wait.parent), (&call.fields["copy"], None));
    let (finish, _) = seen.only("finish");
    assert_eq!(seen.path(finish), ["wait"]);
    assert!(seen.spans.iter().all(|span| span.references == 0), "{:?}", seen.spans);
    no_violations(&late);
}

/// catches: 355-work-of-others-without-its-parent
#[test]
fn what_workers_do_belongs_to_the_span_of_the_call() {
    let (late, device) = late();
    let (looker, seen) = Looker::new();
    subscriber::with_default(looker, || {
        let handle = start_copy(batch(3 << 20), &device, always()).unwrap();
        eventually("workers have submitted all", || handle.report().submitted_after.is_some());
        assert_eq!(handle.wait().unwrap().len(), 2);
    });
    all_are_closed(&seen);
    let seen = seen.lock().unwrap();
    let (call, span) = seen.only("start_copy");
    assert_eq!((span.thread, span.fields["bytes"].as_str()), (thread::current().id(), "3145736"));
    for worked in ["prepare", "carry"].iter().flat_map(|name| seen.named(name)) {
        assert_eq!(worked.1.parent, Some(call), "{worked:?}");
        assert_ne!(worked.1.thread, thread::current().id(), "{worked:?}");
    }
    let staged = seen.named("stage");
    let bytes = staged.iter().map(|(_, span)| span.fields["bytes"].parse::<usize>().unwrap()).sum::<usize>();
    assert!(staged.len() > 1 && bytes >= 3 << 20, "{staged:?}");
    for (span, _) in staged.iter().chain(&seen.named("submit")) {
        assert_eq!(seen.path(*span), ["carry", "start_copy"]);
    }
    no_violations(&late);
}

/// The results do not fit into pinned memory: each is copied out of a block.
fn without_room_for_results(device: &Device) {
    device.set_result_budget(64 << 10).unwrap();
    copies_of_all_kinds(device);
}

/// Each kind of copy, at once and by workers, up and down, waited for and left alone.
fn copies_of_all_kinds(device: &Device) {
    for options in [CopyOptions::default(), always(), always().pinned_staging(false)] {
        for bytes in [64, 300 << 10, 3 << 20] {
            let up = start_copy(batch(bytes), device, options.clone()).unwrap().wait().unwrap();
            let up = start_copy_into(batch(bytes), up, options.clone()).unwrap().wait().unwrap();
            let down = start_copy(up, &Device::host(), options.clone()).unwrap().wait().unwrap();
            assert_eq!(bytes_of(&down[0]), vec![1; bytes]);
            drop(start_copy(batch(bytes), device, options.clone()).unwrap());
            let all = [Device::host(), device.clone(), device.clone()];
            for copy in start_copy_to_all(batch(bytes), &all, options.clone()).unwrap() {
                assert_eq!(copy.wait().unwrap().len(), 2);
            }
        }
    }
}

fn copy_under_its_own_lock(device: &Device) {
    static LOCK: Mutex<()> = Mutex::new(());
    let _locked = LOCK.lock().unwrap();
    let copied =
        start_copy(Tensor::from(vec![7_u8; 8]), device, CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(copied.nbytes(), 8);
}

/// Debug builds stop where a subscriber is called under a lock of ours.
///
/// catches: 356-carries-under-a-lock
/// catches: 357-unstages-under-a-lock
#[test]
fn a_subscriber_may_lock_and_copy() {
    let (late, device) = late();
    device.prepare(64).unwrap();
    let (looker, seen) = Looker::new();
    let looker = Looker { act: Some((copy_under_its_own_lock, device.clone())), ..looker };
    // A span that the only subscriber of a process causes first, `tracing` takes for one that nobody wants.
    let _another = Dispatch::new(Looker::new().0);
    let done = seen.clone();
    in_time(move || {
        subscriber::with_default(looker, || {
            copies_of_all_kinds(&device);
            without_room_for_results(&device);
        });
        all_are_closed(&done);
    });
    let seen = seen.lock().unwrap();
    for name in ["start_copy", "start_copy_into", "start_copy_to_all", "carry", "submit", "unstage", "finish"]
    {
        assert!(!seen.named(name).is_empty(), "no span {name}");
    }
    no_violations(&late);
}

/// catches: 358-a-panic-of-a-subscriber-goes-on
#[test]
fn a_subscriber_that_panics_changes_nothing() {
    let (late, device) = late();
    let (looker, _) = Looker::new();
    let looker = Looker { act: Some((|_| panic!("as this test wants it to"), device.clone())), ..looker };
    in_time(move || subscriber::with_default(looker, || copies_of_all_kinds(&device)));
    no_violations(&late);
}
