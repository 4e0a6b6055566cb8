//! A process that means harm plays the exporter: the importer believes nothing that could harm it.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::{SealFlags, ftruncate};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, send, sendmsg, socket_with,
};
use transship_core::{Alignment, CopyOptions, Device, Manifest, Tensor, start_copy};
use transship_ipc::{Importer, IpcError};

use crate::hostile_feed::memory;
use crate::hostile_loader::message;
use crate::support::{LONG, case, devices, eventually, folder, held};
use crate::waiting::is_readable;

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("an_importer_takes_no_memory_that_can_go", an_importer_takes_no_memory_that_can_go),
        case("an_importer_believes_no_size", an_importer_believes_no_size),
        case("an_importer_believes_no_manifest", an_importer_believes_no_manifest),
        case("a_remembered_manifest_is_no_other", a_remembered_manifest_is_no_other),
        case("an_importer_hears_offers_alone", an_importer_hears_offers_alone),
        case("what_comes_behind_a_lie_is_given_back", what_comes_behind_a_lie_is_given_back),
        case("who_talks_on_keeps_no_importer_beyond_its_limit", who_talks_on_keeps_no_importer),
        case("what_an_exporter_may_say_at_most_is_heard", what_an_exporter_may_say_at_most_is_heard),
    ]
}

pub(crate) type Sent = (Vec<u8>, Vec<OwnedFd>);

const PAGE: u64 = 4096;
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// What an importer makes of one message: how many tensors the tree has.
fn importer_of(sent: Sent) -> Result<Option<usize>, IpcError> {
    importer_of_all(vec![sent], devices()[1])
}

/// The same of several, on a device.
pub(crate) fn importer_of_all(sent: Vec<Sent>, device: &Device) -> Result<Option<usize>, IpcError> {
    let (mut importer, played) = hearing(sent, device);
    let there = importer.next_within(LONG);
    let result = there.map(|there| there.map(|there| there.tensors().map_or(0, |tensors| tensors.len())));
    if matches!(result, Err(IpcError::Protocol { .. })) {
        assert!(importer.next_within(LONG).unwrap().is_none());
    }
    drop(importer);
    played.join().unwrap();
    result
}

/// An importer, and the thread that says all of this to it.
pub(crate) fn hearing(sent: Vec<Sent>, device: &Device) -> (Importer, JoinHandle<()>) {
    let (_folder, path) = folder();
    let socket = listening(&path);
    let played = thread::spawn(move || {
        let peer = accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        sent.into_iter().for_each(|sent| say(&peer, sent));
    });
    (Importer::connect(&path, device).unwrap(), played)
}

pub(crate) fn listening(path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    socket
}

pub(crate) fn say(peer: &OwnedFd, (bytes, descriptors): Sent) {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    let _ = sendmsg(peer, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
}

#[track_caller]
fn is_refused(bytes: Vec<u8>, descriptors: Vec<OwnedFd>) {
    let result = importer_of((bytes, descriptors));
    assert!(matches!(result, Err(IpcError::Protocol { .. })), "{result:?}");
    eventually("nothing is mapped", || held().1 == 0);
}

fn offer(chunk_bytes: u64, manifest_bytes: u64) -> Vec<u8> {
    message(6, [1, chunk_bytes, manifest_bytes, 0])
}

pub(crate) fn manifest(bytes: usize) -> Vec<u8> {
    Manifest::packed(&vec![Tensor::from(vec![0_u8; bytes])], Alignment::ONE).unwrap().to_bytes().to_vec()
}

/// A chunk of so many bytes, and a manifest behind it.
pub(crate) fn tree(chunk: u64, manifest: &[u8], seals: SealFlags) -> OwnedFd {
    let memory = memory((chunk + manifest.len() as u64).next_multiple_of(PAGE), seals);
    rustix::io::pwrite(&memory, manifest, chunk).unwrap();
    memory
}

fn an_importer_takes_no_memory_that_can_go() {
    let manifest = manifest(5000);
    let works = importer_of((offer(5000, manifest.len() as u64), vec![tree(5000, &manifest, SEALS)]));
    assert!(matches!(works, Ok(Some(1))), "{works:?}");
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
        is_refused(offer(5000, manifest.len() as u64), vec![tree(5000, &manifest, seals)]);
    }
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    ftruncate(&file, 2 * PAGE).unwrap();
    is_refused(offer(5000, manifest.len() as u64), vec![file]);
    is_refused(offer(5000, manifest.len() as u64), vec![]);
    is_refused(
        offer(5000, manifest.len() as u64),
        [0, 1].map(|_| tree(5000, &manifest, SEALS)).into_iter().collect(),
    );
}

fn an_importer_believes_no_size() {
    let manifest = manifest(5000);
    let length = manifest.len() as u64;
    for (chunk, bytes) in [
        (0, 0),
        (0, length),
        (5000, 0),
        (PAGE, length),
        (3 * PAGE, length),
        (5000, 2 * PAGE),
        (5000, 1 << 40),
        (5000, u64::MAX),
        (u64::MAX, length),
        (u64::MAX, u64::MAX),
        (u64::MAX - length, length),
        (1 << 63, length),
        (i64::MAX as u64, 1),
    ] {
        is_refused(offer(chunk, bytes), vec![tree(5000, &manifest, SEALS)]);
    }
    // A manifest that would take a lot of memory to look at.
    is_refused(offer(0, 1 << 38), vec![memory(1 << 38, SEALS)]);
}

/// catches: 568-manifest-of-another-size
fn an_importer_believes_no_manifest() {
    for other in [4999, 5001, 100_000, 0] {
        let manifest = manifest(other);
        is_refused(offer(5000, manifest.len() as u64), vec![tree(5000, &manifest, SEALS)]);
    }
    let two = vec![Tensor::from(vec![0_u8; 2500]), Tensor::from(vec![0_u8; 2500])];
    let two = Manifest::of(&two).unwrap().to_bytes().to_vec();
    is_refused(offer(5000, two.len() as u64), vec![tree(5000, &two, SEALS)]);
    let mut garbage = manifest(5000);
    garbage[9] ^= 1;
    is_refused(offer(5000, garbage.len() as u64), vec![tree(5000, &garbage, SEALS)]);
    is_refused(offer(5000, 20), vec![tree(5000, &[0; 20], SEALS)]);
}

/// An offer of a tree of 100 bytes, all of which are `byte`.
fn offered(manifest: &[u8], byte: u8) -> Sent {
    let memory = tree(100, manifest, SEALS);
    rustix::io::pwrite(&memory, &[byte; 100], 0).unwrap();
    (offer(100, manifest.len() as u64), vec![memory])
}

/// Deliberate bugs: manifests of one length are taken for one; the first one is taken for all; what is like that of the tree before need not be of the size of its tree.
fn a_remembered_manifest_is_no_other() {
    let named = |name: &str, tensor: Tensor| {
        let manifest = Manifest::packed(&BTreeMap::from([(name, tensor)]), Alignment::ONE).unwrap();
        manifest.to_bytes().to_vec()
    };
    let one = named("a", Tensor::from(vec![0_u8; 100]));
    let (other, signed) =
        (named("b", Tensor::from(vec![0_u8; 100])), named("a", Tensor::from(vec![0_i8; 100])));
    let longer = named("longer", Tensor::from(vec![0_u8; 100]));
    assert!(one.len() == other.len() && one.len() == signed.len());
    for device in devices() {
        let all = [&one, &one, &other, &one, &signed, &longer, &longer, &other, &one, &one];
        let sent = (0..).zip(all).map(|(number, manifest)| offered(manifest, number)).collect();
        let (mut importer, played) = hearing(sent, device);
        for (number, manifest) in (0_u8..).zip(all) {
            let there = importer.next_within(LONG).unwrap().unwrap();
            assert_eq!(there.manifest().to_bytes(), &manifest[..], "tree {number}");
            let expected = Manifest::from_bytes(manifest.clone()).unwrap();
            let [(path, tensor)] = &there.tensors().unwrap()[..] else { panic!("{there:?}") };
            expected
                .for_each_leaf(|leaf| {
                    assert_eq!((leaf.path(), leaf.layout()), (&path[..], tensor.layout()));
                    Ok(())
                })
                .unwrap();
            let here = start_copy(tensor.clone(), devices()[0], CopyOptions::default()).unwrap();
            assert_eq!(here.wait().unwrap().to_bytes().unwrap(), [number; 100]);
        }
        drop(importer);
        played.join().unwrap();
    }
    // One that is broken, or of a tree of another size, behind a good one.
    let broken = |at: usize| {
        let mut broken = one.clone();
        broken[at] ^= 1;
        offered(&broken, 1)
    };
    let of_another_size =
        [99, 101].map(|chunk| (offer(chunk, one.len() as u64), vec![tree(chunk, &one, SEALS)]));
    let lies = [broken(5), broken(one.len() / 2), broken(one.len() - 1)].into_iter().chain(of_another_size);
    for lie in lies {
        let (mut importer, played) = hearing(vec![offered(&one, 1), lie], devices()[0]);
        assert_eq!(importer.next_within(LONG).unwrap().unwrap().tensors().unwrap().len(), 1);
        let refused = importer.next_within(LONG);
        assert!(matches!(refused, Err(IpcError::Protocol { .. })), "{refused:?}");
        drop(importer);
        played.join().unwrap();
    }
}

fn an_importer_hears_offers_alone() {
    for kind in [0, 1, 2, 4, 5, 7, 8, 9, 200] {
        is_refused(message(kind, [1, 5000, 20, 0]), vec![]);
    }
    is_refused(message(3, [0; 4]), vec![tree(0, &[0; 20], SEALS)]);
    is_refused(message(1, [2, PAGE, 0, 0]), vec![memory(2 * PAGE, SEALS)]);
    is_refused(b"HTTP/1.1 200 OK".to_vec(), vec![]);
    is_refused(vec![0x54; 4000], vec![]);
    assert!(matches!(importer_of((message(3, [0; 4]), vec![])), Ok(None)));
}

/// Deliberate bug: an importer that has been lied to stays connected, and keeps what it does not look at.
fn what_comes_behind_a_lie_is_given_back() {
    let (_folder, path) = folder();
    let socket = listening(&path);
    let mut importer = Importer::connect(&path, devices()[0]).unwrap();
    let peer = accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
    set_socket_timeout(&peer, Timeout::Recv, Some(LONG)).unwrap();
    let manifest = manifest(5000);
    say(&peer, (message(1, [0; 4]), vec![]));
    let offer = message(6, [5, 5000, manifest.len() as u64, 0]);
    say(&peer, (offer.clone(), vec![tree(5000, &manifest, SEALS)]));
    assert!(matches!(importer.next_within(LONG), Err(IpcError::Protocol { .. })));
    let mut heard = [0; 40];
    assert_eq!(recv(&peer, &mut heard, RecvFlags::empty()).unwrap().1, 40);
    assert_eq!(heard[..], message(7, [5, 0, 0, 0]));
    assert_eq!(send(&peer, &offer, SendFlags::NOSIGNAL), Err(Errno::PIPE));
    assert!(importer.next_within(LONG).unwrap().is_none());
}

/// It closes windows that were never there. As much is said before each call as the system keeps, so that it is no matter of time what there is to be heard.
///
/// catches: 715-an-importer-listens-to-all-that-is-said
fn who_talks_on_keeps_no_importer() {
    let (_folder, path) = folder();
    let socket = listening(&path);
    let mut importer = Importer::connect(&path, devices()[0]).unwrap();
    let peer = accept_with(&socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
    // What the system allows is less.
    set_socket_send_buffer_size(&peer, 1 << 20).unwrap();
    let close = message(14, [7, 0, 0, 0]);
    type Call = fn(&mut Importer) -> Result<(), IpcError>;
    let calls: [Call; 4] = [
        |importer| importer.next_within(Duration::ZERO).map(drop),
        |importer| importer.next_turn_within(Duration::ZERO).map(drop),
        |importer| importer.next_arrival_within(Duration::ZERO).map(drop),
        |importer| importer.put_next_within(&mut Vec::<Tensor>::new(), Duration::ZERO).map(drop),
    ];
    for call in calls {
        let is_said = |_: &_| send(&peer, &close, SendFlags::NOSIGNAL).is_ok();
        let said = (0..1 << 20).take_while(is_said).count();
        assert!(said > 400, "the system keeps {said} messages");
        let is_late = |result| assert!(matches!(result, Err(IpcError::NotInTime { .. })), "{result:?}");
        is_late(call(&mut importer));
        assert!(is_readable(&importer), "{said} messages were heard");
        // The others are heard by further calls.
        while is_readable(&importer) {
            is_late(call(&mut importer));
        }
    }
}

/// Both ends of all windows, before and behind all pools, and a tree: with no time to wait.
///
/// catches: 716-an-importer-does-not-hear-all
fn what_an_exporter_may_say_at_most_is_heard() {
    let (_folder, path) = folder();
    let socket = listening(&path);
    let mut importer = Importer::connect(&path, devices()[0]).unwrap();
    let peer = accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
    set_socket_send_buffer_size(&peer, 1 << 20).unwrap();
    let manifest = manifest(5000);
    let there = || vec![tree(5000, &manifest, SEALS)];
    (0..128).for_each(|ticket| say(&peer, (message(10, [ticket, 5000, manifest.len() as u64, 0]), there())));
    (0..64).for_each(|pool| say(&peer, (message(8, [pool, 1, 2, 0]), there())));
    (0..128).for_each(|ticket| say(&peer, (message(14, [ticket, 0, 0, 0]), vec![])));
    say(&peer, (message(6, [128, 5000, manifest.len() as u64, 0]), there()));
    assert!(importer.next_within(Duration::ZERO).unwrap().is_some());
    drop(importer);
}
