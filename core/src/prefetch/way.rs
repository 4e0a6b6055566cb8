//! What becomes of an item on its way to the program.

use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::{CopyError, Error};
use crate::job::options::CopyOptions;

/// Where items go: each to one device, or each to all of them.
pub(crate) trait Way<T> {
    /// An item that is on its way.
    type Copy;
    /// What is handed out.
    type Arrived;

    fn start(&mut self, value: T, options: &CopyOptions) -> Result<Self::Copy, CopyError<T>>;

    /// Waits for the copy, or has a stream wait for it. The time is the one after which it was submitted, if it was.
    fn finish(&self, copy: Self::Copy) -> (Result<Self::Arrived, CopyError<T>>, Option<Duration>);

    /// As [`finish`](Self::finish) without a stream, for a task.
    fn poll(copy: &mut Self::Copy, context: &mut Context<'_>) -> Poll<Result<Self::Arrived, CopyError<T>>>;

    /// Time from the call that has started the copy until all of it was submitted.
    fn submitted_after(copy: &Self::Copy) -> Option<Duration>;

    /// Whether it goes into memory that has come back.
    fn is_reused(_: &Self::Copy) -> bool {
        false
    }
}

/// Why an item goes nowhere; gives it back.
pub(crate) fn nowhere<T>(value: T) -> CopyError<T> {
    let reason = "items need a device to go to";
    CopyError::new(Error::InvalidOption { name: "to", value: "[]".to_owned(), reason }, Some(value))
}
