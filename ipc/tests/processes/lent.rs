//! Trees that were handed over: until when an importer has them.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, WaitOptions, waitpid};
use transship_core::{CopyOptions, CopyPolicy, Device, Tensor, start_copy};
use transship_ipc::{Exporter, IpcError, Offer};

use crate::exported::pair;
use crate::hostile_loader::socket;
use crate::support::{LONG, batch, case, compare, devices, eventually, folder, held};
use crate::tree_child::{Phase, Role, connect, spawn, tree_of};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_tree_is_lent_until_its_last_tensor_goes", a_tree_is_lent_until_its_last_tensor_goes),
        case(
            "a_tree_is_lent_in_whatever_order_its_tensors_go",
            a_tree_is_lent_in_whatever_order_its_tensors_go,
        ),
        case("a_tree_is_lent_while_a_copy_reads_it", a_tree_is_lent_while_a_copy_reads_it),
        case("an_exporter_keeps_four_pieces_at_most", an_exporter_keeps_four_pieces_at_most),
        case("memory_that_is_back_is_used_again", memory_that_is_back_is_used_again),
        case(
            "memory_of_another_size_takes_the_place_of_what_is_kept",
            memory_of_another_size_takes_the_place_of_what_is_kept,
        ),
        case(
            "memory_of_a_tree_is_not_used_again_before_it_is_back",
            memory_of_a_tree_is_not_used_again_before_it_is_back,
        ),
        case("tensors_outlive_their_exporter", tensors_outlive_their_exporter),
        case("what_is_not_taken_is_given_back", what_is_not_taken_is_given_back),
        case("there_are_no_more_than_so_many_trees", there_are_no_more_than_so_many_trees),
        case("an_importer_that_has_gone_has_nothing", an_importer_that_has_gone_has_nothing),
        case("who_has_gone_for_a_call_has_no_tree", who_has_gone_for_a_call_has_no_tree),
        case("a_forked_child_gives_no_tree_back", a_forked_child_gives_no_tree_back),
    ]
}

pub(crate) const SHORT: Duration = Duration::from_millis(20);

/// catches: 565-given-back-at-once
fn a_tree_is_lent_until_its_last_tensor_goes() {
    for device in devices() {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, device);
        let [first, second] = [1, 2].map(|number| connection.export(&batch(number)).unwrap());
        let there = importer.next_within(LONG).unwrap().unwrap();
        let one = there.tensors().unwrap().swap_remove(1).1;
        drop(there);
        assert!(matches!(first.wait_released(SHORT), Err(IpcError::NotInTime { .. })));
        assert_eq!(connection.lent(), 2);
        let view = one.narrow(0, 7, 1).unwrap();
        drop(one);
        assert!(first.wait_released(SHORT).is_err());
        drop(view);
        first.wait_released(LONG).unwrap();
        assert!(first.is_released() && !second.is_released());
        // Both ends go before the tensors do.
        let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), 2);
        drop((importer, connection));
        assert!(second.wait_released(SHORT).is_err());
        compare(tree, 2);
        second.wait_released(LONG).unwrap();
    }
}

/// Deliberate bugs: the tree is given back with the tensor that was put last, or first; those that nobody has taken keep it.
fn a_tree_is_lent_in_whatever_order_its_tensors_go() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let offer = connection.export(&batch(1)).unwrap();
        let there = importer.next_within(LONG).unwrap().unwrap();
        let mut tensors: Vec<_> =
            there.tensors().unwrap().into_iter().map(|(_, tensor)| Some(tensor)).collect();
        drop(there);
        for number in order {
            assert!(offer.wait_released(SHORT).is_err() && connection.lent() == 1, "{number} of {order:?}");
            let mut tensor = tensors[number].take().unwrap();
            assert!(tensor.nbytes() == 0 || tensor.as_mut_bytes().is_err());
        }
        offer.wait_released(LONG).unwrap();
    }
}

/// catches: 565-given-back-at-once
fn a_tree_is_lent_while_a_copy_reads_it() {
    let late = devices()[1];
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, late);
    for number in 0..4 {
        let offer = connection.export(&batch(number)).unwrap();
        let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), number);
        let copy = start_copy(tree, late, CopyOptions::default()).unwrap();
        compare(copy.wait().unwrap(), number);
        offer.wait_released(LONG).unwrap();
    }
}

fn an_exporter_keeps_four_pieces_at_most() {
    let (_folder, path) = folder();
    let (mut connection, importer) = pair(&path, devices()[0]);
    let memory = || (held().0, held().1);
    let (descriptors, mapped) = memory();
    let offers = [0; 20].map(|number| connection.export(&batch(number)).unwrap());
    eventually("the rest of the memory has gone", || memory() == (descriptors + 4, mapped + 4));
    assert!(offers.iter().all(|offer| !offer.is_released()));
    drop(importer);
}

/// Both ends are of this process: each has mapped it once. Deliberate bugs: what is back is not used again; an importer unmaps what is back.
fn memory_that_is_back_is_used_again() {
    for device in devices() {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, device);
        let mut seen = BTreeSet::new();
        for number in 0..6 {
            // All of one size.
            let offer = connection.export(&batch(9 * number)).unwrap();
            let there = importer.next_within(LONG).unwrap().unwrap();
            compare(tree_of(&there, 9 * number), 9 * number);
            drop(there);
            offer.wait_released(LONG).unwrap();
            let shared = shared();
            assert_eq!(shared.len(), 2, "{shared:?}");
            seen.extend(shared.into_iter().map(|(_, inode)| inode));
        }
        assert_eq!(seen.len(), 1, "{seen:?}");
        drop(connection);
        assert!(importer.next_within(LONG).unwrap().is_none());
        eventually("all is unmapped", || shared().is_empty());
    }
}

/// Deliberate bug: what does not fit stays.
fn memory_of_another_size_takes_the_place_of_what_is_kept() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    for pages in 1..8_usize {
        let tree = vec![Tensor::from(vec![pages as u8; pages << 14])];
        let offer = connection.export(&tree).unwrap();
        let mut there = tree.clone();
        importer.next_within(LONG).unwrap().unwrap().put_into(&mut there).unwrap();
        let there = start_copy(there, &Device::host(), CopyOptions::default().policy(CopyPolicy::Always));
        assert_eq!(there.unwrap().wait().unwrap()[0].to_bytes().unwrap(), tree[0].to_bytes().unwrap());
        offer.wait_released(LONG).unwrap();
        assert_eq!(shared().len(), 2, "{:?}", shared());
    }
}

/// Deliberate bug: a tree's memory is free as soon as it was handed over.
fn memory_of_a_tree_is_not_used_again_before_it_is_back() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let mut next = |number| {
        let offer = connection.export(&batch(number)).unwrap();
        (offer, tree_of(&importer.next_within(LONG).unwrap().unwrap(), number))
    };
    let (first, tree) = next(0);
    for number in 1..9 {
        let (offer, other) = next(9 * number);
        compare(other, 9 * number);
        offer.wait_released(LONG).unwrap();
    }
    assert!(!first.is_released());
    compare(tree, 0);
    first.wait_released(LONG).unwrap();
}

/// The mappings of trees: where each lies, and the inode of its memory.
pub(crate) fn shared() -> BTreeSet<(String, String)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let trees = maps.lines().filter(|line| line.contains("memfd:transship-tree"));
    let words = trees.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.map(|words| (words[0].clone(), words[4].clone())).collect()
}

fn tensors_outlive_their_exporter() {
    for device in devices() {
        let (_folder, path) = folder();
        let mut process = spawn(&path, Role::Exporter, Some((Phase::Released, 3)));
        let mut importer = connect(&path, device);
        let there = [0, 1].map(|number| tree_of(&importer.next_within(LONG).unwrap().unwrap(), number));
        process.kill();
        // What was handed over is there.
        let rest: Vec<_> = importer.map_while(Result::ok).map(|there| there.manifest().len()).collect();
        assert_eq!(rest, vec![4; rest.len()]);
        for (number, tree) in there.into_iter().enumerate() {
            let tree = start_copy(tree, device, CopyOptions::default()).unwrap();
            compare(tree.wait().unwrap(), number as u64);
        }
    }
}

/// catches: 566-what-is-not-taken-stays-lent
///
/// Deliberate bug: who takes no more has gone.
fn what_is_not_taken_is_given_back() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let offers = [0, 1, 2].map(|number| connection.export(&batch(number)).unwrap());
    let kept = importer.next_within(LONG).unwrap().unwrap();
    drop(importer);
    offers[1].wait_released(LONG).unwrap();
    offers[2].wait_released(LONG).unwrap();
    assert!(!offers[0].is_released());
    assert!(matches!(connection.export(&batch(3)), Err(IpcError::PeerGone)));
    assert_eq!(connection.lent(), 1);
    compare(tree_of(&kept, 0), 0);
    drop(kept);
    offers[0].wait_released(LONG).unwrap();
}

fn there_are_no_more_than_so_many_trees() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let tree = vec![Tensor::from(vec![1_u8])];
    for round in 0..2 {
        let offers: Vec<_> = (connection.lent()..128).map(|_| connection.export(&tree).unwrap()).collect();
        assert!(matches!(connection.export(&tree), Err(IpcError::TooManyTrees { limit: 128 })));
        let first = importer.next_within(LONG).unwrap().unwrap();
        assert!(matches!(connection.export(&tree), Err(IpcError::TooManyTrees { .. })), "{round}");
        drop(first);
        eventually("one is back", || connection.lent() == 127);
        assert_eq!(offers.iter().filter(|offer| offer.is_released()).count(), 1 - round);
    }
    // The last one of all may be said while nobody listens.
    let taken: Vec<_> = (0..127).map(|_| importer.next_within(LONG).unwrap().unwrap()).collect();
    assert!(matches!(importer.next_within(SHORT), Err(IpcError::NotInTime { .. })));
    drop(connection);
    drop(taken);
    assert!(importer.next_within(LONG).unwrap().is_none());
}

fn an_importer_that_has_gone_has_nothing() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let offer = connection.export(&batch(1)).unwrap();
    let waiting = thread::spawn(move || offer.wait_released(LONG));
    drop(importer.next());
    drop(importer);
    waiting.join().unwrap().unwrap();
    assert!(matches!(connection.export(&batch(1)), Err(IpcError::PeerGone)));
}

/// One that is played, and closes its socket without a word. A call that sends may see that before the thread that listens.
///
/// Deliberate bug: only that thread notes it.
fn who_has_gone_for_a_call_has_no_tree() {
    for _ in 0..500 {
        let (_folder, path) = folder();
        let exporter = Exporter::bind(&path).unwrap();
        let importer = socket(&path);
        let mut connection = exporter.accept_within(LONG).unwrap();
        let tree = vec![Tensor::from(vec![1_u8])];
        let goes = thread::spawn(move || drop(importer));
        let mut offers = Vec::new();
        let gone = loop {
            match connection.export(&tree) {
                Ok(offer) => offers.push(offer),
                Err(IpcError::TooManyTrees { .. }) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(gone, IpcError::PeerGone), "{gone}");
        assert!(offers.iter().all(Offer::is_released));
        assert_eq!(connection.lent(), 0);
        goes.join().unwrap();
    }
}

/// Deliberate bugs: a child says that a tree has gone which its parent has; it ends the connection of its parent.
fn a_forked_child_gives_no_tree_back() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let offers = [0, 1].map(|number| connection.export(&batch(number)).unwrap());
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
    assert!(offers[0].wait_released(SHORT).is_err());
    compare(tree_of(&there, 0), 0);
    compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 1), 1);
    drop(there);
    offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
    let offer = connection.export(&batch(2)).unwrap();
    drop(connection);
    compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 2), 2);
    offer.wait_released(LONG).unwrap();
    assert!(importer.next_within(LONG).unwrap().is_none());
}
