//! One thread of the soak.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use transship::{
    BackgroundWork, CopyError, CopyHandle, CopyOptions, CopyPolicy, Error, Stream, StreamPriority, Tensor,
    TimedWait, start_copy,
};

use crate::arena::Arena;
use crate::data::Random;
use crate::item::Item;
use crate::settings::Bound;
use crate::watchdog::Place;

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
    forgotten: Vec<CopyHandle<Vec<Tensor>>>,
    tally: Tally,
}

/// What came of the copies.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    steps: u64,
    copies: u64,
    verified: u64,
    bytes: u64,
    handed_over: u64,
    cancelled: u64,
    dropped: u64,
    forgotten: u64,
    late: u64,
    busy: u64,
}

/// How the wait for a copy ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Wait,
    Await,
    AskInVain,
    WaitOn,
    Cancel,
    Drop,
    DropPolled,
    Forget,
}

impl Worker {
    pub(crate) fn new(number: usize, arena: Arc<Arena>, seed: u64) -> Self {
        let random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        let stream = |device: &transship::Device| device.create_stream(StreamPriority::Normal).unwrap();
        let streams = arena.places.iter().map(stream).collect();
        Self { arena, random, streams, items: Vec::new(), forgotten: Vec::new(), tally: Tally::default() }
    }

    pub(crate) fn run(&mut self, bound: Bound, place: &Place) -> Tally {
        let _guard = place.guard();
        let begin = Instant::now();
        let goes_on = |steps: u64| match bound {
            Bound::Steps(most) => steps < most,
            Bound::Time(time) => begin.elapsed() < time,
        };
        while goes_on(self.tally.steps) && !place.is_over() {
            self.step(place);
            self.tally.steps += 1;
        }
        place.note(self.tally.steps, "the last look");
        for item in std::mem::take(&mut self.items) {
            self.verify(&item);
        }
        self.forgotten.clear();
        std::mem::take(&mut self.tally)
    }

    fn step(&mut self, place: &Place) {
        let pick = self.below(100);
        let note = |doing: &str| place.note(self.tally.steps, doing);
        match pick {
            _ if self.items.is_empty() => {
                note("making an item");
                self.items.push(Item::new(&mut self.random));
            }
            0..12 if self.items.len() < MOST_ITEMS => {
                note("making an item");
                self.items.push(Item::new(&mut self.random));
            }
            0..20 => {
                note("verifying");
                let index = self.index(self.items.len());
                let item = self.items.swap_remove(index);
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
            _ => {
                let index = self.index(self.items.len());
                self.copy(index, place);
            }
        }
    }

    fn copy(&mut self, index: usize, place: &Place) {
        let item = self.items.swap_remove(index);
        let target = self.index(self.arena.places.len());
        let end = self.end(&item, target);
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
        let tensors = item.tensors.clone();
        let ended = start_copy(tensors, &self.arena.places[target], options);
        let ended = ended.and_then(|copy| self.end_by(end, copy, target));
        match ended {
            Ok(Some(tensors)) => {
                self.tally.bytes += item.bytes();
                let may_fail = match end {
                    End::WaitOn => item.may_fail || has_deadline,
                    End::Cancel => item.may_fail,
                    _ => false,
                };
                let mut item = item.moved(tensors);
                item.may_fail = may_fail;
                self.items.push(item);
            }
            Ok(None) => {}
            Err(error) => {
                match error.error() {
                    Error::DeadlineExceeded { .. } if has_deadline => self.tally.late += 1,
                    Error::Busy { .. } if may_be_busy => self.tally.busy += 1,
                    Error::CopyFailed { .. } | Error::DeadlineExceeded { .. } if item.may_fail => {}
                    unexpected => panic!("{unexpected:?}"),
                }
                if let Some(tensors) = error.into_value() {
                    self.items.push(item.moved(tensors));
                }
            }
        }
    }

    /// The tensors where they are then; `None` if they were given up.
    fn end_by(
        &mut self,
        end: End,
        mut copy: CopyHandle<Vec<Tensor>>,
        target: usize,
    ) -> Result<Option<Vec<Tensor>>, CopyError<Vec<Tensor>>> {
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
                copy.wait_on(&self.streams[target]).map(Some)
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

    fn end(&mut self, item: &Item, target: usize) -> End {
        let may_forget = self.forgotten.len() < MOST_FORGOTTEN && item.bytes() <= LARGEST_FORGOTTEN;
        match self.below(100) {
            0..25 => End::Wait,
            25..40 => End::Await,
            40..52 => End::AskInVain,
            52..75 if !self.arena.places[target].is_host() => End::WaitOn,
            75..83 => End::Cancel,
            83..89 => End::Drop,
            89..95 => End::DropPolled,
            95..97 if may_forget => End::Forget,
            _ => End::Wait,
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
            options = options.paced(4096 << self.below(8));
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
        let item = self.items.swap_remove(index);
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

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.copies += other.copies;
        self.verified += other.verified;
        self.bytes += other.bytes;
        self.handed_over += other.handed_over;
        self.cancelled += other.cancelled;
        self.dropped += other.dropped;
        self.forgotten += other.forgotten;
        self.late += other.late;
        self.busy += other.busy;
    }

    /// A soak that did not do what it is for shows nothing.
    pub(crate) fn check(&self, name: &str) -> Result<(), Failed> {
        let Self { verified, cancelled, dropped, forgotten, handed_over, .. } = *self;
        let everywhere = [verified, cancelled, dropped, forgotten];
        if everywhere.contains(&0) || (handed_over == 0 && name != "host") {
            return Err(format!("too short, something was never tried: {self}").into());
        }
        Ok(())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, copies, verified, bytes, handed_over, cancelled, dropped, forgotten, late, busy } =
            self;
        let mib = bytes >> 20;
        write!(
            f,
            "{steps} steps, {copies} copies, {mib} MiB, {verified} verified, {handed_over} handed to streams, \
             {cancelled} cancelled, {dropped} dropped, {forgotten} forgotten, {late} late, {busy} busy"
        )
    }
}
