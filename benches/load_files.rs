//! How fast `transship::safetensors::load` and `save` are, and how much host memory they take, beside a memory map, and beside a copy of all
//! tensors that are written then.
//!
//! `cargo run --release --features safetensors,cuda --example load-files [-- --device NAME --folder DIR --gigabytes N --rounds N --keep]`
//! writes a file of weights into a folder (default: /dev/shm, so that the disk does not count), loads it in turns by each way, saves what
//! was loaded in turns by each way, and removes all. Every byte of the first load is verified, and every saved file.
//!
//! With `--cold --folder DIR`, on a disk, it is loaded only, past the page cache and through it, beside `dd` with `O_DIRECT`; `dd` has it dropped from the
//! page cache before each.
#![allow(missing_docs, reason = "a benchmark has no documentation but this")]

#[path = "../examples/load_safetensors/mapped.rs"]
mod mapped;

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Parser;
use safetensors::tensor::{Dtype, TensorView};
use transship::Cast;
use transship::prelude::*;
use transship::safetensors::{LoadOptions, SaveOptions, Tensors, load, save};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The pattern of the file repeats after so many bytes.
const PATTERN: usize = (8 << 20) - 3;
/// The rows of a matrix of a layer; it has half as many columns.
const WIDTH: usize = 4096;
/// The bytes of such a matrix, which no tensor exceeds.
const LARGEST: u64 = 2 * (WIDTH * WIDTH) as u64;

/// Loads a file of weights and saves it by the library, and by other ways.
#[derive(Parser)]
struct Arguments {
    /// The device, such as cuda:0 or host. Default: the best there is
    #[arg(long)]
    device: Option<DeviceId>,
    /// Where the file is written
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
    /// The size of the file, in GB
    #[arg(long, default_value_t = 4.0)]
    gigabytes: f64,
    /// Load from the disk: what the page cache has of the file is dropped before each load
    #[arg(long)]
    cold: bool,
    /// Leave the file there, for other programs to load
    #[arg(long)]
    keep: bool,
    /// How often it is loaded and saved by each way
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The budget of the library, in MiB
    #[arg(long, default_value_t = 64)]
    budget: usize,
    /// How many files a model of several is saved to
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    shards: u64,
    /// How many threads of the library read, or write
    #[arg(long, default_value_t = 8)]
    threads: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let device = arguments.device.map_or_else(Device::best, Device::open)?;
    let path = arguments.folder.join(format!("transship-load-{}.safetensors", std::process::id()));
    let _file = (!arguments.keep).then(|| Removed(&path));
    let bytes = write(&path, (arguments.gigabytes * 1e9) as usize)?;
    println!("{bytes} bytes of {} to {}: {}", path.display(), device.id(), device.description());
    let options = || LoadOptions::default().budget(arguments.budget << 20).threads(arguments.threads);
    verify(&path, &device, options())?;
    if arguments.cold {
        return load_cold(&arguments, &path, bytes, &device, options);
    }
    for round in 1..=arguments.rounds {
        let name = |way| format!("{round} {way}");
        measure(bytes, &name("transship::safetensors::load"), || Ok(load(&path, &device, options())?))?;
        let cast = || options().cast(Cast::new(DType::F32, DType::BF16));
        measure(bytes, &name("the same, cast to bfloat16"), || Ok(load(&path, &device, cast())?))?;
        measure(bytes, &name("memory map, one copy each"), || mapped::load(&path, &device))?;
    }
    save_by_each(&arguments, &path, bytes, &load(&path, &device, options())?)
}

fn load_cold(
    arguments: &Arguments,
    path: &Path,
    bytes: usize,
    device: &Device,
    options: impl Fn() -> LoadOptions,
) -> Result<()> {
    for round in 1..=arguments.rounds {
        let name = |way| format!("{round} {way}");
        dd(path, &["iflag=nocache", "count=0"])?;
        measure(bytes, &name("dd iflag=direct bs=4M"), || dd(path, &["iflag=direct", "bs=4M"]))?;
        for (way, is_direct) in [("load, direct", true), ("load, through the page cache", false)] {
            dd(path, &["iflag=nocache", "count=0"])?;
            let options = options().direct_io(is_direct);
            measure(bytes, &name(way), || Ok(load(path, device, options)?))?;
        }
    }
    Ok(())
}

fn dd(path: &Path, arguments: &[&str]) -> Result<()> {
    let mut file = std::ffi::OsString::from("if=");
    file.push(path);
    let done = Command::new("dd").arg(file).arg("of=/dev/null").args(arguments).output()?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into()) }
}

fn save_by_each(arguments: &Arguments, path: &Path, bytes: usize, tensors: &Tensors) -> Result<()> {
    let saved = path.with_extension("saved");
    let _file = Removed(&saved);
    let folder = path.with_extension("shards");
    let _folder = RemovedFolder(&folder);
    // Each has whole tensors.
    let shard = (bytes as u64).div_ceil(arguments.shards) + LARGEST;
    let (one, threads) = (SaveOptions::default().budget(arguments.budget << 20), arguments.threads);
    for round in 1..=arguments.rounds {
        let name = |way| format!("{round} {way}");
        let options = one.clone().threads(threads);
        measure(bytes, &name("transship::safetensors::save"), || Ok(save(tensors, &saved, options)?))?;
        is_same(path, &saved)?;
        fs::remove_file(&saved)?;
        let options = one.clone().threads(threads).shard_bytes(shard);
        let way = format!("{round} the same, {} files", arguments.shards);
        measure(bytes, &way, || Ok(save(tensors, &folder, options)?))?;
        is_same(path, &folder)?;
        fs::remove_dir_all(&folder)?;
        measure(bytes, &name("copied down, then written"), || copy_and_write(tensors, &saved))?;
        is_same(path, &saved)?;
        fs::remove_file(&saved)?;
    }
    Ok(())
}

/// As the crate `safetensors` writes tensors of the host.
fn copy_and_write(tensors: &Tensors, path: &Path) -> Result<()> {
    let down = transship::start_copy(tensors.clone(), &Device::host(), CopyOptions::default())?.wait()?;
    let views = down.iter().map(|(name, tensor)| Ok((name.to_owned(), view(tensor)?)));
    Ok(safetensors::serialize_to_file(views.collect::<Result<Vec<_>>>()?, None, path)?)
}

fn view(tensor: &Tensor) -> Result<TensorView<'_>> {
    Ok(TensorView::new(Dtype::F32, tensor.shape().to_vec(), tensor.as_bytes()?)?)
}

/// Fails unless both have the same tensors with the same bytes, in whatever order.
fn is_same(one: &Path, other: &Path) -> Result<()> {
    let load = |path| load(path, &Device::host(), LoadOptions::default());
    let (one, other) = (load(one)?, load(other)?);
    let differs = one.iter().find(|(name, tensor)| {
        other.get(name).is_none_or(|saved| saved.as_bytes().ok() != tensor.as_bytes().ok())
    });
    match differs {
        None if one.len() == other.len() => Ok(()),
        differs => Err(format!("what was saved is something else: {differs:?}").into()),
    }
}

/// Removes the file in the end.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

/// Removes the folder in the end.
struct RemovedFolder<'a>(&'a Path);

impl Drop for RemovedFolder<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// What was loaded goes when the time is taken.
fn measure<R>(bytes: usize, name: &str, work: impl FnOnce() -> Result<R>) -> Result<()> {
    let before = reset_peak();
    let started = Instant::now();
    let _loaded = work()?;
    let seconds = started.elapsed().as_secs_f64();
    let memory = match (before, status("VmHWM")) {
        (Some(before), Some(peak)) => format!("{:.0} MB", peak.saturating_sub(before) as f64 / 1e6),
        _ => "not known".to_owned(),
    };
    println!("{name:36} {seconds:8.4} s {:8.2} GB/s, host memory {memory}", bytes as f64 / seconds / 1e9);
    Ok(())
}

/// Lets the peak of resident memory begin at what is resident now, which it returns. Linux only.
fn reset_peak() -> Option<usize> {
    fs::write("/proc/self/clear_refs", "5").ok()?;
    status("VmRSS")
}

/// A line of the status of this process, in bytes.
fn status(name: &str) -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
}

/// Writes layers of weights, of about `bytes` bytes; returns how many bytes the tensors have.
fn write(path: &Path, bytes: usize) -> Result<usize> {
    let (mut header, mut end) = (Vec::new(), 0);
    for layer in 0.. {
        if end >= bytes {
            break;
        }
        let matrices = ["q", "k", "v", "o", "up", "gate", "down"].map(|name| (name, vec![WIDTH, WIDTH / 2]));
        let norms = ["norm.weight", "norm.bias"].map(|name| (name, vec![WIDTH / 2]));
        for (name, shape) in matrices.into_iter().chain(norms) {
            let start = end;
            end += shape.iter().product::<usize>() * 4;
            header.push(format!(
                r#""layers.{layer}.{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            ));
        }
    }
    let header = format!("{{{}}}", header.join(","));
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let pattern: Vec<u8> = (0..PATTERN).map(byte).collect();
    let mut left = end;
    while left > 0 {
        let now = pattern.get(..left.min(PATTERN)).unwrap_or_default();
        file.write_all(now)?;
        left -= now.len();
    }
    file.flush()?;
    Ok(end)
}

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// Fails unless every tensor has the bytes that the file has in its place.
fn verify(path: &Path, device: &Device, options: LoadOptions) -> Result<()> {
    let mut tensors = load(path, device, options)?;
    let (pattern, mut start): (Vec<u8>, usize) = ((0..PATTERN).map(byte).collect(), 0);
    for name in names_in_file_order(path)? {
        let tensor = tensors.remove(&name).ok_or("a tensor is missing")?;
        let tensor = transship::start_copy(tensor, &Device::host(), CopyOptions::default())?.wait()?;
        let bytes = tensor.as_bytes()?;
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let expected = pattern.get((start + at) % PATTERN..).unwrap_or_default();
            let now = rest.len().min(expected.len());
            if rest.get(..now) != expected.get(..now) {
                return Err(format!("tensor {name} has other bytes than the file").into());
            }
            at += now;
        }
        start += bytes.len();
    }
    if tensors.is_empty() { Ok(()) } else { Err("there are tensors that the file has not".into()) }
}

fn names_in_file_order(path: &Path) -> Result<Vec<String>> {
    let file = File::open(path)?;
    // SAFETY: nobody else knows of the file.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(safetensors::SafeTensors::read_metadata(&map)?.1.offset_keys())
}
