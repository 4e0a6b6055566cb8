//! Loaders that are killed: each batch comes once, in order, with the right bytes, and nothing stays behind.

use std::env;
use std::time::Duration;

use libtest_mimic::Trial;
use transship_ipc::{Batch, Feed, FeedOptions, IpcError};

use crate::child::{Dies, Phase};
use crate::support::{LONG, case, check, connect, devices, folder, hand_out, held, make, next, options};
use crate::workers::Workers;

const BATCHES: u64 = 12;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case(
            "a_loader_that_is_killed_in_any_phase_loses_nothing",
            a_loader_that_is_killed_in_any_phase_loses_nothing,
        ),
        case(
            "loaders_that_are_killed_at_any_time_lose_nothing",
            loaders_that_are_killed_at_any_time_lose_nothing,
        ),
        case(
            "a_batch_that_kills_its_loaders_is_given_up_alone",
            a_batch_that_kills_its_loaders_is_given_up_alone,
        ),
        case(
            "a_loader_that_always_dies_spoils_no_batch_of_others",
            a_loader_that_always_dies_spoils_no_batch_of_others,
        ),
        case(
            "what_has_failed_is_for_anyone_where_no_other_loader_has_a_slot",
            what_has_failed_is_for_anyone_where_no_other_loader_has_a_slot,
        ),
        case("what_is_due_gets_a_slot_of_what_is_not", what_is_due_gets_a_slot_of_what_is_not),
        case(
            "what_has_no_slot_of_a_loader_is_not_made_again",
            what_has_no_slot_of_a_loader_is_not_made_again,
        ),
    ]
}

pub(crate) fn seeds() -> u64 {
    env::var("TRANSSHIP_TEST_KILLS").map_or(20, |kills| kills.parse().unwrap())
}

/// catches: 539-unmade-batches-forgotten
fn a_loader_that_is_killed_in_any_phase_loses_nothing() {
    for seed in 0..seeds() {
        let (phase, device) = (Phase::ALL[seed as usize % 5], devices()[seed as usize / 5 % 2]);
        let dies = Some(Dies { phase, batch: seed / 10 % 4 });
        let workers = if seed % 3 == 0 { vec![dies] } else { vec![dies, None] };
        deliver(&workers, device, |_, _| {});
    }
}

fn loaders_that_are_killed_at_any_time_lose_nothing() {
    for seed in 1..=seeds() {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        deliver(&[None, None], devices()[seed as usize % 2], |workers, _| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random.is_multiple_of(3) {
                std::thread::sleep(Duration::from_micros(random >> 8 & 0x3ff));
                workers.kill(random as usize >> 20 & 1);
            }
        });
    }
}

fn deliver(
    dies: &[Option<Dies>],
    device: &transship_core::Device,
    mut before: impl FnMut(&mut Workers, u64),
) {
    let rings = held().1;
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..BATCHES, device, options().attempts(1000)).unwrap();
    let mut workers = Workers::start(&path, dies, None);
    let begin = std::time::Instant::now();
    let mut expected = 0;
    loop {
        before(&mut workers, expected);
        workers.renew();
        match feed.next_within(Duration::from_millis(20)) {
            Ok(Some(there)) => {
                assert_eq!(there.number(), expected);
                check(&there, device);
                expected += 1;
            }
            Ok(None) => break,
            Err(IpcError::TimedOut { .. }) => {
                assert!(begin.elapsed() < LONG, "batch {expected} of {dies:?} hangs")
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(expected, BATCHES);
    drop((feed, workers));
    crate::support::eventually("all rings have gone", || held().1 == rings);
}

/// Its loaders hold those behind it as well.
///
/// catches: 573-all-that-a-dead-loader-held-are-charged
fn a_batch_that_kills_its_loaders_is_given_up_alone() {
    let [host, _] = devices();
    for (slots, poison, workers) in [(1, 3, 2), (3, 3, 2), (3, 0, 1)] {
        let (_folder, path) = folder();
        let mut feed = Feed::new(&path, 0..9, host, options().slots(slots).attempts(3)).unwrap();
        let mut workers = Workers::start(&path, &vec![None; workers], Some(poison));
        let mut numbers = Vec::new();
        loop {
            workers.renew();
            match feed.next_within(Duration::from_millis(20)) {
                Ok(Some(there)) => numbers.push(there.number()),
                Ok(None) => break,
                Err(IpcError::GivenUp { number, attempts: 3 }) => numbers.push(number + 100),
                Err(IpcError::TimedOut { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let expected = (0..9).map(|number| if number == poison { number + 100 } else { number });
        assert_eq!(numbers, expected.collect::<Vec<_>>());
    }
}

/// It dies as soon as it is connected, again and again, and two attempts are all that a batch has.
///
/// catches: 574-failed-batches-go-to-anyone
fn a_loader_that_always_dies_spoils_no_batch_of_others() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0.., host, options().slots(3).attempts(2)).unwrap();
    let good = Workers::start(&path, &[None], None);
    assert_eq!(next(&mut feed).unwrap().number(), 0);
    let dies = Some(Dies { phase: Phase::Connected, batch: 0 });
    let mut bad = Workers::start(&path, &[dies], None);
    let (mut expected, mut deaths) = (1, 0);
    while deaths < 10 || expected < 30 {
        deaths += bad.renew_as(dies);
        match feed.next_within(Duration::from_millis(1)) {
            Ok(Some(there)) => assert_eq!(there.number(), expected),
            Err(IpcError::TimedOut { .. }) => continue,
            other => panic!("{other:?} in the place of {expected}"),
        }
        expected += 1;
    }
    drop(feed);
    good.join();
}

/// The only loader that has delivered something has one slot, and the batch in it is kept.
fn what_has_failed_is_for_anyone_where_no_other_loader_has_a_slot() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..2, host, options().slots(1)).unwrap();
    let mut proven = connect(&mut feed, &path, 1);
    make(&mut proven, 0);
    let kept = next(&mut feed).unwrap();
    let dies = connect(&mut feed, &path, 2);
    drop(dies);
    hand_out(&mut feed);
    make(&mut connect(&mut feed, &path, 2), 1);
    assert_eq!(next(&mut feed).unwrap().number(), 1);
    check(&kept, host);
}

/// Of two loaders with one slot each, the one with the first batch dies, and the slot of the other one has the second.
fn what_is_due_gets_a_slot_of_what_is_not() {
    let [host, _] = devices();
    for seed in 0..3 {
        let (_folder, path) = folder();
        let feed_options = FeedOptions::new(400 << 10).slots(1);
        let mut feed = Feed::new(&path, 0..4, host, feed_options).unwrap();
        let dies = Dies { phase: Phase::HalfWritten, batch: 0 };
        let workers = Workers::start(&path, &[Some(dies), None], None);
        let there: Vec<Batch> =
            std::iter::from_fn(|| next(&mut feed).map(|batch| (check(&batch, host), batch).1))
                .inspect(|batch| assert!(batch.number() < 4, "{seed}"))
                .take(1)
                .collect();
        assert_eq!(there[0].number(), 0);
        drop(there);
        assert_eq!(feed.by_ref().map(|batch| batch.unwrap().number()).collect::<Vec<_>>(), [1, 2, 3]);
        drop(workers);
    }
}

/// The first of three loaders goes before it has made the first batch, the second one has its only slot full, and the third one has gone: its batch,
/// or the reason why there is none, has no slot to give.
///
/// catches: 577-what-comes-last-is-dropped
fn what_has_no_slot_of_a_loader_is_not_made_again() {
    let [host, _] = devices();
    for is_made in [false, true] {
        let (_folder, path) = folder();
        let mut feed = Feed::new(&path, 0..4, host, options().slots(1)).unwrap();
        let mut loaders: Vec<_> = (1..=3).map(|count| connect(&mut feed, &path, count)).collect();
        let (mut third, mut second, mut first) =
            (loaders.pop().unwrap(), loaders.pop().unwrap(), loaders.pop().unwrap());
        let job = first.next_job().unwrap().unwrap();
        assert_eq!(job.number(), 0);
        std::mem::forget(job);
        make(&mut second, 1);
        match is_made {
            true => make(&mut third, 2),
            false => third.next_job().unwrap().unwrap().fail("not found").unwrap(),
        }
        drop((first, third));
        hand_out(&mut feed);
        assert_eq!(feed.loaders(), 1);
        for number in [0, 1] {
            make(&mut second, number);
            assert_eq!(next(&mut feed).unwrap().number(), number);
            if number == 0 {
                hand_out(&mut feed);
            }
        }
        match feed.next_within(LONG) {
            Ok(Some(there)) => assert!(is_made && there.number() == 2),
            Err(IpcError::Failed { number: 2, .. }) => assert!(!is_made),
            other => panic!("{other:?}"),
        }
        hand_out(&mut feed);
        make(&mut second, 3);
        assert_eq!(next(&mut feed).unwrap().number(), 3);
        assert!(next(&mut feed).is_none());
    }
}
