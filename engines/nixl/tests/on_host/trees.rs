//! What becomes of trees.

use std::sync::Arc;

use transship::{DType, Device, Paths, Step, Stop, Tensor, TensorTree, Visitor};
use transship_nixl::Error;

use crate::support::LIMIT;
use crate::{SHORT, assert_works, pair_of, tensors};

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
