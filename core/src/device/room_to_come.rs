//! What a copy waits for that its device has no room for: all that was in flight at one moment, and nothing that began later.
//!
//! Which of the memory in use comes back is not known: a tensor of the program may share what a copy in flight holds. So this
//! waits for the ends of copies, and not for bytes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::device::device::Device;
use crate::in_flight::completion::Completion;
use crate::in_flight::memory_budget::MemoryBudget;
use crate::in_flight::submission_queue::SubmissionQueue;
use crate::runtime::sync::thread;

/// Who waits looks so often whether there is room, and whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What nobody can wait for is asked so often.
const ASK_AGAIN: Duration = Duration::from_micros(100);

/// What was in flight on a device at one moment, and has not come to its end.
pub(crate) struct RoomToCome {
    /// Copies that workers carry out. Those that wait for room themselves are none of them: two would wait for each other.
    carried: Vec<Arc<Completion>>,
    /// Queues, with how many submissions had entered each by then.
    submitted: Vec<(Weak<SubmissionQueue>, u64)>,
    /// How many pieces of memory had been freed behind streams, once the others have come to their end: they may be freed so.
    left: Option<u64>,
}

impl RoomToCome {
    /// What is in flight now.
    pub(crate) fn of(device: &Device) -> Self {
        let carried = device.background_with_memory();
        let queues = device.staging().busy_queues();
        let submitted = queues.iter().map(|queue| (Arc::downgrade(queue), queue.entered())).collect();
        Self { carried, submitted, left: None }
    }

    /// Whether there is something of it.
    pub(crate) fn is_expected(&mut self, budget: &MemoryBudget) -> bool {
        self.forget_ended();
        !self.carried.is_empty() || !self.submitted.is_empty() || budget.awaited_by(budget.left()).is_some()
    }

    /// Waits a moment for some of it; `false` if all of it has come to its end.
    pub(crate) fn wait(&mut self, budget: &MemoryBudget) -> bool {
        self.forget_ended();
        if let Some(queue) = self.submitted.iter().find_map(|(queue, _)| queue.upgrade()) {
            if !matches!(queue.wait_for_oldest(LOOK_AGAIN), Ok(true)) {
                thread::sleep(ASK_AGAIN);
            }
            return true;
        }
        if !self.carried.is_empty() {
            thread::sleep(ASK_AGAIN);
            return true;
        }
        let left = *self.left.get_or_insert_with(|| budget.left());
        let Some(ticket) = budget.awaited_by(left) else { return false };
        if ticket.stream.wait(ticket.position, Some(LOOK_AGAIN)).is_err() {
            // Whether it is lost shows when it is asked. That it cannot be waited for is no reason to ask without a pause.
            thread::sleep(LOOK_AGAIN);
        }
        true
    }

    fn forget_ended(&mut self) {
        self.carried.retain(|copy| matches!(copy.is_over(false), Ok(false)));
        self.submitted.retain(|(queue, entered)| {
            let Some(queue) = queue.upgrade() else { return false };
            // An error leaks what is in flight there.
            let _ = queue.poll();
            !queue.has_released(*entered)
        });
    }
}
