//! What is more than one copy: copies into what is held, to all devices, under locks of the program, for streams that come and
//! go, at the end of a thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

use futures::executor::block_on;
use transship::{
    CopyError, CopyHandle, CopyOptions, CopyPolicy, Device, Error, StreamPriority, Tensor, start_copy,
    start_copy_into, start_copy_to_all,
};

use super::{End, Worker};
use crate::item::Item;
use crate::strangers::{Ending, Strangers, poll_until_ready};
use crate::tree::{Tree, map};
use crate::watchdog::Place;

/// Tensors that are filled again and again where they lie.
pub(super) struct Held {
    place: usize,
    item: Item,
    /// Whether it is known what they hold.
    is_filled: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Misuse {
    Overwrite,
    FanOut,
    CopyUnderALock,
    NewStreams,
    EndOfAThread,
}

impl Misuse {
    pub(super) const ALL: [Self; 5] =
        [Self::Overwrite, Self::FanOut, Self::CopyUnderALock, Self::NewStreams, Self::EndOfAThread];
}

/// Copies when its thread ends.
struct AtTheEnd {
    strangers: Arc<Strangers>,
    device: Device,
    end: Ending,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        self.strangers.copy(&self.device, self.end);
    }
}

impl Worker {
    pub(super) fn misuse(&mut self, place: &Place) {
        let step = self.tally.steps;
        let note = |doing: &str| place.note(step, doing);
        match self.next_misuse() {
            Misuse::Overwrite => {
                note("copying into what is held");
                self.tally.misuses.overwritten += 1;
                self.overwrite();
            }
            Misuse::FanOut => {
                note("copying to several devices");
                self.tally.misuses.fanned_out += 1;
                self.fan_out();
            }
            Misuse::CopyUnderALock => {
                note("copying under a lock");
                self.tally.misuses.locked += 1;
                self.copy_under_a_lock();
            }
            Misuse::NewStreams => {
                note("copying for new streams");
                self.new_streams();
            }
            Misuse::EndOfAThread => {
                note("copying at the end of a thread");
                self.tally.misuses.threads_ended += 1;
                self.end_of_a_thread();
            }
        }
    }

    fn next_misuse(&mut self) -> Misuse {
        if !self.first_misuses.is_empty() {
            return self.first_misuses.remove(0);
        }
        match self.below(10) {
            0..4 => Misuse::Overwrite,
            4..6 => Misuse::FanOut,
            6 | 7 => Misuse::CopyUnderALock,
            8 => Misuse::NewStreams,
            _ => Misuse::EndOfAThread,
        }
    }

    fn overwrite(&mut self) {
        let held = match self.held.take() {
            Some(held) if self.below(6) > 0 => held,
            _ => self.new_held(),
        };
        let (target, is_filled) = (held.place, held.is_filled);
        let fresh = Item::like(&held.item, &mut self.random);
        let mut fresh = self.lent(fresh, target);
        self.in_hand = fresh.panics;
        let before = places(&held.item.tensors);
        let into = map(held.item.tensors.iter().cloned().enumerate(), self.random.next());
        let mut value = map(std::mem::take(&mut fresh.tensors).into_iter().enumerate(), self.random.next());
        let held = held.item.moved(Vec::new());
        if self.below(8) == 0 {
            value.insert(value.len(), Tensor::from(vec![1_u8]));
            let refused = start_copy_into(Tree::Map(value), Tree::Map(into), CopyOptions::default());
            let refused = refused.map(drop).unwrap_err();
            assert!(matches!(refused.error(), Error::StructureMismatch { .. }), "{refused:?}");
            let (value, into) = refused.into_both();
            let mut value = value.unwrap().into_tensors();
            value.pop();
            assert!(fresh.moved(value).check().is_ok(), "both come back whole");
            self.hold(Held { place: target, item: held.moved(into.unwrap().into_tensors()), is_filled });
            return;
        }
        let (options, has_deadline, may_be_busy) = self.options(target);
        match start_copy_into(Tree::Map(value), Tree::Map(into), options) {
            Ok(copy) if self.below(6) == 0 => {
                let cancelled = copy.cancel();
                cancelled.in_flight.wait().unwrap();
                let into = cancelled.into.expect("it was not filled yet").into_tensors();
                self.held = Some(Held { place: target, item: held.moved(into), is_filled: false });
            }
            Ok(copy) => {
                let end = match self.end(&fresh, target) {
                    End::Cancel | End::Forget => End::Wait,
                    End::WaitOn if has_deadline => End::Await,
                    end => end,
                };
                match self.end_by(end, copy, target) {
                    Ok(Some(tree)) => {
                        let tensors = tree.into_tensors();
                        assert_eq!(places(&tensors), before, "each lies where it lay");
                        self.hold(Held { place: target, item: fresh.moved(tensors), is_filled: true });
                    }
                    Ok(None) => {}
                    Err(error) => self.note_failure(error.error(), false, has_deadline, may_be_busy),
                }
            }
            Err(error) => self.note_failure(error.error(), false, has_deadline, may_be_busy),
        }
    }

    /// Keeps it if it holds what it should.
    fn hold(&mut self, mut held: Held) {
        if held.is_filled {
            held.item.check().unwrap();
            self.tally.verified += 1;
        }
        held.item.panics = None;
        held.item.may_fail = false;
        self.held = Some(held);
    }

    fn new_held(&mut self) -> Held {
        let place = self.index(self.arena.places.len());
        let item = Item::whole(&mut self.random);
        let options = CopyOptions::default().policy(CopyPolicy::Always).packing(self.below(2) == 0);
        let copy = start_copy(item.tensors.clone(), &self.arena.places[place], options);
        let tensors = copy.and_then(CopyHandle::wait).unwrap();
        Held { place, item: item.moved(tensors), is_filled: true }
    }

    fn fan_out(&mut self) {
        let index = self.index(self.items.len());
        let item = self.take(index);
        let targets: Vec<usize> =
            (0..1 + self.below(4)).map(|_| self.index(self.arena.places.len())).collect();
        let devices: Vec<Device> = targets.iter().map(|target| self.arena.places[*target].clone()).collect();
        let mut options = CopyOptions::default().packing(self.below(6) > 0);
        if self.below(3) == 0 {
            options = options.policy(CopyPolicy::Always);
        }
        let tree = Tree::new(item.tensors.clone(), &mut self.random);
        let copies = match start_copy_to_all(tree, &devices, options) {
            Ok(copies) => copies,
            Err(error) => return self.note_failure(error.error(), item.may_fail, false, false),
        };
        for (copy, target) in copies.into_iter().zip(targets) {
            let end = self.end(&item, target);
            match self.end_by(end, copy, target) {
                Ok(Some(tree)) => {
                    let mut twin = item.twin(tree.into_tensors());
                    twin.may_fail |= matches!(end, End::WaitOn);
                    self.verify(&twin);
                }
                Ok(None) => {}
                Err(error) => self.note_failure(error.error(), item.may_fail, false, false),
            }
        }
    }

    /// One that owners take, or wakers, in which case this thread must not depend on those.
    fn copy_under_a_lock(&mut self) {
        let strangers = self.arena.strangers.clone();
        let item = Item::new(&mut self.random);
        let target = self.index(self.arena.places.len());
        let tree = Tree::new(item.tensors.clone(), &mut self.random);
        let copy = || start_copy(tree, &self.arena.places[target], CopyOptions::default());
        let copied = |end: fn(CopyHandle<Tree>) -> Result<Tree, CopyError<Tree>>| {
            item.twin(copy().and_then(end).unwrap().into_tensors()).check().unwrap();
        };
        match self.random.next() % 3 {
            0 => {
                let _held = strangers.hold_wakers();
                copied(CopyHandle::wait);
            }
            1 => {
                let _held = strangers.hold_pool(&mut self.random);
                copied(CopyHandle::wait);
            }
            _ => {
                let _held = strangers.hold_pool(&mut self.random);
                copied(block_on);
            }
        }
        self.tally.verified += 1;
    }

    /// Weights that stay, beside a stream for each request.
    fn new_streams(&mut self) {
        let target = self.index(self.arena.places.len());
        let device = self.arena.places[target].clone();
        if device.is_host() {
            return;
        }
        let weights = Item::whole(&mut self.random);
        let copy = start_copy(weights.tensors.clone(), &device, CopyOptions::default());
        let weights = weights.moved(copy.and_then(CopyHandle::wait).unwrap());
        for _ in 0..1 + self.below(6) {
            let stream = device.create_stream(StreamPriority::Normal).unwrap();
            let request = Item::whole(&mut self.random);
            let structure = (weights.tensors.clone(), Tree::new(request.tensors.clone(), &mut self.random));
            let mut options = CopyOptions::default();
            if self.below(2) == 0 {
                options = options.stream(&stream);
            }
            let there = start_copy(structure, &device, options).and_then(|copy| copy.wait_on(&stream));
            let (there, answer) = there.unwrap();
            if self.below(2) == 0 {
                weights.twin(there).check().unwrap();
                request.moved(answer.into_tensors()).check().unwrap();
                self.tally.verified += 2;
            }
            self.tally.misuses.streams += 1;
        }
    }

    fn end_of_a_thread(&mut self) {
        thread_local! {
            static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
        }
        let place = self.index(self.arena.places.len());
        // Debug builds of wgpu panic there: they note in a thread-local which locks a thread holds.
        let is_refused = cfg!(debug_assertions) && self.arena.places[place].id().driver() == "wgpu";
        let device = self.arena.places[if is_refused { 0 } else { place }].clone();
        let strangers = self.arena.strangers.clone();
        let end: Ending = if self.below(2) == 0 { CopyHandle::wait } else { poll_until_ready };
        let copies_before = self.below(2) == 0;
        let ends = thread::spawn(move || {
            // Thread-locals go in the order in which they were first used, or another one.
            if copies_before {
                strangers.copy(&device, block_on);
            }
            LAST.set(Some(AtTheEnd { strangers: strangers.clone(), device: device.clone(), end }));
            strangers.copy(&device, CopyHandle::wait);
        });
        ends.join().unwrap();
    }
}

/// Where each lies.
fn places(tensors: &[Tensor]) -> Vec<(Option<u64>, usize)> {
    tensors.iter().map(|tensor| (tensor.address().unwrap(), tensor.offset())).collect()
}
