//! Waiting for several things at a time, by descriptors.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transship_core::Device;
use transship_ipc::{Arrival, Exporter, Feed, FeedOptions, IpcError, Loader, Window};

use crate::exported::pair;
use crate::hostile_loader::socket;
use crate::support::{LONG, batch, case, compare, devices, folder, hand_out, like, next, welcome};
use crate::tree_child::{Role, TREES, connect, spawn, tree_of};
use crate::windows::{read, write};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_server_waits_for_whichever_writer_has_written", a_server_waits_for_whichever_writer),
        case("an_importer_of_several_waits_for_whichever_tree_comes", whichever_tree_comes),
        case("a_descriptor_says_when_a_window_would_not_be_waited_for", a_descriptor_says_when),
        case("a_window_that_is_closed_is_not_waited_for", a_window_that_is_closed),
        case("an_importer_that_says_nothing_more_is_not_waited_for", an_importer_that_says_nothing_more),
        case("a_call_that_gives_nothing_has_heard_all", a_call_that_gives_nothing_has_heard_all),
        case("a_loader_waits_for_work_within_its_limit", a_loader_waits_for_work_within_its_limit),
        case("a_loader_waits_for_its_feed_within_its_limit", a_loader_waits_for_its_feed_within_its_limit),
    ]
}

/// What does not happen is not waited for longer.
const SHORT: Duration = Duration::from_millis(20);

/// Which of these are readable, when at most so much time has passed.
fn readable(descriptors: &[impl AsFd], limit: Duration) -> Vec<bool> {
    let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut polled, Some(&Timespec::try_from(limit).unwrap())).unwrap();
    polled.iter().map(|polled| !polled.revents().is_empty()).collect()
}

pub(crate) fn is_readable(descriptor: impl AsFd) -> bool {
    readable(&[descriptor], Duration::ZERO) == [true]
}

fn a_server_waits_for_whichever_writer() {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    assert!(!is_readable(&exporter));
    let processes = [0, 1].map(|_| spawn(&path, Role::Writer, None));
    let mut connections = Vec::new();
    while connections.len() < 2 {
        assert_eq!(readable(&[&exporter], LONG), [true], "nobody has connected");
        connections.push(exporter.accept_within(Duration::ZERO).unwrap());
    }
    let mut windows: Vec<(u64, Window)> = Vec::new();
    for connection in &mut connections {
        windows.extend(
            (0..TREES).map(|number| (number, connection.open_window(&like(number), devices()[0]).unwrap())),
        );
    }
    while !windows.is_empty() {
        let descriptors: Vec<_> = windows.iter().map(|(_, window)| window.descriptor().unwrap()).collect();
        let written = readable(&descriptors, LONG);
        assert!(written.contains(&true), "{} windows were not written", windows.len());
        for at in (0..windows.len()).rev().filter(|at| written[*at]) {
            let (number, window) = windows.swap_remove(at);
            let mut tree = like(number);
            window.written_within(Duration::ZERO).unwrap().put_into(&mut tree).unwrap();
            compare(tree, number);
        }
    }
    drop(connections);
    processes.into_iter().for_each(|process| process.join());
}

fn whichever_tree_comes() {
    let folders = [folder(), folder()];
    let processes = folders.each_ref().map(|(_, path)| spawn(path, Role::Exporter, None));
    let mut importers: Vec<_> = folders.iter().map(|(_, path)| (0, connect(path, devices()[0]))).collect();
    while !importers.is_empty() {
        let descriptors: Vec<_> = importers.iter().map(|(_, importer)| importer).collect();
        let heard = readable(&descriptors, LONG);
        assert!(heard.contains(&true), "nothing came of {} exporters", importers.len());
        for at in (0..importers.len()).rev().filter(|at| heard[*at]) {
            let (number, importer) = &mut importers[at];
            loop {
                match importer.next_arrival_within(Duration::ZERO) {
                    Ok(Some(Arrival::Tree(tree))) => compare(tree_of(&tree, *number), *number),
                    Ok(None) => {
                        assert_eq!(*number, TREES);
                        importers.swap_remove(at);
                        break;
                    }
                    Err(IpcError::NotInTime { .. }) => break,
                    other => panic!("{other:?}"),
                }
                *number += 1;
            }
        }
    }
    processes.into_iter().for_each(|process| process.join());
}

/// catches: 670-a-written-window-does-not-signal, 671-an-event-stays-signalled, 672-who-comes-late-hears-nothing
fn a_descriptor_says_when() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let [late, early] = [0, 1].map(|_| connection.open_window(&like(0), devices()[0]).unwrap());
    let of_early = early.descriptor().unwrap();
    assert!(!is_readable(of_early));
    // What is written first is known first: `late` is, before anybody asks for its descriptor.
    write(&mut importer, &batch(0));
    assert!(!is_readable(of_early));
    write(&mut importer, &batch(0));
    assert_eq!(readable(&[of_early], LONG), [true]);
    let of_late = late.descriptor().unwrap();
    assert!(is_readable(of_late));
    for _ in 0..3 {
        assert_eq!(readable(&[of_late], LONG), [true]);
        assert_eq!(readable(&[of_early], LONG), [true]);
        for (window, descriptor) in [(&late, of_late), (&early, of_early)] {
            // As long as nobody takes it.
            assert!(is_readable(descriptor));
            let tree = read(window, 0).unwrap();
            assert!(!is_readable(descriptor));
            assert!(matches!(window.written_within(Duration::ZERO), Err(IpcError::NotInTime { .. })));
            compare(tree, 0);
            assert!(!is_readable(descriptor));
            write(&mut importer, &batch(0));
        }
    }
}

/// catches: 673-what-comes-back-does-not-signal
fn a_window_that_is_closed() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let windows = [0, 1].map(|_| connection.open_window(&like(0), devices()[0]).unwrap());
    let descriptors = windows.each_ref().map(|window| window.descriptor().unwrap());
    write(&mut importer, &batch(0));
    assert_eq!(readable(&descriptors, LONG), [true, false]);
    drop(importer);
    // What was finished is there, and then the end is. It gives its windows back before it has gone.
    assert!(readable(&descriptors[1..], LONG)[0]);
    compare(read(&windows[0], 0).unwrap(), 0);
    for (window, descriptor) in windows.iter().zip(descriptors) {
        assert!(is_readable(descriptor));
        let end = window.written_within(Duration::ZERO);
        assert!(matches!(end, Err(IpcError::PeerGone | IpcError::WindowClosed)), "{end:?}");
        assert!(is_readable(descriptor));
    }
    let begin = Instant::now();
    while !matches!(connection.export(&batch(0)), Err(IpcError::PeerGone)) {
        assert!(begin.elapsed() < LONG, "the importer has gone");
    }
}

/// An importer that is killed gives nothing back.
///
/// catches: 682-a-killed-importer-does-not-signal
fn an_importer_that_says_nothing_more() {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let importer = socket(&path);
    let mut connection = exporter.accept_within(LONG).unwrap();
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    let descriptor = window.descriptor().unwrap();
    assert!(!is_readable(descriptor));
    drop(importer);
    assert_eq!(readable(&[descriptor], LONG), [true]);
    assert!(matches!(window.written_within(Duration::ZERO), Err(IpcError::PeerGone)));
    assert!(is_readable(descriptor));
}

fn a_call_that_gives_nothing_has_heard_all() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, &Device::host());
    assert!(!is_readable(&importer));
    let window = connection.open_window(&like(0), devices()[0]).unwrap();
    let _offer = connection.export(&batch(5)).unwrap();
    assert_eq!(readable(&[&importer], LONG), [true]);
    let mut seen = (false, None);
    while seen.1.is_none() || !seen.0 {
        match importer.next_arrival_within(LONG).unwrap().unwrap() {
            Arrival::Tree(tree) => {
                compare(tree_of(&tree, 5), 5);
                seen.0 = true;
            }
            Arrival::Turn(turn) => seen.1 = Some(turn),
            other => panic!("{other:?}"),
        }
    }
    let nothing = importer.next_arrival_within(Duration::ZERO);
    assert!(matches!(nothing, Err(IpcError::NotInTime { .. })));
    assert!(!is_readable(&importer));
    let mut turn = seen.1.unwrap();
    turn.put(&batch(0)).unwrap();
    turn.finish().unwrap();
    drop(read(&window, 0).unwrap());
    assert_eq!(readable(&[&importer], LONG), [true]);
    assert!(matches!(importer.next_arrival_within(Duration::ZERO).unwrap(), Some(Arrival::Turn(_))));
    drop((window, connection));
    assert_eq!(readable(&[&importer], LONG), [true]);
    assert!(importer.next_arrival_within(LONG).unwrap().is_none());
}

/// Its descriptor is readable where it would not wait. One that waits in the kernel for ever (`recv` without `DONTWAIT`) fails this.
fn a_loader_waits_for_work_within_its_limit() {
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..2, devices()[0], FeedOptions::new(400 << 10).slots(1)).unwrap();
    let mut loader = thread::scope(|scope| {
        let loader = scope.spawn(|| Loader::connect_within(&path, LONG).unwrap());
        welcome(&mut feed, 1);
        loader.join().unwrap()
    });
    assert_eq!(readable(&[&loader], LONG), [true]);
    loader.next_job_within(Duration::ZERO).unwrap().unwrap().write(&batch(0)).unwrap();
    // The only slot is not free before this batch has gone.
    let first = next(&mut feed).unwrap();
    hand_out(&mut feed);
    assert!(!is_readable(&loader));
    for limit in [Duration::ZERO, SHORT] {
        let begin = Instant::now();
        let error = loader.next_job_within(limit).unwrap_err();
        assert!(matches!(error, IpcError::NotInTime { .. }), "{error}");
        assert!((limit..LONG).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }
    drop(first);
    hand_out(&mut feed);
    assert_eq!(readable(&[&loader], LONG), [true]);
    loader.next_job_within(Duration::ZERO).unwrap().unwrap().write(&batch(1)).unwrap();
    drop(next(&mut feed).unwrap());
    assert!(next(&mut feed).is_none());
    assert_eq!(readable(&[&loader], LONG), [true]);
    assert!(loader.next_job_within(Duration::ZERO).unwrap().is_none());
    assert!(loader.next_job_within(Duration::MAX).unwrap().is_none());
}

/// Also where the kernel keeps it waiting, since too many have connected before it. Without the socket's limit that call never returns.
fn a_loader_waits_for_its_feed_within_its_limit() {
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..1, devices()[0], FeedOptions::new(400 << 10)).unwrap();
    let late = |limit| {
        let begin = Instant::now();
        let error = Loader::connect_within(&path, limit).unwrap_err();
        assert!(matches!(error, IpcError::NotInTime { .. }), "{error}");
        assert!((limit..LONG).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        error.to_string()
    };
    assert!(late(SHORT).starts_with("the feed did not answer"));
    // Who has given up is still among those who wait to be accepted.
    while late(Duration::ZERO).starts_with("the feed did not answer") {}
    assert!(late(SHORT).starts_with("nobody has accepted"));
    // All of those have gone, and the feed finds no loader among them.
    hand_out(&mut feed);
    let mut loader = thread::scope(|scope| {
        let loader = scope.spawn(|| Loader::connect_within(&path, Duration::MAX).unwrap());
        while !loader.is_finished() {
            hand_out(&mut feed);
        }
        loader.join().unwrap()
    });
    loader.next_job_within(LONG).unwrap().unwrap().write(&batch(0)).unwrap();
    drop(next(&mut feed).unwrap());
}
