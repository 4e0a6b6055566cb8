//! Transfers that end without their tree.

use std::time::{Duration, Instant};

use transship::Tensor;
use transship_nixl::Error;

use crate::pair::{AMPLE, Pair};
use crate::trees::{assert_is, batch, empty_batch};

/// How much later than its deadline a transfer may end on a machine that does much else.
pub(crate) const LATE: Duration = Duration::from_secs(5);

/// Deliberate bugs: bytes are moved before trees are compared; only one side hears of it; the next transfer suffers.
pub(crate) fn send_other_trees(pair: &mut Pair) {
    let mut other = batch(1);
    other.cameras[3].insert("leaf 7".to_owned(), Tensor::from(vec![0_u8; 5]));
    let error = pair.agent.start_send(&other, &pair.peer, AMPLE).unwrap().wait().unwrap_err();
    assert!(matches!(&error, Error::Refused { peer, .. } if peer == "child"));
    assert!(error.to_string().contains(r#".cameras[3]["leaf 7"]"#), "{error}");
    pair.agent.start_send(&batch(2), &pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_eq!(pair.agent.usage().free, pair.agent.usage().registered);
}

pub(crate) fn receive_other_trees(pair: &mut Pair) {
    let failed = pair.agent.start_receive_into(batch_of(8), &pair.peer, AMPLE).unwrap().wait().unwrap_err();
    let Error::Transship(transship::Error::ManifestMismatch { path, own, other }) = *failed.error else {
        unreachable!("{}", failed.error)
    };
    assert_eq!((path.as_str(), other.as_str()), (r#".cameras[3]["leaf 7"]"#, "uint8 [5]"));
    assert!(own.starts_with("float32"), "{own}");
    let held = failed.value.unwrap();
    assert_is(&held, 8);
    let held = pair.agent.start_receive_into(held, &pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_is(&held, 2);
}

fn batch_of(seed: u32) -> crate::trees::Batch {
    let mut batch = batch(seed);
    batch.twice = (Tensor::from(vec![seed as u16; 33]), Tensor::from(vec![seed as u16; 33]));
    batch
}

/// Deliberate bugs: a transfer waits for ever; what was withdrawn is received all the same; memory that the peer was never told of is set aside.
pub(crate) fn send_to_nobody(pair: &mut Pair) {
    let begun = Instant::now();
    let limit = Duration::from_millis(300);
    let send = pair.agent.start_send(&batch(1), &pair.peer, limit).unwrap();
    let error = send.wait().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(begun.elapsed() >= limit && begun.elapsed() < limit + LATE);
    let usage = pair.agent.usage();
    assert_eq!((usage.set_aside, usage.free), (0, usage.registered));
    pair.other.say("late");
    pair.other.hear();
    pair.agent.start_send(&batch(3), &pair.peer, AMPLE).unwrap().wait().unwrap();
}

pub(crate) fn receive_late(pair: &mut Pair) {
    pair.other.hear();
    let begun = Instant::now();
    let limit = Duration::from_millis(300);
    let failed = pair.agent.start_receive_into(empty_batch(), &pair.peer, limit).unwrap().wait().unwrap_err();
    match *failed.error {
        Error::TimedOut { .. } => assert!(begun.elapsed() >= limit),
        // It has heard the offer before it heard that it is withdrawn.
        Error::Withdrawn { .. } => {}
        other => unreachable!("{other}"),
    }
    assert!(begun.elapsed() < limit + LATE);
    pair.other.say("heard");
    let held = pair.agent.start_receive_into(failed.value.unwrap(), &pair.peer, AMPLE).unwrap();
    assert_is(&held.wait().unwrap(), 3);
}

/// Deliberate bugs: a peer that was killed is waited for longer than the deadline; room that it had is never free again; one is added anew while the library writes to
/// the one before.
pub(crate) fn outlive(pair: &mut Pair) {
    let limit = Duration::from_millis(500);
    // It has had something and is to have more; it is written to; it writes.
    for phase in 0..3 {
        if phase > 0 {
            pair.meet_another();
        }
        pair.other.say(if phase == 2 { "send" } else { "receive" });
        pair.other.hear();
        let large = vec![Tensor::from(vec![1_u8; 40 << 20])];
        let transfer = || match phase {
            0 => pair.agent.start_send(&batch(1), &pair.peer, limit).unwrap().wait(),
            1 => pair.agent.start_send(&large, &pair.peer, limit).unwrap().wait(),
            _ => pair.agent.start_receive(&pair.peer, limit).unwrap().wait().map(drop),
        };
        if phase == 0 {
            pair.agent.start_send(&batch(1), &pair.peer, AMPLE).unwrap().wait().unwrap();
            pair.other.signal("-STOP");
        }
        let begun = Instant::now();
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                pair.other.signal("-KILL");
            });
            transfer()
        });
        assert!(begun.elapsed() < limit + LATE, "{:?}", begun.elapsed());
        // On a quick machine a large tree may have been through.
        assert!(ended.is_err() || phase > 0);
    }
    pair.meet_another();
    until(|| pair.agent.usage().set_aside == 0);
    assert_eq!(pair.agent.usage().free, pair.agent.usage().registered);
    pair.other.say("receive");
    pair.other.hear();
    pair.agent.start_send(&batch(1), &pair.peer, AMPLE).unwrap().wait().unwrap();
    pair.other.signal("-KILL");
}

pub(crate) fn be_killed(pair: &mut Pair) {
    let what = pair.other.hear();
    pair.other.say("ready");
    let large = vec![Tensor::from(vec![1_u8; 40 << 20])];
    loop {
        if what == "send" {
            let _ = pair.agent.start_send(&large, &pair.peer, AMPLE).unwrap().wait();
        } else {
            let _ = pair.agent.start_receive(&pair.peer, AMPLE).unwrap().wait();
        }
    }
}

/// Deliberate bugs: the library is not told that the peer of before has gone; what that one never answered is in the way; trees to that one go to where its memory was;
/// metadata that is refused takes the name for good.
pub(crate) fn send_to_two(pair: &mut Pair) {
    for seed in [5, 6] {
        if seed == 6 {
            let unheard = pair.agent.start_send(&batch(seed), &pair.peer, Duration::from_millis(100));
            assert!(unheard.unwrap().wait().is_err());
            let before = pair.peer.clone();
            pair.meet_another();
            let error = pair.agent.start_send(&batch(seed), &before, AMPLE).unwrap_err();
            assert!(matches!(error, Error::UnknownPeer { .. }), "{error}");
            assert_eq!(pair.agent.usage().free, pair.agent.usage().registered);
        }
        pair.agent.start_send(&batch(seed), &pair.peer, AMPLE).unwrap().wait().unwrap();
        pair.other.say(&seed.to_string());
        let held = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap();
        assert_is(&held.wait().unwrap(), seed);
    }
}

pub(crate) fn receive_one(pair: &mut Pair) {
    let held = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_is(&held, pair.other.hear().parse().unwrap());
    pair.agent.start_send(&held, &pair.peer, AMPLE).unwrap().wait().unwrap();
    // It hears nothing more, and lives.
    pair.other.hear();
}

/// Deliberate bug: a tree that is larger than the memory of either side writes behind its end.
pub(crate) fn send_too_much(pair: &mut Pair) {
    let large = |mebibytes: usize| vec![Tensor::from(vec![1_u8; mebibytes << 20])];
    let error = pair.agent.start_send(&large(65), &pair.peer, AMPLE).unwrap_err();
    assert!(matches!(error, Error::ArenaFull { .. }), "{error}");
    let error = pair.agent.start_send(&large(40), &pair.peer, AMPLE).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("are free"), "{error}");
    pair.agent.start_send(&large(20), &pair.peer, AMPLE).unwrap().wait().unwrap();
    // Peers that cannot be.
    let own = pair.agent.add_peer(&pair.agent.metadata().unwrap()).unwrap_err();
    assert!(matches!(own, Error::NotAdded { .. }), "{own}");
    for metadata in [&b""[..], b"TSNA\x04", b"TSNA\x03aaaaaaaabbbbbbbbcccccccc"] {
        let error = pair.agent.add_peer(metadata).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
}

pub(crate) fn receive_too_much(pair: &mut Pair) {
    // Half of it is in use.
    let nobody_receives = vec![Tensor::from(vec![1_u8; 30 << 20])];
    let _held = pair.agent.start_send(&nobody_receives, &pair.peer, AMPLE).unwrap();
    let error = pair.agent.start_receive(&pair.peer, LATE).unwrap().wait().unwrap_err();
    assert!(matches!(error, Error::ArenaFull { .. }), "{error}");
    pair.agent.start_receive(&pair.peer, AMPLE).unwrap().wait().unwrap();
}

pub(crate) fn until(mut what: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < AMPLE, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
