//! Allocating memory of a device within its budget.

use crate::backend::Buffer;
use crate::device::device::Device;
use crate::device::room_to_come::RoomToCome;
use crate::error::{Error, Result};
use crate::in_flight::memory_budget::{Allocated, Exceeded, Reservation};
use crate::in_flight::submission_queue::SubmissionQueue;

impl Device {
    /// Allocates memory of the device in stream order of `queue`, within its budget: at least `bytes` bytes, in whole granules.
    pub(crate) fn allocate(&self, bytes: usize, queue: &SubmissionQueue) -> Result<Allocated> {
        self.allocate_of(&mut self.reserve(self.granules(bytes)?)?, bytes, queue)
    }

    /// The same, of bytes that are reserved. If there is no memory left, idle memory is given back to the driver first, and that once.
    pub(crate) fn allocate_of(
        &self,
        reserved: &mut Reservation,
        bytes: usize,
        queue: &SubmissionQueue,
    ) -> Result<Allocated> {
        self.allocate_by(reserved, bytes, |bytes| self.backend().allocate(bytes, &**queue.stream()))
    }

    /// The same, of memory that the host writes first, where there is some.
    pub(crate) fn allocate_open_of(
        &self,
        reserved: &mut Reservation,
        bytes: usize,
        queue: &SubmissionQueue,
    ) -> Result<Allocated> {
        self.allocate_by(reserved, bytes, |bytes| self.backend().allocate_open(bytes, &**queue.stream()))
    }

    /// The size of a buffer that has room for `bytes` bytes.
    pub(crate) fn granules(&self, bytes: usize) -> Result<usize> {
        let (device, kind, limit) = (self.id(), "device", self.limits().largest_buffer);
        let rounded = self.limits().copy_granularity.round_up(bytes).filter(|rounded| *rounded <= limit);
        rounded.ok_or(Error::TooLarge { device, kind, requested: bytes, limit })
    }

    /// Counts `bytes` bytes as used by tensors. Never waits.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<Reservation> {
        let reserve = || self.budget().reserve(bytes);
        // What copies have used may be free, and nobody has asked yet. A queue that fails says so to its own copies.
        let reserved = reserve().or_else(|_| {
            let _ = self.staging().settle_queues();
            reserve()
        });
        reserved.map_err(|exceeded| self.over_budget(bytes, exceeded))
    }

    /// The same for a copy: not before those that wait for room, but for those that stand aside where nothing in flight can make any.
    /// A copy that would stand aside itself `waits_its_turn`, and passes none of these either.
    pub(crate) fn reserve_in_turn(&self, bytes: usize, waits_its_turn: bool) -> Result<Reservation> {
        let budget = self.budget();
        if budget.is_waited_for()
            && (waits_its_turn || budget.is_waited_for_in_line() || self.has_more_in_flight())
        {
            return Err(self.over_budget(bytes, budget.exceeded()));
        }
        self.reserve(bytes)
    }

    /// Whether what was refused may be within the budget when what is in flight has come to its end. That may have happened since.
    pub(crate) fn may_have_room_later(&self, refused: &Error) -> bool {
        let Error::OverBudget { requested, .. } = refused else { return false };
        let is_expected = self.budget().is_waited_for_in_line() || self.has_more_in_flight();
        let now = self.budget().exceeded();
        (is_expected && *requested <= now.budget) || now.fits(*requested, now.used)
    }

    /// Whether something is in flight whose end may make room.
    fn has_more_in_flight(&self) -> bool {
        let before = self.background().lock().noted();
        !RoomToCome::of(self, before).is_over(self)
    }

    fn allocate_by(
        &self,
        reserved: &mut Reservation,
        bytes: usize,
        allocate: impl Fn(usize) -> Result<Box<dyn Buffer>>,
    ) -> Result<Allocated> {
        let rounded = self.granules(bytes)?;
        let reserved = reserved.split(rounded);
        let buffer = match allocate(rounded) {
            Err(Error::OutOfMemory { .. }) if self.backend().trim() > 0 => allocate(rounded),
            other => other,
        }?;
        Ok(Allocated::new(buffer, reserved))
    }

    pub(crate) fn over_budget(&self, requested: usize, exceeded: Exceeded) -> Error {
        exceeded.error(self.id(), requested)
    }
}
