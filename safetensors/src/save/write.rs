//! Copies down and writes: by several threads, each of which has one window at a time.

use std::io;

use transship_core::{CopyOptions, Device, Error, Tensor, start_copy};

use crate::error::Place;
use crate::save::error::SaveError;
use crate::save::options::Validated;
use crate::save::plan::PlannedFile;
use crate::save::temporary::Temporary;
use crate::save::window::{Window, cut, windows};
use crate::team::{Team, share_out};
use crate::trace::span;

/// Small neighbours are written at once, in bytes.
const SCRATCH: usize = 256 << 10;

/// A file, and what is to be in it.
pub(crate) struct Target {
    pub(crate) temporary: Temporary,
    pub(crate) planned: PlannedFile,
}

/// Writes all files, and syncs them.
pub(crate) fn write(targets: &[Target], team: &Team, options: &Validated) -> Result<(), SaveError> {
    let mut by_file = Vec::new();
    for (number, target) in targets.iter().enumerate() {
        let header = target.write_at(&target.planned.header, 0);
        header.map_err(|(_, source)| SaveError::file(target.temporary.target(), "written")(source))?;
        let windows = windows(number, &target.planned, options.window_bytes);
        by_file.push(windows.map_err(|(offset, error)| target.device_error(offset, error))?);
    }
    let work = in_turn(by_file);
    share_out(team, work.into_iter(), Vec::new, |scratch, window| {
        let bytes = window.tensor_bytes();
        targets.get(window.file).map_or(Ok(()), |target| target.carry(window, scratch))?;
        options.progress.note_written(bytes);
        Ok(())
    })?;
    share_out(
        team,
        targets.iter(),
        || (),
        |(), target| {
            let _span = span!("sync");
            target.temporary.sync()
        },
    )
}

/// The first ones of all files, then the second ones: threads that write to different files do not wait for each other.
fn in_turn(mut by_file: Vec<Vec<Window>>) -> Vec<Window> {
    by_file.iter_mut().for_each(|windows| windows.reverse());
    let mut work = Vec::with_capacity(by_file.iter().map(Vec::len).sum());
    while !by_file.is_empty() {
        work.extend(by_file.iter_mut().filter_map(Vec::pop));
        by_file.retain(|windows| !windows.is_empty());
    }
    work
}

impl Target {
    fn carry(&self, window: Window, scratch: &mut Vec<u8>) -> Result<(), SaveError> {
        let Window { offset, parts, .. } = window;
        // All of it lies in one block then.
        let options = CopyOptions::default().max_packed_bytes(usize::MAX);
        let down = start_copy(parts, &Device::host(), options);
        let parts =
            down.and_then(|copy| copy.wait()).map_err(|error| self.device_error(offset, error.into()))?;
        let _span = span!("write", bytes = parts.iter().map(Tensor::nbytes).sum::<usize>());
        let mut run = Run { target: self, offset, scratch };
        parts.iter().try_for_each(|part| run.append_tensor(part))?;
        run.flush()
    }

    /// An error comes with its place.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), (u64, io::Error)> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let at = offset + written as u64;
            let result = match self.temporary.write_at(rest, at) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                result => result,
            };
            written += result.map_err(|error| (at, error))?;
        }
        Ok(())
    }

    /// The same, of tensors.
    fn write_tensors(&self, bytes: &[u8], offset: u64) -> Result<(), SaveError> {
        let written = self.write_at(bytes, offset);
        written.map_err(|(at, source)| SaveError::Write { at: self.place(at), source })
    }

    fn device_error(&self, offset: u64, source: Error) -> SaveError {
        SaveError::Device { at: self.place(offset), source }
    }

    fn place(&self, offset: u64) -> Box<Place> {
        let (path, tensor) = (self.temporary.target().to_owned(), self.planned.tensor_at(offset).to_owned());
        Box::new(Place { path, tensor, offset })
    }
}

/// Bytes that are written one behind the other.
struct Run<'a> {
    target: &'a Target,
    /// Where the bytes of the scratch go.
    offset: u64,
    scratch: &'a mut Vec<u8>,
}

impl Run<'_> {
    fn append_tensor(&mut self, tensor: &Tensor) -> Result<(), SaveError> {
        let (target, offset) = (self.target, self.offset);
        let unreadable = |error| target.device_error(offset, error);
        if tensor.is_contiguous() {
            return self.append(tensor.as_bytes().map_err(unreadable)?);
        }
        let mut written = Ok(());
        let cut = cut(tensor, SCRATCH, &mut |part| {
            let bytes = part.to_bytes()?;
            written = std::mem::replace(&mut written, Ok(())).and_then(|()| self.append(&bytes));
            Ok(())
        });
        cut.map_err(unreadable).and(written)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), SaveError> {
        if self.scratch.len() + bytes.len() > SCRATCH {
            self.flush()?;
        }
        if bytes.len() >= SCRATCH {
            self.target.write_tensors(bytes, self.offset)?;
            self.offset += bytes.len() as u64;
        } else {
            self.scratch.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SaveError> {
        self.target.write_tensors(self.scratch, self.offset)?;
        self.offset += self.scratch.len() as u64;
        self.scratch.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// catches: 480-files-one-after-the-other
    #[test]
    fn files_are_written_side_by_side() {
        let window = |file, offset| {
            let mut window = Window::default();
            (window.file, window.offset) = (file, offset);
            window
        };
        let windows = |file: usize, count: u64| (0..count).map(|offset| window(file, offset)).collect();
        let work = in_turn(vec![windows(0, 3), windows(1, 1), windows(2, 2)]);
        let places: Vec<_> = work.iter().map(|window| (window.file, window.offset)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]);
    }
}
