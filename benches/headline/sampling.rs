//! Taking turns, and what comes out.

use std::error::Error;
use std::time::Duration;

use transship::Tensor;

use crate::detection::{self, Sample};

/// So many rounds are done before any is timed, as far as there are so many.
const WARM_UP: usize = 50;
const VARIANTS: usize = 4;
/// Before a contender is timed it runs so often, or for so long.
const UNTIMED: usize = 6;
const LONG: Duration = Duration::from_millis(1);

/// What is copied, in one of several shapes.
pub(crate) struct Input {
    /// Where its random elements and shapes come from.
    pub(crate) seed: usize,
    pub(crate) batch: Vec<Sample>,
    /// The tensors of `batch`.
    pub(crate) leaves: Vec<Tensor>,
}

impl Input {
    /// One for each order of scenes.
    pub(crate) fn variants() -> transship::Result<Vec<Self>> {
        let make = |seed| {
            let mut batch = detection::batch(seed)?;
            Ok(Self { seed, leaves: detection::leaves(&mut batch)?, batch })
        };
        (0..VARIANTS).map(make).collect()
    }
}

/// One way to do it.
pub(crate) trait Method {
    /// Does it once and says how long it took. What came out of the time before is let go of first, untimed.
    fn run(&mut self, input: &Input) -> Result<Duration, Box<dyn Error>>;

    /// What the last run has put on the device, tensor by tensor.
    fn bytes(&mut self) -> Result<Vec<Vec<u8>>, Box<dyn Error>>;
}

/// A way to do it, and the times that it took.
pub(crate) struct Contender {
    name: &'static str,
    method: Box<dyn Method>,
    times: Vec<Duration>,
}

impl Contender {
    pub(crate) fn new(name: &'static str, method: impl Method + 'static) -> Self {
        Self { name, method: Box::new(method), times: Vec::new() }
    }

    fn microseconds(&self, quantile: f64) -> f64 {
        let last = self.times.len().saturating_sub(1);
        let index = (last as f64 * quantile).round() as usize;
        self.times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }
}

/// Lets all contenders take turns, checks what each has copied, and sorts the times.
pub(crate) fn sample(
    contenders: &mut [Contender],
    inputs: &[Input],
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let warm_up = WARM_UP.min(rounds);
    for (round, input) in inputs.iter().cycle().take(warm_up + rounds).enumerate() {
        for contender in &mut *contenders {
            warm_caches(contender, input)?;
            let time = contender.method.run(input)?;
            if round >= warm_up {
                contender.times.push(time);
            }
        }
    }
    for contender in contenders {
        for input in inputs {
            verify(contender, input)?;
        }
        contender.times.sort_unstable();
    }
    Ok(())
}

/// Whoever was before has filled the caches with something else, those of branches and translations included.
fn warm_caches(contender: &mut Contender, input: &Input) -> Result<(), Box<dyn Error>> {
    let mut spent = Duration::ZERO;
    for _ in 0..UNTIMED {
        spent += contender.method.run(input)?;
        if spent > LONG {
            break;
        }
    }
    Ok(())
}

/// Every byte, of every variant.
fn verify(contender: &mut Contender, input: &Input) -> Result<(), Box<dyn Error>> {
    contender.method.run(input)?;
    let expected = input.leaves.iter().map(Tensor::to_bytes).collect::<Result<Vec<_>, _>>()?;
    if contender.method.bytes()? != expected {
        return Err(format!("{:?} has copied something else than it was given", contender.name).into());
    }
    Ok(())
}

/// Microseconds, and how the medians compare with the first one.
pub(crate) fn print_table(contenders: &[Contender]) {
    let samples = contenders.first().map_or(0, |contender| contender.times.len());
    println!(
        "{:58} {:>9} {:>9} {:>9} {:>7}",
        format!("us, {samples} times each"),
        "median",
        "p10",
        "p99",
        ""
    );
    let first = contenders.first().map_or(f64::NAN, |contender| contender.microseconds(0.5));
    for contender in contenders {
        let [median, p10, p99] = [0.5, 0.1, 0.99].map(|quantile| contender.microseconds(quantile));
        println!("{:58} {median:9.1} {p10:9.1} {p99:9.1} {:6.2}x", contender.name, median / first);
    }
    println!("every byte of every one of them was verified");
}
