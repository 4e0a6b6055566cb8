//! The table, for other programs.

use serde_json::{Map, Value, json};

use crate::table::{Line, Outcome, Row, Table};

pub(crate) fn render(table: &Table) -> String {
    let about = table.about.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    let rows = table.rows.iter().map(row);
    let value = json!({ "about": about.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>() });
    format!("{value:#}\n")
}

fn row(row: &Row) -> Value {
    json!({
        "name": row.name,
        "title": row.title,
        "leaves": row.leaves,
        "bytes": row.bytes,
        "lines": row.lines.iter().map(|line| self::line(row, line)).collect::<Vec<_>>(),
        "notes": row.notes,
    })
}

fn line(row: &Row, line: &Line) -> Value {
    let mut fields = Map::new();
    fields.insert("kind".to_owned(), json!(line.kind.name()));
    fields.insert("way".to_owned(), json!(line.way));
    match &line.outcome {
        Outcome::Times(samples) => {
            for (name, quantile) in [("median_us", 0.5), ("p10_us", 0.1), ("p99_us", 0.99)] {
                fields.insert(name.to_owned(), json!(samples.microseconds(quantile)));
            }
            fields.insert("samples".to_owned(), json!(samples.len()));
            let median = samples.microseconds(0.5);
            fields.extend(row.rate(median).map(|rate| ("gigabytes_per_second".to_owned(), json!(rate))));
            fields.extend(row.per_leaf(median).map(|leaf| ("ns_per_leaf".to_owned(), json!(leaf))));
        }
        Outcome::Figure { value, unit } => {
            fields.insert("value".to_owned(), json!(value));
            fields.insert("unit".to_owned(), json!(unit));
        }
        Outcome::NotMeasured(reason) => {
            fields.insert("not_measured".to_owned(), json!(reason));
        }
    }
    Value::Object(fields)
}
