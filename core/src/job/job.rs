//! One copy, planned: what goes where, and by which path.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::alignment::Alignment;
use crate::device::device::Device;
use crate::error::{Error, Result};
use crate::in_flight::after_cancel::LeftInFlight;
use crate::in_flight::completion::Completion;
use crate::in_flight::copy_metrics::Phase;
use crate::job::callers_memory::Preallocated;
use crate::job::chunk_memory::Destinations;
use crate::job::dependencies::Dependencies;
use crate::job::leaf::Leaf;
use crate::job::leaves::Leaves;
use crate::job::locate_leaves::Scan;
use crate::job::options::{BackgroundWork, CopyOptions};
use crate::job::transfer_path::TransferPath;
use crate::job::unstage::Unstaging;
use crate::plan::leaf::PlanOptions;
use crate::plan::plan::{Plan, Route};
use crate::runtime::sync::OnceLock;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::runtime::trace::{self, span};
use crate::tensor::storage::Storage;

/// A planned copy. Its handle and the workers that carry it out share it. It owns the sources until they are not needed any
/// more.
pub(crate) struct Job {
    /// Shared with the submissions in flight: one reference count for all sources.
    pub(crate) leaves: Arc<Leaves>,
    /// Shared with copies of the same leaves to other devices.
    pub(crate) plan: Arc<Plan>,
    pub(crate) paths: SmallVec<[TransferPath; 1]>,
    /// Offsets and sizes of copies are multiples of this.
    pub(crate) granularity: Alignment,
    pub(crate) target: Device,
    pub(crate) pinned: bool,
    pub(crate) mapped_results: bool,
    /// It may be recorded into a graph.
    pub(crate) into_graph: bool,
    pub(crate) pace: Option<usize>,
    pub(crate) background: BackgroundWork,
    pub(crate) completion: Arc<Completion>,
    /// What the copy must come after.
    pub(crate) before: Dependencies,
    pub(crate) has_residents: bool,
    /// The memory of the caller that it fills, if it makes none.
    pub(crate) held: Option<Preallocated>,
    pub(crate) destinations: OnceLock<Destinations>,
    /// Something of it was submitted, or the host has begun to write what it fills.
    pub(crate) begun: AtomicBool,
    /// The results that the host copies out of staging blocks into ordinary memory when the copy is done.
    pub(crate) unstaging: OnceLock<Arc<Unstaging>>,
    /// Dropped last.
    pub(crate) left_in_flight: LeftInFlight,
}

impl Job {
    /// Plans the copy of `leaves`, which `scan` has seen; gives the leaves back on an error.
    pub(crate) fn new(
        leaves: Leaves,
        scan: Scan<'_>,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, Box<(Error, Leaves)>> {
        let target = scan.target();
        let _span = span!("plan");
        let planning = plan_options(options, &scan);
        match Plan::new(scan.leaves(), &planning, target.limits()) {
            Ok(plan) => Self::by_plan(plan, leaves, scan, options, completion),
            Err(error) => Err(Box::new((error.on(target.id()), leaves))),
        }
    }

    pub(crate) fn by_plan(
        plan: Plan,
        leaves: Leaves,
        mut scan: Scan<'_>,
        options: &CopyOptions,
        completion: Arc<Completion>,
    ) -> Result<Self, Box<(Error, Leaves)>> {
        let target = scan.target();
        let paths = match TransferPath::all(&plan, &leaves, &scan, options) {
            Ok(paths) => paths,
            Err(error) => return Err(Box::new((error, leaves))),
        };
        Ok(Self {
            leaves: Arc::new(leaves),
            plan: Arc::new(plan),
            paths,
            granularity: scan.granularity(),
            target: target.clone(),
            pinned: options.pinned,
            mapped_results: options.mapped_results,
            into_graph: options.into_graph,
            pace: options.pace,
            background: options.background,
            unstaging: OnceLock::new(),
            left_in_flight: LeftInFlight::new(),
            completion,
            has_residents: scan.has_residents(),
            before: scan.take_predecessors(),
            held: None,
            destinations: OnceLock::new(),
            begun: AtomicBool::new(false),
        })
    }

    /// Says in the span of its call what is copied.
    pub(crate) fn describe(&self, span: &trace::Entered) {
        span.record("copy", || self.leaves.copy());
        span.record("leaves", || self.leaves.len());
        span.record("bytes", || self.payload_bytes());
    }

    /// Writes down what is in use on its devices, if it goes into a timeline.
    #[inline]
    pub(crate) fn note_memory(&self) {
        if let Some(recorder) = self.completion.metrics.recorder() {
            let devices = [&self.target].into_iter().chain(self.source_devices());
            devices.for_each(|device| device.note_memory(recorder));
        }
    }

    /// To be called before something is submitted or written.
    pub(crate) fn note_begun(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether what it fills may not be as it was. Ask when no other thread carries it out.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// The list of results that the host copies into ordinary memory when the copy is done.
    pub(crate) fn unstaging(&self) -> &Arc<Unstaging> {
        self.unstaging.get_or_init(|| Unstaging::of(self.completion.clone()))
    }

    /// The same, if some are left.
    pub(crate) fn left_to_unstage(&self) -> Option<&Unstaging> {
        self.unstaging.get().map(|unstaging| &**unstaging).filter(|unstaging| !unstaging.is_empty())
    }

    /// The devices that something is copied from.
    pub(crate) fn source_devices(&self) -> impl Iterator<Item = &Device> {
        self.paths.iter().filter_map(|path| path.from.device())
    }

    /// Whether there is anything to copy.
    pub(crate) fn is_trivial(&self) -> bool {
        self.paths.is_empty()
    }

    /// The memory of the tensors that come out: what the copy fills, and what stays where it is.
    pub(crate) fn results(&self) -> SmallVec<[Storage; 1]> {
        if let Some(held) = &self.held {
            return held.written();
        }
        let filled = self.destinations.get().into_iter().flat_map(|destinations| &destinations.chunks);
        let mut results: SmallVec<[Storage; 1]> = filled.map(|to| to.storage.clone()).collect();
        if self.has_residents {
            let resident = |(leaf, route): (&Leaf, &Route)| {
                (*route == Route::Resident && leaf.payload > 0).then(|| leaf.storage.clone())
            };
            results.extend(self.leaves.iter().zip(self.plan.routes()).filter_map(resident));
        }
        results
    }

    /// Closes the memory that the host has written, so that the device can use it.
    ///
    /// # Safety
    ///
    /// No thread carries a segment of this job any more, and none will.
    pub(crate) unsafe fn close(&self) -> Result<()> {
        match self.destinations.get() {
            Some(written) if !written.open.is_empty() => {
                // SAFETY: only segments are written through windows, and the caller promises that none is carried any more. The
                // program gets no buffer before this: `Tensor::buffer` asks `Storage::check_submitted`.
                let close =
                    || written.chunks.iter().try_for_each(|chunk| unsafe { chunk.storage.buffer().close() });
                self.completion.metrics.time(Phase::Submit, close)
            }
            _ => Ok(()),
        }
    }
}

fn plan_options(options: &CopyOptions, scan: &Scan<'_>) -> PlanOptions {
    PlanOptions {
        granularity: scan.granularity(),
        pack: options.pack,
        alignment: scan.alignment(options),
        multiple: options.multiple,
        largest_chunk: options.max_chunk,
        largest_packed: options.max_packed,
    }
}
