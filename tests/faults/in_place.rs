//! For every n: the n-th call fails while memory is page-locked in place, copied from and to, and let go of. The memory comes back, or
//! goes, or stays locked and is counted.

use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use transship::{CopyOptions, Device, Error, Tensor, start_copy, start_copy_into};

use crate::left::{Left, eventually};
use crate::stand_in::StandIn;
use crate::sweep::{Fault, GIVES_BACK, check_error};
use crate::through::Through;
use crate::trip;

/// More calls than all of it makes.
const MOST_CALLS: u64 = 1000;
/// Too large to be packed.
const BYTES: usize = 300 << 10;
/// A page at the least.
const PAGE: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(crate) struct InPlace {
    pub(crate) through: Through,
    pub(crate) fault: Fault,
}

/// What has happened to the memory of a run.
#[derive(Default)]
struct Seen {
    failed: u64,
    came_back: u64,
}

impl InPlace {
    pub(crate) fn run(self, stand_in: &StandIn) -> Result<(), String> {
        let mut seen = Seen::default();
        for number in 1..=MOST_CALLS {
            let complain = |what: String| format!("call {number} came to {}: {what}", self.fault.word());
            if !self.fail(number, &mut seen, stand_in).map_err(complain)? {
                println!(
                    "{self}: {} calls, {} made it fail, {} gave memory back",
                    number - 1,
                    seen.failed,
                    seen.came_back
                );
                return match seen.failed > 0 && seen.came_back > 0 {
                    true => Ok(()),
                    false => Err("nothing has failed, or nothing came back".to_owned()),
                };
            }
        }
        Err(format!("there are more than {MOST_CALLS} calls"))
    }

    /// Lets the call of this number fail; `false` if there is none.
    fn fail(self, number: u64, seen: &mut Seen, stand_in: &StandIn) -> Result<bool, String> {
        let first = stand_in.add_devices(2);
        stand_in.tell(&format!("seed {number}"));
        let (violations, leaks) = (stand_in.ask("violations"), transship::runtime_stats().leaks);
        let device = self.through.open(first).unwrap();
        let before = self.through.current(stand_in);
        stand_in.tell(&format!("faults {}@{number}={}", self.through.calls(), self.fault.word()));
        let owner = Lender::new();
        let watch = std::sync::Arc::downgrade(&owner.0);
        up(&device, owner, seen)?;
        down(&device, seen)?;
        drop(device);
        if self.through.current(stand_in) != before {
            return Err("another device is current".to_owned());
        }
        let refused = || GIVES_BACK.iter().map(|call| stand_in.ask(&format!("fired:{call}"))).sum::<u64>();
        let left = || Left::on(self.through, &(first..first + 2), stand_in);
        let counted = || transship::runtime_stats().leaks > leaks;
        if !eventually(|| (left().is_at_most([0, refused(), 0]) && watch.strong_count() == 0) || counted()) {
            stand_in.tell("list");
            return Err(format!(
                "left behind and not counted: {:?}, {} owners",
                left(),
                watch.strong_count()
            ));
        }
        let fired = stand_in.ask("fired") > 0;
        stand_in.tell("excuse");
        stand_in.tell("faults");
        trip::works(self.through, first + 1);
        match stand_in.ask("violations") - violations {
            0 => Ok(fired),
            count => Err(format!("{count} violations")),
        }
    }
}

/// An owner's memory, copied up.
fn up(device: &Device, owner: Lender, seen: &mut Seen) -> Result<(), String> {
    let memory = match device.register(owner) {
        Ok(memory) => memory,
        Err(refused) => {
            check_refusal(refused.error())?;
            seen.failed += 1;
            seen.came_back += 1;
            let back = refused.into_value();
            return (back.as_ref() == numbers())
                .then_some(())
                .ok_or("the owner's bytes have changed".to_owned());
        }
    };
    let tensor = memory.tensor(transship::DType::U8, &[BYTES], 0).map_err(|error| error.to_string())?;
    match start_copy(tensor, device, CopyOptions::default()).and_then(|copy| copy.wait()) {
        Ok(there) => drop(there),
        Err(failed) => {
            seen.failed += 1;
            check_error(failed.error())?;
        }
    }
    let readable = memory.tensor(transship::DType::U8, &[BYTES], 0).and_then(|tensor| tensor.to_bytes());
    (readable.ok().as_deref() == Some(numbers())).then_some(()).ok_or("the memory has changed".to_owned())
}

/// A vector that is copied into, and comes back.
fn down(device: &Device, seen: &mut Seen) -> Result<(), String> {
    let mut vec = Vec::with_capacity(BYTES + PAGE);
    vec.resize(BYTES, 9_u8);
    let held = match device.register_vec(vec, &[BYTES]) {
        Ok(held) => held,
        Err(refused) => {
            check_refusal(refused.error())?;
            seen.failed += 1;
            seen.came_back += 1;
            let back = refused.into_value();
            return (back == [9; BYTES]).then_some(()).ok_or("the vector has changed".to_owned());
        }
    };
    let there = start_copy(Tensor::from(numbers().to_vec()), device, CopyOptions::default())
        .and_then(|copy| copy.wait());
    let copied = there.and_then(|there| start_copy_into(there, held, CopyOptions::default())?.wait());
    let held = match copied {
        Ok(held) => held,
        Err(failed) => {
            seen.failed += 1;
            return check_error(failed.error());
        }
    };
    let held = match held.into_vec::<u8>() {
        Ok(vec) => return (vec == numbers()).then_some(()).ok_or("the bytes are wrong".to_owned()),
        Err(refused) => {
            seen.failed += 1;
            seen.came_back += 1;
            check_error(refused.error())?;
            refused.into_value()
        }
    };
    (held.to_bytes().ok().as_deref() == Some(numbers())).then_some(()).ok_or("the bytes are wrong".to_owned())
}

fn check_refusal(error: &Error) -> Result<(), String> {
    if matches!(error, Error::NotLockable { .. }) { Ok(()) } else { check_error(error) }
}

/// Made once: without optimisation that takes longer than the copies.
fn numbers() -> &'static [u8] {
    static NUMBERS: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..BYTES).map(|index| (index % 251) as u8).collect());
    &NUMBERS
}

/// Lends pages of its own.
struct Lender(std::sync::Arc<Vec<u8>>, Range<usize>);

impl Lender {
    fn new() -> Self {
        let mut memory = vec![0; BYTES + 2 * PAGE];
        let lead = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
        memory[lead..lead + BYTES].copy_from_slice(numbers());
        Self(std::sync::Arc::new(memory), lead..lead + BYTES)
    }
}

impl AsRef<[u8]> for Lender {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

impl fmt::Display for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::InPlace::{}", self.through.name(), self.fault.word())
    }
}
