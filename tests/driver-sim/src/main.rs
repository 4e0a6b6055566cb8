//! Runs a command that finds stand-ins where it looks for driver libraries:
//! `cargo run -p driver-sim -- cargo test --features cuda --test conformance`.
//!
//! The stand-ins have the names of drivers in a folder of their own only, which is on the loader's path of the command
//! and nowhere else. The exit status is that of the command. `--seeds N` in front of it runs it N times.

mod library;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use library::{LIBRARIES, Library};

const LOADER_PATH: &str = "LD_LIBRARY_PATH";
const SEED: &str = "DRIVER_SIM_SEED";

fn main() -> ExitCode {
    match run(env::args_os().skip(1).collect()) {
        Ok(code) => code,
        Err(wrong) => {
            eprintln!("driver-sim: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Vec<OsString>) -> Result<ExitCode, String> {
    let (seeds, command) = seeds(&command)?;
    let [program, arguments @ ..] = command else {
        return Err("give it a command to run".to_owned());
    };
    let folder = install(&built_libraries()?)?;
    let mut child = Command::new(program);
    child.args(arguments).env(LOADER_PATH, loader_path(&folder)?);
    let Some(last) = seeds else { return end_of(&mut child) };
    for seed in 1..=last {
        let code = end_of(child.env(SEED, seed.to_string()))?;
        if code != ExitCode::SUCCESS {
            eprintln!("driver-sim: it failed with {SEED}={seed}");
            return Ok(code);
        }
    }
    eprintln!("driver-sim: passed with each of {last} seeds");
    Ok(ExitCode::SUCCESS)
}

/// How many seeds the command shall be run with, if it was said, and the command.
fn seeds(command: &[OsString]) -> Result<(Option<u64>, &[OsString]), String> {
    match command {
        [option, count, rest @ ..] if option == "--seeds" => {
            let count = count.to_str().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
            Ok((Some(count.ok_or("--seeds needs a number")?), rest))
        }
        command => Ok((None, command)),
    }
}

fn end_of(command: &mut Command) -> Result<ExitCode, String> {
    let status = command.status();
    let status = status.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    // A command that was ended by a signal has no code.
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)))
}

/// The folder where libraries are built: that of this program.
fn built_libraries() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    let folder = program.parent().ok_or("I lie in no folder")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.arg("build");
    for Library { package, .. } in LIBRARIES {
        build.args(["--package", package]);
    }
    if folder.ends_with("release") {
        build.arg("--release");
    }
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    match built.map_err(|error| format!("cargo: {error}"))?.success() {
        true => Ok(folder.to_owned()),
        false => Err("the stand-ins could not be built".to_owned()),
    }
}

/// Copies the stand-ins from `built` to a folder of their own, under the names of drivers.
fn install(built: &Path) -> Result<PathBuf, String> {
    let without = env::var("DRIVER_SIM_WITHOUT").unwrap_or_default();
    let symbols: Vec<&str> =
        without.split(',').map(str::trim).filter(|word| word.contains(char::is_uppercase)).collect();
    let mut folder = built.join("driver-sim-libraries");
    if !symbols.is_empty() {
        folder.push(symbols.join("-"));
    }
    for library in LIBRARIES {
        library.install(built, &folder, &symbols).map_err(|error| format!("{}: {error}", library.file))?;
    }
    Ok(folder)
}

fn loader_path(first: &Path) -> Result<OsString, String> {
    let others = env::var_os(LOADER_PATH).unwrap_or_default();
    let all = [first.to_owned()]
        .into_iter()
        .chain(env::split_paths(&others).filter(|path| !path.as_os_str().is_empty()));
    env::join_paths(all).map_err(|error| error.to_string())
}
