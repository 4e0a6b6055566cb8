//! What is printed.

use std::time::Duration;

use crate::Result;
use crate::options::Options;

/// A round.
pub(crate) struct Row {
    pub(crate) version: u16,
    /// From the word to the trainer until the last inference process serves the new weights.
    pub(crate) seconds: Duration,
    /// Of the weights.
    pub(crate) bytes: usize,
    /// Of the inference processes that are there.
    pub(crate) reports: Vec<Report>,
    /// Of one copy of as many bytes, if there was one.
    pub(crate) one_copy: Option<Duration>,
}

/// Of one inference process.
pub(crate) struct Report {
    /// Requests between the word that new weights come and the first that could use them.
    meanwhile: u64,
    requests: u64,
    mixtures: u64,
    longest: Duration,
    versions: String,
}

pub(crate) struct Table {
    rows: Vec<(Duration, f64)>,
    copies: Vec<Duration>,
    bytes: usize,
}

impl Row {
    /// Fails if a request has seen weights of several versions.
    pub(crate) fn check(&self) -> Result<()> {
        match self.reports.iter().map(|report| report.mixtures).sum::<u64>() {
            0 => Ok(()),
            mixtures => {
                Err(format!("{mixtures} requests have seen weights of several versions, or of an older one")
                    .into())
            }
        }
    }

    fn rate(&self) -> f64 {
        (self.bytes * self.reports.len()) as f64 / self.seconds.as_secs_f64() / 1e9
    }
}

impl Report {
    pub(crate) fn parse(meanwhile: u64, words: &[String]) -> Result<Self> {
        let [requests, mixtures, longest, versions] = words else {
            return Err(format!("no report: {words:?}").into());
        };
        Ok(Self {
            meanwhile,
            requests: requests.parse()?,
            mixtures: mixtures.parse()?,
            longest: Duration::from_micros(longest.parse()?),
            versions: versions.clone(),
        })
    }
}

impl Table {
    pub(crate) fn new(options: &Options) -> Self {
        let devices: Vec<String> = options.devices.iter().map(ToString::to_string).collect();
        let sets = if options.in_place { "one set of weights, locked" } else { "two sets of weights" };
        println!(
            "by {:?}: {} parameters, {:.3} GB, to {} processes that serve requests with {sets}; {}",
            options.by,
            options.parameters,
            options.bytes as f64 / 1e9,
            options.inference,
            devices.join(", ")
        );
        println!(
            "{:>7} {:>9} {:>7} {:>17} {:>17} {:>17} {:>13} {:>8}",
            "version",
            "seconds",
            "GB/s",
            "served meanwhile",
            "served in all",
            "longest, ms",
            "versions",
            "mixtures"
        );
        Self { rows: Vec::new(), copies: Vec::new(), bytes: 0 }
    }

    pub(crate) fn add(&mut self, row: &Row) {
        let of_each =
            |what: &dyn Fn(&Report) -> String| row.reports.iter().map(what).collect::<Vec<_>>().join(" | ");
        println!(
            "{:>7} {:>9.4} {:>7.3} {:>17} {:>17} {:>17} {:>13} {:>8}",
            row.version,
            row.seconds.as_secs_f64(),
            row.rate(),
            of_each(&|report| report.meanwhile.to_string()),
            of_each(&|report| report.requests.to_string()),
            of_each(&|report| format!("{:.1}", report.longest.as_secs_f64() * 1e3)),
            of_each(&|report| report.versions.clone()),
            of_each(&|report| report.mixtures.to_string()),
        );
        self.rows.push((row.seconds, row.rate()));
        self.copies.extend(row.one_copy);
        self.bytes = row.bytes;
    }

    /// The first round is apart: it touches memory for the first time.
    pub(crate) fn end(mut self) {
        let rounds = self.rows.len();
        let mut rows = self.rows.split_off(1.min(rounds.saturating_sub(1)));
        rows.sort_by_key(|(seconds, _)| *seconds);
        if let Some((seconds, rate)) = rows.get(rows.len() / 2) {
            println!(
                "median without the first: {:.4} s, {rate:.3} GB/s to all of them together",
                seconds.as_secs_f64()
            );
            print_one_copy(self.copies, self.bytes, *seconds);
        }
        println!("every byte of the last version is right");
    }
}

/// The median of `copies`, of which there is one behind each round, without the first as well, and its share of the `seconds` of a round.
fn print_one_copy(mut copies: Vec<Duration>, bytes: usize, seconds: Duration) {
    let mut copies = copies.split_off(1.min(copies.len().saturating_sub(1)));
    copies.sort();
    let Some(one) = copies.get(copies.len() / 2).map(Duration::as_secs_f64) else { return };
    let (rate, share) = (bytes as f64 / one / 1e9, one / seconds.as_secs_f64());
    println!(
        "one copy of as many bytes to one process: {one:.4} s, {rate:.3} GB/s; {share:.2} of the time of a round"
    );
}
