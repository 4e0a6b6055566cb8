//! What a copy waits for that its device has no room for: all that was in flight when it came, and nothing that began later.
//!
//! Which of the memory in use comes back is not known: a tensor of the program may share what a copy in flight holds. So this
//! waits for the ends of copies, and not for bytes.

use std::sync::{Arc, Weak};

use crate::device::device::Device;
use crate::in_flight::submission_queue::SubmissionQueue;

/// What was in flight on a device at one moment, and has not come to its end.
pub(crate) struct RoomToCome {
    /// Of the copies that are left to workers, those that wait for room included, so many: the first that there were. Not those that stand
    /// aside: they wait for the program, and count as begun later.
    carried: u64,
    /// Queues, with how many submissions had entered each by then.
    submitted: Vec<(Weak<SubmissionQueue>, u64)>,
    /// How many pieces of memory had been freed behind streams, once the others have come to their end: they may be freed so.
    left: Option<u64>,
}

impl RoomToCome {
    /// What is in flight now, with the first `carried` copies that were left to workers. None of these may wait for who waits for them.
    pub(crate) fn of(device: &Device, carried: u64) -> Self {
        let queues = device.staging().busy_queues();
        let submitted = queues.iter().map(|queue| (Arc::downgrade(queue), queue.entered())).collect();
        Self { carried, submitted, left: None }
    }

    /// Whether all of it has come to its end. Asks the driver about this and what came later, which may make room as well; never blocks.
    pub(crate) fn is_over(&mut self, device: &Device) -> bool {
        for queue in device.staging().busy_queues() {
            // An error leaks what is in flight there.
            let _ = queue.poll();
        }
        device.budget().settle();
        self.submitted
            .retain(|(queue, entered)| queue.upgrade().is_some_and(|queue| !queue.has_released(*entered)));
        if !self.submitted.is_empty() || !self.carried_are_over(device) {
            return false;
        }
        let left = *self.left.get_or_insert_with(|| device.budget().left());
        device.budget().are_free(left)
    }

    fn carried_are_over(&self, device: &Device) -> bool {
        // Without the lock: whoever is told of the end of a copy may be told here.
        let oldest_from = |number| device.background().lock().oldest_of(number..self.carried);
        let mut from = 0;
        while let Some((number, copy)) = oldest_from(from) {
            if !copy.is_over() {
                return false;
            }
            device.background().lock().forget(number);
            from = number + 1;
        }
        true
    }
}
