//! Medians of many.

use std::time::{Duration, Instant};

use crate::Outcome;

const WARM_UP: usize = 20;
const TIMES: usize = 300;
const LONGEST: Duration = Duration::from_secs(3);

/// Prints what `work` takes. It says itself when the clock starts, and returns when it is done.
pub(crate) fn row(what: &str, mut work: impl FnMut() -> Outcome<Duration>) -> Outcome {
    for _ in 0..WARM_UP {
        work()?;
    }
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < TIMES && begun.elapsed() < LONGEST {
        times.push(work()?);
    }
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    println!(
        "{what:<72} {:>9.1} us   p10 {:>9.1}   p99 {:>9.1}   {} times",
        at(0.5),
        at(0.1),
        at(0.99),
        times.len()
    );
    Ok(())
}
