//! Peers that are stopped, and go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship_nixl::Error;

use crate::by_hand::{ACCEPTED, ByHand, OFFER, WITHDRAWN, WRITTEN, arena_of, tree};
use crate::ends::{LATE, until};
use crate::pair::{AMPLE, Pair, agent, bytes, hex, signal};

/// Deliberate bugs: memory that a peer may still write to is given to another transfer; a peer that wakes up writes there, or keeps it.
pub(crate) fn wait_for_stopped(pair: &mut Pair) {
    stop_with_room(pair);
    let usage = pair.agent.usage();
    assert_eq!(usage.set_aside_bytes, 24 << 20);
    assert_eq!(usage.registered - usage.free, usage.set_aside_bytes);
    pair.other.signal("-CONT");
    until(|| pair.agent.usage().set_aside == 0);
    assert_eq!(pair.other.hear(), "again");
    let large = pair.agent.start_receive(&pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_eq!(large.manifest().chunks(), [24 << 20]);
}

/// Deliberate bugs: an agent that goes waits for its peer; memory that a peer may still write to is unmapped.
pub(crate) fn leave(pair: &mut Pair) {
    stop_with_room(pair);
    let (begun, arena) = (Instant::now(), arena_of(&pair.agent.metadata().unwrap()));
    pair.agent = agent("another", &pair.transport, 4096);
    assert!(begun.elapsed() < LATE, "{:?}", begun.elapsed());
    pair.other.signal("-CONT");
    assert_eq!(pair.other.hear(), "left");
    assert!(is_mapped(arena));
}

fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    })
}

pub(crate) fn be_left(pair: &mut Pair) {
    let large = vec![Tensor::from(vec![1_u8; 24 << 20])];
    let send = pair.agent.start_send(&large, &pair.peer, AMPLE).unwrap();
    pair.other.say("begun");
    assert!(matches!(send.wait().unwrap_err(), Error::Refused { .. } | Error::Broken { .. }));
    pair.other.say("left");
    pair.other.hear();
}

/// The other process is stopped, and has room for the tree that it has offered.
fn stop_with_room(pair: &mut Pair) {
    assert_eq!(pair.other.hear(), "begun");
    let limit = Duration::from_millis(300);
    until(|| {
        pair.other.signal("-STOP");
        let begun = Instant::now();
        let error = pair.agent.start_receive(&pair.peer, limit).unwrap().wait().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert!(begun.elapsed() < limit + LATE);
        let has_room = pair.agent.usage().set_aside == 1;
        if !has_room {
            // It was stopped before its offer was on its way.
            pair.other.signal("-CONT");
        }
        has_room
    });
}

pub(crate) fn be_stopped(pair: &mut Pair) {
    let large = vec![Tensor::from(vec![1_u8; 24 << 20])];
    let first = pair.agent.start_send(&large, &pair.peer, AMPLE).unwrap();
    pair.other.say("begun");
    assert!(matches!(first.wait().unwrap_err(), Error::Refused { .. }));
    pair.other.say("again");
    pair.agent.start_send(&large, &pair.peer, AMPLE).unwrap().wait().unwrap();
}

/// More than are under way at a time, and than the buffers of a connection take.
const BYTES: usize = 80 << 20;
/// Where the pieces of so much end, in MiB.
const ENDS: [usize; 16] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 76, 78, 79, 80];

/// Deliberate bugs: a peer hears that nothing is under way any more while something is; what is still being written is given to another transfer; the library forgets the
/// peer meanwhile.
pub(crate) fn write_to_stopped(pair: &mut Pair) {
    pair.agent = agent("writer", &pair.transport, BYTES);
    pair.other.say(&hex(&pair.agent.metadata().unwrap()));
    let metadata = bytes(&pair.other.hear());
    let mut reader = pair.agent.add_peer(&metadata).unwrap();
    let wrote_to_stopped = |limit: u64| {
        pair.other.say("go");
        let limit = Duration::from_millis(limit);
        let error = pair.agent.start_send(&tree(BYTES).0, &reader, limit).unwrap().wait().unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        let (usage, heard) = (pair.agent.usage(), AtomicBool::new(false));
        if usage.set_aside > 0 {
            match pair.agent.add_peer(&metadata) {
                Err(error) => assert!(error.to_string().contains("still under way"), "{error}"),
                // It has ended just now.
                Ok(again) => reader = again,
            }
        }
        // Whether it has come to stop itself is not known.
        let (child, heard, agent) = (pair.other.id(), &heard, &pair.agent);
        let what = thread::scope(|scope| {
            let over = OnDrop(heard);
            scope.spawn(move || {
                while !heard.load(Ordering::Relaxed) {
                    signal(child, "-CONT");
                    // Somebody has to look for what is late.
                    agent.usage();
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let what = pair.other.hear();
            drop(over);
            what
        });
        // Else nothing was under way just then.
        let is_late = usage.set_aside > 0;
        if is_late {
            assert_eq!((usage.set_aside, usage.set_aside_bytes), (1, BYTES));
        }
        until(|| pair.agent.usage().set_aside == 0);
        assert_eq!(pair.agent.usage().free, pair.agent.usage().registered);
        // Within the machine nobody but the writer has to run.
        (is_late && what == "in the middle") || (what == "all" && pair.transport != "tcp")
    };
    // A busy machine needs longer until it is in the middle.
    assert!([500, 1000, 2000, 4000, 8000, 16_000].into_iter().any(wrote_to_stopped), "never in the middle");
}

/// Set when it goes, by a panic as well: a thread waits for that.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn stop_and_read(pair: &mut Pair) {
    let mut reader = ByHand::new("reader", &pair.transport, BYTES);
    reader.meet(&bytes(&pair.other.hear()));
    let metadata = reader.metadata(BYTES);
    pair.other.say(&hex(&metadata));
    while pair.other.hear() == "go" {
        reader.clear();
        let id = reader.hear(OFFER).id;
        reader.say(ACCEPTED, id, &[0], &[]);
        let mut end = None;
        until(|| {
            end = end.or(end_of(&mut reader, id));
            end.is_some() || reader.byte(0) == 1
        });
        if reader.byte(0) != 1 {
            pair.other.say("nothing");
            continue;
        }
        // SAFETY: it takes no memory.
        unsafe { libc::raise(libc::SIGSTOP) };
        until(|| {
            end = end.or(end_of(&mut reader, id));
            end.is_some()
        });
        // No piece is there in part.
        let mut start = 0;
        for end in ENDS.map(|end| end << 20) {
            assert_eq!(reader.byte(start), reader.byte(end - 1), "{end}");
            start = end;
        }
        assert_eq!(start, BYTES);
        pair.other.say(end.unwrap());
    }
}

/// What is the last that is said of a tree, if it was said.
fn end_of(reader: &mut ByHand, id: u64) -> Option<&'static str> {
    reader.heard_of(id).into_iter().find_map(|heard| match heard.kind {
        WRITTEN if heard.number == BYTES as u64 => Some("all"),
        WITHDRAWN => Some("in the middle"),
        _ => None,
    })
}
