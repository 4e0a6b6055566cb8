//! The calls of programs.

use std::path::{Path, PathBuf};

use transship_core::Device;

use crate::direct::DirectReads;
use crate::error::LoadError;
use crate::open_file::OpenFile;
use crate::options::LoadOptions;
use crate::read::Reader;
use crate::sources::Sources;
use crate::team::Team;
use crate::tensors::Tensors;
use crate::trace::span;
use crate::wanted::Wanted;
use crate::{host, to_device};

/// Loads the tensors of `path` to `device`, and waits until they are there. `path` is
///
/// - a `.safetensors` file,
/// - the index of a sharded model (`model.safetensors.index.json`), whose files lie beside it, or
/// - a folder with one index, or without one: then all its `.safetensors` files are one model.
///
/// Blocks, and may be called on any number of threads. After an error nothing of it is left but what the device is still copying,
/// which goes when that is done.
///
/// # Errors
///
/// [`LoadError`]: each names the file, and the tensor and its place in the file where there is one.
pub fn load(path: impl AsRef<Path>, device: &Device, options: LoadOptions) -> Result<Tensors, LoadError> {
    load_sources(device, options, |wanted| Sources::of(path.as_ref(), wanted))
}

/// As [`load`], of several `.safetensors` files that are one model: no name is in two of them.
///
/// # Errors
///
/// As [`load`].
pub fn load_files<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    device: &Device,
    options: LoadOptions,
) -> Result<Tensors, LoadError> {
    let paths: Vec<PathBuf> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
    load_sources(device, options, |wanted| Sources::of_files(&paths, wanted))
}

fn load_sources(
    device: &Device,
    options: LoadOptions,
    sources: impl FnOnce(&mut Wanted) -> Result<Sources, LoadError>,
) -> Result<Tensors, LoadError> {
    let span = span!(
        "load",
        device = device.id().to_string(),
        files = tracing::field::Empty,
        leaves = tracing::field::Empty,
        bytes = tracing::field::Empty
    );
    let (options, mut wanted) = options.validated()?;
    let sources = {
        let _span = span!("read_headers");
        sources(&mut wanted)?
    };
    let bytes = sources.stored_bytes();
    span.record("files", || sources.files.len());
    span.record("leaves", || sources.tensors.len());
    span.record("bytes", || bytes);
    options.progress.begin(bytes);
    let free = Device::host().memory().ok().and_then(|memory| memory.free);
    let direct_reads = DirectReads::of(options.direct_io, bytes, free);
    let team = Team { threads: options.threads, name: "transship-load", parent: span.as_parent() };
    let reader = || Reader::new(&sources, direct_reads, &options.progress);
    let by_name = match device.is_host() {
        true => host::load(&sources, &team, &options.progress, reader),
        false => to_device::load(&sources, device, &team, &options, reader),
    };
    // A file that was changed meanwhile is why whatever else was wrong.
    sources.files.iter().try_for_each(OpenFile::check_unchanged)?;
    Ok(Tensors { by_name: by_name?, files: sources.loaded_files })
}
