//! A peer that means harm: it has the library, and says what it likes.

use std::time::Duration;

use transship::{Manifest, Tensor};
use transship_nixl::{Error, Peer};

use crate::by_hand::{ACCEPTED, ByHand, DONE, OFFER, REFUSED, WITHDRAWN, WRITTEN, tree};
use crate::ends::until;
use crate::pair::{AMPLE, Pair, bytes, hex};
use crate::trees::{assert_is, batch, empty_batch};

/// What the memory of the hostile peer has, and what it says that it has.
const REGISTERED: usize = 1 << 20;
const CLAIMED: usize = 1 << 30;

/// How long what never comes is waited for.
const SHORT: Duration = Duration::from_millis(300);
const LATE: &str = "did not come within";
/// How long another tree is waited for where the first one never came.
const ANOTHER: Duration = Duration::from_secs(3);

/// What it offers, what it says once there is room, and the error that this is, or none.
type Lie = (u64, Vec<u8>, Vec<(u8, u64)>, Option<&'static str>);

fn lies() -> Vec<Lie> {
    let (_, manifest) = tree(100);
    let two = Manifest::of(&vec![Tensor::from(vec![1_u8; 60]), Tensor::from(vec![1_u8; 40])]).unwrap();
    let mut changed = manifest.clone();
    changed[8] ^= 1;
    vec![
        (100, b"TSMF".to_vec(), vec![], Some("manifest")),
        (100, changed, vec![], Some("manifest")),
        (99, manifest.clone(), vec![], Some("another size")),
        (u64::MAX, manifest.clone(), vec![], Some("another size")),
        (100, two.to_bytes().to_vec(), vec![], Some("one chunk")),
        (100, manifest.clone(), vec![(WITHDRAWN, 0)], Some("has withdrawn")),
        (100, manifest.clone(), vec![(WRITTEN, 99), (WITHDRAWN, 0)], Some("has withdrawn")),
        // It has written nothing: what was there before is taken for it.
        (100, manifest.clone(), vec![(WRITTEN, u64::MAX)], None),
        (100, manifest, vec![(WRITTEN, 100), (WITHDRAWN, 0)], None),
    ]
}

/// What it says to a tree of 100 bytes, and the error that this is, or none.
type Answer = (Vec<(u8, u64)>, Option<&'static str>);

fn answers() -> Vec<Answer> {
    vec![
        (vec![(DONE, 0)], Some("was not written yet")),
        (vec![(REFUSED, 0)], Some("has refused")),
        (vec![(ACCEPTED, u64::MAX - 10)], Some("does not lie")),
        (vec![(ACCEPTED, CLAIMED as u64 - 50)], Some("does not lie")),
        // It claims memory that is not there.
        (vec![(ACCEPTED, CLAIMED as u64 / 2)], Some("NIXL")),
        (vec![(ACCEPTED, 4096)], Some(LATE)),
        // The first room counts.
        (vec![(ACCEPTED, 8192), (ACCEPTED, 0), (WRITTEN, 100), (DONE, 0)], None),
    ]
}

/// Deliberate bugs: a lie is believed, hangs the agent, or spoils what honest peers send.
pub(crate) fn meet(pair: &mut Pair) {
    pair.other.say(&hex(&pair.agent.metadata().unwrap()));
    let liar = pair.agent.add_peer(&bytes(&pair.other.hear())).unwrap();
    for (number, (.., says, expected)) in lies().into_iter().enumerate() {
        pair.other.say("offer");
        let limit = if says == [(WITHDRAWN, 0)] { ANOTHER } else { AMPLE };
        let received = pair.agent.start_receive(&liar, limit).unwrap().wait();
        let received = received.map(|received| assert_eq!(received.manifest().len(), 1));
        judge(number, received, expected);
    }
    for (number, (_, expected)) in answers().into_iter().enumerate() {
        pair.other.say("answer");
        let limit = if expected == Some(LATE) { SHORT } else { AMPLE };
        judge(number, pair.agent.start_send(&tree(100).0, &liar, limit).unwrap().wait(), expected);
    }
    keep_room(pair, &liar);
    let before = pair.agent.usage();
    assert_eq!((before.free, before.set_aside), (before.registered, 0));
    pair.other.say("flood");
    pair.other.hear();
    honest(pair, &liar);
    assert_eq!(pair.agent.usage().free, before.registered);
    assert!(pair.agent.usage().ignored >= 3000);
}

fn judge<T: std::fmt::Debug>(number: usize, ended: Result<T, Error>, expected: Option<&str>) {
    match (ended, expected) {
        (Ok(_), None) => {}
        (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{number}: {error}"),
        (ended, _) => unreachable!("{number}: {ended:?}"),
    }
}

/// It never writes: the room that it has is set aside until it says that it never will.
fn keep_room(pair: &mut Pair, liar: &Peer) {
    pair.other.say("keep");
    until(|| {
        let error = pair.agent.start_receive(liar, SHORT).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains(LATE), "{error}");
        // Else the offer was not there yet.
        pair.agent.usage().set_aside == 1
    });
    assert_eq!(pair.agent.usage().set_aside_bytes, 100);
    pair.other.say("withdraw");
    until(|| pair.agent.usage().set_aside == 0);
}

fn honest(pair: &Pair, liar: &Peer) {
    let held = pair.agent.start_receive_into(empty_batch(), &pair.peer, AMPLE).unwrap().wait().unwrap();
    assert_is(&held, 4);
    // Of the flood no more is kept than may wait.
    let refused = pair.agent.start_receive(liar, AMPLE).unwrap().wait().unwrap_err();
    assert!(matches!(refused, Error::Transship(_)), "{refused}");
}

pub(crate) fn lie(pair: &mut Pair) {
    let mut liar = ByHand::new("liar", &pair.transport, REGISTERED);
    liar.meet(&bytes(&pair.other.hear()));
    let metadata = liar.metadata(CLAIMED);
    pair.other.say(&hex(&metadata));
    for (id, (bytes, manifest, says, _)) in (0..).zip(lies()) {
        assert_eq!(pair.other.hear(), "offer");
        liar.say(OFFER, id, &[bytes], &manifest);
        if !says.is_empty() {
            liar.hear(ACCEPTED);
        }
        says.into_iter().for_each(|(kind, number)| say(&mut liar, kind, id, number));
    }
    for (says, expected) in answers() {
        assert_eq!(pair.other.hear(), "answer");
        let id = liar.hear(OFFER).id;
        for (kind, number) in says {
            // Not its own word: it waits for that of the other side.
            if kind == WRITTEN {
                while liar.hear(WRITTEN).id != id {}
            } else {
                say(&mut liar, kind, id, number);
            }
        }
        if expected.is_none() {
            assert_eq!([0, 8191, 8192, 8291, 8292].map(|at| liar.byte(at)), [7, 7, 1, 1, 7]);
        }
    }
    assert_eq!(pair.other.hear(), "keep");
    liar.say(OFFER, 500, &[100], &tree(100).1);
    assert_eq!(pair.other.hear(), "withdraw");
    liar.say(WITHDRAWN, 500, &[], &[]);
    assert_eq!(pair.other.hear(), "flood");
    for id in 1000..2000 {
        liar.say(OFFER, id, &[1 << 40], b"flood");
        liar.say(ACCEPTED, id, &[0], &[]);
        let garbage = [&b"GET / HTTP/1.1"[..], b"TSNX\x02\x01", b"TSNX\x02\x04aaaaaaaa"];
        garbage.into_iter().for_each(|bytes| liar.say_bytes(bytes));
    }
    pair.other.say("flooded");
    pair.agent.start_send(&batch(4), &pair.peer, AMPLE).unwrap().wait().unwrap();
    pair.other.hear();
}

fn say(liar: &mut ByHand, kind: u8, id: u64, number: u64) {
    let numbers: &[u64] = if matches!(kind, ACCEPTED | WRITTEN) { &[number] } else { &[] };
    liar.say(kind, id, numbers, &[]);
}
