//! The call of programs.

use std::path::Path;

use transship_core::TensorTree;

use crate::save::error::SaveError;
use crate::save::folder;
use crate::save::model_folder::ModelFolder;
use crate::save::named::{Named, named};
use crate::save::options::{SaveOptions, Validated};
use crate::save::plan::{PlannedFile, shards};
use crate::save::single_file;
use crate::save::temporary::{Temporary, remove_stale};
use crate::save::write::{Target, write};
use crate::team::Team;
use crate::trace::span;

/// Saves the tensors of `tree`, wherever they lie, and waits until they are on the disk. `path` is
///
/// - a file, or nothing yet: one `.safetensors` file, or
/// - a folder, or with [`SaveOptions::shard_bytes`] nothing yet: files with an index, `model.safetensors.index.json`.
///
/// Names are those of [`TensorPath::name`](transship_core::TensorPath::name): fields, keys and indices with points between them. Tensors
/// that share memory are written each, views without their gaps. What is still being copied into a tensor is waited for.
///
/// Whatever happens, the path leads to the old model or to the new one, wholly: files are written under other names and synced before they
/// take their places, the index of several files last. After an error, or when the process ends, the old model is there; only an
/// error of the very last step, the sync of the folder, comes when the new one is in its place. A new folder has an index that says that it
/// is unfinished while its first model is put in its place; the folder stays after an error, empty. What a process that has ended left behind goes with the
/// next save. A symbolic link to a file is replaced by the new file. A model of several files replaces the
/// files that the old index names, and files with names like theirs that no index names; who reads them meanwhile loads again.
///
/// Blocks, and may be called on any number of threads. Saves to one folder wait for each other by a lock of it (`flock`), and for anybody else
/// who holds that. Each file is open until the save is done: many small files need as many (`ulimit -n`).
///
/// # Errors
///
/// [`SaveError`]: each names the tensor or the file, and the place in the file where there is one.
pub fn save<S: TensorTree + ?Sized>(
    tree: &S,
    path: impl AsRef<Path>,
    options: SaveOptions,
) -> Result<(), SaveError> {
    let span = span!("save", leaves = tracing::field::Empty, bytes = tracing::field::Empty);
    let (path, options) = (path.as_ref(), options.validated()?);
    let tensors = named(tree)?;
    let bytes = tensors.iter().map(|named| named.tensor.nbytes() as u64).sum();
    span.record("leaves", || tensors.len());
    span.record("bytes", || bytes);
    options.progress.begin(bytes);
    let team = Team { threads: options.threads, name: "transship-save", parent: span.as_parent() };
    if options.shard_bytes.is_some() || path.is_dir() {
        to_folder(tensors, path, &team, &options)
    } else {
        to_file(tensors, path, &team, &options)
    }
}

fn to_file(tensors: Vec<Named>, path: &Path, team: &Team, options: &Validated) -> Result<(), SaveError> {
    single_file::check(path)?;
    let planned = PlannedFile::new(tensors, &options.metadata, path)?;
    // One that cannot be synced is told before anything takes its place.
    folder::sync(folder::of(path))?;
    remove_stale(folder::of(path));
    let mut targets = [Target { temporary: Temporary::create(path.to_owned())?, planned }];
    write(&targets, team, options)?;
    for Target { temporary, .. } in &mut targets {
        temporary.rename()?;
        temporary.keep();
    }
    folder::sync(folder::of(path))
}

fn to_folder(tensors: Vec<Named>, path: &Path, team: &Team, options: &Validated) -> Result<(), SaveError> {
    let shards = shards(tensors, options.shard_bytes.unwrap_or(u64::MAX));
    let planned = shards.into_iter().map(|shard| PlannedFile::new(shard, &options.metadata, path));
    let planned = planned.collect::<Result<Vec<_>, _>>()?;
    let folder = ModelFolder::open(path)?;
    let names = folder.names(planned.len());
    let targets = planned
        .into_iter()
        .zip(names)
        .map(|(planned, name)| Ok(Target { temporary: Temporary::create(path.join(name))?, planned }));
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let index = folder.index_of(&targets)?;
    write(&targets, team, options)?;
    folder.commit(targets, &index)
}
