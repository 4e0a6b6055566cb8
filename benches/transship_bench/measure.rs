//! Taking turns, and looking at every byte.

use std::time::{Duration, Instant};

use transship::Tensor;

use crate::Result;
use crate::bed::Effort;
use crate::input::Input;
use crate::table::{Kind, Line, Outcome, Samples};

/// Before a way is timed it runs so often, or for so long: whoever was before has filled the caches with something else,
/// those of branches and translations included.
const UNTIMED: usize = 6;
const LONG: Duration = Duration::from_millis(1);
/// Timed at least so often, however long that takes.
const LEAST_ROUNDS: usize = 3;

/// One way to do it.
pub(crate) trait Method<S> {
    /// Does it once and says how long it took. What came out of the time before is let go of first, untimed.
    fn run(&mut self, input: &Input<S>) -> Result<Duration>;

    /// Whether the last run has put there what it should, tensor by tensor.
    fn is_right(&mut self, expected: &[Tensor]) -> Result<bool>;
}

/// A way to do it, and the times that it took; or why it cannot be done here.
pub(crate) struct Contender<S> {
    kind: Kind,
    way: String,
    method: std::result::Result<Box<dyn Method<S>>, String>,
    times: Vec<Duration>,
}

impl<S> Contender<S> {
    pub(crate) fn new(kind: Kind, way: impl Into<String>, method: impl Method<S> + 'static) -> Self {
        Self { kind, way: way.into(), method: Ok(Box::new(method)), times: Vec::new() }
    }

    pub(crate) fn missing(kind: Kind, way: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind, way: way.into(), method: Err(reason.into()), times: Vec::new() }
    }

    pub(crate) fn way(&self) -> &str {
        &self.way
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Another contender around the method of this one, with a name of its own.
    pub(crate) fn map<T>(
        self,
        wrap: impl FnOnce(Kind, String, Box<dyn Method<S>>) -> (String, Box<dyn Method<T>>),
    ) -> Contender<T> {
        let Self { kind, way, method, .. } = self;
        match method {
            Ok(method) => {
                let (way, method) = wrap(kind, way, method);
                Contender { kind, way, method: Ok(method), times: Vec::new() }
            }
            Err(reason) => Contender::missing(kind, way, reason),
        }
    }

    fn into_line(self) -> Result<Line> {
        let outcome = match self.method {
            Ok(_) => Outcome::Times(Samples::new(self.times).ok_or("nothing was timed")?),
            Err(reason) => Outcome::NotMeasured(reason),
        };
        Ok(Line { kind: self.kind, way: self.way, outcome })
    }
}

/// Lets all contenders take turns on inputs whose shapes change from round to round, then checks what each copies of fresh
/// random data. `inputs` makes variants out of a seed.
pub(crate) fn series<S>(
    effort: Effort,
    mut contenders: Vec<Contender<S>>,
    inputs: impl Fn(u64) -> Result<Vec<Input<S>>>,
) -> Result<Vec<Line>> {
    let timed = inputs(1)?;
    take_turns(&mut contenders, &timed, effort)?;
    drop(timed);
    let mut fresh = inputs(2)?;
    // Large variants are views of the same bytes.
    fresh.dedup_by_key(|input| input.data);
    for input in &fresh {
        for contender in &mut contenders {
            verify(contender, input)?;
        }
    }
    contenders.into_iter().map(Contender::into_line).collect()
}

fn take_turns<S>(contenders: &mut [Contender<S>], inputs: &[Input<S>], effort: Effort) -> Result<()> {
    let mut inputs = inputs.iter().cycle();
    let started = Instant::now();
    while started.elapsed() < effort.warm_up {
        round(contenders, inputs.next().ok_or("no input")?, false)?;
    }
    let started = Instant::now();
    for rounds in 0..effort.most_rounds {
        if rounds >= LEAST_ROUNDS && started.elapsed() > effort.timed {
            break;
        }
        round(contenders, inputs.next().ok_or("no input")?, true)?;
    }
    Ok(())
}

fn round<S>(contenders: &mut [Contender<S>], input: &Input<S>, timed: bool) -> Result<()> {
    for contender in contenders {
        let Ok(method) = &mut contender.method else { continue };
        warm_caches(&mut **method, input)?;
        let time = method.run(input)?;
        if timed {
            contender.times.push(time);
        }
    }
    Ok(())
}

fn warm_caches<S>(method: &mut dyn Method<S>, input: &Input<S>) -> Result<()> {
    let mut spent = Duration::ZERO;
    for _ in 0..UNTIMED {
        if spent < LONG {
            spent += method.run(input)?;
        }
    }
    Ok(())
}

fn verify<S>(contender: &mut Contender<S>, input: &Input<S>) -> Result<()> {
    let Ok(method) = &mut contender.method else { return Ok(()) };
    method.run(input)?;
    if method.is_right(&input.expected)? {
        return Ok(());
    }
    Err(format!("{:?} has copied something else than it was given", contender.way).into())
}

/// Whether `found` are the bytes of the tensor, which lies on the host.
pub(crate) fn same(found: &[u8], expected: &Tensor) -> Result<bool> {
    Ok(match expected.is_contiguous() {
        true => found == expected.as_bytes()?,
        false => found == expected.to_bytes()?,
    })
}
