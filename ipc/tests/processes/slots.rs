//! Slots: who has them, and when they are written again.

use std::cell::Cell;
use std::path::Path;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use transship_core::{CopyOptions, Tensor, start_copy};
use transship_ipc::{Feed, FeedOptions, IpcError, Loader};

use crate::support::{LONG, case, check, compare, connect, devices, folder, like, next, options};
use crate::workers::Workers;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_slot_is_not_written_while_a_copy_reads_it", a_slot_is_not_written_while_a_copy_reads_it),
        case("loaders_are_ahead_by_their_slots_and_no_more", loaders_are_ahead_by_their_slots_and_no_more),
        case("what_takes_no_slot_is_bounded_too", what_takes_no_slot_is_bounded_too),
        case(
            "a_loader_may_leave_as_much_unread_as_it_has_slots",
            a_loader_may_leave_as_much_unread_as_it_has_slots,
        ),
        case("batches_outlive_their_loader_and_the_feed", batches_outlive_their_loader_and_the_feed),
    ]
}

/// One slot, and a device that copies as late as it may: what is written too early arrives.
///
/// catches: 538-slot-given-back-at-once
fn a_slot_is_not_written_while_a_copy_reads_it() {
    let [_, late] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..12, late, options().slots(1)).unwrap();
    let workers = Workers::start(&path, &[None], None);
    let mut copies = Vec::new();
    for number in 0..12 {
        let there = next(&mut feed).unwrap();
        let mut tree = like(number);
        there.put_into(&mut tree).unwrap();
        copies.push((number, start_copy(tree, late, CopyOptions::default()).unwrap()));
        drop(there);
        // The copy has the slot now: the next batch comes once it is done.
        let (number, copy) = copies.pop().unwrap();
        if number % 2 == 0 {
            compare(copy.wait().unwrap(), number);
        } else {
            thread::sleep(Duration::from_millis(5));
            compare(copy.wait().unwrap(), number);
        }
    }
    assert!(next(&mut feed).is_none());
    workers.join();
}

/// catches: 538-slot-given-back-at-once
fn loaders_are_ahead_by_their_slots_and_no_more() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..6, host, FeedOptions::new(400 << 10).slots(2)).unwrap();
    let workers = Workers::start(&path, &[None], None);
    let held = [next(&mut feed).unwrap(), next(&mut feed).unwrap()];
    let limit = Duration::from_millis(100);
    assert!(matches!(feed.next_within(limit), Err(IpcError::TimedOut { loaders: 1, .. })));
    held.iter().for_each(|batch| check(batch, host));

    // A tensor alone keeps a slot as well. It is given back while the feed waits.
    let [first, second] = held;
    let tensor = first.tensors().unwrap().swap_remove(1).1;
    drop((first, second));
    let third = next(&mut feed).unwrap();
    let giver = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        drop(tensor);
    });
    let fourth = feed.next_within(LONG).unwrap().unwrap();
    giver.join().unwrap();
    assert_eq!((third.number(), fourth.number()), (2, 3));
    drop((third, fourth));
    assert_eq!(feed.by_ref().map(|batch| batch.unwrap().number()).collect::<Vec<_>>(), [4, 5]);
    workers.join();
}

/// The first batch is not made. Beside that a loader fails at all others, which takes no slots, or loaders go as soon as they have filled theirs.
///
/// catches: 576-made-without-bound
fn what_takes_no_slot_is_bounded_too() {
    for load in [fail_at_all as fn(&Path) -> Option<()>, fill_slots_and_go] {
        let (_folder, path) = folder();
        let drawn = Cell::new(0);
        let numbers = (0..100).inspect(|_| drawn.set(drawn.get() + 1));
        let mut feed = Feed::new(&path, numbers, devices()[0], options().slots(2).attempts(1000)).unwrap();
        let idle = connect(&mut feed, &path, 1);
        let other = thread::spawn(move || while load(&path).is_some() {});
        for _ in 0..200 {
            let limit = Duration::from_millis(1);
            assert!(matches!(feed.next_within(limit), Err(IpcError::TimedOut { .. })));
        }
        // Three loaders at the most, one of which goes: so many are made, and so many may be in the slots.
        assert!((4..=12).contains(&drawn.get()), "{}", drawn.get());
        drop(idle);
        let mut numbers = 0..100;
        for there in &mut feed {
            let number = match there {
                Ok(there) => there.number(),
                Err(IpcError::Failed { number, .. }) => number,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(Some(number), numbers.next());
        }
        assert_eq!(numbers.next(), None);
        drop(feed);
        other.join().unwrap();
    }
}

/// `None` once the feed is over.
fn fail_at_all(path: &Path) -> Option<()> {
    let mut loader = Loader::connect(path).ok()?;
    while let Some(job) = loader.next_job().ok()? {
        job.fail("not found").ok()?;
    }
    None
}

/// The same.
fn fill_slots_and_go(path: &Path) -> Option<()> {
    let mut loader = Loader::connect(path).ok()?;
    for _ in 0..2 {
        let job = loader.next_job().ok()??;
        job.write(&vec![Tensor::from(vec![0_u8; 100])]).ok()?;
    }
    Some(())
}

fn a_loader_may_leave_as_much_unread_as_it_has_slots() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..300, host, FeedOptions::new(1).slots(usize::MAX)).unwrap();
    let loader = thread::spawn(move || {
        let mut loader = Loader::connect(path).unwrap();
        thread::sleep(Duration::from_millis(300));
        let mut count = 0;
        while let Some(job) = loader.next_job().unwrap() {
            job.write(&vec![Tensor::from(vec![count as u8; 100])]).unwrap();
            count += 1;
        }
        count
    });
    let mut numbers = Vec::new();
    while let Some(there) = next(&mut feed) {
        numbers.push(there.number());
    }
    assert_eq!(numbers, (0..300).collect::<Vec<_>>());
    assert_eq!(loader.join().unwrap(), 300);
}

fn batches_outlive_their_loader_and_the_feed() {
    for device in devices() {
        let (_folder, path) = folder();
        let mut feed = Feed::new(&path, 0..4, device, options()).unwrap();
        let mut workers = Workers::start(&path, &[None], None);
        let held = [next(&mut feed).unwrap(), next(&mut feed).unwrap()];
        workers.kill(0);
        drop(workers);
        check(&held[0], device);
        drop(feed);
        held.iter().for_each(|batch| check(batch, device));
    }
}
