//! The uses of memory that many threads share.

use crate::in_flight::stream_uses::Uses;
use crate::runtime::lent_collector;
use crate::runtime::sync::Mutex;

/// Uses under a lock.
#[derive(Default)]
pub(crate) struct LockedUses(Mutex<Uses>);

impl LockedUses {
    pub(crate) fn new(uses: Uses) -> Self {
        Self(Mutex::new(uses))
    }

    /// Runs `work` on the uses. It may have a share of a stream for a moment, which others let go of meanwhile: then the stream goes
    /// with that share, and its owner, whose code runs behind the lock.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Uses) -> R) -> R {
        let (result, gone) = lent_collector::collect(|| work(&mut self.0.lock()));
        gone.let_go();
        result
    }

    /// Those of memory that nobody else has.
    pub(crate) fn get_mut(&mut self) -> &mut Uses {
        self.0.get_mut()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backend::{BackendStream, TimeMark};
    use crate::error::{Error, Result};
    use crate::in_flight::stream_uses::Handed;
    use crate::runtime::sync::atomic::{AtomicBool, Ordering};

    type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

    /// All is done on it, and whoever asks runs the hook first.
    struct Asked(Hook);

    /// The same stream, with an owner that goes with it.
    struct Owned(Asked, Arc<AtomicBool>);

    struct Owner(Arc<AtomicBool>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    impl Drop for Owned {
        fn drop(&mut self) {
            lent_collector::let_go(Box::new(Owner(self.1.clone())));
        }
    }

    impl Asked {
        fn reached(&self) -> u64 {
            let hook = self.0.lock().take();
            hook.into_iter().for_each(|hook| hook());
            1
        }
    }

    macro_rules! stream {
        ($stream:ty, $self:ident: $reached:expr, $twin:expr) => {
            // SAFETY: nothing is copied on it.
            unsafe impl BackendStream for $stream {
                fn record(&self) -> Result<u64> {
                    Ok(1)
                }

                fn twin(&$self) -> Option<Arc<dyn BackendStream>> {
                    $twin
                }

                fn wait_for(&self, _: &dyn BackendStream, _: u64) -> Result<()> {
                    Ok(())
                }

                fn reached(&$self) -> Result<u64> {
                    Ok($reached)
                }

                fn wait(&self, _: u64, _: Option<Duration>) -> Result<bool> {
                    Ok(true)
                }

                fn mark(&self) -> Result<Box<dyn TimeMark>> {
                    Err(Error::NotReady)
                }
            }
        };
    }

    /// Handed to memory, with an owner in its twin.
    struct Ours(Hook, Arc<AtomicBool>);

    stream!(Ours, self: 1, Some(Arc::new(Owned(Asked(self.0.clone()), self.1.clone()))));
    stream!(Owned, self: self.0.reached(), None);

    /// Mutant 467: the owner goes under the lock.
    #[test]
    fn a_stream_that_goes_while_it_is_asked_takes_its_owner_along_behind_the_lock() {
        let (hook, gone) = (Hook::default(), Arc::new(AtomicBool::new(false)));
        let stream: Arc<dyn BackendStream> = Arc::new(Ours(hook.clone(), gone.clone()));
        let (handed, uses) = (Handed::new(&stream), LockedUses::default());
        drop(uses.with(|uses| uses.hand_to(&handed)));
        // Another thread lets go of the stream, whose work is over.
        *hook.lock() = Some(Box::new(move || handed.queue_goes(&stream)));
        let are_past = uses.with(|uses| uses.are_past());
        assert_eq!((are_past, gone.load(Ordering::Relaxed)), (true, true));
    }
}
