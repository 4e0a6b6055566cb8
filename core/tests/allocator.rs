//! Results in memory of an allocator of the program, and where they lie in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::any::Any;
use std::error;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use late_backend::{Call, LateConfig};
use support::{Kernel, bytes_of, eventually, late, no_violations, on, two};
use transship_core::{
    Alignment, Allocate, AllocatedMemory, BackgroundWork, CopyOptions, CopyPolicy, DType, Device, DeviceId,
    Error, ErrorKind, MemoryKind, RawMemory, Stream, StreamPriority, Tensor, start_copy, start_copy_into,
    start_copy_to_all,
};

type Failure = Box<dyn error::Error + Send + Sync>;
type Hook = Box<dyn Fn(&Asked) -> Result<AllocatedMemory, Failure> + Send + Sync>;

/// What an allocator was asked for.
#[derive(Clone)]
struct Asked {
    number: usize,
    bytes: usize,
    alignment: Alignment,
    device: DeviceId,
    thread: ThreadId,
}

/// An allocator that notes what it is asked for.
struct Program {
    asked: Mutex<Vec<Asked>>,
    hook: Hook,
}

// SAFETY: each test says it of its hook.
unsafe impl Allocate for Program {
    fn allocate(
        &self,
        bytes: usize,
        alignment: Alignment,
        stream: &Stream,
    ) -> Result<AllocatedMemory, Failure> {
        let mut asked = self.asked.lock().unwrap();
        let (number, device) = (asked.len(), stream.device().id());
        let now = Asked { number, bytes, alignment, device, thread: thread::current().id() };
        asked.push(now.clone());
        drop(asked);
        (self.hook)(&now)
    }
}

impl Program {
    fn new(hook: impl Fn(&Asked) -> Result<AllocatedMemory, Failure> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { asked: Mutex::default(), hook: Box::new(hook) })
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// Memory that was allocated before, with the owners that are still there.
#[derive(Clone, Default)]
struct Arena {
    memory: Arc<Mutex<Vec<Tensor>>>,
    owners: Arc<Owners>,
}

/// What each owner holds a share of.
#[derive(Default)]
struct Owners {
    shares: Arc<()>,
    /// The threads on which they went.
    threads: Arc<Mutex<Vec<Option<String>>>>,
}

/// An owner of memory, which says where it goes.
struct Owner {
    _memory: Tensor,
    _share: Arc<()>,
    threads: Arc<Mutex<Vec<Option<String>>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.threads.lock().unwrap().push(thread::current().name().map(str::to_owned));
    }
}

impl Arena {
    fn of(device: &Device, sizes: &[usize]) -> Self {
        let memory = sizes.iter().rev().map(|bytes| on(device, &vec![0; *bytes])).collect();
        Self { memory: Arc::new(Mutex::new(memory)), owners: Arc::default() }
    }

    /// The next piece, and its owner: nobody else uses it, but streams that it is said to come behind.
    fn take(&self) -> (RawMemory, Box<dyn Any + Send + Sync>) {
        let memory = self.memory.lock().unwrap().pop().unwrap();
        let (address, bytes) = (memory.address().unwrap().unwrap(), memory.nbytes());
        let (share, threads) = (self.owners.shares.clone(), self.owners.threads.clone());
        let owner = Owner { _memory: memory, _share: share, threads };
        (RawMemory::new(address, bytes, MemoryKind::Device), Box::new(owner))
    }

    fn next(&self) -> AllocatedMemory {
        let (memory, owner) = self.take();
        AllocatedMemory::new(memory, owner)
    }

    /// How many owners are alive.
    fn alive(&self) -> usize {
        Arc::strong_count(&self.owners.shares) - 1
    }

    fn program(&self) -> Arc<Program> {
        let arena = self.clone();
        Program::new(move |_| Ok(arena.next()))
    }
}

/// Memory of vectors, for results on the host.
fn vectors(kind: MemoryKind) -> Arc<Program> {
    Program::new(move |asked| {
        let mut vector = vec![9_u8; asked.bytes + asked.alignment.bytes()];
        let start = vector.as_mut_ptr().expose_provenance().next_multiple_of(asked.alignment.bytes());
        Ok(AllocatedMemory::new(RawMemory::new(start as u64, asked.bytes, kind), Box::new(vector)))
    })
}

fn options(program: &Arc<Program>) -> CopyOptions {
    CopyOptions::default().allocator(program.clone())
}

fn batch() -> Vec<Tensor> {
    [(1_u8, 3), (2, 16), (3, 700_000), (4, 5)].map(|(value, count)| Tensor::from(vec![value; count])).into()
}

fn assert_batch(batch: &[Tensor]) {
    for (tensor, expected) in batch.iter().zip(self::batch()) {
        assert_eq!(bytes_of(tensor), expected.to_bytes().unwrap());
    }
}

/// What the batch takes: a chunk for the small ones, one for the large one.
const CHUNKS: [usize; 2] = [37, 700_000];

/// catches: 552-allocator-not-asked, 553-placement-without-its-offset
#[test]
fn results_lie_where_the_program_has_allocated_them() {
    let (late, device) = late();
    let arena = Arena::of(&device, &[64, 700_000]);
    // Nothing of transship's own has room.
    device.set_memory_budget(1).unwrap();
    let program = arena.program();
    let copy = start_copy(batch(), &device, options(&program)).unwrap();
    let asked = program.asked();
    assert_eq!(asked.iter().map(|asked| asked.bytes).collect::<Vec<_>>(), CHUNKS);
    assert!(asked.iter().all(|asked| asked.alignment.bytes() == 16 && asked.device == device.id()));

    let placements = copy.placements().unwrap();
    let places: Vec<_> = placements.iter().map(Option::unwrap).collect();
    assert_eq!(
        places.iter().map(|place| (place.chunk, place.offset)).collect::<Vec<_>>(),
        [(0, 0), (0, 16), (1, 0), (0, 32)]
    );
    assert!(places.iter().all(|place| place.is_contiguous));
    let chunks: Vec<_> = (0..placements.chunks()).map(|number| placements.chunk(number).unwrap()).collect();
    assert_eq!(chunks.iter().map(|chunk| chunk.bytes()).collect::<Vec<_>>(), CHUNKS);
    assert!(matches!(placements.chunk(2), Err(Error::OutOfRange { start: 2, limit: 2, .. })));
    let there = copy.wait().unwrap();
    for (tensor, place) in there.iter().zip(&places) {
        let start = chunks[place.chunk].address().unwrap();
        assert_eq!(tensor.address().unwrap(), Some(start + place.offset as u64));
    }
    device.set_memory_budget(usize::MAX).unwrap();
    assert_batch(&there);

    // It is filled again as other memory is.
    drop(chunks);
    let refilled = start_copy_into(batch(), there, CopyOptions::default()).unwrap();
    assert!(refilled.placements().is_none());
    let refilled = refilled.wait().unwrap();
    assert_batch(&refilled);
    assert_eq!(arena.alive(), 2);
    drop(refilled);
    eventually("the owners have gone", || arena.alive() == 0);
    no_violations(&late);
}

/// catches: 562-allocated-by-a-worker
#[test]
fn the_program_is_asked_before_anything_else_happens_and_on_its_thread() {
    let (late, device) = late();
    device.prepare(1 << 20).unwrap();
    // At once, and by workers.
    for (when, bytes) in
        [(BackgroundWork::Auto, 64), (BackgroundWork::Auto, 9 << 20), (BackgroundWork::Always, 64)]
    {
        let arena = Arena::of(&device, &[bytes]);
        late.clear_calls();
        let (calls, next) = (late.clone(), arena.clone());
        let program = Program::new(move |_| {
            assert!(!calls.calls().iter().any(|record| record.call == Call::Submit));
            Ok(next.next())
        });
        let sent = vec![Tensor::from(vec![5_u8; bytes])];
        let copy = start_copy(sent, &device, options(&program).background(when)).unwrap();
        let asked = program.asked();
        assert_eq!((asked.len(), asked[0].thread), (1, thread::current().id()));
        assert!(copy.placements().unwrap().chunk(0).is_ok());
        assert_eq!(bytes_of(&copy.wait().unwrap()[0]), vec![5; bytes]);
        assert_eq!(program.asked().len(), 1);
    }
    no_violations(&late);
}

/// What a kernel reads of the memory before it is given away.
fn read_behind(arena: &Arena, stream: &Stream) -> (Arc<Program>, Arc<Mutex<Vec<Kernel>>>) {
    let kernels = Arc::new(Mutex::new(Vec::new()));
    let (arena, stream, started) = (arena.clone(), stream.clone(), kernels.clone());
    let program = Program::new(move |_| {
        let memory = arena.memory.lock().unwrap().last().unwrap().clone();
        started.lock().unwrap().push(Kernel::launch(&memory, &stream));
        Ok(arena.next().behind(&stream))
    });
    (program, kernels)
}

fn read_nothing_new(kernels: &Mutex<Vec<Kernel>>) {
    let kernels = std::mem::take(&mut *kernels.lock().unwrap());
    assert!(!kernels.is_empty());
    for kernel in kernels {
        assert!(kernel.result().iter().all(|byte| *byte == 0));
    }
}

/// catches: 554-stream-of-the-allocator-forgotten
#[test]
fn the_copy_comes_behind_the_stream_that_had_the_memory() {
    let (late, device) = late();
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    for when in [BackgroundWork::Always, BackgroundWork::Auto] {
        let (program, kernels) = read_behind(&Arena::of(&device, &[64, 700_000]), &stream);
        late.stall_stream(&**stream.backend_stream());
        let copy = start_copy(batch(), &device, options(&program).background(when)).unwrap();
        for _ in 0..100 {
            assert!(!copy.is_ready().unwrap());
        }
        late.release();
        read_nothing_new(&kernels);
        assert_batch(&copy.wait().unwrap());
    }
    no_violations(&late);
}

/// catches: 555-stream-of-the-allocator-forgotten-by-many
#[test]
fn copies_to_all_are_allocated_for_in_order_and_come_behind_the_streams() {
    let (late, one, other) = two(LateConfig::new("late"));
    let devices = [one.clone(), other.clone()];
    let streams = devices.clone().map(|device| device.create_stream(StreamPriority::Normal).unwrap());
    let read =
        [0, 1].map(|number| read_behind(&Arena::of(&devices[number], &[64, 700_000]), &streams[number]));
    let [(first, first_kernels), (second, second_kernels)] = read;
    let (calls, behind) = (late.clone(), [one.clone(), other.clone()]);
    let program = Program::new(move |asked| {
        assert!(
            calls.calls().iter().filter(|record| record.call == Call::Submit).count() <= SUBMITTED_BEFORE
        );
        let number = behind.iter().position(|device| device.id() == asked.device).unwrap();
        ([&first, &second][number].hook)(asked)
    });
    one.prepare(1 << 20).unwrap();
    late.clear_calls();
    let copies = start_copy_to_all(batch(), &devices, options(&program)).unwrap();
    let order: Vec<_> = program.asked().iter().map(|asked| asked.device.ordinal()).collect();
    assert_eq!(order, [0, 0, 1, 1]);
    let there = copies.into_iter().map(|copy| copy.wait().unwrap()).collect::<Vec<_>>();
    read_nothing_new(&first_kernels);
    read_nothing_new(&second_kernels);
    there.iter().for_each(|there| assert_batch(there));
    no_violations(&late);
}

/// The kernels that the hook itself submits.
const SUBMITTED_BEFORE: usize = 4;

/// catches: 561-owners-of-results-dropped-early
#[test]
fn memory_stays_until_the_device_is_done_with_it() {
    let (late, device) = late();
    device.prepare(1 << 20).unwrap();
    let arena = Arena::of(&device, &[64, 700_000]);
    late.stall();
    let copy = start_copy(batch(), &device, options(&arena.program())).unwrap();
    let chunk = copy.placements().unwrap().chunk(0).unwrap();
    drop(copy);
    assert_eq!(arena.alive(), 2);
    late.release();
    // The reactor finds that it is over, and must not be held up.
    eventually("the owner of what nobody holds has gone", || arena.alive() == 1);
    drop(chunk);
    eventually("the other owner has gone", || arena.alive() == 0);
    let threads = arena.owners.threads.lock().unwrap();
    assert!(threads.iter().flatten().all(|thread| thread != "transship-reactor"), "{threads:?}");
    no_violations(&late);
}

/// What is said wrongly of memory.
type Change = fn(&mut RawMemory);
type Expected = fn(&Error) -> bool;
/// How an allocator fails, and the error that it comes to.
type Failing = (Hook, Expected);

/// Memory of `arena` that is described otherwise than it is.
fn wrong(device: &Device, change: Change) -> (Arena, Hook) {
    let arena = Arena::of(device, &[64]);
    let taken = arena.clone();
    let hook = move |_: &Asked| {
        let (mut memory, owner) = taken.take();
        change(&mut memory);
        Ok(AllocatedMemory::new(memory, owner))
    };
    (arena, Box::new(hook))
}

fn assert_refused(target: &Device, hook: Hook, is_expected: Expected) {
    let program = Arc::new(Program { asked: Mutex::default(), hook });
    let options = options(&program).policy(CopyPolicy::Always);
    let refused = start_copy(vec![Tensor::from(vec![1_u8; 40])], target, options.clone()).unwrap_err();
    assert!(is_expected(refused.error()), "{}", refused.error());
    assert_eq!(refused.into_value().unwrap()[0].as_slice::<u8>().unwrap(), [1; 40]);
    assert_eq!(program.asked().len(), 1);
}

/// catches: 556-size-of-lent-results-not-checked, 557-alignment-of-lent-results-not-checked, 558-kind-of-lent-results-not-checked
#[test]
fn what_is_not_as_it_was_asked_for_is_refused_and_nothing_is_lost() {
    let (late, device) = late();
    let invalid: Expected = |error| matches!(error, Error::InvalidMemory { .. });
    let cases: [(Change, Expected); 4] = [
        (|memory| memory.address = 0, invalid),
        (|memory| memory.bytes = 39, |error| matches!(error, Error::InvalidMemory { bytes: 39, .. })),
        (|memory| memory.address += 8, |error| matches!(error, Error::Misaligned { alignment: 16, .. })),
        (
            |memory| memory.kind = MemoryKind::Pageable,
            |error| error.to_string().contains("results go to late:0"),
        ),
    ];
    for (change, is_expected) in cases {
        let (arena, hook) = wrong(&device, change);
        assert_refused(&device, hook, is_expected);
        assert_eq!(arena.alive(), 0);
    }
    let (arena, hook) = wrong(&device, |_| ());
    assert_refused(&Device::host(), hook, |error| error.to_string().contains("results go to host"));
    assert_eq!(arena.alive(), 0);
    no_violations(&late);
}

#[test]
fn an_allocator_that_fails_or_panics_loses_nothing() {
    let (late, device) = late();
    let cases: [Failing; 3] = [
        (Box::new(|_| Err("no more pages".into())), |error| {
            let is_told =
                matches!(error, Error::AllocatorFailed { error, .. } if error.to_string() == "no more pages");
            is_told && error.kind() == ErrorKind::OutOfMemory && error.to_string().contains("no more pages")
        }),
        (Box::new(|_| Err(Error::NotReady.into())), |error| matches!(error, Error::NotReady)),
        (
            Box::new(|_| panic!("deliberate panic")),
            |error| matches!(error, Error::Panicked { message } if message == "deliberate panic"),
        ),
    ];
    for (hook, is_expected) in cases {
        assert_refused(&device, hook, is_expected);
    }
    assert_batch(&start_copy(batch(), &device, CopyOptions::default()).unwrap().wait().unwrap());
    no_violations(&late);
}

/// catches: 559-others-launched-in-spite-of-an-allocator
#[test]
fn what_was_allocated_goes_if_the_rest_cannot_be() {
    let (late, one, other) = two(LateConfig::new("late"));
    let arena = Arena::of(&one, &[64, 700_000]);
    let taken = arena.clone();
    let program = Program::new(move |asked| match asked.number {
        0 | 1 => Ok(taken.next()),
        _ => Err("no more".into()),
    });
    late.clear_calls();
    let refused = start_copy_to_all(batch(), &[one, other], options(&program)).unwrap_err();
    assert!(matches!(refused.error(), Error::AllocatorFailed { requested: 37, .. }), "{}", refused.error());
    assert_batch(&refused.into_value().unwrap());
    assert_eq!(arena.alive(), 0);
    assert!(!late.calls().iter().any(|record| record.call == Call::Submit));
    no_violations(&late);
}

/// From a device by staging blocks, and within the host by its own hand. Nobody is shown memory that the host is still to write.
///
/// catches: 560-memory-shown-that-the-host-is-to-write
#[test]
fn results_on_the_host_lie_there_too() {
    let (late, device) = late();
    let there: Vec<_> = batch().iter().map(|tensor| on(&device, &tensor.to_bytes().unwrap())).collect();
    for kind in [MemoryKind::Pageable, MemoryKind::Pinned] {
        for from in [there.clone(), batch()] {
            let program = vectors(kind);
            let is_device = from[0].device_id().unwrap() == device.id();
            let options = options(&program).policy(CopyPolicy::Always);
            let copy = start_copy(from, &Device::host(), options).unwrap();
            let expected = if is_device { &device } else { &Device::host() };
            assert!(program.asked().iter().all(|asked| asked.device == expected.id()));
            let chunk = copy.placements().unwrap().chunk(0);
            assert_eq!(matches!(chunk, Err(Error::NotReady)), is_device);
            drop(chunk);
            let mut copied = copy.wait().unwrap();
            assert_batch(&copied);
            assert_eq!(copied[0].memory_kind().unwrap(), kind);
            copied[2].as_mut_slice::<u8>().unwrap()[0] = 7;
        }
    }
    no_violations(&late);
}

#[test]
fn what_is_not_copied_needs_no_allocator() {
    let (late, device) = late();
    let program = Program::new(|_| panic!("deliberate panic"));
    let stays = on(&device, &[1, 2]);
    let value = vec![stays.clone(), Tensor::empty(&[0, 4], DType::F32, &Device::host()).unwrap()];
    let copy = start_copy(value, &device, options(&program)).unwrap();
    assert_eq!(copy.placements().unwrap().iter().collect::<Vec<_>>(), [None, None]);
    assert_eq!(copy.wait().unwrap()[0].address().unwrap(), stays.address().unwrap());
    // Memory that is there already is filled.
    let filled = start_copy_into(Tensor::from(vec![3_u8, 4]), on(&device, &[0, 0]), options(&program));
    assert_eq!(bytes_of(&filled.unwrap().wait().unwrap()), [3, 4]);
    no_violations(&late);
}

#[test]
fn tensors_over_the_same_memory_have_the_same_place_and_strides_are_kept() {
    let (late, device) = late();
    let matrix = Tensor::from_vec((0..6_u8).collect(), &[2, 3]).unwrap();
    let across = on(&device, &[0; 6]).reshape(&[2, 3]).unwrap().transpose(0, 1).unwrap();
    let copy = start_copy((matrix.clone(), matrix), &device, CopyOptions::default()).unwrap();
    let places: Vec<_> = copy.placements().unwrap().iter().flatten().collect();
    assert_eq!(places[0], places[1]);
    drop(copy);
    let down = start_copy(across, &Device::host(), CopyOptions::default()).unwrap();
    let places: Vec<_> = down.placements().unwrap().iter().flatten().collect();
    assert_eq!((places.len(), places[0].is_contiguous), (1, false));
    drop(down);
    device.synchronize().unwrap();
    no_violations(&late);
}

/// Results in memory of transship's own, which a worker allocates.
#[test]
fn chunks_are_there_once_they_are_allocated() {
    let (late, device) = late();
    device.prepare(1 << 20).unwrap();
    let copy = start_copy(batch(), &device, CopyOptions::default()).unwrap();
    let chunk = copy.placements().unwrap().chunk(0).unwrap();
    assert_eq!((chunk.bytes(), chunk.kind(), chunk.device_id()), (37, MemoryKind::Device, device.id()));
    let there = copy.wait().unwrap();
    assert_eq!(there[0].address().unwrap(), chunk.address());
    let stream = device.create_stream(StreamPriority::Normal).unwrap();
    chunk.record_stream(&stream).unwrap();
    drop((there, chunk));
    no_violations(&late);
}

#[test]
fn packed_multiples_hold_in_memory_of_the_program() {
    let (late, device) = late();
    let arena = Arena::of(&device, &[1 << 20]);
    let options = options(&arena.program()).packed_multiple(6.try_into().unwrap());
    let sent = vec![Tensor::from(vec![1_u64]), Tensor::from(vec![2_u8; 7]), Tensor::from(vec![3_u16; 4])];
    let copy = start_copy(sent, &device, options).unwrap();
    let places = copy.placements().unwrap().iter().map(|place| place.unwrap().offset).collect::<Vec<_>>();
    assert_eq!(places, [0, 48, 96]);
    let back =
        start_copy(copy.wait().unwrap(), &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(back[2].as_slice::<u16>().unwrap(), [3; 4]);
    drop(back);
    eventually("the owner has gone", || arena.alive() == 0);
    no_violations(&late);
}
