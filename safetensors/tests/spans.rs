//! What a subscriber of `tracing` sees of files that are loaded and saved, and that it may panic and load meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use late_backend::LateConfig;
use support::{check, entry, file_of, folder, late, no_violations, options};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, subscriber};
use transship::Device;
use transship_safetensors::{SaveOptions, load, save};

/// A place in the code that is reached for the first time on a thread without a subscriber, while another one has the only one of the process, is shown to
/// nobody any more.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local! {
    /// How deep this thread is in what a subscriber does by itself.
    static ACTS: Cell<u32> = const { Cell::new(0) };
}

/// Notes spans, and does something else when one is entered.
struct Looker {
    seen: Arc<Mutex<Seen>>,
    act: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Seen {
    spans: Vec<SeenSpan>,
    entered: HashMap<ThreadId, Vec<usize>>,
}

struct SeenSpan {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    parent: Option<usize>,
    is_over: bool,
}

impl Visit for SeenSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Looker {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Looker {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "transship"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut seen = self.seen();
        let here = seen.entered.get(&thread::current().id()).and_then(|spans| spans.last()).copied();
        let parent = attributes.parent().map(|id| id.into_u64() as usize - 1).or(here);
        let name = attributes.metadata().name();
        let mut span = SeenSpan { name, fields: BTreeMap::new(), parent, is_over: false };
        attributes.record(&mut span);
        seen.spans.push(span);
        Id::from_u64(seen.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut self.seen().spans[span.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        let span = span.into_u64() as usize - 1;
        self.seen().entered.entry(thread::current().id()).or_default().push(span);
        if let Some(act) = self.act.as_ref().filter(|_| ACTS.get() < 3) {
            ACTS.set(ACTS.get() + 1);
            act();
            ACTS.set(ACTS.get() - 1);
        }
    }

    fn exit(&self, span: &Id) {
        let span = span.into_u64() as usize - 1;
        assert_eq!(self.seen().entered.get_mut(&thread::current().id()).unwrap().pop(), Some(span));
    }

    fn try_close(&self, span: Id) -> bool {
        self.seen().spans[span.into_u64() as usize - 1].is_over = true;
        true
    }
}

impl Seen {
    fn named(&self, name: &str) -> impl Iterator<Item = (usize, &SeenSpan)> {
        self.spans.iter().enumerate().filter(move |(_, span)| span.name == name)
    }

    /// The names of what a span lies in.
    fn path(&self, span: usize) -> Vec<&'static str> {
        std::iter::successors(self.spans[span].parent, |span| self.spans[*span].parent)
            .map(|span| self.spans[span].name)
            .collect()
    }

    #[track_caller]
    fn only(&self, name: &str) -> &SeenSpan {
        let mut named = self.named(name);
        let (Some((_, span)), None) = (named.next(), named.next()) else { panic!("not one {name}") };
        span
    }

    /// The sum of the bytes of the spans of this name, each of which lies in `call` and in what else is named at most.
    #[track_caller]
    fn bytes_within(&self, name: &str, call: &str) -> u64 {
        let one = |(number, span): (usize, &SeenSpan)| {
            let path = self.path(number);
            assert!(path == [call] || path == ["carry", call], "{name} in {path:?}");
            span.fields["bytes"].parse::<u64>().unwrap()
        };
        self.named(name).map(one).sum()
    }
}

fn looker(act: Option<Box<dyn Fn() + Send + Sync>>) -> (Looker, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    (Looker { seen: seen.clone(), act }, seen)
}

fn entries() -> Vec<support::Entry> {
    (0..12).map(|number| entry(&format!("t{number}"), 11, &[100 + number, 1000], number)).collect()
}

/// catches: 448-what-threads-read-belongs-to-nobody
#[test]
fn files_show_what_is_read_and_written_within_their_calls() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let entries = entries();
    let bytes: u64 = entries.iter().map(|entry| entry.bytes.len() as u64).sum();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let (handle, device) = late(LateConfig::new("late"));
    for device in [Device::host(), device] {
        let (looker, seen) = looker(None);
        subscriber::with_default(looker, || {
            let tensors = load(folder.path(), &device, options().budget(1 << 20).threads(3)).unwrap();
            check(&tensors, &entries, &device);
            let options = SaveOptions::default().budget(1 << 20).threads(3);
            save(&tensors, folder.path().join("a.safetensors"), options).unwrap();
        });
        let seen = seen.lock().unwrap();
        let load = seen.only("load");
        let fields =
            [("device", device.id().to_string()), ("files", "1".to_owned()), ("leaves", "12".to_owned())];
        assert!(fields.iter().all(|(field, value)| load.fields[field] == *value), "{:?}", load.fields);
        let save = seen.only("save");
        assert_eq!((&load.fields["bytes"], &save.fields["bytes"]), (&bytes.to_string(), &bytes.to_string()));
        assert_eq!(save.fields["leaves"], "12");
        assert_eq!(seen.bytes_within("read", "load"), bytes);
        assert_eq!(seen.bytes_within("write", "save"), bytes);
        assert_eq!(seen.path(seen.named("read_headers").next().unwrap().0), ["load"]);
        assert_eq!(seen.named("sync").count(), 1);
        let submitted = seen.named("submit").filter(|(number, _)| seen.path(*number).ends_with(&["load"]));
        let submitted: u64 = submitted.map(|(_, span)| span.fields["bytes"].parse::<u64>().unwrap()).sum();
        assert!(if device.is_host() { submitted == 0 } else { submitted >= bytes }, "{submitted}");
        let others = seen.named("carry").filter(|(number, _)| seen.path(*number) == ["load"]).count();
        assert!(others <= 2, "{others} other threads");
        let open: Vec<_> = seen.spans.iter().filter(|span| !span.is_over).map(|span| span.name).collect();
        assert!(open.is_empty(), "{open:?}");
    }
    no_violations(Some(&handle));
}

/// catches: 449-who-looks-on-is-told-of-what-he-does
#[test]
fn who_looks_on_may_load_and_panic() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let entries = entries();
    let folder = folder(&[("a.safetensors", file_of(&entries))]);
    let path = folder.path().join("a.safetensors");
    let tensors = load(&path, &Device::host(), options()).unwrap();
    let saved = folder.path().join("b");
    let acts: [fn(&Path); 2] = [
        |path| {
            load(path, &Device::host(), options().threads(1)).unwrap();
        },
        |_| panic!("who looks on panics"),
    ];
    for act in acts {
        let path_of_act = path.clone();
        let (looker, seen) = looker(Some(Box::new(move || act(&path_of_act))));
        subscriber::with_default(looker, || {
            check(&load(&path, &Device::host(), options().threads(3)).unwrap(), &entries, &Device::host());
            save(&tensors, &saved, SaveOptions::default().threads(3)).unwrap();
        });
        check(&load(&saved, &Device::host(), options()).unwrap(), &entries, &Device::host());
        let seen = seen.lock().unwrap();
        assert_eq!((seen.named("load").count(), seen.named("read_headers").count()), (1, 1));
    }
}
