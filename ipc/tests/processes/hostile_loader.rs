//! A process that means harm connects as a loader: it wastes its own lease, and nothing else.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::{SealFlags, fcntl_add_seals, fstat, ftruncate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, send, sendmsg, socket_with,
};
use transship_core::{Alignment, Manifest, Tensor};
use transship_ipc::Feed;

use crate::support::{batch, case, check, devices, folder, held, next, options};
use crate::workers::Workers;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("who_breaks_the_rules_is_sent_away_and_others_do_the_work", who_breaks_the_rules_is_sent_away),
        case("who_says_two_things_of_a_batch_is_sent_away", who_says_two_things_of_a_batch_is_sent_away),
        case("the_memory_of_a_ring_is_there", the_memory_of_a_ring_is_there),
        case("the_memory_of_a_ring_keeps_its_size", the_memory_of_a_ring_keeps_its_size),
        case("descriptors_that_are_sent_are_closed", descriptors_that_are_sent_are_closed),
        case("who_does_nothing_is_late", who_does_nothing_is_late),
        case("further_loaders_are_sent_away", further_loaders_are_sent_away),
        case("who_writes_on_changes_its_own_batch_alone", who_writes_on_changes_its_own_batch_alone),
    ]
}

const SLOT: usize = 400 << 10;

/// A loader by hand.
struct Raw {
    socket: OwnedFd,
    ring: OwnedFd,
    memory: *mut u8,
}

/// Ticket, number and slot.
type Work = [u64; 3];

impl Raw {
    fn connect(path: &Path) -> Option<Self> {
        let socket = socket(path);
        let (mut bytes, mut space) = ([0; 40], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::empty()).ok()?;
        let ring = control.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut sent) => sent.next(),
            _ => None,
        })?;
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping.
        let memory =
            unsafe { mmap(std::ptr::null_mut(), 2 * SLOT, read_write, shared, &ring, 0) }.unwrap().cast();
        Some(Self { socket, ring, memory })
    }

    fn work(&self) -> Work {
        let mut bytes = [0; 40];
        assert_eq!(recv(&self.socket, &mut bytes, RecvFlags::empty()).unwrap().1, 40);
        assert_eq!((&bytes[..5], bytes[5]), (&b"TSRG\x03"[..], 2));
        [8, 16, 24].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    }

    fn say(&self, kind: u8, words: [u64; 4]) {
        self.send(&message(kind, words));
    }

    fn send(&self, bytes: &[u8]) {
        let _ = send(&self.socket, bytes, SendFlags::NOSIGNAL);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= 2 * SLOT);
        // SAFETY: it is within the mapping.
        unsafe { self.memory.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: it is mapped there, and nothing else uses it.
        unsafe { munmap(self.memory.cast(), 2 * SLOT) }.unwrap();
    }
}

pub(crate) fn socket(path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

pub(crate) fn message(kind: u8, words: [u64; 4]) -> Vec<u8> {
    let words = words.into_iter().flat_map(u64::to_le_bytes);
    b"TSRG\x03".iter().copied().chain([kind, 0, 0]).chain(words).collect()
}

fn manifest(bytes: usize) -> Vec<u8> {
    Manifest::packed(&vec![Tensor::from(vec![0_u8; bytes])], Alignment::ONE).unwrap().to_bytes().to_vec()
}

/// What is done with a loader that `hostile` plays: all batches come, of another one.
fn with_hostile(hostile: impl Fn(Raw) + Send + 'static) {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let options = options().patience(Duration::from_secs(20));
    let mut feed = Feed::new(&path, 0..6, host, options).unwrap();
    let is_there = Arc::new(AtomicBool::new(false));
    let played = thread::spawn({
        let (path, is_there) = (path.clone(), Arc::clone(&is_there));
        move || {
            let raw = Raw::connect(&path).unwrap();
            is_there.store(true, Ordering::Relaxed);
            hostile(raw)
        }
    });
    while !is_there.load(Ordering::Relaxed) {
        assert!(feed.next_within(Duration::from_millis(1)).is_err());
    }
    let workers = Workers::start(&path, &[None], None);
    for number in 0..6 {
        let there = next(&mut feed).unwrap();
        assert_eq!(there.number(), number);
        check(&there, host);
    }
    assert!(next(&mut feed).is_none());
    workers.join();
    played.join().unwrap();
}

/// catches: 537-manifest-anywhere
fn who_breaks_the_rules_is_sent_away() {
    const LIES: [fn(&Raw, Work); 15] = [
        |raw, _| raw.send(b"GET / HTTP/1.1"),
        |raw, _| raw.send(&[0; 40]),
        |raw, _| raw.send(&[0x54; 4000]),
        |raw, [ticket, ..]| raw.say(9, [ticket, 0, 0, 0]),
        |raw, [ticket, ..]| raw.say(2, [ticket, 0, 0, 0]),
        |raw, [ticket, _, slot]| raw.say(4, [ticket + 1, slot, 0, 20]),
        |raw, [ticket, _, slot]| raw.say(4, [ticket, slot ^ 1, 0, 20]),
        |raw, [ticket, ..]| raw.say(4, [ticket, 2, 0, 20]),
        |raw, [ticket, ..]| raw.say(4, [ticket, u64::MAX, 0, 20]),
        |raw, [ticket, _, slot]| raw.say(4, [ticket, slot, 0, u64::MAX]),
        |raw, [ticket, _, slot]| raw.say(4, [ticket, slot, u64::MAX, 20]),
        |raw, [ticket, _, slot]| raw.say(4, [ticket, slot, (SLOT - 19) as u64, 20]),
        |raw, [ticket, _, slot]| raw.say(4, [ticket, slot, 0, 20]),
        // The chunk ends behind the manifest, and behind the slot.
        |raw, [ticket, _, slot]| {
            let manifest = manifest(2 * SLOT);
            raw.write(slot as usize * SLOT + 64, &manifest);
            raw.say(4, [ticket, slot, 64, manifest.len() as u64]);
        },
        |raw, [ticket, _, slot]| {
            let tree = vec![Tensor::from(vec![0_u8; 3]), Tensor::from(vec![0_u8; 3])];
            let manifest = Manifest::of(&tree).unwrap().to_bytes().to_vec();
            raw.write(slot as usize * SLOT + 64, &manifest);
            raw.say(4, [ticket, slot, 64, manifest.len() as u64]);
        },
    ];
    for lie in LIES {
        with_hostile(move |raw| {
            lie(&raw, raw.work());
            is_sent_away(&raw.socket);
        });
    }
}

/// The end of a connection, after what was still to be read.
pub(crate) fn is_sent_away(socket: impl AsFd) {
    let mut bytes = [0; 40];
    while recv(&socket, &mut bytes, RecvFlags::empty()).is_ok_and(|(_, length)| length > 0) {}
}

/// One that is said to have failed, and then to be there.
fn who_says_two_things_of_a_batch_is_sent_away() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..1, host, options()).unwrap();
    let played = thread::spawn({
        let path = path.clone();
        move || {
            let raw = Raw::connect(&path).unwrap();
            let [ticket, _, slot] = raw.work();
            raw.say(5, [ticket, slot, 0, 0]);
            raw.say(4, [ticket, slot, 0, 20]);
            is_sent_away(&raw.socket);
        }
    });
    assert!(matches!(feed.next(), Some(Err(transship_ipc::IpcError::Failed { number: 0, .. }))));
    assert!(feed.next().is_none());
    played.join().unwrap();
}

/// What is touched first is there: the system need not find it then, or kill who touches it.
fn the_memory_of_a_ring_is_there() {
    with_hostile(|raw| {
        let status = fstat(&raw.ring).unwrap();
        assert!(status.st_blocks * 512 >= status.st_size, "{status:?}");
    });
}

/// catches: 536-memory-not-sealed
fn the_memory_of_a_ring_keeps_its_size() {
    with_hostile(|raw| {
        for size in [0, 4096, 1 << 30] {
            assert!(ftruncate(&raw.ring, size).is_err(), "{size}");
        }
        assert!(fcntl_add_seals(&raw.ring, SealFlags::FUTURE_WRITE).is_err());
        assert_eq!(fstat(&raw.ring).unwrap().st_size, 2 * SLOT as i64);
    });
}

fn descriptors_that_are_sent_are_closed() {
    let before = held().0;
    with_hostile(|raw| {
        let [ticket, _, slot] = raw.work();
        let many: Vec<_> = (0..100).map(|_| raw.ring.as_fd()).collect();
        for _ in 0..3 {
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            let bytes = message(4, [ticket, slot, 0, 20]);
            let _ = sendmsg(&raw.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        }
        is_sent_away(&raw.socket);
    });
    crate::support::eventually("no descriptor was kept", || held().0 == before);
}

fn who_does_nothing_is_late() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..4, host, options().patience(Duration::from_millis(200))).unwrap();
    let played = thread::spawn({
        let path = path.clone();
        move || {
            let raw = Raw::connect(&path).unwrap();
            is_sent_away(&raw.socket);
        }
    });
    while feed.loaders() == 0 {
        let _ = feed.next_within(Duration::from_millis(1));
    }
    let mut workers = Workers::start(&path, &[None], None);
    for number in 0..4 {
        let there = loop {
            // Slow machines make good ones late as well.
            workers.renew();
            match feed.next_within(Duration::from_millis(50)) {
                Ok(there) => break there.unwrap(),
                Err(transship_ipc::IpcError::TimedOut { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(there.number(), number);
        check(&there, host);
    }
    played.join().unwrap();
}

fn further_loaders_are_sent_away() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..2, host, options().most_loaders(1)).unwrap();
    let sockets: Vec<_> = (0..40).map(|_| socket(&path)).collect();
    while feed.next_within(Duration::from_millis(1)).is_err() && feed.loaders() == 0 {}
    let _ = (0..3).map(|_| feed.next_within(Duration::from_millis(1))).count();
    assert_eq!((feed.loaders(), held().1), (1, 1));
    sockets.iter().skip(1).for_each(is_sent_away);
    drop(sockets);
    let workers = Workers::start(&path, &[None], None);
    assert_eq!(next(&mut feed).unwrap().number(), 0);
    drop(workers);
}

fn who_writes_on_changes_its_own_batch_alone() {
    let [host, _] = devices();
    let (_folder, path) = folder();
    let mut feed = Feed::new(&path, 0..2, host, options().slots(2)).unwrap();
    let is_taken = Arc::new(AtomicBool::new(false));
    let played = thread::spawn({
        let (path, is_taken) = (path.clone(), Arc::clone(&is_taken));
        move || {
            let raw = Raw::connect(&path).unwrap();
            let [ticket, _, slot] = raw.work();
            let manifest = manifest(1000);
            raw.write(slot as usize * SLOT + 1000, &manifest);
            raw.say(4, [ticket, slot, 1000, manifest.len() as u64]);
            // Before that it would spoil its manifest, and be sent away.
            while !is_taken.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            for step in 0..2000_u32 {
                raw.write(0, &vec![step as u8; 2 * SLOT]);
            }
            drop(raw);
        }
    });
    let first = next(&mut feed).unwrap();
    is_taken.store(true, Ordering::Relaxed);
    let workers = Workers::start(&path, &[None], None);
    let mut tree = vec![Tensor::from(vec![0_u8; 1000])];
    first.put_into(&mut tree).unwrap();
    let second = next(&mut feed).unwrap();
    let copied = transship_core::start_copy(tree, host, transship_core::CopyOptions::default())
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(copied[0].as_slice::<u8>().unwrap().len(), 1000);
    check(&second, host);
    assert_eq!(second.number(), 1);
    assert_eq!(batch(1).len(), 4);
    played.join().unwrap();
    drop(workers);
}
