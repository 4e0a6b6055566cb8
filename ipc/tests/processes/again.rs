//! Trees of one look, one after the other: they come in memory that the importer has mapped already.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recvmsg, send, shutdown,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use transship_core::{CopyOptions, Device, Error, Tensor, TensorTree, start_copy};
use transship_ipc::{Connection, Exporter, Importer, IpcError};

use crate::exported::pair;
use crate::hostile_exporter::{self, SEALS, Sent, hearing, listening, manifest, tree};
use crate::hostile_loader::{message, socket};
use crate::lent::{SHORT, shared};
use crate::support::{LONG, batch, case, compare, cuda_case, devices, eventually, folder, like};
use crate::tree_child::{on, tree_of};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("trees_of_one_look_come_in_one_memory", trees_of_one_look_come_in_one_memory),
        case("memory_is_filled_again_once_its_tree_is_back", || filled_again_once_back(&Device::host())),
        case("trees_that_look_otherwise_are_no_other_trees", || trees_that_look_otherwise(&Device::host())),
        case("memory_of_trees_that_look_otherwise_goes", memory_of_trees_that_look_otherwise_goes),
        case("memory_that_comes_back_late_goes", memory_that_comes_back_late_goes),
        case("an_offer_is_of_its_own_tree", an_offer_is_of_its_own_tree),
        case("importers_that_lie_about_memory_are_sent_away", importers_that_lie_about_memory),
        case(
            "an_importer_that_listens_no_more_keeps_what_it_has",
            one_that_listens_no_more_keeps_what_it_has,
        ),
        case(
            "an_importer_that_ends_while_memory_is_filled_keeps_the_rest",
            one_that_ends_while_memory_is_filled,
        ),
        case("exporters_that_lie_about_memory_are_left", exporters_that_lie_about_memory),
        case("memory_that_is_closed_stays_with_its_tensors", memory_that_is_closed_stays),
        case("a_forked_child_gives_no_memory_back", a_forked_child_gives_no_memory_back),
        case("trees_are_put_as_they_come", || trees_are_put_as_they_come(&Device::host())),
        case("what_is_prepared_is_put_for_its_own_tree_alone", what_is_prepared_is_put_for_its_own_tree),
        case("a_tree_that_does_not_fit_waits", a_tree_that_does_not_fit_waits),
        cuda_case("cuda_trees_are_put_as_they_come", trees_are_put_as_they_come),
        cuda_case("cuda_memory_is_filled_again_once_its_tree_is_back", filled_again_once_back),
        cuda_case("cuda_trees_that_look_otherwise_are_no_other_trees", trees_that_look_otherwise),
        cuda_case("cuda_trees_that_lie_otherwise_are_no_other_trees", trees_that_lie_otherwise),
        cuda_case("cuda_memory_of_trees_that_lie_otherwise_goes", memory_of_trees_that_lie_otherwise_goes),
        cuda_case("cuda_memory_that_lasts_goes_with_either_end", memory_goes_with_either_end),
    ]
}

/// What an exporter says next, and whether a descriptor comes with it: its kind and its first word.
fn heard(socket: &OwnedFd) -> (u8, u64, bool) {
    set_socket_timeout(socket, Timeout::Recv, Some(LONG)).unwrap();
    let (mut bytes, mut space) = ([0; 40], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    assert_eq!(recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap().bytes, 40);
    let came = control.drain().count() > 0;
    (bytes[5], u64::from_le_bytes(bytes[8..16].try_into().unwrap()), came)
}

fn say(socket: &OwnedFd, kind: u8, ticket: u64) {
    let _ = send(socket, &message(kind, [ticket, 0, 0, 0]), SendFlags::NOSIGNAL);
}

/// An exporter, and the socket of an importer that is played.
fn played() -> (Connection, OwnedFd) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let socket = socket(&path);
    (exporter.accept_within(LONG).unwrap(), socket)
}

const OFFER: u8 = 6;
const RELEASED: u8 = 7;
const POOL: u8 = 8;
const OFFER_IN_POOL: u8 = 9;
const AGAIN: u8 = 13;
const CLOSE: u8 = 14;
const LASTING: u8 = 15;
const LASTING_IN_POOL: u8 = 16;
const BACK: u8 = 17;

/// Deliberate bug: memory lasts from the first tree on, of which there may be no other.
fn trees_of_one_look_come_in_one_memory() {
    let (mut connection, importer) = played();
    let mut export = |number: u64| connection.export(&batch(9 * number)).unwrap();
    export(0);
    assert_eq!(heard(&importer), (OFFER, 0, true));
    let second = export(1);
    assert_eq!(heard(&importer), (LASTING, 1, true));
    // It is not back.
    export(2);
    assert_eq!(heard(&importer), (LASTING, 2, true));
    say(&importer, BACK, 1);
    second.wait_released(LONG).unwrap();
    for number in 3..6 {
        let offer = export(number);
        assert_eq!(heard(&importer), (AGAIN, 1, false));
        assert!(!offer.is_released());
        say(&importer, BACK, 1);
        offer.wait_released(LONG).unwrap();
    }
    // Trees look otherwise.
    connection.export(&batch(1)).unwrap();
    assert_eq!(heard(&importer), (CLOSE, 1, false));
    assert_eq!(heard(&importer).0, OFFER);
    assert_eq!(connection.lent(), 3);
    say(&importer, RELEASED, 1);
    say(&importer, RELEASED, 0);
    eventually("it has heard that", || connection.lent() == 2);
}

/// catches: 610-filled-before-it-is-back
fn filled_again_once_back(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let mut kept = Vec::new();
    for number in (0..40).map(|number| 9 * number) {
        let there = if device.is_host() { batch(number) } else { on(number, device) };
        let offer = connection.export(&there).unwrap();
        let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), number);
        match number % 4 {
            0 if kept.len() < 6 => kept.push((number, tree, offer)),
            _ => {
                compare(tree, number);
                offer.wait_released(LONG).unwrap();
            }
        }
    }
    for (number, tree, offer) in kept {
        assert!(!offer.is_released());
        compare(tree, number);
        offer.wait_released(LONG).unwrap();
    }
}

/// Exports it twice and more, and looks at what comes.
fn goes<S: TensorTree + Clone>(
    (connection, importer): &mut (Connection, Importer),
    device: &Device,
    tree: &S,
    bytes: impl Fn(&S) -> Vec<Vec<u8>>,
) {
    let expected = bytes(tree);
    let source = start_copy(tree.clone(), device, CopyOptions::default()).unwrap().wait().unwrap();
    for _ in 0..3 {
        let offer = connection.export(&source).unwrap();
        let mut filled = tree.clone();
        importer.next_within(LONG).unwrap().unwrap().put_into(&mut filled).unwrap();
        let host = start_copy(filled, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        assert_eq!(bytes(&host), expected);
        drop(host);
        offer.wait_released(LONG).unwrap();
    }
}

/// catches: 611-taken-for-the-last-tree
fn trees_that_look_otherwise(device: &Device) {
    let (_folder, path) = folder();
    let mut ends = pair(&path, device);
    let all = |tree: &Vec<Tensor>| tree.iter().map(|tensor| tensor.to_bytes().unwrap()).collect();
    let of = |first: u8| Tensor::from_vec((first..first + 60).collect(), &[6, 10]).unwrap();
    let (one, other) = (of(1), of(101));
    let mut go = |tree: Vec<Tensor>| goes(&mut ends, device, &tree, all);
    go(vec![one.clone(), other.clone()]);
    // The same once more, but for what it shares, its strides, its bytes, its order.
    go(vec![one.clone(), one.clone()]);
    go(vec![one.clone(), other.transpose(0, 1).unwrap().transpose(0, 1).unwrap()]);
    go(vec![of(7), of(90)]);
    let strided = Tensor::from_vec((0..120).collect::<Vec<u8>>(), &[10, 12]).unwrap();
    let (turned, narrow) =
        (strided.narrow(1, 0, 6).unwrap().transpose(0, 1).unwrap(), strided.narrow(0, 4, 6));
    go(vec![turned, narrow.unwrap().narrow(1, 1, 10).unwrap()]);
    go(vec![other.clone(), one.clone()]);
    // Fewer, more, of another shape, of another type, without elements.
    go(vec![one.clone()]);
    go(vec![one.clone(), other.clone(), of(50)]);
    go(vec![one.clone(), other.reshape(&[10, 6]).unwrap()]);
    go(vec![one.clone(), Tensor::from(vec![5_i8; 60]).reshape(&[6, 10]).unwrap()]);
    go(vec![one.clone(), Tensor::from(Vec::<u8>::new())]);
    go(vec![]);
    // Other names for what is otherwise the same, with nothing else between.
    for names in [["a", "b"], ["a", "c"], ["b", "c"], ["a", "b"]] {
        let tree = BTreeMap::from([(names[0], of(3)), (names[1], of(60))]);
        goes(&mut ends, device, &tree, |tree| {
            tree.values().map(|tensor| tensor.to_bytes().unwrap()).collect()
        });
    }
    // The same names in whatever order.
    for seed in 0..4 {
        let names = (0..20_u8).map(|name| (name + 20 * seed) % 20);
        let tree: HashMap<_, _> = names.map(|name| (name, of(name + seed))).collect();
        let bytes = |tree: &HashMap<u8, Tensor>| {
            (0..20).map(|name| tree[&name].to_bytes().unwrap()).collect::<Vec<_>>()
        };
        goes(&mut ends, device, &tree, bytes);
    }
}

/// All of them look the same, but for one that has them begin anew.
///
/// catches: 690-places-of-whatever-lies-otherwise
fn trees_that_lie_otherwise(device: &Device) {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, device);
    let copied = |tree| start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap();
    let of = |value: u8| Tensor::from(vec![value; 64]);
    let in_one_piece = |value: u8| copied(vec![of(value), of(value + 1), of(value + 2)]);
    let apart = |value: u8| (value..value + 3).flat_map(|value| copied(vec![of(value)])).collect::<Vec<_>>();
    let turned = |value: u8| {
        let mut tree = copied(vec![of(value + 2), of(value + 1), of(value)]);
        tree.reverse();
        tree
    };
    for (form, value) in "1113331112210333222110222111311033".chars().zip((0..).step_by(3)) {
        let tree = match form {
            '1' => in_one_piece(value),
            '2' => apart(value),
            '3' => turned(value),
            _ => {
                connection.export(&vec![of(0)]).unwrap();
                importer.next_within(LONG).unwrap().unwrap();
                continue;
            }
        };
        let offer = connection.export(&tree).unwrap();
        let mut there = vec![of(0), of(0), of(0)];
        assert!(importer.put_next_within(&mut there, LONG).unwrap());
        let host = start_copy(there, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        for (tensor, value) in host.iter().zip(value..) {
            assert_eq!(tensor.as_slice::<u8>().unwrap(), [value; 64]);
        }
        offer.wait_released(LONG).unwrap();
    }
}

/// Trees in one piece have lain there. One that lies apart has the same manifest.
///
/// catches: 695-memory-for-pieces-is-kept-for-others
fn memory_of_trees_that_lie_otherwise_goes(device: &Device) {
    let (mut connection, importer) = played();
    let copied = |tree| start_copy(tree, device, CopyOptions::default()).unwrap().wait().unwrap();
    let of = |value: u8| Tensor::from(vec![value; 64]);
    let mut offers = Vec::new();
    for value in 0..3 {
        offers.push(connection.export(&copied(vec![of(value), of(value + 1)])).unwrap());
    }
    let pool = heard(&importer);
    assert_eq!((pool.0, pool.2), (POOL, true));
    assert_eq!(heard(&importer), (OFFER_IN_POOL, 0, true));
    (1..3).for_each(|ticket| assert_eq!(heard(&importer), (LASTING_IN_POOL, ticket, true)));
    for (ticket, offer) in (1..3).zip(&offers[1..]) {
        say(&importer, BACK, ticket);
        offer.wait_released(LONG).unwrap();
    }
    let apart: Vec<_> = [7, 8].map(|value| copied(vec![of(value)]).remove(0)).into();
    connection.export(&apart).unwrap();
    (1..3).for_each(|ticket| assert_eq!(heard(&importer), (CLOSE, ticket, false)));
    assert_eq!(heard(&importer), (OFFER_IN_POOL, 3, true));
}

/// catches: 612-memory-of-other-trees-stays
fn memory_of_trees_that_look_otherwise_goes() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    for pages in [1_usize, 2, 1, 3, 5, 4] {
        let tree = vec![Tensor::from(vec![pages as u8; pages << 14])];
        for _ in 0..3 {
            let offer = connection.export(&tree).unwrap();
            let mut there = tree.clone();
            importer.next_within(LONG).unwrap().unwrap().put_into(&mut there).unwrap();
            drop(there);
            offer.wait_released(LONG).unwrap();
            assert_eq!(shared().len(), 2, "{:?}", shared());
        }
        assert_eq!(connection.lent(), 0);
    }
}

/// Their trees are not back when the look changes.
///
/// catches: 626-memory-that-comes-back-late-stays
fn memory_that_comes_back_late_goes() {
    let (mut connection, importer) = played();
    let mut export = |number: u64| connection.export(&batch(number)).unwrap();
    let first = export(0);
    let mut offers = vec![export(9), export(18), export(27)];
    say(&importer, RELEASED, 0);
    first.wait_released(LONG).unwrap();
    offers.push(export(36));
    assert_eq!(heard(&importer), (OFFER, 0, true));
    (1..5).for_each(|ticket| assert_eq!(heard(&importer), (LASTING, ticket, true)));
    // Trees look otherwise, and there is no room to keep theirs.
    let other = export(1);
    assert_eq!(heard(&importer), (OFFER, 5, true));
    for (ticket, offer) in (1..5).zip(&offers) {
        say(&importer, BACK, ticket);
        offer.wait_released(LONG).unwrap();
        assert_eq!(heard(&importer), (CLOSE, ticket, false));
        say(&importer, RELEASED, ticket);
    }
    say(&importer, RELEASED, 5);
    other.wait_released(LONG).unwrap();
    let next = export(10);
    assert_eq!(heard(&importer), (LASTING, 6, true));
    say(&importer, BACK, 6);
    next.wait_released(LONG).unwrap();
    export(19);
    assert_eq!(heard(&importer), (AGAIN, 6, false));
}

/// catches: 613-an-offer-of-any-tree-there
fn an_offer_is_of_its_own_tree() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let mut next = |number: u64| {
        let offer = connection.export(&batch(9 * number)).unwrap();
        (offer, importer.next_within(LONG).unwrap().unwrap())
    };
    drop(next(0).1);
    let mut before = Vec::new();
    for number in 1..5 {
        let (offer, there) = next(number);
        assert!(before.iter().all(transship_ipc::Offer::is_released) && !offer.is_released());
        assert!(matches!(offer.wait_released(SHORT), Err(IpcError::NotInTime { .. })));
        drop(there);
        offer.wait_released(LONG).unwrap();
        before.push(offer);
    }
}

/// catches: 614-back-without-a-tree
fn importers_that_lie_about_memory() {
    // Ticket 0 does not last, 1 does, and nobody has 2.
    let lies: [&[(u8, u64)]; 6] = [
        &[(BACK, 0)],
        &[(BACK, 2)],
        &[(BACK, 1), (BACK, 1)],
        &[(BACK, 1), (RELEASED, 1), (BACK, 1)],
        &[(BACK, 1), (RELEASED, 1), (RELEASED, 1)],
        &[(RELEASED, 1), (BACK, 1)],
    ];
    for lie in lies {
        let (mut connection, importer) = played();
        let offers = [0, 1].map(|number| connection.export(&batch(9 * number)).unwrap());
        lie.iter().for_each(|(kind, ticket)| say(&importer, *kind, *ticket));
        offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
        eventually("it is sent away", || connection.lent() == 0);
        assert!(matches!(connection.export(&batch(0)), Err(IpcError::PeerGone)));
    }
    // One that gives memory back without being asked to has a tree in other memory.
    let (mut connection, importer) = played();
    let [_, offer] = [0, 1].map(|number| connection.export(&batch(9 * number)).unwrap());
    [0, 1].iter().for_each(|ticket| assert_eq!(heard(&importer).1, *ticket));
    say(&importer, BACK, 1);
    say(&importer, RELEASED, 1);
    say(&importer, RELEASED, 0);
    offer.wait_released(LONG).unwrap();
    eventually("all is back", || connection.lent() == 0);
    connection.export(&batch(18)).unwrap();
    assert_eq!(heard(&importer), (LASTING, 2, true));
}

/// It gives back later what it has mapped, and has done nothing wrong.
///
/// catches: 625-memory-goes-before-its-importer-lets-go
fn one_that_listens_no_more_keeps_what_it_has() {
    let (mut connection, importer) = played();
    let [first, second] = [0, 1].map(|number| connection.export(&batch(9 * number)).unwrap());
    say(&importer, BACK, 1);
    second.wait_released(LONG).unwrap();
    shutdown(&importer, Shutdown::Read).unwrap();
    assert!(matches!(connection.export(&batch(18)), Err(IpcError::PeerGone)));
    assert_eq!(connection.lent(), 1);
    say(&importer, RELEASED, 1);
    assert!(matches!(first.wait_released(SHORT), Err(IpcError::NotInTime { .. })));
    assert_eq!(connection.lent(), 1);
    say(&importer, RELEASED, 0);
    first.wait_released(LONG).unwrap();
}

/// It ends before the next tree is copied there, meanwhile, or behind that.
fn one_that_ends_while_memory_is_filled() {
    for number in 0..40 {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, devices()[0]);
        let [first, second] = [0, 9].map(|number| connection.export(&batch(number)).unwrap());
        let there = tree_of(&importer.next_within(LONG).unwrap().unwrap(), 0);
        drop(importer.next_within(LONG).unwrap().unwrap());
        second.wait_released(LONG).unwrap();
        let ending = thread::spawn(move || {
            thread::sleep(Duration::from_micros(10 * number));
            drop(importer);
        });
        let next = batch(18);
        while connection.export(&next).is_ok() {}
        ending.join().unwrap();
        eventually("all but one is back", || connection.lent() == 1);
        assert!(!first.is_released());
        compare(there, 0);
        first.wait_released(LONG).unwrap();
        eventually("all is back", || connection.lent() == 0);
    }
}

/// An offer of memory that lasts.
fn lasting(ticket: u64, manifest: &[u8]) -> Sent {
    let offer = message(LASTING, [ticket, 5000, manifest.len() as u64, 0]);
    (offer, vec![tree(5000, manifest, SEALS)])
}

/// catches: 615-a-tree-where-another-one-is
fn exporters_that_lie_about_memory() {
    let manifest = manifest(5000);
    let plain = || {
        let offer = message(OFFER, [1, 5000, manifest.len() as u64, 0]);
        (offer, vec![tree(5000, &manifest, SEALS)])
    };
    let again = |ticket| (message(AGAIN, [ticket, 0, 0, 0]), vec![]);
    let close = (message(CLOSE, [1, 0, 0, 0]), vec![]);
    let cases: [(Vec<Sent>, usize); 7] = [
        // The tree before is there, nothing is there, or that does not last, or has gone.
        (vec![lasting(1, &manifest), again(1)], 1),
        (vec![lasting(1, &manifest), again(2)], 1),
        (vec![plain(), again(1)], 1),
        (vec![lasting(1, &manifest), close, again(1)], 1),
        // Two of one ticket; a message that is no offer.
        (vec![lasting(1, &manifest), lasting(1, &manifest)], 1),
        (vec![(message(LASTING, [1, 5000, manifest.len() as u64, 0]), vec![])], 0),
        ((0..5).map(|ticket| lasting(ticket, &manifest)).collect(), 4),
    ];
    for (number, (sent, good)) in cases.into_iter().enumerate() {
        let (mut importer, played) = hearing(sent, devices()[0]);
        let trees: Vec<_> = (0..good).map(|_| importer.next_within(LONG).unwrap().unwrap()).collect();
        let refused = importer.next_within(LONG);
        assert!(matches!(refused, Err(IpcError::Protocol { .. })), "{number}: {refused:?}");
        assert!(importer.next_within(LONG).unwrap().is_none());
        assert!(trees.iter().all(|tree| tree.tensors().unwrap().len() == 1));
        drop((importer, trees));
        played.join().unwrap();
        eventually("nothing is mapped", || shared().is_empty());
    }
}

/// The exporter takes memory back that it has given, and the importer goes: tensors stay.
fn memory_that_is_closed_stays() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let mut next = |number| {
        let offer = connection.export(&batch(number)).unwrap();
        (offer, tree_of(&importer.next_within(LONG).unwrap().unwrap(), number))
    };
    let trees: Vec<_> = [0, 9, 18, 1, 10, 19, 28].map(|number| (number, next(number))).into();
    let closing = thread::spawn(move || drop(connection));
    drop(importer);
    closing.join().unwrap();
    for (number, (offer, tree)) in trees {
        assert!(!offer.is_released());
        compare(tree, number);
        offer.wait_released(LONG).unwrap();
    }
    eventually("all is unmapped", || shared().is_empty());
}

/// By a process that holds each tree until the next one is there, and by one that does not.
///
/// catches: 618-what-was-prepared-is-not-given-back
fn trees_are_put_as_they_come(device: &Device) {
    for holds in [true, false] {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, device);
        let exporter = {
            let device = device.clone();
            thread::spawn(move || {
                let mut offers = Vec::new();
                // The look changes twice.
                for number in [0, 9, 18, 27, 36, 1, 10, 19, 28, 0, 9, 18] {
                    let there = if device.is_host() { batch(number) } else { on(number, &device) };
                    offers.push(connection.export(&there).unwrap());
                    // The importer waits for the next one.
                    thread::sleep(SHORT / 4);
                }
                offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
            })
        };
        let mut tree = like(0);
        for number in [0, 9, 18, 27, 36, 1, 10, 19, 28, 0, 9, 18] {
            if !holds || number < 9 {
                tree = like(number);
            }
            assert!(importer.put_next_within(&mut tree, LONG).unwrap());
            compare(tree.clone(), number);
        }
        drop(tree);
        assert!(!importer.put_next_within(&mut like(0), LONG).unwrap());
        exporter.join().unwrap();
    }
}

/// catches: 619-whatever-comes-is-what-was-prepared
fn what_is_prepared_is_put_for_its_own_tree() {
    let (_folder, path) = folder();
    let listening = listening(&path);
    let exporter = thread::spawn(move || {
        let peer = accept_with(&listening, SocketFlags::CLOEXEC).unwrap();
        let manifest = manifest(5000);
        let filled = |byte: u8, (offer, memory): Sent| {
            rustix::io::pwrite(&memory[0], &[byte; 5000], 0).unwrap();
            (offer, memory)
        };
        hostile_exporter::say(&peer, filled(1, lasting(1, &manifest)));
        assert_eq!(heard(&peer), (BACK, 1, false));
        // It has prepared what is in that memory.
        thread::sleep(SHORT);
        hostile_exporter::say(&peer, filled(2, lasting(2, &manifest)));
        assert_eq!(heard(&peer), (BACK, 2, false));
        thread::sleep(SHORT);
        hostile_exporter::say(&peer, (message(AGAIN, [2, 0, 0, 0]), vec![]));
        assert_eq!(heard(&peer), (BACK, 2, false));
        thread::sleep(SHORT);
        hostile_exporter::say(&peer, (message(CLOSE, [1, 0, 0, 0]), vec![]));
        hostile_exporter::say(&peer, (message(AGAIN, [2, 0, 0, 0]), vec![]));
        let mut last = [heard(&peer), heard(&peer)];
        last.sort_unstable();
        assert_eq!(last, [(RELEASED, 1, false), (BACK, 2, false)]);
    });
    let mut importer = Importer::connect(&path, devices()[0]).unwrap();
    for byte in [1, 2, 2, 2] {
        let mut tree = vec![Tensor::from(vec![0_u8; 5000])];
        assert!(importer.put_next_within(&mut tree, LONG).unwrap());
        let there = start_copy(tree, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
        assert_eq!(there[0].to_bytes().unwrap(), [byte; 5000]);
    }
    exporter.join().unwrap();
}

fn a_tree_that_does_not_fit_waits() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    for number in [0, 9, 18, 27] {
        let offer = connection.export(&batch(number)).unwrap();
        let mut other = vec![Tensor::from(vec![7_u8])];
        let error = importer.put_next_within(&mut other, LONG).unwrap_err();
        assert!(matches!(error, IpcError::Tensors(Error::ManifestMismatch { .. })), "{error}");
        assert_eq!(other[0].as_slice::<u8>().unwrap(), [7]);
        let mut tree = like(number);
        assert!(importer.put_next_within(&mut tree, SHORT).unwrap());
        compare(tree, number);
        offer.wait_released(LONG).unwrap();
        assert!(matches!(importer.put_next_within(&mut other, SHORT), Err(IpcError::NotInTime { .. })));
        assert!(matches!(importer.put_next_within(&mut like(0), SHORT), Err(IpcError::NotInTime { .. })));
        assert_eq!(connection.lent(), 0);
    }
}

/// catches: 617-a-child-gives-memory-back
fn a_forked_child_gives_no_memory_back() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let [first, second] = [0, 9].map(|number| connection.export(&batch(number)).unwrap());
    drop(importer.next_within(LONG).unwrap().unwrap());
    first.wait_released(LONG).unwrap();
    let there = importer.next_within(LONG).unwrap().unwrap();
    // SAFETY: the child drops what needs no lock and no thread, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop((there, importer, connection));
            // SAFETY: it ends the process, and runs nothing else of it.
            unsafe { libc::_exit(0) }
        }
        child => assert!(waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().is_some()),
    }
    assert!(second.wait_released(SHORT).is_err());
    compare(tree_of(&there, 9), 9);
    drop(there);
    second.wait_released(LONG).unwrap();
    // The memory is the parent's as before.
    let third = connection.export(&batch(18)).unwrap();
    compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 18), 18);
    third.wait_released(LONG).unwrap();
    assert_eq!(connection.lent(), 0);
}

/// The stand-in looks for memory that is freed while the other process has it, and for what is left.
fn memory_goes_with_either_end(device: &Device) {
    for importer_first in [true, false] {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, device);
        for number in [0, 9, 18, 27, 1, 10, 19, 28] {
            let offer = connection.export(&on(number, device)).unwrap();
            compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), number), number);
            offer.wait_released(LONG).unwrap();
        }
        match importer_first {
            true => {
                drop(importer);
                drop(connection);
            }
            false => {
                drop(connection);
                assert!(importer.next_within(LONG).unwrap().is_none());
            }
        }
    }
}
