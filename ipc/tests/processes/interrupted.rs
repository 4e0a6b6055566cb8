//! Calls of the system that are interrupted, or refused.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use transship_ipc::{Exporter, Feed, Importer, IpcError, Slots};

use crate::filtered::{Refused, interrupted_once, refusing};
use crate::hostile_loader::socket;
use crate::support::{LONG, batch, case, check, compare, connect, devices, folder, make, next, options};
use crate::tree_child::tree_of;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("much_memory_is_had_where_signals_come", much_memory_is_had_where_signals_come),
        case("who_is_interrupted_connects_all_the_same", who_is_interrupted_connects_all_the_same),
        case("a_socket_that_cannot_be_looked_at_is_removed", a_socket_that_cannot_be_looked_at),
        case("a_loader_that_can_have_no_ring_is_given_no_work", a_loader_that_can_have_no_ring),
    ]
}

/// Signals come so often that no call has more than 8 MiB before the next one.
///
/// catches: 714-much-memory-is-had-by-one-call
fn much_memory_is_had_where_signals_come() {
    let more = Refused { call: libc::SYS_fallocate, above: Some((3, 8 << 20)) };
    for slots in [1, 3, 20] {
        let made = refusing(&[more], Errno::INTR, move || Slots::new(1 << 20, slots));
        let memory = fstat(made.unwrap().descriptor()).unwrap();
        assert!(memory.st_size >= (slots as i64) << 20, "{memory:?}");
        assert!(memory.st_blocks * 512 >= memory.st_size, "{memory:?}");
    }
}

/// catches: 717-who-is-interrupted-does-not-connect
fn who_is_interrupted_connects_all_the_same() {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let importer = interrupted_once(libc::SYS_connect, move || Importer::connect(path, devices()[0]));
    let mut importer = importer.unwrap();
    exporter.accept_within(LONG).unwrap().export(&batch(1)).unwrap();
    compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 1), 1);
}

fn a_socket_that_cannot_be_looked_at() {
    let (_folder, path) = folder();
    let refused = [libc::SYS_newfstatat, libc::SYS_statx].map(|call| Refused { call, above: None });
    let there = path.clone();
    let bound = refusing(&refused, Errno::ACCESS, move || Exporter::bind(there));
    assert!(matches!(bound, Err(IpcError::System { what: "looking at a socket", .. })), "{bound:?}");
    assert!(!path.exists());
    drop(Exporter::bind(&path).unwrap());
}

/// Too many descriptors of this user are on their way. There is no work for a loader that cannot write it, and the next one comes.
///
/// catches: 718-a-loader-without-a-ring-is-given-work
fn a_loader_that_can_have_no_ring() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..1, host, options()).unwrap();
    let further = socket(&path);
    let send = Refused { call: libc::SYS_sendmsg, above: None };
    let (mut feed, there) = refusing(&[send], Errno::TOOMANYREFS, move || {
        let there = feed.next_within(Duration::ZERO);
        (feed, there)
    });
    assert!(matches!(there, Err(IpcError::System { what: "sending shared memory", .. })), "{there:?}");
    assert_eq!(feed.loaders(), 0);
    assert_eq!(recv(&further, &mut [0; 40], RecvFlags::empty()).unwrap().1, 0);
    let mut loader = connect(&mut feed, &path, 1);
    make(&mut loader, 0);
    check(&next(&mut feed).unwrap(), host);
    assert!(next(&mut feed).is_none());
}
