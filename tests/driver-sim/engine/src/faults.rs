//! Faults on demand: which call fails, and how.
//!
//! A list of rules with semicolons between them; see the README for the grammar.

use crate::random::Random;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call says so and nothing else happens.
    OutOfMemory,
    Invalid,
    Unknown,
    /// The call says so, and the context is lost.
    LaunchFailed,
    /// The call succeeds; the context is lost when the work of it would run.
    LateLaunchFailed,
    /// The call succeeds; the first byte of what it copies comes out another one.
    Wrong,
    /// Every context of the device is lost, and no new one can be had.
    DeviceLost,
    /// The device never does anything any more.
    Hang,
}

/// Which memory a limit is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    Device,
    Pinned,
}

#[derive(Debug)]
struct Rule {
    calls: Calls,
    when: When,
    fault: Fault,
    /// Calls that matched by name.
    seen: u64,
}

/// The calls that a rule is about.
#[derive(Debug)]
enum Calls {
    All,
    AllBut(String),
    Named(String),
}

#[derive(Debug)]
enum When {
    At(u64),
    From(u64),
    OneIn(usize),
}

/// The rules, and how many calls each has seen.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    limits: Vec<(Limited, u64)>,
    /// What is to be lost as soon as there is something to lose.
    pending: Option<Fault>,
    /// How often a rule was applied, and to which calls.
    pub(crate) fired: u64,
    fired_at: Vec<String>,
}

impl Faults {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for rule in text.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let wrong = || format!("`{rule}` is no rule for faults");
            let (selector, fault) = rule.split_once('=').ok_or_else(wrong)?;
            let fault = Fault::parse(fault.trim()).ok_or_else(wrong)?;
            match Limited::parse(selector) {
                Some(limit) if fault == Fault::OutOfMemory => faults.limits.push(limit),
                Some(_) => return Err(wrong()),
                None => faults.rules.push(Rule::parse(selector, fault).ok_or_else(wrong)?),
            }
        }
        Ok(faults)
    }

    /// What the call of this name shall come to. A context can be lost by a call for which one is current only: a rule
    /// that wants it otherwise meets the next such call.
    pub(crate) fn decide(&mut self, call: &str, has_context: bool, random: &mut Random) -> Option<Fault> {
        let mut decided = self.pending.take();
        for rule in &mut self.rules {
            if !rule.calls.include(call) {
                continue;
            }
            rule.seen += 1;
            let applies = match rule.when {
                When::At(number) => rule.seen == number,
                When::From(number) => rule.seen >= number,
                When::OneIn(times) => random.one_in(times),
            };
            if applies {
                decided = decided.or(Some(rule.fault));
            }
        }
        if !has_context && decided.is_some_and(Fault::needs_context) {
            self.pending = decided;
            return None;
        }
        if decided.is_some() {
            self.fired += 1;
            self.fired_at.push(call.to_owned());
        }
        decided
    }

    /// How often a rule was applied to calls of this name.
    pub(crate) fn fired_at(&self, call: &str) -> u64 {
        self.fired_at.iter().filter(|name| *name == call).count() as u64
    }

    /// Whether so many bytes in all are more than a rule allows.
    pub(crate) fn exceeds(&mut self, kind: Limited, bytes: u64) -> bool {
        let exceeded = self.limits.iter().any(|(limited, limit)| *limited == kind && bytes > *limit);
        self.fired += u64::from(exceeded);
        exceeded
    }
}

impl Fault {
    fn needs_context(self) -> bool {
        matches!(self, Self::LaunchFailed | Self::DeviceLost | Self::Hang)
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "oom" => Self::OutOfMemory,
            "invalid" => Self::Invalid,
            "unknown" => Self::Unknown,
            "launch-failed" => Self::LaunchFailed,
            "late-launch-failed" => Self::LateLaunchFailed,
            "wrong" => Self::Wrong,
            "device-lost" => Self::DeviceLost,
            "hang" => Self::Hang,
            _ => return None,
        })
    }
}

impl Limited {
    fn parse(selector: &str) -> Option<(Self, u64)> {
        let (kind, limit) = selector.split_once('>')?;
        let kind = match kind.trim() {
            "device" => Self::Device,
            "pinned" => Self::Pinned,
            _ => return None,
        };
        Some((kind, limit.trim().parse().ok()?))
    }
}

impl Rule {
    fn parse(selector: &str, fault: Fault) -> Option<Self> {
        let (name, when) = match (selector.split_once('@'), selector.split_once('~')) {
            (Some((name, number)), None) => (name, Self::parse_number(number.trim())?),
            (None, Some((name, times))) => (name, When::OneIn(times.trim().parse().ok().filter(|n| *n > 0)?)),
            _ => return None,
        };
        Some(Self { calls: Calls::parse(name.trim())?, when, fault, seen: 0 })
    }

    fn parse_number(text: &str) -> Option<When> {
        let when = match text.strip_suffix('+') {
            Some(number) => When::From(number.parse().ok()?),
            None => When::At(text.parse().ok()?),
        };
        (!matches!(when, When::At(0) | When::From(0))).then_some(when)
    }
}

impl Calls {
    fn include(&self, call: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllBut(name) => name != call,
            Self::Named(name) => name == call,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match (text, text.strip_prefix("any-")) {
            ("", _) | (_, Some("")) => None,
            ("any", _) => Some(Self::All),
            (_, Some(name)) => Some(Self::AllBut(name.to_owned())),
            (name, None) => Some(Self::Named(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn decisions(rules: &str, calls: &[&str]) -> Vec<Option<Fault>> {
        let mut faults = Faults::parse(rules).unwrap();
        let mut random = Random::new(3);
        calls.iter().map(|call| faults.decide(call, true, &mut random)).collect()
    }

    #[test]
    fn the_nth_call_of_a_name_and_of_any() {
        let oom = Some(Fault::OutOfMemory);
        assert_eq!(decisions("a@2=oom", &["a", "b", "a", "a"]), [None, None, oom, None]);
        assert_eq!(decisions("a@2+=oom", &["a", "b", "a", "a"]), [None, None, oom, oom]);
        assert_eq!(decisions("any@3=hang; a@1=oom", &["a", "b", "c"]), [oom, None, Some(Fault::Hang)]);
        assert_eq!(decisions("any-b@2=oom", &["a", "b", "b", "c"]), [None, None, None, oom]);
    }

    #[test]
    fn a_context_is_lost_by_the_next_call_that_has_one() {
        let mut faults = Faults::parse("a@1=device-lost").unwrap();
        let mut random = Random::new(1);
        let decisions =
            [false, false, true, true].map(|has_context| faults.decide("a", has_context, &mut random));
        assert_eq!(decisions, [None, None, Some(Fault::DeviceLost), None]);
        assert_eq!(faults.fired, 1);
    }

    #[test]
    fn at_random_some_and_not_all() {
        let calls = ["a"; 200];
        let hits = decisions("a~4=invalid", &calls).iter().flatten().count();
        assert!((20..80).contains(&hits), "{hits}");
    }

    #[test]
    fn limits_are_about_bytes() {
        let mut faults = Faults::parse("pinned > 100 = oom").unwrap();
        assert!(!faults.exceeds(Limited::Pinned, 100) && faults.exceeds(Limited::Pinned, 101));
        assert!(!faults.exceeds(Limited::Device, 1000));
        assert_eq!(faults.fired, 1);
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for wrong in [
            "a",
            "a@0=oom",
            "a@x=oom",
            "a@1=what",
            "@1=oom",
            "host>1=oom",
            "device>1=hang",
            "a~0=oom",
            "any-@1=oom",
        ] {
            assert!(Faults::parse(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
        assert!(Faults::parse(" ; ").is_ok());
    }
}
