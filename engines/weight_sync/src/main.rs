#![doc = include_str!("../README.md")]

#[cfg(target_os = "linux")]
mod coordinator;
#[cfg(target_os = "linux")]
mod inference;
#[cfg(target_os = "linux")]
mod lines;
#[cfg(target_os = "linux")]
mod one_copy;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod served;
#[cfg(target_os = "linux")]
mod serving;
#[cfg(target_os = "linux")]
mod table;
#[cfg(target_os = "linux")]
mod trainer;
#[cfg(target_os = "linux")]
mod ways;
#[cfg(target_os = "linux")]
mod weights;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("processes share memory on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use crate::options::{Options, Role};

    let options = Options::of_process();
    let done = match options.role {
        Role::Coordinator => coordinator::run(&options),
        Role::Trainer => trainer::run(&options),
        Role::Inference(number) => inference::run(&options, number),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// What can go wrong here.
#[cfg(target_os = "linux")]
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
