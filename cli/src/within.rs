//! Asking what may never answer.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Instant;
use std::{panic, thread};

/// What comes of `ask` for each of `asked` until `end`, in the order in which it came: each on a thread of its own, so that one that does
/// not answer holds up no other.
pub(crate) fn each<A, S>(
    asked: impl IntoIterator<Item = A>,
    end: Instant,
    ask: impl Fn(A, &Sender<S>) + Clone + Send + 'static,
) -> Vec<S>
where
    A: Send + 'static,
    S: Send + 'static,
{
    let (says, said) = channel();
    let asks = |asked| {
        let (says, ask) = (says.clone(), ask.clone());
        thread::spawn(move || ask(asked, &says))
    };
    let threads: Vec<_> = asked.into_iter().map(asks).collect();
    drop(says);
    let mut all = Vec::new();
    loop {
        match said.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(one) => all.push(one),
            Err(RecvTimeoutError::Timeout) => return all,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for thread in threads {
        thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// By hand: with a wait for the end of all threads this does not end.
    #[test]
    fn who_does_not_answer_holds_up_no_other() {
        let ask = |number: u8, says: &Sender<u8>| {
            says.send(number).unwrap_or_default();
            if number == 1 {
                thread::sleep(Duration::from_secs(3600));
            }
            says.send(number + 10).unwrap_or_default();
        };
        let begin = Instant::now();
        let mut said = each([0, 1, 2], begin + Duration::from_millis(500), ask);
        said.sort_unstable();
        // On a machine that is busy for so long the others may be late.
        assert!(said.iter().all(|number| [0, 1, 2, 10, 12].contains(number)), "{said:?}");
        let mut said = each([0, 2], begin + Duration::from_secs(3600), ask);
        said.sort_unstable();
        assert_eq!(said, [0, 2, 10, 12]);
    }
}
