//! One device of a driver, and making it current for a while.

use std::marker::PhantomData;
use std::ops::Deref;

use crate::backend::CounterCells;
use crate::backend::stream_ordered::api::Api;
use crate::device_id::DeviceId;
use crate::error::Result;

/// A device and what was asked of it. The calls of its driver go through [`enter`](Context::enter).
pub struct Context<A: Api> {
    api: A,
    counters: CounterCells,
}

impl<A: Api> Context<A> {
    pub(crate) fn new(api: A) -> Self {
        Self { api, counters: CounterCells::default() }
    }

    /// The device's own side. Its calls need the device to be current: see [`enter`](Context::enter).
    pub fn api(&self) -> &A {
        &self.api
    }

    /// The name of the device.
    pub fn id(&self) -> DeviceId {
        self.api.id()
    }

    pub(crate) fn counters(&self) -> &CounterCells {
        &self.counters
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.api.is_same(&other.api)
    }

    /// Makes the device current for this thread, such that no capture of streams is disturbed, until the guard goes.
    ///
    /// # Errors
    ///
    /// What the driver says.
    #[inline]
    pub fn enter(&self) -> Result<Current<'_, A>> {
        Ok(Current { _guard: self.api.enter()?, api: &self.api, thread: PhantomData })
    }
}

/// The device is current for this thread; when the guard goes, on a panic too, the caller's is again.
///
/// It is the way to the driver's calls: who can make one has the device.
pub struct Current<'a, A: Api> {
    api: &'a A,
    _guard: A::Guard<'a>,
    /// Devices are current for a thread: the guard must not leave it.
    thread: PhantomData<*const ()>,
}

impl<A: Api> Deref for Current<'_, A> {
    type Target = A;

    fn deref(&self) -> &A {
        self.api
    }
}
