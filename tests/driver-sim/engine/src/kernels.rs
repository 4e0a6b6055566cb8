//! Kernels, found under the names of those that are loaded. Those of transship are compiled for the host, from the text that
//! devices run (`build.rs`).

use crate::entries::{Cast, Entry, Range, Scatter, Strided};
use crate::memory::{Memory, Side};

/// A kernel that can be launched.
#[derive(Debug)]
pub(crate) struct Kernel {
    name: &'static str,
    pub(crate) parameters: &'static [Parameter],
    /// What it touches beside what its arguments say, two and two: where a copy comes from and goes to.
    touches: fn(&Launch, &Memory) -> Result<Vec<Touch>, String>,
    run: fn(&Launch, &Memory) -> Result<(), String>,
}

/// What a kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parameter {
    Pointer,
    Word,
    Strided,
    Scatter,
    Cast,
}

/// What it is given.
#[derive(Debug, Clone)]
pub(crate) enum Argument {
    Pointer(Side),
    Word(u32),
    Strided(Box<Strided>),
    Scatter(Box<Scatter>),
    Cast(Box<Cast>),
}

/// Memory that a kernel touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// A kernel on its way.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static Kernel,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) grid: Grid,
    /// What it touches, as that was when it was launched.
    pub(crate) touches: Vec<Touch>,
    pub(crate) sides: Vec<Side>,
}

/// How many blocks, and threads in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: u64,
    /// Threads of each block.
    pub threads: u64,
}

static KERNELS: [Kernel; 7] = [
    Kernel {
        name: "add_one",
        parameters: &[Parameter::Pointer, Parameter::Pointer, Parameter::Word],
        touches: |_, _| Ok(Vec::new()),
        run: add_one,
    },
    Kernel {
        name: "transship_gather",
        parameters: &[Parameter::Pointer],
        touches: |launch, memory| Ok(touches(&table::<Range>(launch, memory)?)),
        run: |launch, memory| {
            let (entries, Grid { blocks, threads }) = (table::<Range>(launch, memory)?, launch.grid);
            let table = launch.on_host(&entries, memory)?;
            // SAFETY: the table has an entry for each block, and `on_host` has checked what they touch.
            unsafe { transship_gather_on_host(table.as_ptr(), blocks as u32, threads as u32) };
            Ok(())
        },
    },
    Kernel {
        name: "transship_gather_strided",
        parameters: &[Parameter::Pointer],
        touches: |launch, memory| Ok(touches(&table::<Strided>(launch, memory)?)),
        run: |launch, memory| {
            let (entries, Grid { blocks, threads }) = (table::<Strided>(launch, memory)?, launch.grid);
            let table = launch.on_host(&entries, memory)?;
            // SAFETY: as above.
            unsafe { transship_gather_strided_on_host(table.as_ptr(), blocks as u32, threads as u32) };
            Ok(())
        },
    },
    Kernel {
        name: "transship_gather_one",
        parameters: &[Parameter::Strided],
        touches: |launch, _| Ok(touches(&[launch.strided()?])),
        run: |launch, memory| {
            let Grid { blocks, threads } = launch.grid;
            for entry in launch.on_host(&[launch.strided()?], memory)? {
                // SAFETY: `on_host` has checked what it touches.
                unsafe { transship_gather_one_on_host(entry, blocks as u32, threads as u32) };
            }
            Ok(())
        },
    },
    Kernel {
        name: "transship_scatter_one",
        parameters: &[Parameter::Scatter],
        touches: |launch, _| Ok(touches(&[launch.scatter()?])),
        run: |launch, memory| {
            let Grid { blocks, threads } = launch.grid;
            for entry in launch.on_host(&[launch.scatter()?], memory)? {
                // SAFETY: `on_host` has checked what it touches.
                unsafe { transship_scatter_one_on_host(entry, blocks as u32, threads as u32) };
            }
            Ok(())
        },
    },
    Kernel {
        name: "transship_cast",
        parameters: &[Parameter::Pointer],
        touches: |launch, memory| Ok(touches(&table::<Cast>(launch, memory)?)),
        run: |launch, memory| {
            let (entries, Grid { blocks, threads }) = (table::<Cast>(launch, memory)?, launch.grid);
            let table = launch.on_host(&entries, memory)?;
            // SAFETY: the table has an entry for each block, and `on_host` has checked what they touch.
            unsafe { transship_cast_on_host(table.as_ptr(), blocks as u32, threads as u32) };
            Ok(())
        },
    },
    Kernel {
        name: "transship_cast_one",
        parameters: &[Parameter::Cast],
        touches: |launch, _| Ok(touches(&[launch.cast()?])),
        run: |launch, memory| {
            let Grid { blocks, threads } = launch.grid;
            for entry in launch.on_host(&[launch.cast()?], memory)? {
                // SAFETY: `on_host` has checked what it touches.
                unsafe { transship_cast_one_on_host(entry, blocks as u32, threads as u32) };
            }
            Ok(())
        },
    },
];

unsafe extern "C" {
    fn transship_gather_on_host(table: *const Range, blocks: u32, threads: u32);
    fn transship_gather_strided_on_host(table: *const Strided, blocks: u32, threads: u32);
    fn transship_gather_one_on_host(entry: Strided, blocks: u32, threads: u32);
    fn transship_scatter_one_on_host(entry: Scatter, blocks: u32, threads: u32);
    fn transship_cast_on_host(table: *const Cast, blocks: u32, threads: u32);
    fn transship_cast_one_on_host(entry: Cast, blocks: u32, threads: u32);
}

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

    /// What it touches, as memory has it now.
    pub(crate) fn look_up(&self, memory: &Memory) -> Result<Vec<Touch>, String> {
        (self.kernel.touches)(self, memory)
    }

    /// The same entries, with addresses of the host in the place of those of devices.
    fn on_host<E: Entry>(&self, entries: &[E], memory: &Memory) -> Result<Vec<E>, String> {
        if touches(entries) != self.touches {
            return Err("its table has changed since it was launched".to_owned());
        }
        let ends =
            self.touches.iter().zip(&self.sides).map(|(touch, side)| memory.pointer(side, touch.bytes));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let moved = entries.iter().zip(ends.chunks_exact(2));
        Ok(moved
            .map(|(entry, ends)| entry.at(ends[0].expose_provenance(), ends[1].expose_provenance()))
            .collect())
    }

    fn strided(&self) -> Result<Strided, String> {
        match &self.arguments[..] {
            [Argument::Strided(entry)] => Ok(**entry),
            _ => Err("wrong arguments".to_owned()),
        }
    }

    fn scatter(&self) -> Result<Scatter, String> {
        match &self.arguments[..] {
            [Argument::Scatter(entry)] => Ok(**entry),
            _ => Err("wrong arguments".to_owned()),
        }
    }

    fn cast(&self) -> Result<Cast, String> {
        match &self.arguments[..] {
            [Argument::Cast(entry)] => Ok(**entry),
            _ => Err("wrong arguments".to_owned()),
        }
    }

    pub(crate) fn sides(&self) -> impl Iterator<Item = &Side> {
        let arguments = self.arguments.iter().filter_map(|argument| match argument {
            Argument::Pointer(side) => Some(side),
            Argument::Word(_) | Argument::Strided(_) | Argument::Scatter(_) | Argument::Cast(_) => None,
        });
        arguments.chain(&self.sides)
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

fn touches<E: Entry>(entries: &[E]) -> Vec<Touch> {
    entries.iter().flat_map(Entry::touches).collect()
}

/// Each block of the grid has an entry.
fn table<E: Entry>(launch: &Launch, memory: &Memory) -> Result<Vec<E>, String> {
    let [Argument::Pointer(table)] = &launch.arguments[..] else {
        return Err("wrong arguments".to_owned());
    };
    let count = launch.grid.blocks as usize;
    let table = memory.pointer(table, count * size_of::<E>())?.cast::<E>();
    // SAFETY: `pointer` has checked that so many entries are there; they need not be aligned, and any bytes are one.
    Ok((0..count).map(|index| unsafe { table.add(index).read_unaligned() }).collect())
}
