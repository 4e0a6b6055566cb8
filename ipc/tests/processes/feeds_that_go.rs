//! What stays of a feed that goes, and what does not.

use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use libtest_mimic::Trial;
use rustix::process::{Pid, WaitOptions, waitpid};
use transship_ipc::{Feed, IpcError, Loader};

use crate::child::feeds;
use crate::support::{batch, case, check, connect, devices, eventually, folder, make, next, options};
use crate::workers::Workers;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_forked_child_that_drops_a_feed_ends_nothing", a_forked_child_that_drops_a_feed_ends_nothing),
        case("a_feed_removes_its_socket_from_wherever", a_feed_removes_its_socket_from_wherever),
        case("a_feed_leaves_the_socket_of_another_one", a_feed_leaves_the_socket_of_another_one),
        case("a_feed_that_is_killed_is_gone_for_its_loaders", a_feed_that_is_killed_is_gone_for_its_loaders),
    ]
}

/// catches: 578-a-forked-child-ends-the-feed
fn a_forked_child_that_drops_a_feed_ends_nothing() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..8, host, options()).unwrap();
    let workers = Workers::start(&path, &[None], None);
    assert_eq!(next(&mut feed).unwrap().number(), 0);
    // SAFETY: the child uses the feed alone, which has no thread, and ends.
    match unsafe { libc::fork() } {
        0 => {
            drop(feed);
            // SAFETY: it ends the process, and runs nothing else of it.
            unsafe { libc::_exit(0) }
        }
        child => assert!(waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().is_some()),
    }
    assert!(path.exists());
    let further = Workers::start(&path, &[None], None);
    for number in 1..8 {
        let there = next(&mut feed).unwrap();
        assert_eq!(there.number(), number);
        check(&there, host);
    }
    assert!(next(&mut feed).is_none());
    workers.join();
    drop(feed);
    assert!(!path.exists());
    further.join();
}

/// catches: 579-whose-socket-is-not-looked-at
fn a_feed_leaves_the_socket_of_another_one() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let first = Feed::new(&path, 0..1, host, options()).unwrap();
    fs::remove_file(&path).unwrap();
    let mut second = Feed::new(&path, 0..1, host, options()).unwrap();
    drop(first);
    assert!(path.exists());
    let mut loader = connect(&mut second, &path, 1);
    make(&mut loader, 0);
    check(&next(&mut second).unwrap(), host);
    drop(second);
    assert!(!path.exists());
}

/// Its socket stays: the next feed says what to do.
fn a_feed_that_is_killed_is_gone_for_its_loaders() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let told = feeds(path.to_str().unwrap());
    let mut feed =
        Command::new(env::current_exe().unwrap()).envs([told]).stdin(Stdio::null()).spawn().unwrap();
    eventually("the feed listens", || path.exists());
    let mut loader = loop {
        match Loader::connect(&path) {
            Ok(loader) => break loader,
            // It listens once its socket has a path and a mode.
            Err(IpcError::System { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    make(&mut loader, 0);
    feed.kill().unwrap();
    feed.wait().unwrap();
    let error = loop {
        match loader.next_job() {
            Ok(job) => match job.unwrap() {
                job if job.number() % 2 == 0 => drop(job),
                job => drop(job.write(&batch(1))),
            },
            Err(error) => break error,
        }
    };
    assert!(matches!(error, IpcError::PeerGone));
    let error = Feed::new(&path, 0..1, host, options()).unwrap_err();
    assert!(error.to_string().contains("remove"), "{error}");
    fs::remove_file(&path).unwrap();
    let mut feed = Feed::new(&path, 0..1, host, options()).unwrap();
    make(&mut connect(&mut feed, &path, 1), 0);
    check(&next(&mut feed).unwrap(), host);
}

/// Its path is that from where it was made.
///
/// catches: 719-a-socket-is-left-behind
fn a_feed_removes_its_socket_from_wherever() {
    let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // One that an address has no room for, by its whole name.
    let deep = own.path().join("d".repeat(120));
    fs::create_dir(&deep).unwrap();
    let socket = deep.join("feed");
    let make_and_drop = || {
        // SAFETY: this thread, which ends here, has a folder of its own from here on: other tests stay where they are. Some containers refuse that; then they come along for a moment.
        unsafe { libc::unshare(libc::CLONE_FS) };
        let before = env::current_dir().unwrap();
        env::set_current_dir(&deep).unwrap();
        let feed = Feed::new("feed", 0..1, devices()[0], options()).unwrap();
        env::set_current_dir(other.path()).unwrap();
        fs::write("feed", "of somebody else").unwrap();
        assert!(socket.exists());
        drop(feed);
        env::set_current_dir(before).unwrap();
    };
    thread::scope(|scope| scope.spawn(make_and_drop).join()).unwrap();
    assert!(!socket.exists());
    assert!(other.path().join("feed").exists());
}
