//! Arenas on the host, with a library whose agents are of this process (`fake`).

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use late_backend::{LateConfig, LateHandle};
use transship::{
    CopyOptions, CopyPolicy, DType, Device, Paths, Step, Stop, Tensor, TensorTree, Visitor, start_copy,
    start_copy_into,
};
use transship_nixl::{Agent, AgentOptions, Error, Failed};

mod support;

use support::{LIMIT, Pair, nixl};

/// Of what ends by its deadline alone.
const SHORT: Duration = Duration::from_millis(500);

fn agent(name: &str, arena_bytes: usize) -> Agent {
    Agent::new(&nixl(), name, AgentOptions::default().arena_bytes(arena_bytes)).unwrap()
}

fn tensors(byte: u8, bytes: usize) -> Vec<Tensor> {
    vec![Tensor::from(vec![byte; bytes])]
}

/// With arenas of so many bytes.
fn pair_of(name: &str, arenas: [usize; 2]) -> Pair {
    Pair::new(name, arenas.map(|bytes| AgentOptions::default().arena_bytes(bytes)))
}

/// A tree arrives.
fn assert_works(pair: &Pair) {
    assert_eq!(pair.pass(&tensors(5, 100), tensors(0, 100))[0].as_slice::<u8>().unwrap(), [5; 100]);
}

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

/// Deliberate bug: a tree that shares a part of itself with others is lost.
#[test]
fn a_tree_that_shares_a_part_comes_back() {
    let pair = pair_of("shared", [1 << 20; 2]);
    let shared = Arc::new(tensors(3, 100));
    let into = (tensors(0, 1000), Arc::clone(&shared));
    let sent = pair.sender.start_send(&(tensors(1, 1000), tensors(2, 100)), &pair.to, LIMIT).unwrap();
    let failed = pair.receiver.start_receive_into(into, &pair.from, LIMIT).unwrap().wait().unwrap_err();
    // Others read what would be filled.
    assert!(matches!(*failed.error, Error::Transship(_)), "{failed}");
    assert!(matches!(sent.wait(), Err(Error::Refused { .. })));
    assert_eq!(shared[0].as_slice::<u8>().unwrap(), [3; 100]);
    drop(shared);
    let sent = pair.sender.start_send(&(tensors(1, 1000), tensors(2, 100)), &pair.to, LIMIT).unwrap();
    let into = pair.receiver.start_receive_into(failed.value.unwrap(), &pair.from, LIMIT).unwrap();
    let (first, second) = into.wait().unwrap();
    assert_eq!(first[0].as_slice::<u8>().unwrap(), [1; 1000]);
    assert_eq!(second[0].as_slice::<u8>().unwrap(), [2; 100]);
    sent.wait().unwrap();
}

/// Shows other tensors than a visit finds.
struct Changing {
    shown: Vec<Tensor>,
    visited: Vec<Tensor>,
}

impl TensorTree for Changing {
    fn visit(&mut self, visitor: &mut Visitor<'_>) -> Result<(), Stop> {
        self.shown[0].visit(visitor)?;
        self.visited[0].visit(visitor)
    }

    fn show(&self, paths: &mut Paths<'_>) -> Result<(), Stop> {
        paths.nested(|paths| paths.part(Step::Field("shown"), &self.shown))
    }
}

/// Deliberate bug: tensors are taken out of a tree before it is known where all of them are.
#[test]
fn a_tree_that_changes_comes_back_as_it_was() {
    let pair = pair_of("changing", [1 << 20; 2]);
    let tree = Changing {
        shown: vec![Tensor::from(vec![1_u8; 4]), Tensor::from(vec![2_u8; 4])],
        visited: tensors(3, 4),
    };
    let failed = pair.receiver.start_receive_into(tree, &pair.from, LIMIT).unwrap_err();
    assert!(matches!(*failed.error, Error::Transship(transship::Error::TreeChanged { .. })), "{failed}");
    let tree = failed.value.unwrap();
    let all = [&tree.shown[0], &tree.shown[1], &tree.visited[0]].map(|tensor| tensor.to_vec::<u8>().unwrap());
    assert_eq!(all, [[1; 4], [2; 4], [3; 4]]);
    assert_works(&pair);
}

/// Deliberate bug: a receive that nobody waits for any more takes the tree of the next one.
#[test]
fn a_dropped_receive_takes_no_tree() {
    let pair = pair_of("dropped", [1 << 20; 2]);
    drop(pair.receiver.start_receive(&pair.from, LIMIT).unwrap());
    drop(pair.receiver.start_receive_into(tensors(0, 100), &pair.from, LIMIT));
    assert_works(&pair);
    let behind = pair.receiver.start_receive(&pair.from, LIMIT).unwrap();
    drop(pair.receiver.start_receive(&pair.from, LIMIT).unwrap());
    let sent = pair.sender.start_send(&tensors(1, 100), &pair.to, LIMIT).unwrap();
    behind.wait().unwrap();
    sent.wait().unwrap();
    assert_works(&pair);
}

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

/// Deliberate bugs: a tree that was given up before any of it was written ends the receive that has it; that takes none any more, or none before those behind it; held tensors stay where
/// they were for that tree.
#[test]
fn a_tree_that_never_came_is_none() {
    let pair = pair_of("given up", [64 << 20, 4 << 20]);
    // Memory of the receiver that leaves no room.
    let full = || {
        let sent = pair.sender.start_send(&tensors(9, 3 << 20), &pair.to, LIMIT).unwrap();
        let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap().wait().unwrap();
        sent.wait().unwrap();
        received
    };
    let give_up = |bytes| {
        let late = pair.sender.start_send(&tensors(8, bytes), &pair.to, SHORT).unwrap();
        let late = late.wait().unwrap_err();
        assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    };
    for size in [100, 2 << 20] {
        // Nobody has received it.
        give_up(size);
        assert_works(&pair);
        // Those that have received it wait for room.
        let kept = full();
        let first = pair.receiver.start_receive_into(tensors(0, 2 << 20), &pair.from, LIMIT).unwrap();
        let second = pair.receiver.start_receive_into(tensors(0, 3 << 20), &pair.from, LIMIT).unwrap();
        give_up(2 << 20);
        let sent: Vec<_> = [(1, 2 << 20), (2, 3 << 20)]
            .map(|(byte, bytes)| pair.sender.start_send(&tensors(byte, bytes), &pair.to, LIMIT).unwrap())
            .into();
        drop(kept);
        for (byte, received) in [(1, first), (2, second)] {
            let received = received.wait().unwrap();
            assert!(received[0].as_slice::<u8>().unwrap().iter().all(|one| *one == byte));
        }
        sent.into_iter().for_each(|sent| sent.wait().unwrap());
    }
    // Where nothing else comes, that is said; unless its thread had no processor while the tree was offered.
    let kept = full();
    let is_said = (0..5).any(|_| {
        let held = pair.receiver.start_receive_into(tensors(7, 2 << 20), &pair.from, 3 * SHORT).unwrap();
        give_up(2 << 20);
        let failed = held.wait().unwrap_err();
        assert!(failed.value.unwrap()[0].as_slice::<u8>().unwrap().iter().all(|one| *one == 7));
        matches!(*failed.error, Error::Withdrawn { .. })
    });
    assert!(is_said);
    drop(kept);
    assert_works(&pair);
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

/// A device, simulated, that does nothing while it is stalled.
fn late(name: &'static str) -> (LateHandle, Device) {
    let late = late_backend::install(LateConfig::new(name)).unwrap();
    (late, Device::open(format!("{name}:0").parse().unwrap()).unwrap())
}

/// Until it is released, at the latest when a transfer that waits for it without end would be one.
fn stall(late: &LateHandle) {
    late.stall();
    let late = late.clone();
    thread::spawn(move || {
        thread::sleep(LIMIT / 2);
        late.release();
    });
}

fn assert_names(error: &Error, words: [&str; 2]) {
    assert!(matches!(error, Error::DeviceLate { .. }), "{error}");
    assert!(words.into_iter().all(|word| error.to_string().contains(word)), "{error}");
}

/// Deliberate bug: a transfer waits for a device without end.
#[test]
fn a_send_from_a_late_device_ends_by_its_deadline() {
    let pair = pair_of("late source", [1 << 20; 2]);
    let (late, device) = late("source");
    let tree = start_copy(tensors(1, 1000), &device, CopyOptions::default()).unwrap().wait().unwrap();
    stall(&late);
    let begun = Instant::now();
    let waited = pair.sender.start_send(&tree, &pair.to, SHORT).unwrap().wait().unwrap_err();
    assert_names(&waited, ["packing", "source:0"]);
    let awaited = pair.sender.start_send(&tree, &pair.to, SHORT).unwrap();
    assert_names(&futures::executor::block_on(awaited).unwrap_err(), ["packing", "source:0"]);
    assert!(begun.elapsed() < LIMIT / 2);
    late.release();
    let sent = pair.sender.start_send(&tree, &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(tensors(0, 1000), &pair.from, LIMIT).unwrap();
    assert_eq!(received.wait().unwrap()[0].as_slice::<u8>().unwrap(), [1; 1000]);
    sent.wait().unwrap();
    assert!(late.violations().is_empty());
}

/// Deliberate bugs: a transfer waits for a device without end; held memory is lost with it; room that the device still reads is used again.
#[test]
fn a_receive_onto_a_late_device_ends_by_its_deadline() {
    let pair = pair_of("late target", [1 << 20; 2]);
    let (late, device) = late("target");
    let held = vec![Tensor::zeros(&[1000], DType::U8, &device).unwrap()];
    let address = held[0].address().unwrap();
    stall(&late);
    let begun = Instant::now();
    let sent = pair.sender.start_send(&tensors(1, 1000), &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(held, &pair.from, SHORT).unwrap();
    let failed = received.wait().unwrap_err();
    assert_names(&failed.error, ["unpacking", "target:0"]);
    let refused = sent.wait().unwrap_err();
    assert!(refused.to_string().contains("target:0"), "{refused}");
    assert!(begun.elapsed() < LIMIT / 2);
    let mut freed = failed.value.unwrap();
    late.release();
    // Until the device has come by the copy that was given up, its memory is in use.
    let begun = Instant::now();
    let held = loop {
        match start_copy_into(tensors(0, 1000), freed, CopyOptions::default()) {
            Ok(copy) => break copy.wait().unwrap(),
            Err(failed) => freed = failed.into_both().1.unwrap(),
        }
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(1));
    };
    let sent = pair.sender.start_send(&tensors(2, 1000), &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap().wait().unwrap();
    sent.wait().unwrap();
    assert_eq!(received[0].address().unwrap(), address);
    let down = start_copy(received, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(down[0].to_vec::<u8>().unwrap(), [2; 1000]);
    assert!(late.violations().is_empty());
}

/// Large ones that are cut, what lies between them, and two whose elements do not lie in one run.
fn cut_and_whole(seed: u8) -> Vec<Tensor> {
    let words = |count: usize| -> Vec<u32> {
        (0..count as u32).map(|word| word.wrapping_mul(2_654_435_761) ^ u32::from(seed)).collect()
    };
    vec![
        Tensor::from_vec(words(3 << 20), &[3, 1 << 10, 1 << 10]).unwrap(),
        Tensor::from(vec![seed; 3]),
        Tensor::from(vec![seed; (5 << 20) + 7]),
        Tensor::from_vec(words(1 << 20), &[1 << 10, 1 << 10]).unwrap().transpose(0, 1).unwrap(),
        Tensor::from(words(2 << 20)).slice(0, 0..2 << 20, 2).unwrap(),
        Tensor::from(Vec::<f64>::new()),
    ]
}

/// Why a receive into `held` fails, whose memory cannot be filled.
fn refused(pair: &Pair, held: Vec<Tensor>) -> Failed<Vec<Tensor>> {
    let sent = pair.sender.start_send(&cut_and_whole(1), &pair.to, LIMIT).unwrap();
    let refused = pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap().wait().unwrap_err();
    sent.wait().unwrap_err();
    refused
}

/// Tensors of the host that a late device was to fill.
fn failed(late: &LateHandle, device: &Device, held: Vec<Tensor>) -> Vec<Tensor> {
    let source = start_copy(held.clone(), device, CopyOptions::default()).unwrap().wait().unwrap();
    let held = held.into_iter().map(|tensor| Tensor::zeros(tensor.shape(), tensor.dtype(), &Device::host()));
    let held: Vec<Tensor> = held.collect::<Result<_, _>>().unwrap();
    stall(late);
    let options = CopyOptions::default().deadline(Duration::from_millis(10));
    let failed = start_copy_into(source, held, options).unwrap().wait().unwrap_err();
    late.release();
    let held = failed.into_both().1.unwrap();
    assert!(held.iter().all(|tensor| tensor.is_ready().is_err() || tensor.numel() == 0));
    held
}

fn assert_is(held: &[Tensor], seed: u8) {
    for (number, (held, expected)) in held.iter().zip(cut_and_whole(seed)).enumerate() {
        assert_eq!((held.shape(), held.strides()), (expected.shape(), expected.strides()), "{number}");
        assert!(held.to_bytes().unwrap() == expected.to_bytes().unwrap(), "{number}: wrong bytes");
    }
}

fn addresses(held: &[Tensor]) -> Vec<Option<u64>> {
    held.iter().map(|tensor| tensor.address().unwrap()).collect()
}

/// Deliberate bugs: parts of a tensor change places, or lie elsewhere; it comes back in another shape; it cannot be cut twice; a tensor with gaps is cut as if it had none.
#[test]
fn large_tensors_are_filled_in_parts_where_they_lie() {
    let pair = pair_of("parts", [32 << 20; 2]);
    let mut held = cut_and_whole(0);
    let before = addresses(&held);
    for seed in 1..4 {
        held = pair.pass(&cut_and_whole(seed), held);
        assert_is(&held, seed);
        assert_eq!(addresses(&held), before);
    }
    assert_eq!(held.remove(0).into_vec::<u32>().unwrap().len(), 3 << 20);
}

/// Deliberate bugs: held memory is lost with a receive that gets no tree, or in another shape where it cannot be cut.
#[test]
fn large_held_memory_comes_back_from_a_receive_that_fails() {
    let pair = pair_of("comes back", [32 << 20; 2]);
    let (held, shared) = (cut_and_whole(0), cut_and_whole(0));
    let clones: Vec<Tensor> = shared.to_vec();
    let before = [addresses(&held), addresses(&shared)];
    let late =
        pair.receiver.start_receive_into(held, &pair.from, Duration::ZERO).unwrap().wait().unwrap_err();
    assert!(matches!(*late.error, Error::TimedOut { .. }), "{late}");
    // What others hold is neither written nor cut.
    let refused = refused(&pair, shared);
    assert!(refused.error.to_string().contains("shared with another tensor"), "{refused}");
    assert_is(&clones, 0);
    drop(clones);
    for (failed, before) in [late, refused].into_iter().zip(before) {
        let held = failed.value.unwrap();
        assert_eq!(addresses(&held), before);
        assert_is(&pair.pass(&cut_and_whole(2), held), 2);
    }
}

/// Deliberate bugs: an error names a tensor by its number in the copy of a piece; a tensor that was cut is lost with a transfer that ends in the middle.
#[test]
fn held_memory_that_cannot_be_filled_is_named_as_in_the_tree() {
    let pair = pair_of("named", [32 << 20; 2]);
    let held = cut_and_whole(0);
    let (shared, before) = (held[2].clone(), addresses(&held));
    let refused = refused(&pair, held);
    assert!(refused.error.to_string().starts_with("[2] to copy into: "), "{refused}");
    // What was filled in parts before that comes back as it was handed in.
    drop(shared);
    let held = refused.value.unwrap();
    assert_eq!(addresses(&held), before);
    assert_is(&pair.pass(&cut_and_whole(2), held), 2);
}

/// Deliberate bugs: tensors of one memory are filled by several copies, each of which finds that the others hold it; by a copy that comes before their bytes.
#[test]
fn tensors_of_one_memory_are_filled_together() {
    let pair = pair_of("together", [32 << 20; 2]);
    let tree = |seed: u8| -> Vec<Tensor> {
        let mut tree: Vec<Tensor> =
            (0..80_u8).map(|number| Tensor::from(vec![number.wrapping_mul(3) ^ seed; 50_000])).collect();
        tree.push(Tensor::from(vec![seed; 6 << 20]));
        tree
    };
    let options = CopyOptions::default().policy(CopyPolicy::Always);
    let mut held = start_copy(tree(0), &Device::host(), options).unwrap().wait().unwrap();
    assert!(held[0].shares_memory_with(&held[79]) && !held[0].shares_memory_with(&held[80]));
    let before = addresses(&held);
    for seed in 1..8 {
        held = pair.pass(&tree(seed), held);
        for (held, expected) in held.iter().zip(tree(seed)) {
            assert!(held.to_bytes().unwrap() == expected.to_bytes().unwrap());
        }
        assert_eq!(addresses(&held), before);
    }
}

/// Deliberate bug: a view without elements is left where it is, and holds the memory that is filled.
#[test]
fn views_without_elements_are_filled_with_their_memory() {
    let pair = pair_of("nothing", [1 << 20; 2]);
    let held = || {
        let whole = Tensor::from(vec![0_u8; 8]);
        let lone = Tensor::from(Vec::<u8>::new());
        vec![
            whole.narrow(0, 0, 4).unwrap(),
            whole.narrow(0, 4, 4).unwrap(),
            whole.narrow(0, 4, 0).unwrap(),
            lone,
        ]
    };
    let tree: Vec<Tensor> = held().iter().map(|one| Tensor::from(vec![6_u8; one.numel()])).collect();
    let held = pair.pass(&tree, held());
    for (held, tree) in held.iter().zip(&tree) {
        assert_eq!(held.to_bytes().unwrap(), tree.to_bytes().unwrap());
    }
    assert!(held[0].shares_memory_with(&held[1]));
    // Nothing arrives at all.
    let nothing = |held: &[Tensor]| held[2..].to_vec();
    assert_eq!(pair.pass(&nothing(&tree), nothing(&held)).len(), 2);
}

/// Deliberate bug: a tensor that is all of its memory is filled apart from an empty view of it.
#[test]
fn a_view_without_elements_and_all_of_its_memory_are_filled_together() {
    let pair = pair_of("all and nothing", [64 << 20; 2]);
    let filler = |byte: u8| Tensor::from(vec![byte; 12 << 20]);
    for bytes in [1000, 9 << 20] {
        for (at, empty_first) in [(0, true), (bytes / 2, true), (bytes, true), (0, false), (bytes, false)] {
            let held = |byte: u8| {
                let whole = Tensor::from(vec![byte; bytes]);
                let empty = whole.narrow(0, at, 0).unwrap();
                let [first, last] = if empty_first { [empty, whole] } else { [whole, empty] };
                vec![first, filler(byte), last]
            };
            for byte in 1..4 {
                let tree: Vec<Tensor> =
                    held(byte).iter().map(|one| Tensor::from(one.to_bytes().unwrap())).collect();
                let filled = pair.pass(&tree, held(0));
                assert!(
                    filled.iter().all(|one| one.as_slice::<u8>().unwrap().iter().all(|found| *found == byte))
                );
                assert!(filled[0].shares_memory_with(&filled[2]));
            }
        }
    }
}

/// Deliberate bug: `run_of` looks at the first tensor alone that lies in the memory of all parts.
#[test]
fn views_without_elements_are_filled_with_their_part_of_a_tensor() {
    let pair = pair_of("neighbours", [64 << 20; 2]);
    let held = |byte: u8, is_cut: bool| {
        let parts = Tensor::from(vec![byte; 3000]).split(0, &[1000; 3]).unwrap();
        let cut = |part: usize, at: usize, bytes: usize| parts[part].narrow(0, at, bytes).unwrap();
        let mut tree: Vec<Tensor> =
            (0..3).flat_map(|part| [0, 500, 1000].map(|at| cut(part, at, 0))).collect();
        let sizes: &[usize] = if is_cut { &[100, 300, 600] } else { &[1000] };
        let mut at = 0;
        for bytes in sizes {
            tree.extend((0..3).rev().map(|part| cut(part, at, *bytes)));
            tree.push(Tensor::from(vec![byte; 5 << 20]));
            at += bytes;
        }
        tree.push(cut(2, 7, 0));
        tree
    };
    for (byte, is_cut) in (1..7).zip([true, false].into_iter().cycle()) {
        let tree = held(byte, is_cut);
        let tree: Vec<Tensor> = tree.iter().map(|one| Tensor::from(one.to_bytes().unwrap())).collect();
        let filled = pair.pass(&tree, held(0, is_cut));
        assert!(filled.iter().all(|one| one.as_slice::<u8>().unwrap().iter().all(|found| *found == byte)));
    }
}

/// Deliberate bugs: a tree is packed as the one before it, though it looks otherwise; one that shares no memory has one place for two tensors, as the one before had.
#[test]
fn trees_are_packed_as_they_look_and_not_as_the_one_before() {
    let pair = pair_of("looks", [1 << 20; 2]);
    let tensor =
        |byte: u8, shape: &[usize]| Tensor::from(vec![byte; shape.iter().product()]).reshape(shape).unwrap();
    let tied = |byte: u8| {
        let one = tensor(byte, &[2, 3]);
        vec![one.clone(), one]
    };
    let transposed = |byte: u8| {
        let bytes: Vec<u8> = (byte..byte + 6).collect();
        vec![Tensor::from(bytes).reshape(&[2, 3]).unwrap().transpose(0, 1).unwrap(), tensor(byte, &[2])]
    };
    let looks: [&dyn Fn(u8) -> Vec<Tensor>; 7] = [
        &|byte| vec![tensor(byte, &[2, 3]), tensor(byte + 1, &[2, 3])],
        &tied,
        &|byte| vec![tensor(byte, &[3, 2]), tensor(byte + 1, &[2])],
        &transposed,
        &|byte| vec![tensor(byte, &[7])],
        &|byte| vec![tensor(byte, &[7]), tensor(byte, &[0]), tensor(byte + 1, &[7])],
        &|_| Vec::new(),
    ];
    // Some looks come again at once, some behind others, and some when they are forgotten.
    for (turn, look) in
        (0..3).flat_map(|_| [1, 0, 0, 1, 0, 1, 1, 2, 3, 2, 3, 4, 5, 6, 4, 5, 0, 1]).enumerate()
    {
        let tree = looks[look](turn as u8);
        let held = tree.iter().map(|one| Tensor::zeros(one.shape(), DType::U8, &Device::host()).unwrap());
        let filled = pair.pass(&tree, held.collect::<Vec<_>>());
        for (filled, sent) in filled.iter().zip(&tree) {
            assert_eq!(
                filled.to_bytes().unwrap(),
                sent.contiguous().unwrap().to_bytes().unwrap(),
                "turn {turn}"
            );
        }
    }
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

/// Deliberate bugs: memory that a copy has failed to fill is cut, and lost with a receive that fails; what cannot be sent is named by its number in a piece.
#[test]
fn what_a_copy_has_failed_to_fill_is_kept_and_named() {
    let pair = pair_of("failed", [32 << 20; 2]);
    let (late, device) = late("failing");
    let mut held = failed(&late, &device, cut_and_whole(0));
    // The first piece fails, and no part of the others is filled.
    held[0] = Tensor::zeros(held[0].shape(), held[0].dtype(), &Device::host()).unwrap();
    let (shared, before) = (held[0].clone(), addresses(&held));
    let mut held = refused(&pair, held).value.unwrap();
    assert_eq!(addresses(&held), before);
    drop(shared);
    let mut tree = cut_and_whole(1);
    tree[3] = held[3].clone();
    let sent = pair.sender.start_send(&tree, &pair.to, LIMIT).unwrap();
    let received = pair.receiver.start_receive(&pair.from, LIMIT).unwrap();
    let error = sent.wait().unwrap_err();
    assert!(error.to_string().starts_with("[3] to copy: "), "{error}");
    // It may not have heard of that tree, and would take the next one.
    drop((received, tree));
    // Who carried the copy that was late lets go of the memory in his own time.
    let begun = Instant::now();
    let received = loop {
        let sent = pair.sender.start_send(&cut_and_whole(2), &pair.to, LIMIT).unwrap();
        match pair.receiver.start_receive_into(held, &pair.from, LIMIT).unwrap().wait() {
            Ok(received) => break received,
            Err(failed) => held = failed.value.unwrap(),
        }
        sent.wait().unwrap_err();
        assert!(begun.elapsed() < LIMIT);
    };
    let bytes = |tensors: &[Tensor]| tensors.iter().map(|one| one.to_bytes().unwrap()).collect::<Vec<_>>();
    assert!(bytes(&received) == bytes(&cut_and_whole(2)));
}
