//! What came out.

use std::time::Duration;

/// Everything of one run.
pub(crate) struct Table {
    /// Devices, drivers, settings: name and value.
    pub(crate) about: Vec<(&'static str, String)>,
    pub(crate) rows: Vec<Row>,
}

/// One piece of work, done in several ways.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    /// Tensors in the structure, and their bytes; 0 where that says nothing.
    pub(crate) leaves: usize,
    pub(crate) bytes: usize,
    /// Where it lies in a chart.
    pub(crate) chart: Option<Chart>,
    pub(crate) lines: Vec<Line>,
    pub(crate) notes: Vec<String>,
}

/// What grows from one row of a chart to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chart {
    Leaves,
    Bytes,
}

/// One way to do it.
pub(crate) struct Line {
    pub(crate) kind: Kind,
    pub(crate) way: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Rival,
    Limit,
}

pub(crate) enum Outcome {
    Times(Samples),
    Figure { value: f64, unit: &'static str },
    NotMeasured(String),
}

/// Times in order, at least one.
pub(crate) struct Samples(Vec<Duration>);

impl Row {
    pub(crate) fn new(name: &'static str, title: impl Into<String>, leaves: usize, bytes: usize) -> Self {
        let title = title.into();
        Self { name, title, leaves, bytes, chart: None, lines: Vec::new(), notes: Vec::new() }
    }

    pub(crate) fn not_measured(name: &'static str, title: &str, reason: String) -> Self {
        let line = Line { kind: Kind::Ours, way: "all".to_owned(), outcome: Outcome::NotMeasured(reason) };
        Self { lines: vec![line], ..Self::new(name, title, 0, 0) }
    }

    /// Bytes for each second, in units of 10^9, where there are enough of them to say so.
    pub(crate) fn rate(&self, microseconds: f64) -> Option<f64> {
        (self.bytes >= 1 << 20).then(|| self.bytes as f64 / microseconds / 1e3)
    }

    /// Nanoseconds for each tensor, where there are many.
    pub(crate) fn per_leaf(&self, microseconds: f64) -> Option<f64> {
        (self.leaves >= 100).then(|| microseconds * 1e3 / self.leaves as f64)
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Rival => "rival",
            Self::Limit => "limit",
        }
    }
}

impl Line {
    pub(crate) fn figure(kind: Kind, way: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { kind, way: way.into(), outcome: Outcome::Figure { value, unit } }
    }

    pub(crate) fn median(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Times(samples) => Some(samples.microseconds(0.5)),
            _ => None,
        }
    }
}

impl Samples {
    /// `None` without any.
    pub(crate) fn new(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        (!times.is_empty()).then_some(Self(times))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn microseconds(&self, quantile: f64) -> f64 {
        let index = ((self.0.len() - 1) as f64 * quantile).round() as usize;
        self.0[index].as_secs_f64() * 1e6
    }
}
