//! How connections end, and what was said before.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use transship_ipc::{Feed, IpcError, Loader};

use crate::child::{Dies, Phase, slow};
use crate::hostile_loader::socket;
use crate::support::{batch, case, check, connect, devices, folder, make, next, options, welcome};
use crate::workers::Workers;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("batches_come_before_troubles_with_others", batches_come_before_troubles_with_others),
        case(
            "what_was_sent_counts_where_no_more_can_be_given",
            what_was_sent_counts_where_no_more_can_be_given,
        ),
        case("patience_is_for_one_batch", patience_is_for_one_batch),
        case("what_a_killed_loader_has_finished_counts", what_a_killed_loader_has_finished_counts),
        case(
            "a_feed_that_goes_early_is_over_for_its_loaders",
            a_feed_that_goes_early_is_over_for_its_loaders,
        ),
        case(
            "a_batch_that_nobody_wants_any_more_is_no_error",
            a_batch_that_nobody_wants_any_more_is_no_error,
        ),
    ]
}

/// It dies with a number unread: the system says that before it gives what was sent.
///
/// catches: 572-a-reset-throws-away-what-was-said
fn what_a_killed_loader_has_finished_counts() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..3, host, options().slots(3).attempts(1)).unwrap();
    let dies = Dies { phase: Phase::HandedOver, batch: 1 };
    let mut workers = Workers::start(&path, &[Some(dies)], None);
    welcome(&mut feed, 1);
    workers.wait_for(0);
    for number in 0..2 {
        let there = next(&mut feed).unwrap();
        assert_eq!(there.number(), number);
        check(&there, host);
    }
    assert!(matches!(feed.next(), Some(Err(IpcError::GivenUp { number: 2, attempts: 1 }))));
    assert!(feed.next().is_none());
}

/// Its three batches take longer than its patience, and none of them does.
///
/// catches: 575-late-since-it-was-handed-out
fn patience_is_for_one_batch() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let options = options().slots(3).attempts(1).patience(Duration::from_millis(1500));
    let mut feed = Feed::new(&path, 0..3, host, options).unwrap();
    let workers = Workers::start_told(&path, &[None], None, vec![slow(700)]);
    for number in 0..3 {
        assert_eq!(next(&mut feed).unwrap().number(), number);
    }
    assert!(next(&mut feed).is_none());
    workers.join();
}

/// Two batches are there, and a loader that comes cannot be let in, since the process has no descriptor left.
fn batches_come_before_troubles_with_others() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..3, host, options().slots(3)).unwrap();
    let mut loader = connect(&mut feed, &path, 1);
    make(&mut loader, 0);
    make(&mut loader, 1);
    let further = socket(&path);
    let there = without_descriptors(|| [(); 3].map(|()| feed.next_within(Duration::ZERO)));
    let [Ok(Some(first)), Ok(Some(second)), Err(IpcError::System { what, .. })] = there else {
        panic!("{there:?}");
    };
    assert_eq!((first.number(), second.number(), what), (0, 1, "accepting a connection"));
    make(&mut loader, 2);
    let there = without_descriptors(|| [(); 2].map(|()| next(&mut feed).map(|there| there.number())));
    assert_eq!(there, [Some(2), None]);
    drop(further);
}

fn without_descriptors<T>(run: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    let lowest = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), maximum: limit.maximum }).unwrap();
    let result = run();
    setrlimit(Resource::Nofile, limit).unwrap();
    result
}

/// While the third number is drawn the loader makes its first batch, and is killed. There is no other number that it can have failed at.
fn what_was_sent_counts_where_no_more_can_be_given() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let dies = Dies { phase: Phase::HandedOver, batch: 0 };
    let workers = RefCell::new(None::<Workers>);
    let numbers = (0..3).inspect(|number| {
        if *number == 2 {
            workers.borrow_mut().as_mut().unwrap().wait_for(0);
        }
    });
    let mut feed = Feed::new(&path, numbers, host, options().slots(3).attempts(1)).unwrap();
    *workers.borrow_mut() = Some(Workers::start(&path, &[Some(dies)], None));
    let there = next(&mut feed).unwrap();
    assert_eq!(there.number(), 0);
    check(&there, host);
    assert!(matches!(feed.next(), Some(Err(IpcError::GivenUp { number: 1, attempts: 1 }))));
}

/// At any time: while they write, and while they have nothing to do and what they wrote is unread.
///
/// catches: 572-a-reset-throws-away-what-was-said
fn a_feed_that_goes_early_is_over_for_its_loaders() {
    let [host, _] = devices();
    for wait in [0, 1, 2, 4, 8, 16, 100] {
        let (_folder, path) = folder();
        let mut feed = Feed::new(&path, 0.., host, options().slots(3)).unwrap();
        let workers = Workers::start(&path, &[None, None], None);
        let mut there = next(&mut feed).unwrap();
        while feed.loaders() < 2 {
            there = next(&mut feed).unwrap();
        }
        thread::sleep(Duration::from_millis(wait));
        check(&there, host);
        drop(feed);
        workers.join();
    }
}

/// The feed goes while a batch is made, and further ones wait to be.
fn a_batch_that_nobody_wants_any_more_is_no_error() {
    let [host, _] = devices();
    for how in 0..3 {
        let (_folder, path) = folder();
        let mut feed = Feed::new(&path, 0..9, host, options().slots(3)).unwrap();
        let (has_a_job, waits) = channel();
        let (has_gone, goes_on) = channel::<()>();
        let loader = thread::spawn(move || {
            let mut loader = Loader::connect(path).unwrap();
            let job = loader.next_job().unwrap().unwrap();
            has_a_job.send(()).unwrap();
            goes_on.recv().unwrap();
            match how {
                0 => job.write(&batch(0)).unwrap(),
                1 => job.fail("not found").unwrap(),
                _ => drop(job),
            }
            assert!(loader.next_job().unwrap().is_none());
            assert!(loader.next_job().unwrap().is_none());
        });
        welcome(&mut feed, 1);
        waits.recv().unwrap();
        drop(feed);
        has_gone.send(()).unwrap();
        loader.join().unwrap();
    }
}
