#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

use smallvec::smallvec;

use crate::backend::{Direction, HostSide, MemoryKind, Ticket};
use crate::in_flight::deferred_release::release;

fn fill(block: &dyn Staging, bytes: &[u8]) {
    let to = block.window().unwrap().at(0, bytes.len()).unwrap();
    // SAFETY: `at` has checked the range.
    unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
}

fn read(block: &dyn Staging) -> Vec<u8> {
    // SAFETY: every test writes the whole block before it reads it.
    unsafe { std::slice::from_raw_parts(block.contents().unwrap().as_ptr(), block.bytes()) }.to_vec()
}

fn lend(bytes: Vec<u8>, kind: MemoryKind) -> (RawMemory, Arc<Vec<u8>>) {
    let memory = RawMemory::new(bytes.as_ptr().expose_provenance() as u64, bytes.len(), kind);
    (memory, Arc::new(bytes))
}

#[test]
fn every_kind_of_copy_is_done_when_submit_returns() {
    let host = HostBackend::new();
    let stream = host.create_stream(StreamPriority::Normal).unwrap();
    let (up, down) = (
        host.allocate_staging(4, Direction::Upload).unwrap(),
        host.allocate_staging(4, Direction::Download).unwrap(),
    );
    let (a, b) = (host.allocate(6, &*stream).unwrap(), host.allocate(6, &*stream).unwrap());
    fill(&*up, &[1, 2, 3, 4]);
    let ops = [
        CopyOp::Clear { to: &*a, to_offset: 0, bytes: 6 },
        CopyOp::Upload { from: HostSide::Staging(&*up, 1), to: &*a, to_offset: 2, bytes: 3 },
        CopyOp::Between { from: &*a, from_offset: 0, to: &*b, to_offset: 0, bytes: 6 },
        CopyOp::Download { from: &*b, from_offset: 1, to: HostSide::Staging(&*down, 0), bytes: 4 },
    ];
    // SAFETY: all ranges lie in their buffers, and nobody else knows them.
    let done = unsafe { host.submit(&ops, &*stream) }.unwrap();
    assert_eq!((done.position, done.copies, done.bytes), (1, 4, 19));
    assert_eq!(stream.reached().unwrap(), 1);
    assert!(stream.wait(1, None).unwrap());
    assert_eq!(read(&*down), [0, 2, 3, 4]);

    let counters = host.counters();
    assert_eq!((counters.bytes_up, counters.bytes_down, counters.bytes_between), (3, 4, 6));
    assert_eq!((counters.staging_bytes, counters.staging_high_water), (8, 8));
    drop((up, down));
    assert_eq!((host.counters().staging_bytes, host.counters().staging_high_water), (0, 8));
}

#[test]
fn wrapped_memory_keeps_its_kind_and_is_read_only() {
    let host = HostBackend::new();
    let stream = host.create_stream(StreamPriority::Normal).unwrap();
    let (memory, owner) = lend(vec![7; 8], MemoryKind::Pinned);
    // SAFETY: the owner keeps the vector.
    let buffer = unsafe { host.wrap(memory, Box::new(owner)) }.unwrap();
    assert_eq!((buffer.kind(), buffer.bytes()), (MemoryKind::Pinned, 8));
    let clear = [CopyOp::Clear { to: &*buffer, to_offset: 0, bytes: 8 }];
    // SAFETY: the range lies in the buffer.
    assert!(matches!(unsafe { host.submit(&clear, &*stream) }, Err(Error::Unsupported { .. })));
}

#[test]
fn misdescribed_memory_is_refused() {
    let host = HostBackend::new();
    for (address, bytes, kind) in [
        (4096, 8, MemoryKind::Device),
        (4096, 8, MemoryKind::Managed),
        (0, 1, MemoryKind::Pageable),
        (u64::MAX, 2, MemoryKind::Pageable),
        (1, usize::MAX, MemoryKind::Pinned),
    ] {
        // SAFETY: nothing is read.
        let refused = unsafe { host.wrap(RawMemory::new(address, bytes, kind), Box::new(())) };
        assert!(matches!(refused, Err(Error::InvalidMemory { .. })), "{address:#x} {bytes} {kind:?}");
    }
    let nothing = RawMemory::new(0, 0, MemoryKind::Pageable);
    // SAFETY: there is nothing to read.
    let accepted = unsafe { host.wrap(nothing, Box::new(())) };
    assert!(accepted.is_ok());
}

#[test]
fn the_owner_of_wrapped_memory_is_kept_until_the_last_ticket_is_reached() {
    let host = HostBackend::new();
    let stream = host.create_stream(StreamPriority::Normal).unwrap();
    let (memory, owner) = lend(vec![7; 8], MemoryKind::Pageable);
    let watch = Arc::downgrade(&owner);
    // SAFETY: the owner keeps the vector.
    let buffer = unsafe { host.wrap(memory, Box::new(owner)) }.unwrap();
    release(buffer, smallvec![Ticket { stream: stream.clone(), position: 1 }], false);
    assert!(watch.upgrade().is_some(), "position 1 is not reached");

    stream.record().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while watch.upgrade().is_some() {
        assert!(Instant::now() < deadline, "the owner is never dropped");
        std::thread::yield_now();
    }
}

#[test]
fn what_never_fits_is_refused_with_the_figures() {
    let host = HostBackend::new();
    let refused = host.allocate_staging(usize::MAX, Direction::Upload).map(|_| ());
    assert!(matches!(refused, Err(Error::TooLarge { requested: usize::MAX, .. })), "{refused:?}");
    assert_eq!(host.counters(), Counters::default());
}

#[test]
fn marks_tell_the_time_between_them() {
    let stream = HostBackend::new().create_stream(StreamPriority::High).unwrap();
    let first = stream.mark().unwrap();
    std::thread::sleep(Duration::from_millis(2));
    let second = stream.mark().unwrap();
    assert!(second.elapsed_since(&*first).unwrap() >= 2_000.0);
    assert!(first.elapsed_since(&*second).unwrap() <= -2_000.0);
}
