//! Kernels: functions of the host, found under the names of the kernels that are loaded.

use crate::memory::{Memory, Side};

/// A copy that a kernel makes, as the table of `transship_gather` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: u64,
}

/// A kernel that can be launched.
#[derive(Debug)]
pub(crate) struct Kernel {
    name: &'static str,
    pub(crate) parameters: &'static [Parameter],
    /// What it copies beside what its arguments say.
    copies: fn(&Launch, &Memory) -> Result<Vec<Entry>, String>,
    run: fn(&Launch, &Memory) -> Result<(), String>,
}

/// What a kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parameter {
    Pointer,
    Word,
}

/// What it is given.
#[derive(Debug, Clone)]
pub(crate) enum Argument {
    Pointer(Side),
    Word(u32),
}

/// A kernel on its way.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static Kernel,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) grid: Grid,
    /// The copies that it makes, as they were when it was launched.
    pub(crate) copies: Vec<Entry>,
    pub(crate) sides: Vec<(Side, Side)>,
}

/// How many blocks, and threads in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u64,
    /// Threads of each block.
    pub threads: u64,
}

static KERNELS: [Kernel; 2] = [
    Kernel {
        name: "add_one",
        parameters: &[Parameter::Pointer, Parameter::Pointer, Parameter::Word],
        copies: |_, _| Ok(Vec::new()),
        run: add_one,
    },
    Kernel {
        name: "transship_gather",
        parameters: &[Parameter::Pointer],
        copies: entries_of_table,
        run: copy_all,
    },
];

/// The kernel of this name.
pub(crate) fn find(name: &str) -> Option<usize> {
    KERNELS.iter().position(|kernel| kernel.name == name)
}

pub(crate) fn kernel(index: usize) -> Option<&'static Kernel> {
    KERNELS.get(index)
}

impl Launch {
    pub(crate) fn run(&self, memory: &Memory) -> Result<(), String> {
        (self.kernel.run)(self, memory).map_err(|reason| format!("kernel {}: {reason}", self.kernel.name))
    }

    /// What it is to copy, as memory has it now.
    pub(crate) fn read_copies(&self, memory: &Memory) -> Result<Vec<Entry>, String> {
        (self.kernel.copies)(self, memory)
    }

    pub(crate) fn sides(&self) -> impl Iterator<Item = &Side> {
        let arguments = self.arguments.iter().filter_map(|argument| match argument {
            Argument::Pointer(side) => Some(side),
            Argument::Word(_) => None,
        });
        arguments.chain(self.sides.iter().flat_map(|(from, to)| [from, to]))
    }
}

/// `to[i] = from[i] + 1`, for floats.
fn add_one(launch: &Launch, memory: &Memory) -> Result<(), String> {
    let [Argument::Pointer(from), Argument::Pointer(to), Argument::Word(count)] = &launch.arguments[..]
    else {
        return Err("wrong arguments".to_owned());
    };
    let count = u64::from(*count).min(launch.grid.blocks * launch.grid.threads) as usize;
    let from = memory.pointer(from, count * size_of::<f32>())?.cast::<f32>();
    let to = memory.pointer(to, count * size_of::<f32>())?.cast::<f32>();
    for index in 0..count {
        // SAFETY: `pointer` has checked that so many floats are there; they need not be aligned.
        unsafe { to.add(index).write_unaligned(from.add(index).read_unaligned() + 1.0) };
    }
    Ok(())
}

/// Each block of the grid has an entry.
fn entries_of_table(launch: &Launch, memory: &Memory) -> Result<Vec<Entry>, String> {
    let [Argument::Pointer(table)] = &launch.arguments[..] else {
        return Err("wrong arguments".to_owned());
    };
    let count = launch.grid.blocks as usize;
    let table = memory.pointer(table, count * size_of::<Entry>())?.cast::<Entry>();
    // SAFETY: `pointer` has checked that so many entries are there; they need not be aligned.
    Ok((0..count).map(|index| unsafe { table.add(index).read_unaligned() }).collect())
}

fn copy_all(launch: &Launch, memory: &Memory) -> Result<(), String> {
    if launch.read_copies(memory)? != launch.copies {
        return Err("its table has changed since it was launched".to_owned());
    }
    for (entry, (from, to)) in launch.copies.iter().zip(&launch.sides) {
        let bytes = entry.bytes as usize;
        let (from, to) = (memory.pointer(from, bytes)?, memory.pointer(to, bytes)?);
        // SAFETY: `pointer` has checked that so many bytes are there.
        unsafe { std::ptr::copy(from, to, bytes) };
    }
    Ok(())
}
