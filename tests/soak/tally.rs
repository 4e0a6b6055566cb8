//! What a soak did.

use std::fmt;

use libtest_mimic::Failed;

/// What came of the copies.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) steps: u64,
    pub(crate) copies: u64,
    pub(crate) verified: u64,
    pub(crate) bytes: u64,
    pub(crate) handed_over: u64,
    pub(crate) cancelled: u64,
    pub(crate) dropped: u64,
    pub(crate) forgotten: u64,
    pub(crate) late: u64,
    pub(crate) busy: u64,
    /// What was not a single well-behaved copy.
    pub(crate) misuses: Misuses,
}

/// How often something was done that asks for trouble.
#[derive(Debug, Default)]
pub(crate) struct Misuses {
    /// Items whose memory has owners that misbehave.
    pub(crate) lent: u64,
    /// Panics of those that were met where they should be.
    pub(crate) panics: u64,
    pub(crate) polled_by_hand: u64,
    pub(crate) overwritten: u64,
    pub(crate) fanned_out: u64,
    pub(crate) locked: u64,
    pub(crate) streams: u64,
    pub(crate) threads_ended: u64,
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
        self.misuses.add(&other.misuses);
    }

    /// A soak that did not do what it is for shows nothing.
    pub(crate) fn check(&self, name: &str) -> Result<(), Failed> {
        let Self { verified, cancelled, dropped, forgotten, handed_over, .. } = *self;
        let Misuses { lent, polled_by_hand, overwritten, fanned_out, locked, .. } = self.misuses;
        let everywhere = [verified, cancelled, dropped, forgotten];
        let misuses = [lent, polled_by_hand, overwritten, fanned_out, locked];
        let is_short = everywhere.contains(&0) || misuses.contains(&0);
        if is_short || (handed_over == 0 && name != "host") {
            return Err(format!("too short, something was never tried: {self}").into());
        }
        Ok(())
    }
}

impl Misuses {
    fn add(&mut self, other: &Self) {
        self.lent += other.lent;
        self.panics += other.panics;
        self.polled_by_hand += other.polled_by_hand;
        self.overwritten += other.overwritten;
        self.fanned_out += other.fanned_out;
        self.locked += other.locked;
        self.streams += other.streams;
        self.threads_ended += other.threads_ended;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, copies, verified, bytes, handed_over, cancelled, dropped, forgotten, .. } = self;
        let Self { late, busy, misuses, .. } = self;
        let mib = bytes >> 20;
        write!(
            f,
            "{steps} steps, {copies} copies, {mib} MiB, {verified} verified, {handed_over} handed to streams, \
             {cancelled} cancelled, {dropped} dropped, {forgotten} forgotten, {late} late, {busy} busy, {misuses:?}"
        )
    }
}
