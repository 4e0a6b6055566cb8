//! When a kernel of wgpu fills views with gaps faster than a copy of each run does: so many runs of so many bytes, each as far from the next one.
//!
//! `cargo run --release --features wgpu --example scattered-runs [NUMBER]`: of `wgpu:NUMBER`, or of `wgpu:0`. What pays there is what
//! `ScatteredRuns` in `backend-wgpu/src/kernels.rs` should say. The program starts itself for either way, since a device is opened for one of
//! them; they take turns.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that fails is none"
)]

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use transship::{CopyOptions, DType, Device, Tensor, start_copy, start_copy_into};

const RUNS: [usize; 6] = [16, 64, 256, 1024, 4096, 16_384];
const BYTES: [usize; 5] = [16, 64, 256, 1024, 4096];
/// Of one cell, which has at least so many rounds.
const TIME: Duration = Duration::from_millis(150);
const LEAST: usize = 5;
const SETTING: &str = "TRANSSHIP_WGPU_GATHER";
/// Behind the number, of a child.
const CHILD: &str = "child";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [number, word] if word == CHILD => measure(&open(number)),
        [] => compare("0"),
        [number] => compare(number),
        _ => panic!("say the number of a device of wgpu, or nothing"),
    }
}

fn open(number: &str) -> Device {
    Device::open(format!("wgpu:{number}").parse().unwrap()).unwrap()
}

fn cells() -> impl Iterator<Item = (usize, usize)> {
    BYTES.into_iter().flat_map(|bytes| RUNS.map(|runs| (runs, bytes)))
}

/// Prints what both ways take, and the faster one.
fn compare(number: &str) {
    println!("{}", open(number).description());
    println!("median us until wait() returns; a star where the kernel is faster");
    println!("{:>6} {:>6} {:>24} {:>26}", "", "", "from the host", "within the device");
    println!("{:>6} {:>6} {2:>12}{3:>12} {2:>14}{3:>12}", "runs", "bytes", "copies", "kernel");
    let mut ways = ["never", "always"].map(|setting| Way::new(number, setting));
    for (runs, bytes) in cells() {
        let [copies, kernel] = ways.each_mut().map(Way::next);
        let star = |at: usize| if kernel[at] < copies[at] { '*' } else { ' ' };
        println!(
            "{runs:>6} {bytes:>6} {:>12.1}{:>11.1}{} {:>14.1}{:>11.1}{}",
            copies[0],
            kernel[0],
            star(0),
            copies[1],
            kernel[1],
            star(1)
        );
    }
    ways.into_iter().for_each(Way::end);
}

/// A child with a device of its own, which measures a cell when it is asked to.
struct Way {
    child: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Way {
    fn new(number: &str, setting: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([number, CHILD])
            .env(SETTING, setting)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { asks: child.stdin.take().unwrap(), answers, child }
    }

    fn end(self) {
        let Self { mut child, asks, .. } = self;
        drop(asks);
        assert!(child.wait().unwrap().success(), "the child has failed");
    }

    /// Of the next cell: from the host, and within the device.
    fn next(&mut self) -> [f64; 2] {
        writeln!(self.asks).unwrap();
        let line = self.answers.next().expect("the child has failed").unwrap();
        let times: Vec<f64> = line.split(' ').map(|time| time.parse().unwrap()).collect();
        times.try_into().unwrap()
    }
}

fn measure(device: &Device) {
    for ((runs, bytes), _) in cells().zip(stdin().lines()) {
        let elements = (0..runs * bytes).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<_>>();
        let here = Tensor::from_vec(elements, &[runs, bytes]).unwrap();
        let there = start_copy(here.clone(), device, CopyOptions::default()).unwrap().wait().unwrap();
        let [up, within] = [here.clone(), there].map(|source| filled(device, &source, &here));
        println!("{up} {within}");
    }
}

/// Microseconds, the median.
fn filled(device: &Device, source: &Tensor, expected: &Tensor) -> f64 {
    let &[runs, bytes] = source.shape() else { unreachable!("a matrix") };
    let matrix = Tensor::zeros(&[runs, 2 * bytes], DType::U8, device).unwrap();
    let mut view = matrix.narrow(1, 0, bytes).unwrap();
    drop(matrix);
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < LEAST || begin.elapsed() < TIME {
        let source = source.clone();
        let begin = Instant::now();
        view = start_copy_into(source, view, CopyOptions::default()).unwrap().wait().unwrap();
        times.push(begin.elapsed());
    }
    let back = start_copy(view, &Device::host(), CopyOptions::default()).unwrap().wait().unwrap();
    assert_eq!(back.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{runs} runs of {bytes} bytes");
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}
