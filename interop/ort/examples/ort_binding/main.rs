//! Requests of 192 small tensors for a model of ONNX Runtime. Its inputs and outputs are bound to memory of transship's once, each
//! request is one packed copy into that memory, and on a GPU copies and runs share a stream. Beside it: a new session input for
//! each tensor.
//!
//! `ORT_DYLIB_PATH=$(./onnxruntime) cargo run --release --example ort_binding [DEVICE]`, with `--features cuda` for `cuda:0`

mod bound;
mod cameras;
mod model;
mod session;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bound::{Answer, Bound};
use cameras::Seen;
use ort::session::{Session, SessionInputValue};
use ort::value::Value;
use transship::{Device, DeviceId};

/// What anything here may fail with.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const CAMERAS: usize = 64;
const WARM_UP: usize = 20;
const REQUESTS: usize = 300;

fn main() -> ExitCode {
    match run(std::env::args().nth(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: Option<String>) -> Result<()> {
    let environment = session::environment()?;
    let device = Device::open(name.map_or(Ok(DeviceId::HOST), |name| name.parse())?)?;
    println!("runtime    {}", ort::info());
    println!("device     {}: {}", device.id(), device.description());
    let model = model::bytes(CAMERAS);
    let like = cameras::request(0, CAMERAS);
    let mut bound = Bound::new(&environment, &model, &device, like, CAMERAS * model::BOXES)?;
    let mut ordinary = session::ordinary(&environment, &model, &device)?;

    let mut times = [Vec::new(), Vec::new()];
    for number in 0..WARM_UP + REQUESTS {
        let request = cameras::request(number, CAMERAS);
        let expected = cameras::scores(&request);
        // In turns: what the machine does meanwhile meets both.
        let bound = timed(request.clone(), |request| plain(bound.request(request)?))?;
        let ordinary = timed(request, |request| new_inputs(&mut ordinary, request))?;
        verify(number, &bound.0, &expected)?;
        verify(number, &ordinary.0, &expected)?;
        if number >= WARM_UP {
            times[0].push(bound.1);
            times[1].push(ordinary.1);
        }
    }
    println!("verified   {} requests of {} tensors, both ways", WARM_UP + REQUESTS, 3 * CAMERAS);
    for (what, times) in
        ["bound once, filled by start_copy_into", "a new session input for each tensor"].iter().zip(times)
    {
        println!("{:>8.1} us {what} (median of {REQUESTS})", median(times).as_secs_f64() * 1e6);
    }
    Ok(())
}

/// The way without transship: ONNX Runtime copies each input to its device, and the outputs back.
fn new_inputs(session: &mut Session, request: Vec<Seen>) -> Result<(Vec<f32>, f32)> {
    let mut inputs = Vec::<(String, SessionInputValue<'_>)>::with_capacity(3 * request.len());
    for (camera, seen) in request.into_iter().enumerate() {
        let boxes = Value::from_array(([model::BOXES, 4], seen.boxes))?;
        let depths = Value::from_array(([model::BOXES, 1], seen.depths))?;
        let classes = Value::from_array(([model::BOXES, 1], seen.classes))?;
        inputs.push((format!("{camera}.boxes"), boxes.into()));
        inputs.push((format!("{camera}.depths"), depths.into()));
        inputs.push((format!("{camera}.classes"), classes.into()));
    }
    let outputs = session.run(inputs)?;
    let scores = outputs["scores"].try_extract_tensor::<f32>()?.1.to_vec();
    Ok((scores, outputs["total"].try_extract_scalar::<f32>()?))
}

/// As the program goes on with it.
fn plain(answer: Answer) -> Result<(Vec<f32>, f32)> {
    Ok((answer.scores.to_vec()?, answer.total.item()?))
}

/// What comes out, and how long that takes.
fn timed<T>(request: Vec<Seen>, work: impl FnOnce(Vec<Seen>) -> Result<T>) -> Result<(T, Duration)> {
    let start = Instant::now();
    let answer = work(request)?;
    Ok((answer, start.elapsed()))
}

fn verify(number: usize, (scores, total): &(Vec<f32>, f32), expected: &[f32]) -> Result<()> {
    let wrong = scores.iter().zip(expected).position(|(score, expected)| score != expected);
    if scores.len() != expected.len() || wrong.is_some() || *total != expected.iter().sum::<f32>() {
        return Err(format!(
            "request {number}: {total} of {} scores, first wrong at {wrong:?}",
            scores.len()
        )
        .into());
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
