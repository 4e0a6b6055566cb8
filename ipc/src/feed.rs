//! The end of the process that has the GPU.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use transship_core::{Device, ForkCount};

use crate::batch::Batch;
use crate::error::{IpcError, Named, check_here};
use crate::event_fd::EventFd;
use crate::listener::Listener;
use crate::options::FeedOptions;
use crate::peer::{Outcome, Peer};
use crate::ring::sizes;
use crate::schedule::{Schedule, Task};

/// How many connections are looked at before anything else is.
const ACCEPTED_AT_ONCE: usize = 16;

/// Batches of loader processes, one for each of some numbers and in their order.
///
/// It has no thread: loaders are welcomed, given numbers and listened to while the next batch is asked for. Between two calls they work on what
/// they were given, a batch for each of their slots.
///
/// As an iterator it waits for each batch as long as it takes; [`next_within`](Self::next_within) does not. An error stands in the place of one batch, or is about
/// none; the next call goes on. Loaders hear that the feed is over once `next` has returned `None`, or the feed is dropped, and not with the last batch.
///
/// A process that is forked from this one may drop it, which changes nothing, and is refused all batches ([`IpcError::Forked`]).
pub struct Feed<I: Iterator<Item = u64>> {
    listener: Listener,
    device: Device,
    options: FeedOptions,
    event: Arc<EventFd>,
    peers: Vec<Peer>,
    schedule: Schedule<I, Outcome>,
    /// What is told once nothing is due, and never if nothing more will be.
    trouble: Option<IpcError>,
    forks: ForkCount,
    /// Whether a loop in a child of this process was told so.
    is_refused: bool,
}

impl<I: Iterator<Item = u64>> Feed<I> {
    /// A feed of `numbers`, for copies to `device` (and all others of its driver), to which loaders [connect](crate::Loader::connect) at `path`. The socket there is for
    /// this user alone, and goes with the feed, but not with one that a forked child drops.
    ///
    /// # Errors
    ///
    /// [`IpcError::System`] if there can be no socket at `path`, such as one that is there already: that of a feed which runs, or of one whose process was killed.
    /// Remove that one. [`InvalidOption`](transship_core::Error::InvalidOption) for slots of more bytes than any memory has.
    pub fn new(
        path: impl AsRef<Path>,
        numbers: impl IntoIterator<IntoIter = I>,
        device: &Device,
        options: FeedOptions,
    ) -> Result<Self, IpcError> {
        // Else each loader that comes would be an error.
        sizes(&options)?;
        let schedule = Schedule::new(numbers.into_iter(), options.attempts);
        let (listener, event) = (Listener::new(path.as_ref())?, Arc::new(EventFd::new()?));
        Ok(Self {
            listener,
            device: device.clone(),
            options,
            event,
            peers: Vec::new(),
            schedule,
            trouble: None,
            forks: ForkCount::now(),
            is_refused: false,
        })
    }

    /// The next batch, `None` behind the last one. Waits for at most `limit`. Loaders hear that the feed is over once this has returned `None`, or the feed is dropped: who waits
    /// for them to end behind the last batch, and has done neither, waits for ever.
    ///
    /// # Errors
    ///
    /// [`IpcError::TimedOut`]; [`IpcError::Forked`]; in the place of a batch [`IpcError::Failed`] or [`IpcError::GivenUp`]; beside them, while the next batch is not there,
    /// [`IpcError::System`], and [`IpcError::Tensors`] where there can be no ring for a new loader.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Batch>, IpcError> {
        let until = Instant::now().checked_add(limit);
        self.next_before(until, limit)
    }

    /// How many loaders there are, as far as is known.
    pub fn loaders(&self) -> usize {
        self.peers.len()
    }

    fn next_before(&mut self, until: Option<Instant>, limit: Duration) -> Result<Option<Batch>, IpcError> {
        check_here(self.forks)?;
        self.trouble = self.listen(Some(Instant::now())).err().or(self.trouble.take());
        loop {
            self.hand_out();
            if let Some(due) = self.schedule.take_due() {
                return due.map(Some);
            }
            if self.schedule.is_over() {
                self.dismiss_all();
                return Ok(None);
            }
            if let Some(trouble) = self.trouble.take() {
                return Err(trouble);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(IpcError::TimedOut { limit, loaders: self.peers.len(), held: self.held() });
            }
            self.trouble = self.listen(until).err();
        }
    }

    /// Gives every free slot a task, if there is one for its loader.
    fn hand_out(&mut self) {
        let mut goes_on = true;
        while goes_on {
            self.peers.iter_mut().for_each(Peer::take_back);
            let anyone = self.may_anyone_try_again();
            goes_on = self.hand_out_one(anyone) || self.make_room(anyone);
        }
    }

    fn hand_out_one(&mut self, anyone: bool) -> bool {
        let mut free: Vec<usize> =
            (0..self.peers.len()).filter(|peer| self.peers[*peer].free_slots() > 0).collect();
        free.sort_by_key(|peer| Reverse(self.peers[*peer].free_slots()));
        let most_made = self.options.slots.saturating_mul(self.peers.len());
        for peer in free {
            let unspoilt = !anyone && !self.peers[peer].has_delivered();
            let Some(task) = self.schedule.next_task(unspoilt, most_made) else { continue };
            if self.peers[peer].give(task).is_err() {
                self.schedule.put_back(task);
                // It is lost, whatever this says: what it has sent counts.
                let _ = self.hear_all(peer);
                self.lose(peer);
            }
            return true;
        }
        false
    }

    /// Takes a slot from a batch for one that is due, where its loader may make that.
    fn make_room(&mut self, anyone: bool) -> bool {
        let peers = &self.peers;
        self.schedule.make_room(|due, made| {
            let may_make_it = |peer: &Peer| anyone || due.attempts == 0 || peer.has_delivered();
            made.as_ref().is_ok_and(|batch| peers.iter().any(|peer| may_make_it(peer) && peer.has(batch)))
        })
    }

    /// What has failed is for loaders that have delivered something: others may fail at everything. If there are none, or if the caller has batches in all of their
    /// slots, it is for anyone.
    fn may_anyone_try_again(&self) -> bool {
        !self.peers.iter().any(|peer| peer.has_delivered() && self.will_have_a_slot(peer))
    }

    /// Whether it has a slot, or will, whatever the caller does.
    fn will_have_a_slot(&self, peer: &Peer) -> bool {
        !peer.is_leased() || self.schedule.has_made(|made| made.as_ref().is_ok_and(|batch| peer.has(batch)))
    }

    /// How many slots there are, if the caller has batches in all of them.
    fn held(&self) -> Option<usize> {
        let are_held = !self.peers.is_empty() && !self.peers.iter().any(|peer| self.will_have_a_slot(peer));
        are_held.then(|| self.options.slots.saturating_mul(self.peers.len()))
    }

    /// Waits until something happens, for as long as nobody is late, and takes in what did.
    fn listen(&mut self, until: Option<Instant>) -> Result<(), IpcError> {
        let has_news = self.wait(until)?;
        self.event.clear();
        for peer in (0..self.peers.len()).rev() {
            if has_news[peer] && self.hear_all(peer).is_err() {
                self.lose(peer);
            }
        }
        let now = Instant::now();
        for peer in (0..self.peers.len()).rev() {
            if self.peers[peer].is_due().is_some_and(|due| due <= now) {
                self.lose(peer);
            }
        }
        self.welcome()
    }

    /// Which loaders have said something.
    fn wait(&self, until: Option<Instant>) -> Result<Vec<bool>, IpcError> {
        let until = self.peers.iter().filter_map(Peer::is_due).chain(until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled =
            vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&*self.event, PollFlags::IN)];
        polled.extend(self.peers.iter().map(|peer| PollFd::from_borrowed_fd(peer.as_fd(), PollFlags::IN)));
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).named("waiting for loaders"),
        }
        Ok(polled.iter().skip(2).map(|polled| !polled.revents().is_empty()).collect())
    }

    /// Each message takes a slot that was being written: one that says more has broken the rules.
    fn hear_all(&mut self, peer: usize) -> Result<(), IpcError> {
        while let Some((task, outcome)) = self.peers[peer].hear(self.options.largest_manifest)? {
            self.schedule.made(task, outcome);
        }
        Ok(())
    }

    fn welcome(&mut self) -> Result<(), IpcError> {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(socket) = self.listener.accept()? else { return Ok(()) };
            if self.peers.len() < self.options.most_loaders {
                match Peer::new(socket, &self.device, &self.options, &self.event) {
                    Ok(peer) => self.peers.push(peer),
                    Err(IpcError::PeerGone) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Ends a connection: others do what that loader has not done. What it was at is one that a loader has failed to make.
    fn lose(&mut self, peer: usize) {
        let mut unmade = self.peers.swap_remove(peer).unmade();
        if let Some(task) = unmade.next()
            && let Some(Task { number, attempts, .. }) = self.schedule.failed(task)
        {
            self.schedule.made(task, Err(IpcError::GivenUp { number, attempts }));
        }
        unmade.for_each(|task| self.schedule.put_back(task));
    }

    fn dismiss_all(&mut self) {
        self.peers.drain(..).for_each(|peer| peer.dismiss());
    }
}

impl<I: Iterator<Item = u64>> Iterator for Feed<I> {
    type Item = Result<Batch, IpcError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_before(None, Duration::MAX) {
            // Once: a loop that goes on behind errors ends.
            Err(IpcError::Forked) if std::mem::replace(&mut self.is_refused, true) => None,
            next => next.transpose(),
        }
    }
}

impl<I: Iterator<Item = u64>> Drop for Feed<I> {
    fn drop(&mut self) {
        // Loaders of the process that this one was forked from go on with that.
        if self.listener.is_own() {
            self.dismiss_all();
        }
    }
}

impl<I: Iterator<Item = u64>> std::fmt::Debug for Feed<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("options", &self.options).field("loaders", &self.peers.len()).finish()
    }
}
