//! Every backend against every case: listing, running, counting.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use late_backend::LateHandle;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use transship::Device;

use crate::backends::{self, Backend, Need};
use crate::bed::Bed;
use crate::cases;
use crate::hostile::PanicsWhenDropped;
use crate::required::{Required, required};

/// Set in the child of a case that runs alone.
const ALONE: &str = "TRANSSHIP_CONFORMANCE_ALONE";
/// What such a child prints when its case has passed.
const ALONE_PASSED: &str = "passed alone:";
/// Panics that begin with this are part of a case and not worth a message.
pub(crate) const DELIBERATE: &str = "deliberate panic";

type Body = Box<dyn Fn(&Bed) -> Result<(), Failed> + Send + Sync>;

/// One case, for any backend.
pub(crate) struct Case {
    name: String,
    needs: Vec<Need>,
    alone: bool,
    forgets: bool,
    body: Body,
}

/// A [`Case`] out of a function, named after it and its module.
macro_rules! case {
    ($body:ident) => {
        $crate::suite::Case::new(module_path!(), stringify!($body), $body)
    };
}
pub(crate) use case;

impl Case {
    pub(crate) fn new(
        module: &str,
        name: &str,
        body: impl Fn(&Bed) -> Result<(), Failed> + Send + Sync + 'static,
    ) -> Self {
        let module = module.rsplit("::").next().unwrap_or(module);
        Self {
            name: format!("{module}::{name}"),
            needs: Vec::new(),
            alone: false,
            forgets: false,
            body: Box::new(body),
        }
    }

    /// Names what the case needs of a backend.
    pub(crate) fn needs(mut self, need: Need) -> Self {
        self.needs.push(need);
        self
    }

    /// Runs the case in a process of its own, since it looks at the whole process.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// As [`alone`](Self::alone): what the case never gives back is forgotten on purpose, and no fault of the backend's.
    pub(crate) fn forgets(mut self) -> Self {
        self.forgets = true;
        self.alone()
    }
}

/// Runs what `arguments` ask for, and prints the figures of each backend.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    hush_deliberate_panics();
    let results = Arc::new(Results::default());
    let backends: Vec<Arc<Backend>> = backends::all().into_iter().map(Arc::new).collect();
    let mut trials = Vec::new();
    for backend in &backends {
        trials.extend(cases::all().into_iter().map(|case| trial(backend.clone(), case, arguments, &results)));
    }
    let conclusion = libtest_mimic::run(arguments, trials);
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let sound = results.print(&backends) & has_all_required(&backends);
    if sound { conclusion.exit_code() } else { ExitCode::from(101) }
}

fn trial(backend: Arc<Backend>, case: Case, arguments: &Arguments, results: &Arc<Results>) -> Trial {
    let name = format!("{}::{}", backend.name, case.name);
    let reason = backend.reason_to_ignore(&case.needs);
    let insisted = arguments.ignored || arguments.include_ignored;
    let flag = reason.is_some() && insisted;
    let (results, full_name) = (results.clone(), name.clone());
    let runner = move || {
        if let Some(reason) = reason.filter(|_| !insisted) {
            results.of(backend.name, |tally| tally.ignored += 1);
            return Ok(Completion::ignored_with(reason));
        }
        let outcome = match case.alone && std::env::var_os(ALONE).is_none() {
            true => run_in_child(&full_name, case.forgets),
            false => run_here(&full_name, &backend, &case, &results),
        };
        results.of(backend.name, |tally| match &outcome {
            Ok(()) => tally.passed += 1,
            Err(_) => tally.failed += 1,
        });
        outcome.map(|()| Completion::Completed)
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

/// Whether every backend that is required is in this program and what it must be, whatever the filter.
fn has_all_required(backends: &[Arc<Backend>]) -> bool {
    let check = |device: &Required| {
        if backends.iter().all(|backend| backend.name != device.id.driver()) {
            let id = device.id;
            return Err(format!("{id}, which this program has no backend for; enable its cargo feature"));
        }
        device.check_kind()
    };
    let unmet: Vec<_> = required().iter().filter_map(|device| check(device).err()).collect();
    for reason in &unmet {
        println!("TRANSSHIP_REQUIRE: {reason}");
    }
    unmet.is_empty()
}

fn run_here(name: &str, backend: &Backend, case: &Case, results: &Results) -> Result<(), Failed> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let seed = seed();
    let bed = Bed::new(backend, NUMBER.fetch_add(1, Ordering::Relaxed), seed)?;
    results.note(name, backend, &bed);
    let ran = catch_unwind(AssertUnwindSafe(|| (case.body)(&bed)))
        .unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic)).into()));
    let finished = bed.finish();
    let complaints: Vec<String> = [ran, finished]
        .into_iter()
        .filter_map(Result::err)
        .map(|failed| failed.message().unwrap_or("failed").to_owned())
        .collect();
    if complaints.is_empty() {
        if case.alone {
            println!("{ALONE_PASSED} {name}");
        }
        return Ok(());
    }
    Err(format!("{} (TRANSSHIP_SEED={seed})", complaints.join("; then ")).into())
}

fn run_in_child(name: &str, forgets: bool) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["--exact", name, "--include-ignored", "--test-threads", "1"]).env(ALONE, "1");
    if forgets {
        // Stand-ins for drivers would call it a leak.
        child.env("DRIVER_SIM_LEAKS", "allow");
    }
    let output = child.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said.contains(&format!("{ALONE_PASSED} {name}")) {
        return Ok(());
    }
    Err(format!("in a process of its own: {said}{}", String::from_utf8_lossy(&output.stderr)).into())
}

fn seed() -> u64 {
    let seed = std::env::var("TRANSSHIP_SEED").ok();
    seed.map_or(0x7a65_6e67, |seed| seed.parse().expect("TRANSSHIP_SEED is a number"))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let twice = || panic.downcast_ref::<PanicsWhenDropped>().map(|again| again.0.to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).or_else(twice).unwrap_or_default()
}

fn hush_deliberate_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !message(info.payload()).starts_with(DELIBERATE) {
            usual(info);
        }
    }));
}

/// What has come out so far.
#[derive(Default)]
struct Results {
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
    simulated: Mutex<Vec<(String, LateHandle)>>,
    /// Keeps devices that all cases share open.
    devices: Mutex<Vec<Device>>,
}

#[derive(Default)]
struct Tally {
    description: Option<String>,
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Results {
    fn of(&self, backend: &'static str, change: impl FnOnce(&mut Tally)) {
        change(lock(&self.tallies).entry(backend).or_default());
    }

    fn note(&self, name: &str, backend: &Backend, bed: &Bed) {
        let description = bed.device.description().to_owned();
        self.of(backend.name, |tally| tally.description = Some(description));
        match bed.late() {
            Some(late) => lock(&self.simulated).push((name.to_owned(), late)),
            None => self.keep_open(&bed.device),
        }
    }

    fn keep_open(&self, device: &Device) {
        let mut devices = lock(&self.devices);
        if !devices.iter().any(|known| known.id() == device.id()) {
            devices.push(device.clone());
        }
    }

    /// Prints the figures; `false` if something went wrong that no single case has seen.
    fn print(&self, backends: &[Arc<Backend>]) -> bool {
        let tallies = lock(&self.tallies);
        for backend in backends {
            let Some(tally) = tallies.get(backend.name) else { continue };
            let missing = || backend.devices_there().err().unwrap_or_else(|| "not opened".to_owned());
            println!(
                "conformance of {:<10} passed {:>3}  failed {:>3}  ignored {:>3}  ({})",
                backend.name,
                tally.passed,
                tally.failed,
                tally.ignored,
                tally.description.clone().unwrap_or_else(missing),
            );
        }
        self.no_late_breaches() & no_leaks()
    }

    /// Background work may have gone on behind the end of its case.
    fn no_late_breaches(&self) -> bool {
        let simulated = lock(&self.simulated);
        let breaches = simulated.iter().filter(|(_, late)| !late.violations().is_empty());
        breaches.map(|(name, late)| println!("after {name}: {:?}", late.violations())).count() == 0
    }
}

fn no_leaks() -> bool {
    let statistics = transship::runtime_stats();
    if statistics.leaks > 0 {
        println!("{} times memory in flight was given up", statistics.leaks);
    }
    statistics.leaks == 0
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
