//! A lock that its owner may take again.

use std::sync::PoisonError;

use shuttle::thread::{ThreadId, current};

use super::{Mutex, MutexGuard};

pub struct ReentrantMutex<T> {
    outermost: Mutex<()>,
    owner: std::sync::Mutex<Option<ThreadId>>,
    _value: T,
}

/// Dropped in the order opposite to that in which they were taken.
pub struct ReentrantMutexGuard<'a, T> {
    mutex: &'a ReentrantMutex<T>,
    /// `None` for all but the first of a thread.
    held: Option<MutexGuard<'a, ()>>,
}

impl<T> ReentrantMutex<T> {
    pub const fn new(value: T) -> Self {
        Self { outermost: Mutex::new(()), owner: std::sync::Mutex::new(None), _value: value }
    }

    pub fn lock(&self) -> ReentrantMutexGuard<'_, T> {
        match self.is_mine() {
            true => ReentrantMutexGuard { mutex: self, held: None },
            false => self.own(self.outermost.lock()),
        }
    }

    pub fn try_lock(&self) -> Option<ReentrantMutexGuard<'_, T>> {
        match self.is_mine() {
            true => Some(ReentrantMutexGuard { mutex: self, held: None }),
            false => self.outermost.try_lock().map(|held| self.own(held)),
        }
    }

    fn own<'a>(&'a self, held: MutexGuard<'a, ()>) -> ReentrantMutexGuard<'a, T> {
        self.set_owner(Some(current().id()));
        ReentrantMutexGuard { mutex: self, held: Some(held) }
    }

    fn is_mine(&self) -> bool {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) == Some(current().id())
    }

    fn set_owner(&self, owner: Option<ThreadId>) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = owner;
    }
}

impl<T> Drop for ReentrantMutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.mutex.set_owner(None);
        }
    }
}
