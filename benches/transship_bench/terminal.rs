//! The table, as it comes out.

use crate::table::{Line, Outcome, Row, Table};

pub(crate) fn print_about(table: &Table) {
    for (name, value) in &table.about {
        println!("{name}: {value}");
    }
}

pub(crate) fn print_row(row: &Row) {
    let size = if row.leaves > 0 { format!(": {} x, {} B", row.leaves, row.bytes) } else { String::new() };
    let heading = format!("{} [{}{size}]", row.title, row.name);
    println!("\n{heading:78} {:>11} {:>11} {:>11}", "median us", "p10", "p99");
    for line in &row.lines {
        println!("  {:5} {:70} {}", line.kind.name(), line.way, outcome(row, line));
    }
    for note in &row.notes {
        println!("  {note}");
    }
}

fn outcome(row: &Row, line: &Line) -> String {
    match &line.outcome {
        Outcome::Times(samples) => {
            let [median, p10, p99] = [0.5, 0.1, 0.99].map(|quantile| samples.microseconds(quantile));
            let rate = row.rate(median).map(|rate| format!(" {rate:8.2} GB/s")).unwrap_or_default();
            let leaf = row.per_leaf(median).map(|leaf| format!(" {leaf:8.1} ns/leaf")).unwrap_or_default();
            format!("{median:11.1} {p10:11.1} {p99:11.1}  x{:<5}{rate}{leaf}", samples.len())
        }
        Outcome::Figure { value, unit } => format!("{value:11.0} {unit}"),
        Outcome::NotMeasured(reason) => format!("not measured: {reason}"),
    }
}
