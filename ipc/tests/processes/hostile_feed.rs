//! A process that means harm plays the feed: the loader believes nothing that could harm it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use libtest_mimic::Trial;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, listen, sendmsg, socket_with,
};
use transship_ipc::{IpcError, Loader};

use crate::hostile_loader::message;
use crate::support::{case, folder};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("a_loader_takes_no_memory_that_can_go", a_loader_takes_no_memory_that_can_go),
        case("a_loader_writes_to_its_slots_alone", a_loader_writes_to_its_slots_alone),
    ]
}

const PAGE: u64 = 4096;

/// What a loader makes of a feed that sends these messages with these descriptors.
fn loader_of(sent: Vec<(Vec<u8>, Vec<OwnedFd>)>) -> Result<Option<u64>, IpcError> {
    let (_folder, path) = folder();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    let played = thread::spawn(move || {
        let peer = accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        for (bytes, descriptors) in sent {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            }
            let _ = sendmsg(&peer, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        }
    });
    let result = Loader::connect(&path).and_then(|mut loader| Ok(loader.next_job()?.map(|job| job.number())));
    played.join().unwrap();
    result
}

pub(crate) fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("transship-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, bytes).unwrap();
    fcntl_add_seals(&memory, seals).unwrap();
    memory
}

fn sealed(bytes: u64) -> OwnedFd {
    memory(bytes, SealFlags::SHRINK | SealFlags::GROW)
}

fn ring(slots: u64, slot_bytes: u64) -> Vec<u8> {
    message(1, [slots, slot_bytes, 0, 0])
}

#[track_caller]
fn is_refused(bytes: Vec<u8>, descriptors: Vec<OwnedFd>) {
    let result = loader_of(vec![(bytes, descriptors)]);
    assert!(matches!(result, Err(IpcError::Protocol { .. })), "{result:?}");
}

fn a_loader_takes_no_memory_that_can_go() {
    let works = loader_of(vec![(ring(2, PAGE), vec![sealed(2 * PAGE)]), (message(2, [0, 7, 1, 0]), vec![])]);
    assert!(matches!(works, Ok(Some(7)) | Err(IpcError::PeerGone)), "{works:?}");
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
        is_refused(ring(2, PAGE), vec![memory(2 * PAGE, seals)]);
    }
    for bytes in [0, PAGE, 2 * PAGE - 1, 3 * PAGE] {
        is_refused(ring(2, PAGE), vec![sealed(bytes)]);
    }
    for (slots, bytes) in
        [(0, PAGE), (2, 0), (129, PAGE), (u64::MAX, PAGE), (2, u64::MAX), (4, u64::MAX / 4 + 1)]
    {
        is_refused(ring(slots, bytes), vec![sealed(2 * PAGE)]);
    }
    is_refused(ring(2, PAGE), vec![]);
    is_refused(ring(2, PAGE), vec![sealed(2 * PAGE), sealed(2 * PAGE)]);
    is_refused(ring(2, PAGE), (0..8).map(|_| sealed(2 * PAGE)).collect());
    is_refused(ring(2, PAGE), vec![tempfile::tempfile().unwrap().into()]);
    is_refused(message(2, [2, PAGE, 0, 0]), vec![sealed(2 * PAGE)]);
    is_refused(b"HTTP/1.1 200 OK".to_vec(), vec![sealed(2 * PAGE)]);
    assert!(matches!(loader_of(vec![]), Err(IpcError::PeerGone)));
}

fn a_loader_writes_to_its_slots_alone() {
    for slot in [2, u64::MAX] {
        let told = vec![(ring(2, PAGE), vec![sealed(2 * PAGE)]), (message(2, [0, 7, slot, 0]), vec![])];
        assert!(matches!(loader_of(told), Err(IpcError::Protocol { .. })));
    }
    let over = vec![(ring(2, PAGE), vec![sealed(2 * PAGE)]), (message(3, [0; 4]), vec![])];
    assert!(matches!(loader_of(over), Ok(None)));
    let ring_again = vec![(ring(2, PAGE), vec![sealed(2 * PAGE)]), (ring(2, PAGE), vec![])];
    assert!(matches!(loader_of(ring_again), Err(IpcError::Protocol { .. })));
}
