//! The calls of programs.

use std::path::{Path, PathBuf};

use transship_core::Device;

use crate::direct::DirectReads;
use crate::error::LoadError;
use crate::open_file::OpenFile;
use crate::options::{LoadOptions, Validated};
use crate::read::Reader;
use crate::sources::Sources;
use crate::tensors::Tensors;
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
    let (options, mut wanted) = options.validated()?;
    let sources = Sources::of(path.as_ref(), &mut wanted)?;
    load_sources(sources, device, &options)
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
    let (options, mut wanted) = options.validated()?;
    let paths: Vec<PathBuf> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
    let sources = Sources::of_files(&paths, &mut wanted)?;
    load_sources(sources, device, &options)
}

fn load_sources(sources: Sources, device: &Device, options: &Validated) -> Result<Tensors, LoadError> {
    let bytes = sources.stored_bytes();
    options.progress.begin(bytes);
    let free = Device::host().memory().ok().and_then(|memory| memory.free);
    let direct_reads = DirectReads::of(options.direct_io, bytes, free);
    let reader = || Reader::new(&sources, direct_reads, &options.progress);
    let by_name = match device.is_host() {
        true => host::load(&sources, options, reader),
        false => to_device::load(&sources, device, options, reader),
    };
    // A file that was changed meanwhile is why whatever else was wrong.
    sources.files.iter().try_for_each(OpenFile::check_unchanged)?;
    Ok(Tensors { by_name: by_name?, files: sources.loaded_files })
}
