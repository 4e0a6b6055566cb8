//! The table, for `docs/BENCHMARKS.md`.

use std::fmt::Write;

use crate::table::{Kind, Line, Outcome, Row, Table};

pub(crate) fn render(table: &Table) -> String {
    let mut text = String::new();
    for (name, value) in &table.about {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text.push_str("\n| work | way | median us | p10 | p99 | times | |\n|---|---|--:|--:|--:|--:|--:|\n");
    for row in &table.rows {
        for (index, line) in row.lines.iter().enumerate() {
            let title = if index == 0 { &*row.title } else { "" };
            let _ = writeln!(text, "| {title} | {} | {} |", way(line), outcome(row, line));
        }
    }
    for row in &table.rows {
        for note in &row.notes {
            let _ = write!(text, "\n{}: {note}.\n", row.title);
        }
    }
    text
}

fn way(line: &Line) -> String {
    match line.kind {
        Kind::Ours => format!("**{}**", line.way),
        Kind::Rival => line.way.clone(),
        Kind::Limit => format!("*{}*", line.way),
    }
}

fn outcome(row: &Row, line: &Line) -> String {
    match &line.outcome {
        Outcome::Times(samples) => {
            let [median, p10, p99] = [0.5, 0.1, 0.99].map(|quantile| samples.microseconds(quantile));
            let rate = row.rate(median).map(|rate| format!("{rate:.2} GB/s"));
            let leaf = row.per_leaf(median).map(|leaf| format!("{leaf:.0} ns a leaf"));
            let also = [rate, leaf].into_iter().flatten().collect::<Vec<_>>().join(", ");
            format!("{median:.1} | {p10:.1} | {p99:.1} | {} | {also}", samples.len())
        }
        Outcome::Figure { value, unit } => format!("| | | | {value:.0} {unit}"),
        Outcome::NotMeasured(reason) => format!("| | | | not measured: {reason}"),
    }
}
