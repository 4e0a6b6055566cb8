//! The streams that copies of one kind run on: copies of one thread always on the same, in order; those of different
//! threads beside each other, on streams that they need not share, as long as there are enough.

use std::sync::Arc;

use crate::backend::{Backend, StreamPriority};
use crate::error::Result;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::sync::OnceLock;
use crate::runtime::thread_index;

/// The queues of a device, of which all but the first are created when a thread first needs its own.
pub(crate) struct ThreadQueues {
    first: Arc<SubmissionQueue>,
    others: Box<[OnceLock<Arc<SubmissionQueue>>]>,
}

impl ThreadQueues {
    /// As many as the backend says.
    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Result<Self> {
        let others = (1..backend.copy_streams()).map(|_| OnceLock::new()).collect();
        Ok(Self { first: create(backend)?, others })
    }

    /// A queue alone.
    pub(crate) fn single(queue: Arc<SubmissionQueue>) -> Self {
        Self { first: queue, others: Box::default() }
    }

    /// The queue of this thread. `introduce` is shown a new one before anything runs on it.
    pub(crate) fn of_this_thread(
        &self,
        backend: &Arc<dyn Backend>,
        introduce: impl FnOnce(&Arc<SubmissionQueue>),
    ) -> &Arc<SubmissionQueue> {
        let index = thread_index::copying() % (self.others.len() + 1);
        let Some(queue) = index.checked_sub(1).and_then(|index| self.others.get(index)) else {
            return &self.first;
        };
        queue.get_or_init(|| match create(backend) {
            Ok(queue) => {
                introduce(&queue);
                queue
            }
            // Once and for all: the copies of a thread stay in order.
            Err(_) => self.first.clone(),
        })
    }

    /// Those that there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<SubmissionQueue>> {
        std::iter::once(&self.first).chain(self.others.iter().filter_map(OnceLock::get))
    }
}

fn create(backend: &Arc<dyn Backend>) -> Result<Arc<SubmissionQueue>> {
    let stream = backend.create_stream(StreamPriority::Normal)?;
    Ok(SubmissionQueue::new(backend.clone(), stream))
}
