//! Calls of the system that are interrupted, or refused.

use libtest_mimic::Trial;
use rustix::fs::fstat;
use rustix::io::Errno;
use transship_ipc::Slots;

use crate::filtered::{Refused, refusing};
use crate::support::case;

pub(crate) fn cases() -> Vec<Trial> {
    vec![case("much_memory_is_had_where_signals_come", much_memory_is_had_where_signals_come)]
}

/// Signals come so often that no call has more than 8 MiB before the next one.
///
/// catches: 714-much-memory-is-had-by-one-call
fn much_memory_is_had_where_signals_come() {
    let more = Refused { call: libc::SYS_fallocate, above: Some((3, 8 << 20)) };
    for slots in [1, 3, 20] {
        let made = refusing(&[more], Errno::INTR, move || Slots::new(1 << 20, slots));
        let memory = fstat(made.unwrap().descriptor()).unwrap();
        assert!(memory.st_size >= (slots as i64) << 20, "{memory:?}");
        assert!(memory.st_blocks * 512 >= memory.st_size, "{memory:?}");
    }
}
