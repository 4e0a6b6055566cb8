//! Copies with any options over a device that copies as late as it may, with faults: every byte arrives or comes back, nothing
//! is touched too early or too late, and all memory is given back.
#![no_main]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use late_backend::{Call, LateConfig, LateHandle};
use libfuzzer_sys::fuzz_target;
use transship_core::backend::StreamPriority;
use transship_core::{
    Alignment, BackgroundWork, CopyError, CopyHandle, CopyOptions, CopyPolicy, DType, Device, Error, Stream,
    Tensor, TimedWait, start_copy,
};

const MOST_LEAVES: usize = 24;
const MOST_LEGS: usize = 6;
/// Of all leaves: enough for several units.
const MOST_BYTES: usize = 2 << 20;
const MOST_STAGED: usize = 64 << 20;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Arbitrary)]
struct Case {
    devices: Kind,
    /// In units of 64 KiB; 0 leaves the devices as they are.
    staging_budget: u8,
    result_budget: u8,
    leaves: Vec<Leaf>,
    legs: Vec<Leg>,
    /// 0: the devices are shut down. Else they are kept, and later copies find what these ones leave in their pools.
    kept: u8,
}

/// So few that most runs find their devices: new ones cost more than the copies of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Arbitrary)]
struct Kind {
    in_turn: bool,
    peers: bool,
    pinned: bool,
    mapped: bool,
    gathers: bool,
    grains: Grains,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Arbitrary)]
enum Grains {
    Bytes,
    Words,
    Bound,
}

#[derive(Debug, Arbitrary)]
struct Leaf {
    dtype: u8,
    rows: u8,
    columns: u8,
    /// So many times as large.
    times: Power<9>,
    view: View,
}

#[derive(Debug, Arbitrary)]
enum View {
    Whole,
    Transposed,
    EveryOther,
    Tail,
    /// The leaf before once more.
    Again,
}

#[derive(Debug, Arbitrary)]
struct Leg {
    to: To,
    pinned: bool,
    mapped_results: bool,
    pack: bool,
    bindable: Option<bool>,
    alignment: Power<13>,
    max_chunk: Option<u16>,
    max_packed: Option<u16>,
    paced: Option<u16>,
    /// In milliseconds.
    deadline: Option<u8>,
    background: Background,
    always: bool,
    on_a_stream: bool,
    fault: Option<(Fault, u8)>,
    end: End,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum To {
    Host,
    First,
    Second,
}

#[derive(Debug, Arbitrary)]
enum Background {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Arbitrary)]
enum Fault {
    Allocate,
    Staging,
    Submit,
}

#[derive(Debug, Arbitrary)]
enum End {
    Wait,
    WaitOn,
    Ask(u8),
    Cancel,
    Drop,
}

/// A power of two below `2^LIMIT`.
#[derive(Debug, Clone, Copy)]
struct Power<const LIMIT: u32>(usize);

fuzz_target!(|case: Case| {
    let Case { devices, staging_budget, result_budget, leaves, legs, kept } = case;
    let leaks = transship_core::runtime_stats().leaks;
    let mut benches = BENCHES.lock().unwrap();
    let bench = benches.entry(devices).or_insert_with(|| Bench::new(devices));
    bench.set_budgets(staging_budget, result_budget);
    let mut tensors = tensors(&leaves);
    let expected = bytes(&tensors);
    let mut handed_over = false;
    for leg in legs.iter().take(MOST_LEGS) {
        handed_over |= matches!(leg.end, End::WaitOn);
        let ended = bench.run(tensors, leg, &expected, handed_over);
        tensors = ended.unwrap_or_else(|| self::tensors(&leaves));
    }
    bench.check(tensors, &expected, handed_over);
    if kept == 0 {
        bench.devices.iter().for_each(|device| device.drain().unwrap());
    }
    bench.settle();
    if kept == 0 {
        benches.remove(&devices);
    }
    assert_eq!(transship_core::runtime_stats().leaks, leaks, "memory in flight was given up");
});

static BENCHES: LazyLock<Mutex<HashMap<Kind, Bench>>> = LazyLock::new(Mutex::default);

struct Bench {
    late: LateHandle,
    devices: [Device; 2],
    streams: [Stream; 2],
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let (granularity, bindable) = match kind.grains {
            Grains::Bytes => (1, 1),
            Grains::Words => (4, 4),
            Grains::Bound => (4, 256),
        };
        let late = LateHandle::new(LateConfig {
            devices: 2,
            seed: (!kind.in_turn).then_some(7),
            peers: kind.peers,
            pinned: kind.pinned,
            largest_open: if kind.mapped { 4096 } else { 0 },
            mapped_staging: kind.mapped,
            // Devices with mapped staging that gather are refused.
            gather: (kind.gathers && !kind.mapped).then_some(24),
            gather_strided: (kind.gathers && !kind.mapped && granularity == 1).then_some(176),
            // Those gather beside other copies.
            largest_strided: if kind.gathers && kind.mapped { 1 << 12 } else { 0 },
            copy_granularity: Alignment::new(granularity).unwrap(),
            bindable_alignment: Alignment::new(bindable).unwrap(),
            ..LateConfig::new("late")
        });
        let late = late.unwrap();
        let devices = [0, 1].map(|ordinal| Device::from_backend(late.backend(ordinal)).unwrap());
        let streams =
            [0, 1].map(|ordinal: usize| devices[ordinal].create_stream(StreamPriority::Normal).unwrap());
        Self { late, devices, streams }
    }

    fn set_budgets(&self, staging: u8, result: u8) {
        let budget = |units: u8| if units == 0 { MOST_STAGED } else { usize::from(units) << 16 };
        for device in &self.devices {
            device.set_staging_budget(budget(staging)).unwrap();
            device.set_result_budget(budget(result)).unwrap();
        }
    }

    /// The tensors where they are then; `None` if the leg gave them up.
    fn run(
        &self,
        tensors: Vec<Tensor>,
        leg: &Leg,
        expected: &[Vec<u8>],
        handed_over: bool,
    ) -> Option<Vec<Tensor>> {
        let (target, stream) = match leg.to {
            To::Host => (Device::host(), None),
            To::First => (self.devices[0].clone(), Some(&self.streams[0])),
            To::Second => (self.devices[1].clone(), Some(&self.streams[1])),
        };
        let options = leg.options(stream);
        if let Some((fault, after)) = &leg.fault {
            self.late.fail_next(fault.call(), usize::from(after % 8));
        }
        let ended = start_copy(tensors, &target, options.clone()).and_then(|copy| leg.end(copy, stream));
        match ended {
            Ok(tensors) => tensors,
            Err(error) => {
                assert!(leg.may_fail_with(error.error(), &target, &options), "{error:?}");
                let tensors = error.into_value()?;
                self.check(tensors.clone(), expected, handed_over);
                Some(tensors)
            }
        }
    }

    /// The bytes are those that were there at the beginning, wherever they are now. A fault that nothing has met yet may hit this copy.
    /// Tensors that were handed over to a stream, and whose copy has failed since, have none and never will.
    fn check(&self, mut tensors: Vec<Tensor>, expected: &[Vec<u8>], handed_over: bool) {
        loop {
            let down =
                start_copy(tensors, &Device::host(), CopyOptions::default()).and_then(CopyHandle::wait);
            match down {
                Ok(tensors) => {
                    return assert!(bytes(&tensors) == expected, "other bytes than at the beginning");
                }
                Err(error) => {
                    assert!(is_a_fault(error.error()), "{error:?}");
                    let have_none = matches!(error.error(), Error::CopyFailed(_));
                    assert!(handed_over || !have_none, "{error:?}");
                    match error.into_value() {
                        Some(again) if !have_none => tensors = again,
                        _ => return,
                    }
                }
            }
        }
    }

    /// Everything is given back, and no fault is left for the next run.
    fn settle(&self) {
        for device in &self.devices {
            let idle = || device.staging_usage().in_use + device.result_usage().in_use == 0;
            eventually("staging is given back", || device.synchronize().is_ok() && idle());
            eventually("device memory is given back", || {
                self.streams.iter().for_each(|stream| drop(stream.is_idle()));
                device.counters().device_bytes == 0
            });
        }
        self.late.fail_no_more();
        assert!(self.late.violations().is_empty(), "{:?}", self.late.violations());
        self.late.clear_calls();
    }
}

impl Leg {
    fn options(&self, stream: Option<&Stream>) -> CopyOptions {
        let mut options = CopyOptions::default()
            .pinned_staging(self.pinned)
            .packing(self.pack)
            .packed_alignment(self.alignment.0)
            .background(match self.background {
                Background::Auto => BackgroundWork::Auto,
                Background::Always => BackgroundWork::Always,
                Background::Never => BackgroundWork::Never,
            })
            .policy(if self.always { CopyPolicy::Always } else { CopyPolicy::IfNeeded });
        if self.mapped_results {
            // SAFETY: these devices are neither destroyed nor lost.
            options = unsafe { options.mapped_results() };
        }
        if let Some(on) = self.bindable {
            options = options.bindable(on);
        }
        if let Some(bytes) = self.max_chunk {
            options = options.max_chunk_bytes(bytes.into());
        }
        if let Some(bytes) = self.max_packed {
            options = options.max_packed_bytes(bytes.into());
        }
        if let Some(bytes) = self.paced {
            options = options.max_bytes_in_flight(bytes.into());
        }
        if let Some(time) = self.deadline {
            options = options.deadline(Duration::from_millis(time.into()));
        }
        match stream.filter(|_| self.on_a_stream) {
            Some(stream) => options.stream(stream),
            None => options,
        }
    }

    fn end(
        &self,
        mut copy: CopyHandle<Vec<Tensor>>,
        stream: Option<&Stream>,
    ) -> Result<Option<Vec<Tensor>>, CopyError<Vec<Tensor>>> {
        match (&self.end, stream) {
            (End::WaitOn, Some(stream)) => copy.wait_on(stream).map(Some),
            (End::Wait | End::WaitOn, _) => copy.wait().map(Some),
            (End::Cancel, _) => Ok(copy.cancel().value),
            (End::Drop, _) => Ok(None),
            (End::Ask(times), _) => {
                for _ in 0..*times {
                    match copy.wait_timeout(Duration::ZERO)? {
                        TimedWait::Done(tensors) => return Ok(Some(tensors)),
                        TimedWait::Pending(pending) => copy = pending,
                    }
                }
                copy.wait().map(Some)
            }
        }
    }

    fn may_fail_with(&self, error: &Error, target: &Device, options: &CopyOptions) -> bool {
        let is_aligned = self.alignment.0 <= target.limits().buffer_alignment.bytes();
        match error {
            Error::InvalidOption { .. } => options.validate().is_err() || !is_aligned,
            Error::Busy { .. } => matches!(self.background, Background::Never),
            Error::DeadlineExceeded { .. } => self.deadline.is_some(),
            error => is_a_fault(error),
        }
    }
}

impl Fault {
    fn call(&self) -> Call {
        match self {
            Self::Allocate => Call::Allocate,
            Self::Staging => Call::Staging,
            Self::Submit => Call::Submit,
        }
    }
}

/// An error of the simulated driver that it was told to return, or that of an earlier copy which got it.
fn is_a_fault(error: &Error) -> bool {
    match error {
        Error::Driver { .. } => true,
        Error::CopyFailed { .. } => true,
        _ => false,
    }
}

fn tensors(leaves: &[Leaf]) -> Vec<Tensor> {
    let mut made: Vec<Tensor> = Vec::new();
    let mut left = MOST_BYTES;
    for (index, leaf) in leaves.iter().take(MOST_LEAVES).enumerate() {
        let before = made.last().cloned();
        made.push(match (&leaf.view, before) {
            (View::Again, Some(before)) => before,
            _ => leaf.tensor(index, &mut left),
        });
    }
    made
}

/// Any bytes, and such as are truth values. Made once: coverage looks at each step of a loop.
static PATTERNS: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let all = (0..MOST_BYTES + MOST_LEAVES * 31).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<_>>();
    let truths = all.iter().map(|byte| byte & 1).collect();
    (all, truths)
});

impl Leaf {
    fn tensor(&self, index: usize, left: &mut usize) -> Tensor {
        let dtype = DType::ALL[usize::from(self.dtype) % DType::ALL.len()];
        let row = usize::from(self.columns) * dtype.size();
        let rows = (usize::from(self.rows) * self.times.0).min(*left / row.max(1));
        *left -= rows * row;
        let shape = [rows, usize::from(self.columns)];
        let mut tensor = Tensor::empty(&shape, dtype, &Device::host()).unwrap();
        let bytes = tensor.as_mut_bytes().unwrap();
        let pattern = if dtype == DType::Bool { &PATTERNS.1 } else { &PATTERNS.0 };
        bytes.copy_from_slice(&pattern[index * 31..][..bytes.len()]);
        match self.view {
            View::Whole | View::Again => tensor,
            View::Transposed => tensor.transpose(0, 1).unwrap(),
            View::EveryOther => tensor.slice(0, 0..shape[0], 2).unwrap(),
            View::Tail => tensor.slice(0, shape[0] / 3..shape[0], 1).unwrap(),
        }
    }
}

fn bytes(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|tensor| tensor.to_bytes().unwrap()).collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        thread::yield_now();
    }
}

impl<'a, const LIMIT: u32> Arbitrary<'a> for Power<LIMIT> {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self(1 << bytes.int_in_range(0..=LIMIT - 1)?))
    }
}
