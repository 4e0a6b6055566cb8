//! transship against what one would write without it, and against the limit of the hardware.
//!
//! `cargo run --release --example transship-bench [--features cuda,wgpu] -- [--device NAME]... [--only ROW]... [--quick]
//! [--json FILE] [--svg FILE] [--markdown FILE]`; `docs/BENCHMARKS.md` says what is measured and how.
#![allow(missing_docs, reason = "a benchmark has no documentation but this")]
#![cfg_attr(
    not(all(feature = "cuda", feature = "wgpu")),
    allow(dead_code, unused_variables, reason = "some is for the rivals of one driver only")
)]

mod allocations;
mod bed;
#[path = "../../examples/common/detection.rs"]
mod detection;
mod input;
mod json;
mod markdown;
mod measure;
mod ours;
mod rivals;
mod rows;
mod svg;
mod table;
mod terminal;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use transship::DeviceId;

use bed::Bed;
use rows::Work;
use table::{Row, Table};

/// What may go wrong fails a row, a wrong byte above all, and so the program when it ends.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures transship on a device, against what one would write without it.
#[derive(Parser)]
struct Arguments {
    /// The device, such as cuda:0, wgpu:0 or host; a second one for the rows that need two. Default: the best there is
    #[arg(long = "device", value_name = "NAME")]
    devices: Vec<DeviceId>,
    /// Only rows whose name contains this; may be repeated
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Small sizes and few rounds: shows that everything works, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Write the table as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw time against number of leaves and against size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let bed = Bed::new(&arguments.devices, arguments.quick)?;
    let mut table = Table { about: bed.about(), rows: Vec::new() };
    terminal::print_about(&table);
    let mut failed = Vec::new();
    for work in rows::chosen(&arguments.only)? {
        let rows = measured(&bed, work).unwrap_or_else(|error| {
            failed.push(format!("{}: {error:#}", work.name));
            vec![Row::not_measured(work.name, work.title, format!("FAILED: {error:#}"))]
        });
        rows.iter().for_each(terminal::print_row);
        table.rows.extend(rows);
    }
    write(arguments.json.as_ref(), || Ok(json::render(&table)))?;
    write(arguments.markdown.as_ref(), || Ok(markdown::render(&table)))?;
    write(arguments.svg.as_ref(), || svg::render(&table))?;
    if !failed.is_empty() {
        return Err(failed.join("; ").into());
    }
    println!("\nevery byte of every series was verified on fresh random data");
    Ok(())
}

fn measured(bed: &Bed, work: &Work) -> Result<Vec<Row>> {
    match bed.misses(work.needs) {
        Some(reason) => Ok(vec![Row::not_measured(work.name, work.title, reason)]),
        None => (work.run)(bed, work),
    }
}

fn write(file: Option<&PathBuf>, render: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, render()?).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
