//! One thread of the soak.

mod misuse;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use transship::{
    BackgroundWork, CopyError, CopyHandle, CopyOptions, CopyPolicy, Error, Stream, StreamPriority, TimedWait,
    start_copy,
};

use crate::arena::Arena;
use crate::data::Random;
use crate::item::Item;
use crate::settings::Bound;
use crate::strangers::{OwnersPanic, is_deliberate};
use crate::tally::Tally;
use crate::tree::Tree;
use crate::watchdog::Place;
use misuse::{Held, Misuse};

const MOST_ITEMS: usize = 6;
/// Handles that nobody looks at any more, which are dropped at the end only so that memory can be counted.
const MOST_FORGOTTEN: usize = 24;
/// Larger ones are not forgotten: they would take the place of all others.
const LARGEST_FORGOTTEN: u64 = 20_000;

pub(crate) struct Worker {
    arena: Arc<Arena>,
    random: Random,
    /// One for each place.
    streams: Vec<Stream>,
    items: Vec<Item>,
    held: Option<Held>,
    forgotten: Vec<CopyHandle<Tree>>,
    /// How its first copies end, and what it misuses first: each way once, so that a short soak has met them all.
    first_ends: Vec<End>,
    first_misuses: Vec<Misuse>,
    /// Of items whose memory has owners: the number of this thread before all that it has lent.
    owners: u64,
    /// The owner whose panic this step may meet.
    in_hand: Option<u64>,
    tally: Tally,
}

/// How the wait for a copy ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Wait,
    Await,
    AskInVain,
    WaitOn,
    PollByHand,
    Cancel,
    Drop,
    DropPolled,
    Forget,
}

impl End {
    const ALL: [Self; 9] = [
        Self::Wait,
        Self::Await,
        Self::AskInVain,
        Self::WaitOn,
        Self::PollByHand,
        Self::Cancel,
        Self::Drop,
        Self::DropPolled,
        Self::Forget,
    ];
}

impl Worker {
    pub(crate) fn new(number: usize, arena: Arc<Arena>, seed: u64) -> Self {
        let random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        let stream = |device: &transship::Device| device.create_stream(StreamPriority::Normal).unwrap();
        let streams = arena.places.iter().map(stream).collect();
        Self {
            arena,
            random,
            streams,
            items: Vec::new(),
            held: None,
            forgotten: Vec::new(),
            first_ends: beginning_at(number, End::ALL),
            first_misuses: beginning_at(number, Misuse::ALL),
            owners: (number as u64) << 32,
            in_hand: None,
            tally: Tally::default(),
        }
    }

    pub(crate) fn run(&mut self, bound: Bound, place: &Place) -> Tally {
        let _guard = place.guard();
        let begin = Instant::now();
        let goes_on = |steps: u64| match bound {
            Bound::Steps(most) => steps < most,
            Bound::Time(time) => begin.elapsed() < time,
        };
        while goes_on(self.tally.steps) && !place.is_over() {
            self.but_for_owners(|worker| worker.step(place));
            self.tally.steps += 1;
        }
        place.note(self.tally.steps, "the last look");
        while !self.items.is_empty() {
            self.but_for_owners(|worker| {
                let item = worker.take(0);
                worker.verify(&item);
            });
        }
        self.but_for_owners(|worker| {
            worker.held = None;
            worker.forgotten.clear();
        });
        std::mem::take(&mut self.tally)
    }

    /// Does something that may meet the panic of an owner: of what it has in hand, and of nothing else.
    fn but_for_owners(&mut self, work: impl FnOnce(&mut Self)) {
        self.in_hand = None;
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(self))) else { return };
        match payload.downcast::<OwnersPanic>() {
            Ok(panic) if self.in_hand == Some(panic.owner) => {
                self.tally.misuses.panics += 1;
                std::mem::forget(panic);
            }
            Ok(panic) => {
                let (owner, in_hand) = (panic.owner, self.in_hand);
                std::mem::forget(panic);
                panic!("met the panic of owner {owner:#x} with {in_hand:x?} in hand");
            }
            Err(payload) => self.pass_on(payload),
        }
    }

    /// A panic of this thread, or of a stranger's where none may come.
    fn pass_on(&self, payload: Box<dyn Any + Send>) {
        if is_deliberate(&*payload) {
            std::mem::forget(payload);
            panic!("met the panic of a waker");
        }
        resume_unwind(payload);
    }

    fn step(&mut self, place: &Place) {
        let pick = self.below(100);
        let note = |doing: &str| place.note(self.tally.steps, doing);
        match pick {
            _ if self.items.is_empty() => {
                note("making an item");
                let item = self.new_item();
                self.items.push(item);
            }
            0..12 if self.items.len() < MOST_ITEMS => {
                note("making an item");
                let item = self.new_item();
                self.items.push(item);
            }
            0..20 => {
                note("verifying");
                let index = self.index(self.items.len());
                let item = self.take(index);
                if self.verify(&item) && self.below(3) > 0 {
                    self.items.push(item);
                }
            }
            20..22 => {
                note("trimming");
                let index = self.index(self.arena.places.len());
                self.arena.places[index].trim();
            }
            22..25 => {
                note("ordering streams");
                self.order_streams();
            }
            25..28 => {
                note("dropping what a stream uses");
                let index = self.index(self.items.len());
                self.drop_in_use(index);
            }
            28..44 => self.misuse(place),
            _ => {
                let index = self.index(self.items.len());
                self.copy(index, place);
            }
        }
    }

    fn copy(&mut self, index: usize, place: &Place) {
        let mut item = self.take(index);
        let target = self.index(self.arena.places.len());
        let end = self.first_end(&item, target).unwrap_or_else(|| self.end(&item, target));
        let (options, has_deadline, may_be_busy) = self.options(target);
        place.note(
            self.tally.steps,
            format!(
                "copying {} bytes to {}, {end:?}, {options:?}",
                item.bytes(),
                self.arena.places[target].id()
            ),
        );
        self.tally.copies += 1;
        let bytes = item.bytes();
        // What is given away is let go of by the copy.
        let gives_away = self.below(2) == 0;
        let tensors = if gives_away { std::mem::take(&mut item.tensors) } else { item.tensors.clone() };
        let tree = Tree::new(tensors, &mut self.random);
        let ended = start_copy(tree, &self.arena.places[target], options);
        let ended = ended.and_then(|copy| self.end_by(end, copy, target));
        match ended {
            Ok(Some(tree)) => {
                self.tally.bytes += bytes;
                let may_fail = match end {
                    End::WaitOn => item.may_fail || has_deadline,
                    End::Cancel => item.may_fail,
                    _ => false,
                };
                let mut item = item.moved(tree.into_tensors());
                item.may_fail = may_fail;
                self.items.push(item);
            }
            Ok(None) => {}
            Err(error) => {
                self.note_failure(error.error(), item.may_fail, has_deadline, may_be_busy);
                if let Some(tree) = error.into_value() {
                    self.items.push(item.moved(tree.into_tensors()));
                }
            }
        }
    }

    /// Panics if it is none that the copy may come to.
    fn note_failure(&mut self, error: &Error, may_fail: bool, has_deadline: bool, may_be_busy: bool) {
        match error {
            Error::DeadlineExceeded { .. } if has_deadline => self.tally.late += 1,
            Error::Busy { .. } if may_be_busy => self.tally.busy += 1,
            Error::CopyFailed { .. } | Error::DeadlineExceeded { .. } if may_fail => {}
            unexpected => panic!("{unexpected:?}"),
        }
    }

    /// The structure with its tensors where they are then; `None` if it was given up.
    fn end_by(
        &mut self,
        end: End,
        mut copy: CopyHandle<Tree>,
        target: usize,
    ) -> Result<Option<Tree>, CopyError<Tree>> {
        match end {
            End::Wait => copy.wait().map(Some),
            End::Await => futures::executor::block_on(copy).map(Some),
            End::AskInVain => loop {
                match copy.wait_timeout(Duration::from_micros(self.below(300)))? {
                    TimedWait::Done(tensors) => return Ok(Some(tensors)),
                    TimedWait::Pending(pending) => copy = pending,
                }
            },
            End::WaitOn => {
                self.tally.handed_over += 1;
                match self.below(3) {
                    0 => copy.wait_on(&self.stream(target)).map(Some),
                    _ => copy.wait_on(&self.streams[target]).map(Some),
                }
            }
            End::PollByHand => {
                self.tally.misuses.polled_by_hand += 1;
                self.poll_by_hand(copy)
            }
            End::Cancel => {
                self.tally.cancelled += 1;
                Ok(Some(copy.cancel().value.expect("nobody has asked for the copy yet")))
            }
            End::Drop => {
                self.tally.dropped += 1;
                Ok(None)
            }
            End::DropPolled => {
                self.tally.dropped += 1;
                match Pin::new(&mut copy).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(done) => done.map(Some),
                    Poll::Pending => Ok(None),
                }
            }
            End::Forget => {
                self.tally.forgotten += 1;
                self.forgotten.push(copy);
                Ok(None)
            }
        }
    }

    /// With one waker after the other, each of which misbehaves.
    fn poll_by_hand(&mut self, mut copy: CopyHandle<Tree>) -> Result<Option<Tree>, CopyError<Tree>> {
        for _ in 0..self.below(12) {
            let device = &self.arena.places[self.random.next() as usize % self.arena.places.len()];
            let waker = self.arena.strangers.waker(device, &mut self.random);
            if let Poll::Ready(done) = Pin::new(&mut copy).poll(&mut Context::from_waker(&waker)) {
                return done.map(Some);
            }
            drop(waker);
            match self.below(3) {
                0 => {}
                1 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(self.below(200))),
            }
        }
        match self.below(4) {
            0 => Ok(None),
            1 => copy.wait().map(Some),
            _ => futures::executor::block_on(copy).map(Some),
        }
    }

    /// One that no copy of this thread has ended by yet.
    fn first_end(&mut self, item: &Item, target: usize) -> Option<End> {
        let next = self.first_ends.iter().position(|end| self.may_end_by(*end, item, target))?;
        Some(self.first_ends.remove(next))
    }

    fn end(&mut self, item: &Item, target: usize) -> End {
        let end = match self.below(100) {
            25..34 => End::Await,
            34..43 => End::PollByHand,
            43..52 => End::AskInVain,
            52..75 => End::WaitOn,
            75..83 => End::Cancel,
            83..89 => End::Drop,
            89..95 => End::DropPolled,
            95..97 => End::Forget,
            _ => End::Wait,
        };
        if self.may_end_by(end, item, target) { end } else { End::Wait }
    }

    fn may_end_by(&self, end: End, item: &Item, target: usize) -> bool {
        match end {
            End::WaitOn => !self.arena.places[target].is_host(),
            End::Forget => self.forgotten.len() < MOST_FORGOTTEN && item.bytes() <= LARGEST_FORGOTTEN,
            _ => true,
        }
    }

    /// Whether they have a deadline, and whether they may find no block, beside them.
    fn options(&mut self, target: usize) -> (CopyOptions, bool, bool) {
        let most_aligned = self.arena.places[target].limits().buffer_alignment.bytes();
        let mut options = CopyOptions::default()
            .packing(self.below(6) > 0)
            .pinned_staging(self.below(8) > 0)
            .packed_alignment(most_aligned.min(1 << self.below(9)))
            .max_chunk_bytes(1 + self.below(1 << 20) as usize);
        if self.below(3) == 0 {
            options = options.policy(CopyPolicy::Always);
        }
        if self.below(10) == 0 {
            options = options.max_bytes_in_flight(4096 << self.below(8));
        }
        if self.below(4) == 0 && !self.arena.places[target].is_host() {
            options = options.stream(&self.streams[target]);
        }
        let has_deadline = self.below(12) == 0;
        if has_deadline {
            options = options.deadline(Duration::from_micros(self.below(3000)));
        }
        let background = match self.below(10) {
            0 | 1 => BackgroundWork::Always,
            2 => BackgroundWork::Never,
            _ => BackgroundWork::Auto,
        };
        (options.background(background), has_deadline, background == BackgroundWork::Never)
    }

    /// Whether the item was there to be verified.
    fn verify(&mut self, item: &Item) -> bool {
        match item.check() {
            Ok(()) => {
                self.tally.verified += 1;
                true
            }
            Err(Error::CopyFailed { .. } | Error::DeadlineExceeded { .. }) if item.may_fail => false,
            Err(error) => panic!("{error:?}"),
        }
    }

    /// A new item, whose memory may have owners that misbehave.
    fn new_item(&mut self) -> Item {
        let item = Item::new(&mut self.random);
        let place = self.index(self.arena.places.len());
        self.lent(item, place)
    }

    /// The same, or with memory of owners that copy to a certain device.
    fn lent(&mut self, item: Item, place: usize) -> Item {
        if self.below(3) > 0 {
            return item;
        }
        self.tally.misuses.lent += 1;
        self.owners += 1;
        let (owner, device, strangers) = (self.owners, &self.arena.places[place], &self.arena.strangers);
        item.lent(owner, &mut self.random, |tensor, may_panic, random| {
            strangers.lend(tensor, owner, may_panic, device, random)
        })
    }

    /// Takes an item into its hands.
    fn take(&mut self, index: usize) -> Item {
        let item = self.items.swap_remove(index);
        self.in_hand = item.panics;
        item
    }

    /// A stream that goes when its caller lets go of it.
    fn stream(&self, place: usize) -> Stream {
        self.arena.places[place].create_stream(StreamPriority::Normal).unwrap()
    }

    fn order_streams(&mut self) {
        let index = self.index(self.streams.len());
        let other = self.arena.places[index].create_stream(StreamPriority::High).unwrap();
        let event = other.record().unwrap();
        self.streams[index].wait_stream(&other).unwrap();
        self.streams[index].wait_event(&event).unwrap();
        if self.below(4) == 0 {
            self.streams[index].synchronize().unwrap();
            assert!(event.is_reached().unwrap(), "a stream has passed what it waits for");
        }
    }

    /// A stream that was told of tensors which go at once: their memory must stay.
    fn drop_in_use(&mut self, index: usize) {
        let item = self.take(index);
        let lies_on = item.tensors[0].device_id().unwrap();
        let Some(place) = self.arena.places.iter().position(|device| device.id() == lies_on) else { return };
        for tensor in &item.tensors {
            match tensor.record_stream(&self.streams[place]) {
                Ok(()) => {}
                Err(Error::CopyFailed { .. } | Error::DeadlineExceeded { .. }) if item.may_fail => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next() % limit
    }

    fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }
}

/// All of them, each thread with another one first.
fn beginning_at<T, const N: usize>(number: usize, mut all: [T; N]) -> Vec<T> {
    all.rotate_left(number % N);
    Vec::from(all)
}
