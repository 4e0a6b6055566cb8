//! How peers are known, and forgotten.

use std::thread;
use std::time::Duration;

use transship_nixl::Error;

use crate::support::{LIMIT, Pair};
use crate::{agent, assert_works, pair_of, tensors};

/// Deliberate bug: what is said by an agent that is not known yet is ignored, and the tree is waited for in vain.
#[test]
fn a_tree_that_is_sent_before_its_sender_is_known_arrives() {
    let [sender, receiver] = ["early sender", "late to know it"].map(|name| agent(name, 1 << 20));
    let to = sender.add_peer(&receiver.metadata().unwrap()).unwrap();
    let sent = [1, 2].map(|byte| sender.start_send(&tensors(byte, 100), &to, LIMIT).unwrap());
    // Notifications are looked for before the sender is known.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(receiver.usage().ignored, 0);
    let from = receiver.add_peer(&sender.metadata().unwrap()).unwrap();
    for (byte, sent) in (1..).zip(sent) {
        let held = receiver.start_receive_into(tensors(0, 100), &from, LIMIT).unwrap().wait().unwrap();
        assert_eq!(held[0].as_slice::<u8>().unwrap(), [byte; 100]);
        sent.wait().unwrap();
    }
}

/// Deliberate bug: whoever waits for a tree of a peer that has gone keeps its name from the next one.
#[test]
fn a_peer_begins_anew_while_its_tree_is_waited_for() {
    let mut pair = pair_of("anew", [1 << 20; 2]);
    let waiting = pair.receiver.start_receive(&pair.from, LIMIT).unwrap();
    let into = pair.receiver.start_receive_into(tensors(7, 100), &pair.from, LIMIT).unwrap();
    pair.sender = agent("another", 4096);
    pair.sender = agent("sender of anew", 1 << 20);
    pair.from = pair.receiver.add_peer(&pair.sender.metadata().unwrap()).unwrap();
    pair.to = pair.sender.add_peer(&pair.receiver.metadata().unwrap()).unwrap();
    let error = waiting.wait().unwrap_err();
    assert!(
        matches!(error, Error::UnknownPeer { .. }) && error.to_string().contains("added anew"),
        "{error}"
    );
    let failed = into.wait().unwrap_err();
    assert!(matches!(*failed.error, Error::UnknownPeer { .. }), "{failed}");
    assert_eq!(failed.value.unwrap()[0].as_slice::<u8>().unwrap(), [7; 100]);
    assert_works(&pair);
}

/// What an agent of this name would give out, had the library given it this to know.
fn metadata(name: &str, of_library: &[u8]) -> Vec<u8> {
    let mut bytes = b"TSNA\x04".to_vec();
    for number in [0, 0, 4096, 4096, name.len() as u64] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&(of_library.len() as u64).to_le_bytes());
    bytes.extend_from_slice(of_library);
    // FNV-1a.
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, add);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Deliberate bugs: a peer is forgotten for one that the library does not take, or whose name is another one; one that cannot come back is still known.
#[test]
fn a_peer_stays_when_another_one_of_its_name_is_refused() {
    let pair = pair_of("refused", [1 << 20; 2]);
    let good = pair.receiver.metadata().unwrap();
    let cut = pair.sender.add_peer(&good[..good.len() - 9]).unwrap_err();
    assert!(matches!(cut, Error::Protocol { .. }), "{cut}");
    assert_works(&pair);
    let stranger = agent("stranger of refused", 4096);
    let name = "receiver of refused";
    let other = pair.sender.add_peer(&metadata(name, b"stranger of refused")).unwrap_err();
    assert!(matches!(other, Error::NotAdded { .. }), "{other}");
    assert_works(&pair);
    let unknown = pair.sender.add_peer(&metadata(name, b"nobody")).unwrap_err();
    assert!(matches!(unknown, Error::Nixl { .. }), "{unknown}");
    assert_works(&pair);
    // The stranger was not kept, nor is it in the way.
    pair.sender.add_peer(&stranger.metadata().unwrap()).unwrap();
    let Pair { sender, receiver, to, .. } = pair;
    drop(receiver);
    sender.add_peer(&metadata(name, b"nobody")).unwrap_err();
    let gone = sender.start_send(&tensors(1, 100), &to, LIMIT).unwrap_err();
    assert!(matches!(gone, Error::UnknownPeer { .. }), "{gone}");
}
