//! Copies of the same leaves to several devices, by one plan. They share blocks as well: see `transfer/job_group.rs`.

use std::sync::Arc;

use crate::backend::Limits;
use crate::device::device::Device;
use crate::error::Result;
use crate::in_flight::after_cancel::LeftInFlight;
use crate::in_flight::completion::Completion;
use crate::job::job::Job;
use crate::job::options::CopyOptions;
use crate::job::source::Source;
use crate::job::transfer_path::{PathKind, TransferPath};
use crate::runtime::sync::OnceLock;
use crate::runtime::sync::atomic::AtomicBool;

impl Job {
    /// Whether a copy of the same leaves to `device` can use the plan and the staging blocks of this one: all bytes come
    /// from the host, and `device` reads the blocks and demands the same of a plan.
    pub(crate) fn can_share_with(&self, device: &Device) -> bool {
        let from_host = |path: &TransferPath| {
            matches!((&path.kind, &path.from), (PathKind::Staged, _) | (_, Source::PinnedHost))
        };
        !self.has_residents
            && !self.is_trivial()
            && self.paths.iter().all(from_host)
            && self.target.id().driver() == device.id().driver()
            && demand_the_same(self.target.limits(), device.limits())
            && self.plan.chunks().iter().all(|chunk| chunk.bytes <= device.limits().largest_buffer)
            && device.backend().reads_staging_of(&**self.target.backend())
    }

    /// A copy of the same leaves to a device that this one [can share with](Self::can_share_with).
    pub(crate) fn to_another(
        &self,
        target: &Device,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self> {
        Ok(Self {
            leaves: self.leaves.clone(),
            plan: self.plan.clone(),
            paths: TransferPath::all_to(&self.plan, &self.paths, target, options)?,
            granularity: self.granularity,
            target: target.clone(),
            pinned: self.pinned,
            mapped_results: self.mapped_results,
            into_graph: self.into_graph,
            pace: self.pace,
            background: self.background,
            completion,
            before: self.before.clone(),
            has_residents: false,
            held: None,
            destinations: OnceLock::new(),
            begun: AtomicBool::new(false),
            unstaging: OnceLock::new(),
            left_in_flight: LeftInFlight::new(),
        })
    }
}

/// Whether one plan suits both devices, and both are staged to in the same way.
fn demand_the_same(one: &Limits, other: &Limits) -> bool {
    let alignments =
        |limits: &Limits| (limits.copy_granularity, limits.bindable_alignment, limits.buffer_alignment);
    let is_staged =
        |limits: &Limits| !limits.host_writable && !limits.mapped_staging && limits.largest_open == 0;
    let casts = |limits: &Limits| limits.gathers();
    alignments(one) == alignments(other) && is_staged(one) && is_staged(other) && casts(one) == casts(other)
}
