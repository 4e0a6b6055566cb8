//! The streams that copies of one kind run on: copies of one thread always on the same, in order; those of different
//! threads beside each other, on streams that they need not share, as long as there are enough. A stream that is lost is replaced
//! by a new one for the next copies.

use std::sync::Arc;

use crate::backend::{Backend, StreamPriority};
use crate::error::Result;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::sync::Mutex;
use crate::runtime::thread_index;

/// The queues of a device, of which all but the first are created when a thread first needs its own.
pub(crate) struct ThreadQueues {
    first: Slot,
    others: Box<[Slot]>,
    renewing: Mutex<()>,
}

/// The queue of some threads.
type Slot = Mutex<Option<Arc<SubmissionQueue>>>;

impl ThreadQueues {
    /// As many as the backend says.
    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Result<Self> {
        let others = (1..backend.copy_streams()).map(|_| Slot::default()).collect();
        Ok(Self { others, ..Self::single(create(backend)?) })
    }

    /// A queue alone.
    pub(crate) fn single(queue: Arc<SubmissionQueue>) -> Self {
        Self { first: Slot::new(Some(queue)), others: Box::default(), renewing: Mutex::default() }
    }

    /// The queue of this thread. `introduce` is shown a new one before anything runs on it. Fails only if the queue is lost and no
    /// other can be made.
    pub(crate) fn of_this_thread(
        &self,
        backend: &Arc<dyn Backend>,
        introduce: impl FnOnce(&Arc<SubmissionQueue>),
    ) -> Result<Arc<SubmissionQueue>> {
        let slot = self.slot_of_this_thread();
        match sound(slot) {
            Some(queue) => Ok(queue),
            None => self.renew(slot, backend, introduce),
        }
    }

    fn slot_of_this_thread(&self) -> &Slot {
        let index = thread_index::copying() % (self.others.len() + 1);
        index.checked_sub(1).and_then(|index| self.others.get(index)).unwrap_or(&self.first)
    }

    /// Makes the queue of a slot that has none, or whose queue is lost.
    #[cold]
    fn renew(
        &self,
        slot: &Slot,
        backend: &Arc<dyn Backend>,
        introduce: impl FnOnce(&Arc<SubmissionQueue>),
    ) -> Result<Arc<SubmissionQueue>> {
        // One thread at a time: each stream is created once, and those that wait here have none to go on with.
        let renewing = self.renewing.lock();
        if let Some(queue) = sound(slot) {
            return Ok(queue);
        }
        let made = create(backend);
        if let Ok(made) = &made {
            introduce(made);
        }
        let mut known = slot.lock();
        let queue = match (&*known, made) {
            (_, Ok(made)) => made,
            // Once and for all: the copies of a thread stay in order.
            (None, Err(error)) => sound(&self.first).ok_or(error)?,
            (Some(_), Err(error)) => return Err(error),
        };
        let lost = known.replace(queue.clone());
        drop(known);
        drop(renewing);
        // Not under the locks: streams may go with it.
        drop(lost);
        Ok(queue)
    }

    /// Those that there are and that are not lost.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<SubmissionQueue>> {
        std::iter::once(&self.first).chain(&self.others).filter_map(sound)
    }
}

/// The queue of a slot, if there is one that is not lost.
fn sound(slot: &Slot) -> Option<Arc<SubmissionQueue>> {
    slot.lock().as_ref().filter(|queue| queue.check().is_ok()).cloned()
}

fn create(backend: &Arc<dyn Backend>) -> Result<Arc<SubmissionQueue>> {
    let stream = backend.create_stream(StreamPriority::Normal)?;
    Ok(SubmissionQueue::new(backend.clone(), stream))
}
