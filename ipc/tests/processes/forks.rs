//! Children that are forked from who has a connection: they are refused what is the parent's, and may drop it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use transship_core::{Device, Error};
use transship_ipc::{Exporter, Feed, Importer, IpcError};

use crate::support::{
    LONG, batch, case, check, compare, connect, cuda_case, eventually, folder, like, make, next, options,
};
use crate::tree_child::{on, tree_of};
use crate::windows::read;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_forked_child_is_refused_what_its_parent_has", || refused(&Device::host())),
        case("a_forked_child_connects_anew", a_forked_child_connects_anew),
        case("a_batch_is_made_by_the_loader_and_by_no_child_of_it", a_batch_is_made_by_the_loader),
        case("a_feed_is_listened_to_by_no_child_of_its_process", a_feed_is_listened_to_by_no_child),
        cuda_case("cuda_a_forked_child_is_refused_what_its_parent_has", refused),
    ]
}

/// Ends the process that was forked: with 0 if nothing in `work` has panicked.
fn end_of_child(work: impl FnOnce()) -> ! {
    let code = i32::from(catch_unwind(AssertUnwindSafe(work)).is_err());
    // SAFETY: it ends the process, and runs nothing else of it.
    unsafe { libc::_exit(code) }
}

/// Waits for a child, which is killed where it hangs, and fails unless it has ended well.
fn join(child: i32) {
    let (child, begin) = (Pid::from_raw(child).unwrap(), Instant::now());
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return assert_eq!(status.exit_status(), Some(0), "{status:?}");
        }
        if begin.elapsed() > LONG {
            kill_process(child, Signal::KILL).unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_refused<T>(result: Result<T, IpcError>) {
    let error = result.err().expect("refused");
    assert!(matches!(error, IpcError::Forked), "{error}");
    assert!(error.to_string().contains("connect anew"), "{error}");
}

/// catches: 674-a-child-is-not-told-from-its-parent, 675-a-child-hands-a-window-over
fn refused(device: &Device) {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let mut importer = Importer::connect(&path, device).unwrap();
    let mut connection = exporter.accept_within(LONG).unwrap();
    let window = connection.open_window(&like(0), device).unwrap();
    let other = connection.open_window(&like(0), device).unwrap();
    let offer = connection.export(&on(5, device)).unwrap();
    let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
    let mut second = importer.next_turn_within(LONG).unwrap().unwrap();
    second.put(&on(0, device)).unwrap();
    second.finish().unwrap();
    let held = read(&other, 0).unwrap();
    for _ in 0..8 {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            // So that there are locks to be found locked.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(connection.lent() > 0 && !offer.is_released());
                }
            });
            thread::sleep(Duration::from_micros(300));
            // SAFETY: the child calls what needs no lock and no thread of its parent, as this crate promises, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                end_of_child(|| {
                    is_refused(offer.wait_released(LONG));
                    assert!(!offer.is_released() && connection.lent() == 0);
                    is_refused(window.written_within(LONG));
                    is_refused(window.descriptor());
                    is_refused(exporter.accept_within(LONG));
                    let _ = format!("{connection:?} {offer:?} {window:?}");
                });
            }
            over.store(true, Ordering::Relaxed);
            join(child);
        });
    }
    // SAFETY: as above.
    match unsafe { libc::fork() } {
        0 => end_of_child(move || {
            is_refused(connection.export(&batch(1)));
            is_refused(connection.open_window(&like(1), &Device::host()));
            is_refused(importer.next_within(LONG));
            is_refused(importer.next_turn_within(LONG));
            is_refused(importer.next_arrival_within(LONG));
            is_refused(importer.next().unwrap());
            assert!(importer.next().is_none());
            assert!(matches!(turn.put(&batch(0)), Err(Error::Forked)));
            is_refused(turn.finish());
            drop((held, window, other, offer, importer, connection, exporter));
        }),
        child => join(child),
    }
    // The parent goes on with all of it.
    assert!(matches!(other.written_within(Duration::ZERO), Err(IpcError::NotInTime { .. })));
    compare(held, 0);
    turn.put(&on(0, device)).unwrap();
    turn.finish().unwrap();
    compare(read(&window, 0).unwrap(), 0);
    compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 5), 5);
    offer.wait_released(LONG).unwrap();
    for _ in 0..2 {
        let mut turn = importer.next_turn_within(LONG).unwrap().unwrap();
        turn.put(&on(0, device)).unwrap();
        turn.finish().unwrap();
    }
    [window, other].iter().for_each(|window| compare(read(window, 0).unwrap(), 0));
    let again = Importer::connect(&path, device).unwrap();
    exporter.accept_within(LONG).unwrap().export(&on(1, device)).unwrap();
    drop(again);
    drop(importer);
    eventually("nothing is lent", || connection.lent() == 0);
}

fn a_forked_child_connects_anew() {
    let (_folder, path) = folder();
    let (exporter, host) = (Exporter::bind(&path).unwrap(), Device::host());
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        end_of_child(|| {
            let mut importer = Importer::connect(&path, &host).unwrap();
            let there = importer.next_within(LONG).unwrap().unwrap();
            assert_eq!(there.manifest().len(), 4);
            drop(there);
            assert!(importer.next().is_none());
        });
    }
    let mut connection = exporter.accept_within(LONG).unwrap();
    let offer = connection.export(&batch(0)).unwrap();
    offer.wait_released(LONG).unwrap();
    drop(connection);
    join(child);
}

/// Runs `work` in a child, which must end well. It drops all that it is given.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child calls what needs no lock and no thread of its parent, as this crate promises, and ends.
    match unsafe { libc::fork() } {
        0 => end_of_child(work),
        child => join(child),
    }
}

/// The same in a child that no handler of the C library sees.
fn in_unseen_child(work: impl FnOnce()) {
    let (signal, none) = (libc::c_long::from(libc::SIGCHLD), 0_usize);
    // SAFETY: as `fork`, but for what the C library has to do: the child allocates nothing.
    match unsafe { libc::syscall(libc::SYS_clone, signal, none, none, none, none) } {
        0 => end_of_child(work),
        child => join(i32::try_from(child).unwrap()),
    }
}

/// What is the parent's stays as it is in the child's memory, and in the parent's.
fn taken<T>(place: &mut Option<T>) -> T {
    place.take().expect("it is there")
}

/// catches: 709-a-child-that-drops-a-job-fails-it, 710-a-child-fails-the-batch-of-its-parent, 711-a-child-writes-the-batch-of-its-parent, 712-a-child-takes-the-work-of-its-parent
fn a_batch_is_made_by_the_loader() {
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..3, &Device::host(), options()).unwrap();
    let mut loader = connect(&mut feed, &path, 1);
    {
        let mut job = loader.next_job().unwrap();
        in_child(|| drop(taken(&mut job)));
        in_unseen_child(|| drop(taken(&mut job)));
        in_child(|| is_refused(taken(&mut job).write(&batch(7))));
        in_child(|| is_refused(taken(&mut job).in_place(&batch(7))));
        in_child(|| is_refused(taken(&mut job).fail("the child has failed")));
        taken(&mut job).write(&batch(0)).unwrap();
    }
    {
        let mut place = Some(loader.next_job().unwrap().unwrap().in_place(&batch(1)).unwrap());
        in_child(|| drop(taken(&mut place)));
        in_child(|| {
            let mut place = taken(&mut place);
            let written = place.write("[\"ids\"]", 0, &[9; 40]);
            assert!(matches!(written, Err(Error::Forked)), "{written:?}");
            assert!(place.address("[\"ids\"]").is_none());
            is_refused(place.finish());
        });
        let mut place = taken(&mut place);
        for (name, tensor) in batch(1) {
            place.write(&format!("[{name:?}]"), 0, tensor.as_bytes().unwrap()).unwrap();
        }
        place.finish().unwrap();
    }
    for _ in 0..2 {
        check(&next(&mut feed).unwrap(), &Device::host());
    }
    // There is work for the loader now.
    let mut loader = Some(loader);
    in_child(|| {
        let mut loader = taken(&mut loader);
        is_refused(loader.next_job());
    });
    let mut loader = taken(&mut loader);
    make(&mut loader, 2);
    check(&next(&mut feed).unwrap(), &Device::host());
    assert!(next(&mut feed).is_none() && loader.next_job().unwrap().is_none());
}

/// catches: 713-a-child-listens-to-the-loaders-of-its-parent
fn a_feed_is_listened_to_by_no_child() {
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..3, &Device::host(), options()).unwrap();
    let mut loader = connect(&mut feed, &path, 1);
    make(&mut loader, 0);
    let mut feed = Some(feed);
    in_child(|| {
        let mut feed = taken(&mut feed);
        is_refused(feed.next_within(Duration::ZERO));
        is_refused(feed.next().unwrap());
        assert!(feed.next().is_none());
        is_refused(feed.next_within(LONG));
    });
    let mut feed = taken(&mut feed);
    for number in 0..3 {
        check(&next(&mut feed).unwrap(), &Device::host());
        if number < 2 {
            make(&mut loader, number + 1);
        }
    }
    assert!(next(&mut feed).is_none() && loader.next_job().unwrap().is_none());
}
