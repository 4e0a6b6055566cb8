//! The program around the cases of one driver.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use transship_core::backend::Driver;

use crate::required::required;

/// What a case comes to.
pub(crate) type Outcome = Result<(), Failed>;

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) body: fn() -> Outcome,
    /// How many devices it needs.
    pub(crate) devices: usize,
    /// It breaks a stream on purpose: what is in flight there is given up.
    pub(crate) may_leak: bool,
}

impl Case {
    pub(crate) fn new(name: &'static str, body: fn() -> Outcome) -> Self {
        Self { name, body, devices: 1, may_leak: false }
    }
}

/// A [`Case`] out of a function, named after it and its module.
macro_rules! case {
    ($module:ident::$body:ident $(, $field:ident: $value:expr)*) => {
        $crate::suite::Case {
            $($field: $value,)*
            ..$crate::suite::Case::new(concat!(stringify!($module), "::", stringify!($body)), $module::$body)
        }
    };
}

pub(crate) use case;

/// Runs the cases, one after the other: several look at counters of the whole process.
pub(crate) fn run(driver: &dyn Driver, cases: Vec<Case>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = cases.into_iter().map(|case| trial(driver, case, &arguments)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    match arguments.list || is_of_required_kind() {
        true => conclusion.exit_code(),
        false => ExitCode::from(101),
    }
}

fn trial(driver: &dyn Driver, case: Case, arguments: &Arguments) -> Trial {
    let reason = reason_to_ignore(driver, case.devices);
    let insisted = arguments.ignored || arguments.include_ignored;
    let (name, flag) = (case.name, reason.is_some() && insisted);
    let runner = move || match reason.filter(|_| !insisted) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run_case(&case).map(|()| Completion::Completed),
    };
    Trial::ignorable_test(name, runner).with_ignored_flag(flag)
}

/// Runs the case on a thread of its own, which has no current context yet.
fn run_case(case: &Case) -> Result<(), Failed> {
    let leaks = transship_core::runtime_stats().leaks;
    let body = case.body;
    let outcome = std::thread::spawn(body).join();
    outcome.map_err(|panic| message(&*panic))??;
    match transship_core::runtime_stats().leaks - leaks {
        0 => Ok(()),
        given_up if case.may_leak => {
            println!("{}: memory in flight was given up {given_up} times", case.name);
            Ok(())
        }
        given_up => Err(format!("memory in flight was given up {given_up} times").into()),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Why a case that needs so many devices does not run here, if it does not.
fn reason_to_ignore(driver: &dyn Driver, devices: usize) -> Option<String> {
    let required = required_ordinal(driver.name());
    if required.is_some_and(|ordinal| ordinal + 1 >= devices) {
        return None;
    }
    match (driver.is_available(), driver.device_count()) {
        (Err(error), _) if required.is_none() => Some(error.to_string()),
        (Ok(()), 0) if required.is_none() => Some(format!("there is no device of {} here", driver.name())),
        (_, count) if count < devices && devices > 1 => Some("needs two devices".to_owned()),
        _ => None,
    }
}

/// The highest device of the driver that `TRANSSHIP_REQUIRE` names.
fn required_ordinal(driver: &str) -> Option<usize> {
    let ids = required().into_iter().map(|device| device.id);
    ids.filter(|id| id.driver() == driver).map(|id| id.ordinal()).max()
}

/// Whether what is required is what is there: a device, or a stand-in.
fn is_of_required_kind() -> bool {
    let unmet: Vec<_> = required().iter().filter_map(|device| device.check_kind().err()).collect();
    for reason in &unmet {
        println!("TRANSSHIP_REQUIRE: {reason}");
    }
    unmet.is_empty()
}
