//! Peers that kill themselves at each point of a transfer: the other side lives, ends its transfer, and gets its memory back.

use std::thread;
use std::time::{Duration, Instant};

use transship::Tensor;
use transship_nixl::Agent;

use crate::by_hand::{ACCEPTED, ByHand, OFFER, WRITTEN, tree};
use crate::ends::{LATE, until};
use crate::pair::{AMPLE, Other, Pair, add_anew, agent, bytes, hex};
use crate::trees::{assert_is, batch, empty_batch};

/// More than the buffers of a connection take.
const BYTES: usize = 16 << 20;

/// Names of the peers, which say where they die.
const PHASES: [&str; 9] = [
    "reader, has heard of the tree",
    "reader, has accepted it",
    "reader, has its first bytes",
    "reader, has all of it",
    "writer, has offered it",
    "writer, may write",
    "writer, has begun to write",
    "writer, has written all and said nothing",
    "writer, has said that half of it is there",
];

/// Deliberate bugs: room that a dead peer had is free at once, or never again; its name stays taken; requests with it stay under way.
pub(crate) fn outlive_all(pair: &mut Pair) {
    pair.agent = agent("survivor", &pair.transport, (PHASES.len() + 1) * BYTES);
    let mut left = PHASES.to_vec();
    for limit in [2, 8, 20] {
        left = outlive(pair, &left, limit);
    }
    assert!(left.is_empty(), "too slow to reach: {left:?}");
    // The survivor is of use.
    pair.meet_another();
    pair.other.say("trees");
    pair.agent.start_send(&batch(3), &pair.peer, AMPLE).unwrap().wait().unwrap();
    let held = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_is(&held, 3);
    let usage = pair.agent.usage();
    assert_eq!((usage.free, usage.set_aside), (usage.registered, 0));
}

/// The other end of the trees.
pub(crate) fn echo(pair: &mut Pair) {
    if pair.other.hear() == "trees" {
        let held = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap().wait().unwrap();
        pair.agent.start_send(&held, &pair.peer, AMPLE).unwrap().wait().unwrap();
        pair.other.hear();
    }
}

/// All at once. Which of them have not reached their phase in that time.
fn outlive<'a>(pair: &Pair, phases: &[&'a str], seconds: u64) -> Vec<&'a str> {
    let one = |phase: &'a str| meet(&pair.agent, &pair.transport, phase, seconds);
    let is_reached = at_once(phases, one);
    let left: Vec<_> = phases.iter().zip(is_reached).filter(|(_, is_reached)| !is_reached).collect();
    let left: Vec<_> = left.into_iter().map(|(phase, _)| *phase).collect();
    // Of the one that has only offered nobody knows whether that was heard.
    let had_room = |phase: &&&str| phase.starts_with("writer") && !phase.ends_with("offered it");
    let had_room = phases.iter().filter(had_room).filter(|phase| !left.contains(phase)).count();
    assert!(pair.agent.usage().set_aside >= had_room, "{:?}", pair.agent.usage());
    // What is written to the dead ends by itself; what they may have written to, once they have begun anew.
    let writers: Vec<_> = phases.iter().copied().filter(|phase| phase.starts_with("writer")).collect();
    at_once(&writers, |phase| begin_anew(&pair.agent, &pair.transport, phase));
    until(|| pair.agent.usage().set_aside == 0);
    assert_eq!(pair.agent.usage().free, pair.agent.usage().registered);
    left
}

fn at_once<'a, T: Send>(phases: &[&'a str], one: impl Fn(&'a str) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = phases.iter().map(|phase| scope.spawn(|| one(phase))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Whether it has reached its phase, and died there.
fn meet(agent: &Agent, transport: &str, phase: &str, seconds: u64) -> bool {
    let mut other = Other::child(phase, transport);
    other.say(&hex(&agent.metadata().unwrap()));
    let peer = agent.add_peer(&bytes(&other.hear())).unwrap();
    other.say(&seconds.to_string());
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
    if phase.starts_with("reader") {
        let sent = agent.start_send(&tree(BYTES).0, &peer, limit).unwrap().wait();
        assert!(sent.is_err(), "{phase}");
    } else {
        let held = vec![Tensor::from(vec![0_u8; BYTES])];
        let failed = agent.start_receive_into(held, &peer, limit).unwrap().wait().unwrap_err();
        // Where the library holds the thread up for longer than that, its tensors are with it.
        assert!(failed.value.is_some_and(|held| held.len() == 1) || begun.elapsed() > limit, "{phase}");
    }
    assert!(begun.elapsed() < limit + LATE, "{phase}: {:?}", begun.elapsed());
    let is_reached = other.hear() == "reached";
    other.has_been_killed();
    is_reached
}

/// A peer of the same name, which goes again.
fn begin_anew(agent: &Agent, transport: &str, phase: &str) {
    let mut other = Other::child(phase, transport);
    other.say(&hex(&agent.metadata().unwrap()));
    add_anew(agent, &bytes(&other.hear()));
}

/// A process that dies in a phase, if that is what it is called.
pub(crate) fn die(name: &str, transport: &str) -> bool {
    let Some(phase) = PHASES.into_iter().find(|phase| *phase == name) else { return false };
    let (mut parent, mut peer) = (Other::Parent, ByHand::new(phase, transport, BYTES));
    parent.say(&hex(&peer.metadata(BYTES)));
    let arena = peer.meet(&bytes(&parent.hear()));
    let Ok(seconds) = parent.hear().parse() else { return true };
    let is_reached = reach(phase, &mut peer, arena, Duration::from_secs(seconds)).is_some();
    parent.say(if is_reached { "reached" } else { "too late" });
    // SAFETY: it takes no memory, and does not return.
    unsafe { libc::raise(libc::SIGKILL) };
    true
}

/// `None` if it takes too long.
fn reach(phase: &str, peer: &mut ByHand, arena: usize, limit: Duration) -> Option<()> {
    let begun = Instant::now();
    let waits = |mut is_there: Box<dyn FnMut() -> bool + '_>| {
        while !is_there() {
            if begun.elapsed() > limit {
                return None;
            }
            thread::yield_now();
        }
        Some(())
    };
    if let Some(reads) = phase.strip_prefix("reader, ") {
        let id = peer.hear_within(OFFER, limit)?.id;
        if reads != "has heard of the tree" {
            peer.say(ACCEPTED, id, &[0], &[]);
        }
        return match reads {
            "has its first bytes" => waits(Box::new(|| peer.byte(0) == 1)),
            "has all of it" => waits(Box::new(|| {
                peer.hear_within(WRITTEN, Duration::ZERO).is_some_and(|heard| heard.number == BYTES as u64)
            })),
            _ => Some(()),
        };
    }
    peer.say(OFFER, 1, &[BYTES as u64], &tree(BYTES).1);
    if phase == "writer, has offered it" {
        return Some(());
    }
    let to = arena + peer.hear_within(ACCEPTED, limit)?.number as usize;
    let bytes = if phase.contains("half") { BYTES / 2 } else { BYTES };
    if phase == "writer, may write" {
        return Some(());
    }
    let request = peer.write(to, bytes);
    if phase == "writer, has begun to write" {
        return Some(());
    }
    waits(Box::new(|| peer.has_ended(&request)))?;
    if phase.contains("half") {
        peer.say(WRITTEN, 1, &[bytes as u64], &[]);
    }
    Some(())
}
