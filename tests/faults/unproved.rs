//! Where nothing proves that a copy has ended, its memory is given up and counted, and not used again.

use crate::stand_in::StandIn;
use crate::sweep::check_error;
use crate::through::Through;
use crate::trip::{self, Direction, Ended};

/// The copy is submitted, what would show its end is not, and the stream cannot be waited for.
fn faults(direction: Direction) -> &'static str {
    match direction {
        // The first event is the one that the device of the source waits for.
        Direction::ColumnsBetween => "faults cuEventRecord@2=unknown; cuStreamSynchronize@1=unknown",
        _ => "faults cuEventRecord@1=unknown; cuStreamSynchronize@1=unknown",
    }
}

/// Lets the end of a copy in this direction be unknown.
pub(crate) fn run(through: Through, direction: Direction, stand_in: &StandIn) -> Result<(), String> {
    let first = stand_in.add_devices(3);
    let (violations, leaks) = (stand_in.ask("violations"), transship::runtime_stats().leaks);
    let trip = direction.prepare(through, first);
    stand_in.tell(faults(direction));
    let ended = trip.run(transship::BackgroundWork::Auto)?;
    let fired = ["fired:cuEventRecord", "fired:cuStreamSynchronize"].map(|figure| stand_in.ask(figure));
    stand_in.tell("faults");
    assert_eq!(fired, [1, 1], "the calls that were to fail");
    match ended {
        Ended::Failed { error, .. } => check_error(&error)?,
        Ended::Done(_) => return Err("nobody knows whether it is done, and it counts as done".to_owned()),
    }
    if transship::runtime_stats().leaks == leaks {
        return Err("memory that may still be in use was not given up".to_owned());
    }
    stand_in.tell("excuse");
    trip::works(through, first + 2);
    match stand_in.ask("violations") - violations {
        0 => Ok(()),
        count => Err(format!("{count} violations")),
    }
}
