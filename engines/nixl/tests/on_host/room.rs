//! Trees for which an arena has no room, for a time or for ever.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use transship::Tensor;
use transship_nixl::Error;

use crate::support::LIMIT;
use crate::{SHORT, assert_works, pair_of, tensors};

/// Deliberate bugs: a receive asks for room once; a later one takes the room that an earlier one waits for.
#[test]
fn receives_wait_for_room_in_their_order() {
    const BYTES: usize = 3 << 20;
    let pair = pair_of("room", [64 << 20, 8 << 20]);
    // The third one waits for room that only the program sets free.
    let receives: Vec<_> = (0..6).map(|_| pair.receiver.start_receive(&pair.from, LIMIT).unwrap()).collect();
    // A tree that had room at once is behind those that have none.
    let bytes = |number: u8| if number == 5 { 100 } else { BYTES };
    let send = |number| pair.sender.start_send(&tensors(number, bytes(number)), &pair.to, LIMIT).unwrap();
    let sends: Vec<_> = (0..6).map(send).collect();
    let mut held = Vec::new();
    for (number, receive) in (0..).zip(receives) {
        let received = receive.wait().unwrap();
        let mut shown = tensors(0, bytes(number));
        received.put_into(&mut shown).unwrap();
        held.push((shown, received));
        if number == 1 {
            thread::sleep(SHORT);
            assert!(
                sends[0].is_ready() && sends[1].is_ready() && !sends[2].is_ready() && !sends[5].is_ready()
            );
        }
        if number > 0 {
            held.clear();
        }
    }
    sends.into_iter().for_each(|send| send.wait().unwrap());
    let usage = pair.receiver.usage();
    assert_eq!((usage.free, usage.set_aside), (usage.registered, 0));
}

/// Deliberate bug: trees that are unpacked one after the other do not fit one after the other.
#[test]
fn more_trees_than_fit_at_once_go_into_held_memory() {
    const BYTES: usize = 3 << 20;
    let pair = pair_of("many", [64 << 20, 4 << 20]);
    let sends: Vec<_> =
        (1..7).map(|byte| pair.sender.start_send(&tensors(byte, BYTES), &pair.to, LIMIT).unwrap()).collect();
    let into = |_| pair.receiver.start_receive_into(tensors(0, BYTES), &pair.from, LIMIT).unwrap();
    let receives: Vec<_> = (1..7).map(into).collect();
    for (byte, receive) in (1..).zip(receives) {
        assert_eq!(receive.wait().unwrap()[0].as_slice::<u8>().unwrap(), vec![byte; BYTES]);
    }
    sends.into_iter().for_each(|send| send.wait().unwrap());
}

/// Deliberate bugs: two agents whose own trees take each other's room wait for ever; a tree that never has room is waited for.
#[test]
fn who_waits_for_room_that_does_not_come_ends_by_the_deadline() {
    let pair = pair_of("both", [4 << 20; 2]);
    let (begun, large) = (Instant::now(), tensors(1, 5 << 19));
    let fro = pair.receiver.start_send(&large, &pair.from, LIMIT).unwrap();
    // The one that sends is the first to end.
    let to = pair.sender.start_send(&large, &pair.to, SHORT).unwrap();
    let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap();
    let late = to.wait().unwrap_err();
    assert!(matches!(late, Error::TimedOut { what: "room at the receiver", .. }), "{late}");
    let behind = pair.sender.start_send(&tensors(2, 100), &pair.to, LIMIT).unwrap();
    assert_eq!(received.wait().unwrap().manifest().chunks(), [100]);
    behind.wait().unwrap();
    // The one that receives is; what its end sets free is room for the other tree.
    let to = pair.sender.start_send(&large, &pair.to, LIMIT).unwrap();
    let other = pair.sender.start_receive(&pair.to, LIMIT).unwrap();
    let full = pair.receiver.start_receive(&pair.from, SHORT).unwrap().wait().unwrap_err();
    assert!(matches!(full, Error::ArenaFull { asked, bytes: 0x40_0000, .. } if asked == 5 << 19), "{full}");
    let refused = to.wait().unwrap_err();
    assert!(refused.to_string().contains("are free of 4194304"), "{refused}");
    other.wait().unwrap();
    fro.wait().unwrap();
    assert!(begun.elapsed() >= 2 * SHORT && begun.elapsed() < LIMIT / 2);
    let never = pair_of("never", [8 << 20, 4 << 20]);
    let sent = never.sender.start_send(&tensors(1, 5 << 20), &never.to, LIMIT).unwrap();
    let error = never.receiver.start_receive(&never.from, LIMIT).unwrap().wait().unwrap_err();
    assert!(matches!(error, Error::ArenaFull { .. }), "{error}");
    assert!(matches!(sent.wait().unwrap_err(), Error::Refused { .. }) && begun.elapsed() < LIMIT / 2);
    assert_works(&never);
}

/// Deliberate bug: it is cut into pieces first, which takes all memory that there is.
#[test]
fn a_view_of_more_bytes_than_there_are_finds_no_room() {
    let pair = pair_of("huge", [1 << 20; 2]);
    let huge = Tensor::from(vec![1.5_f32]).as_strided(&[1 << 26, 1 << 24], &[0, 0], 0).unwrap();
    let full = pair.sender.start_send(&huge, &pair.to, LIMIT).unwrap_err();
    assert!(matches!(full, Error::ArenaFull { asked, .. } if asked == 1 << 52), "{full}");
    assert_works(&pair);
}

/// Deliberate bug: the receiver refuses it, and waits on.
#[test]
fn a_manifest_that_no_peer_keeps_is_an_error_of_its_send() {
    let pair = pair_of("long", [1 << 20; 2]);
    let key = |number: usize| format!("{number}{}", "k".repeat(1 << 20));
    let tree: BTreeMap<String, Tensor> = (0..65).map(|number| (key(number), Tensor::scalar(1_u8))).collect();
    let error = pair.sender.start_send(&tree, &pair.to, LIMIT).unwrap().wait().unwrap_err();
    assert!(matches!(error, Error::ManifestTooLong { bytes, limit } if bytes > limit), "{error}");
    assert_works(&pair);
}
