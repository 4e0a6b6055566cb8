//! The one state of all devices, and the way into it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::context::{self, Context};
use crate::counters::Counters;
use crate::event::Event;
use crate::failure::Failure;
use crate::faults::{Fault, Faults};
use crate::graph::{Graph, Module};
use crate::hold::Hold;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::random::Random;
use crate::settings::Settings;
use crate::stream::Stream;
use crate::user_object::UserObject;
use crate::{report, schedule};

/// One simulated device.
#[derive(Debug, Default)]
pub(crate) struct Device {
    /// Its primary context, while that is retained.
    pub(crate) primary: Option<u64>,
    pub(crate) default_pool: Option<u64>,
    /// Bytes allocated without a pool.
    pub(crate) plain_bytes: u64,
    pub(crate) lost: bool,
    pub(crate) hung: bool,
    /// Allocations, and handles, that contexts have left behind under faults.
    pub(crate) blocks_left: u64,
    pub(crate) handles_left: u64,
    /// What is open on it is no matter: a context was lost, and what was in that cannot be given back.
    pub(crate) excused: bool,
}

/// Everything that is simulated.
pub struct State {
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    pub(crate) initialised: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    /// Those with work left, and those that are being captured: leaked streams of lost contexts may be many.
    pub(crate) active: BTreeSet<u64>,
    pub(crate) captured: BTreeSet<u64>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) modules: BTreeMap<u64, Module>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    pub(crate) user_objects: BTreeMap<u64, UserObject>,
    pub(crate) memory: Memory,
    pub(crate) faults: Faults,
    pub(crate) hold: Hold,
    pub(crate) counters: Counters,
    pub(crate) violations: Vec<String>,
    /// The call that is being answered.
    pub(crate) call: &'static str,
    /// What the call submits shall fail when it runs.
    pub(crate) fail_late: bool,
    /// What the call copies shall come out wrong.
    pub(crate) spoil: bool,
    /// Questions left that are answered with "not ready" before something moves.
    pub(crate) patience: usize,
    pub(crate) serial: u64,
    pub(crate) work: u64,
}

/// What a handle stands for. It is part of the handle, so that none is taken for one of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 0xc1,
    Stream,
    Event,
    Pool,
    Module,
    Graph,
    UserObject,
}

/// Whoever waits looks again after so long.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// Below the kind lies a number that grows with each handle.
const KIND_SHIFT: u32 = 40;

/// The state, while this thread has it.
pub struct Sim {
    guard: Option<MutexGuard<'static, State>>,
    shared: &'static Shared,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) moved: Condvar,
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Answers a call of the driver: counts it, lets it fail where a fault says so, and else does `body`.
///
/// # Errors
///
/// What `body` says, or the fault.
pub fn call<R>(name: &'static str, body: impl FnOnce(&mut Sim) -> Result<R, Failure>) -> Result<R, Failure> {
    let mut sim = enter();
    sim.call = name;
    sim.counters.count(name);
    sim.hold_up();
    if IN_HOST_FUNCTION.get() {
        sim.violation("called from within a function that runs on a stream".to_owned());
        return Err(Failure::NotPermitted);
    }
    match sim.fault(name) {
        None => body(&mut sim),
        // What takes back an earlier step does so whatever it reports, as drivers do that report an earlier error.
        Some(failure) if context::takes_back(name) => body(&mut sim).and(Err(failure)),
        Some(failure) => Err(failure),
    }
}

/// The least handle of a kind that can have been given out after another one.
pub(crate) fn since(handle: u64, kind: Kind) -> u64 {
    (kind as u64) << KIND_SHIFT | (handle & ((1 << KIND_SHIFT) - 1))
}

/// The state, without counting a call.
pub(crate) fn enter() -> Sim {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let state = Settings::read(|name| std::env::var(name).ok()).and_then(State::new);
        let state = state.unwrap_or_else(|wrong| report::refuse(&wrong));
        report::install();
        Shared { state: Mutex::new(state), moved: Condvar::new() }
    });
    let guard = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    Sim { guard: Some(guard), shared }
}

/// Marks this thread as one that runs a function of the program's, which may not call the driver.
pub(crate) fn inside_host_function(body: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    body();
    IN_HOST_FUNCTION.set(false);
}

impl State {
    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            random: Random::new(settings.seed),
            initialised: false,
            devices: (0..settings.devices).map(|_| Device::default()).collect(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            active: BTreeSet::new(),
            captured: BTreeSet::new(),
            events: BTreeMap::new(),
            pools: BTreeMap::new(),
            modules: BTreeMap::new(),
            graphs: BTreeMap::new(),
            user_objects: BTreeMap::new(),
            memory: Memory::new(settings.seed),
            faults: Faults::parse(&settings.faults)?,
            hold: Hold::default(),
            counters: Counters::default(),
            violations: Vec::new(),
            call: "",
            fail_late: false,
            spoil: false,
            patience: 0,
            serial: 0,
            work: 0,
            settings,
        })
    }

    /// A handle that was never given out before.
    pub(crate) fn new_handle(&mut self, kind: Kind) -> u64 {
        self.serial += 1;
        (kind as u64) << KIND_SHIFT | self.serial << 4
    }

    /// What is to be said of a handle that stands for nothing.
    pub(crate) fn missing(&mut self, kind: Kind, handle: u64) -> Failure {
        let serial = (handle & ((1 << KIND_SHIFT) - 1)) >> 4;
        let is_ours = handle >> KIND_SHIFT == kind as u64 && serial <= self.serial && serial > 0;
        self.violation(match is_ours {
            true => format!("use of a destroyed {kind:?} ({handle:#x})").to_lowercase(),
            false => format!("{handle:#x} is no {kind:?}").to_lowercase(),
        });
        Failure::InvalidHandle
    }

    /// Records what no program may do. The process fails at its end.
    pub(crate) fn violation(&mut self, what: String) {
        let line = format!("{}: {what}", self.call);
        eprintln!("driver-sim: VIOLATION: {line}");
        self.violations.push(line);
    }

    /// Fails unless the driver was initialised.
    pub(crate) fn check_initialised(&self) -> Result<(), Failure> {
        if self.initialised { Ok(()) } else { Err(Failure::NotInitialized) }
    }

    /// The device of this number.
    pub(crate) fn device(&mut self, ordinal: i32) -> Result<&mut Device, Failure> {
        self.check_initialised()?;
        let index = usize::try_from(ordinal).map_err(|_| Failure::InvalidDevice)?;
        self.devices.get_mut(index).ok_or(Failure::InvalidDevice)
    }
}

impl Sim {
    /// How many devices there are.
    pub fn device_count(&self) -> Result<usize, Failure> {
        self.check_initialised()?;
        Ok(self.devices.len())
    }

    /// Fails unless there is such a device.
    pub fn check_device(&mut self, ordinal: i32) -> Result<(), Failure> {
        self.device(ordinal).map(drop)
    }

    /// Initialises the driver.
    pub fn initialise(&mut self) -> Result<(), Failure> {
        if self.devices.is_empty() {
            return Err(Failure::NoDevice);
        }
        if !std::mem::replace(&mut self.initialised, true) {
            schedule::start_background();
        }
        Ok(())
    }

    /// Lets others in until something has moved, or some time has passed.
    pub(crate) fn wait(&mut self, longest: Duration) {
        self.without_lock(|shared, guard| {
            shared.moved.wait_timeout(guard, longest).unwrap_or_else(PoisonError::into_inner).0
        });
    }

    /// Lets others in for a moment.
    pub(crate) fn let_others(&mut self) {
        self.without_lock(|shared, guard| {
            drop(guard);
            std::thread::yield_now();
            shared.state.lock().unwrap_or_else(PoisonError::into_inner)
        });
    }

    /// Gives the state away for a while. What belongs to the call that is being answered is as before afterwards.
    fn without_lock(
        &mut self,
        away: impl FnOnce(&'static Shared, MutexGuard<'static, State>) -> MutexGuard<'static, State>,
    ) {
        let kept = (self.call, self.fail_late, self.spoil);
        if let Some(guard) = self.guard.take() {
            self.guard = Some(away(self.shared, guard));
        }
        (self.call, self.fail_late, self.spoil) = kept;
    }

    /// Wakes everybody who waits.
    pub(crate) fn notify(&self) {
        self.shared.moved.notify_all();
    }

    /// Waits here if this is the call to hold up.
    fn hold_up(&mut self) {
        if self.hold.meets() {
            while self.hold.is_on() {
                self.wait(LONGEST_LOOK);
            }
        }
    }

    /// Does what a rule says of this call; why the call fails, if it does.
    fn fault(&mut self, name: &str) -> Option<Failure> {
        (self.fail_late, self.spoil) = (false, false);
        let state = &mut **self;
        let context = context::current();
        let fault = state.faults.decide(name, context.is_some(), &mut state.random)?;
        let device = context.and_then(|context| Some(state.contexts.get(&context)?.device));
        match fault {
            Fault::OutOfMemory => Some(Failure::OutOfMemory),
            Fault::Invalid => Some(Failure::InvalidValue),
            Fault::Unknown => Some(Failure::Unknown),
            Fault::LaunchFailed => {
                if let Some(context) = context {
                    self.lose_context(context, Failure::LaunchFailed);
                }
                Some(Failure::LaunchFailed)
            }
            Fault::LateLaunchFailed => {
                self.fail_late = true;
                None
            }
            Fault::Wrong => {
                self.spoil = true;
                None
            }
            Fault::DeviceLost => {
                self.lose_device(device.unwrap_or(0));
                Some(Failure::DeviceLost)
            }
            Fault::Hang => {
                if let Some(device) = self.devices.get_mut(device.unwrap_or(0)) {
                    device.hung = true;
                }
                None
            }
        }
    }
}

impl Deref for Sim {
    type Target = State;

    fn deref(&self) -> &State {
        match &self.guard {
            Some(guard) => guard,
            // It is away only inside of `wait`.
            None => unreachable!(),
        }
    }
}

impl DerefMut for Sim {
    fn deref_mut(&mut self) -> &mut State {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!(),
        }
    }
}
