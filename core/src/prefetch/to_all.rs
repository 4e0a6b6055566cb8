//! Items of which each goes to all devices.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::copy::broadcast::start_copy_to_all;
use crate::copy::handle::CopyHandle;
use crate::device::device::Device;
use crate::device::stream::Stream;
use crate::error::{CopyError, Error};
use crate::job::options::CopyOptions;
use crate::prefetch::way::{Way, nowhere};
use crate::tree::tensor_tree::TensorTree;

pub(crate) struct ToAll {
    to: Vec<Device>,
    /// What waits for items in place of the host: one for each device.
    pub(crate) consumers: Option<Vec<Stream>>,
}

/// An item on its way to all devices.
pub(crate) struct AllCopies<T> {
    /// Those that were not waited for.
    copies: VecDeque<CopyHandle<T>>,
    /// Those that have arrived before, in the order of the devices.
    arrived: Vec<T>,
    submitted_after: Option<Duration>,
}

impl ToAll {
    pub(crate) fn new(to: &[Device]) -> Self {
        Self { to: to.to_vec(), consumers: None }
    }

    fn check_consumers(&self) -> Result<(), Error> {
        match &self.consumers {
            Some(streams) if streams.len() != self.to.len() => {
                let (name, value) = ("hand_over", format!("{} streams", streams.len()));
                Err(Error::InvalidOption { name, value, reason: "it must be one for each device" })
            }
            _ => Ok(()),
        }
    }
}

impl<T: TensorTree + Clone> Way<T> for ToAll {
    type Copy = AllCopies<T>;
    type Arrived = Vec<T>;

    fn start(&mut self, value: T, options: &CopyOptions) -> Result<AllCopies<T>, CopyError<T>> {
        if self.to.is_empty() {
            return Err(nowhere(value));
        }
        if let Err(error) = self.check_consumers() {
            return Err(CopyError::new(error, Some(value)));
        }
        let copies = start_copy_to_all(value, &self.to, options.clone())?;
        let arrived = Vec::with_capacity(copies.len());
        Ok(AllCopies { copies: copies.into(), arrived, submitted_after: None })
    }

    fn finish(&self, mut copy: AllCopies<T>) -> (Result<Vec<T>, CopyError<T>>, Option<Duration>) {
        let mut consumers = self.consumers.iter().flatten();
        while let Some(next) = copy.copies.pop_front() {
            let completion = next.completion.clone();
            let waited = match consumers.next() {
                Some(stream) => next.wait_on(stream),
                None => next.wait(),
            };
            copy.submitted_after = copy.submitted_after.max(completion.metrics.submitted_after());
            match waited {
                Ok(value) => copy.arrived.push(value),
                // What has arrived elsewhere goes: the program asked for all of it.
                Err(error) => return (Err(error), copy.submitted_after),
            }
        }
        (Ok(copy.arrived), copy.submitted_after)
    }

    fn poll(copy: &mut AllCopies<T>, context: &mut Context<'_>) -> Poll<Result<Vec<T>, CopyError<T>>> {
        while let Some(next) = copy.copies.front_mut() {
            let Poll::Ready(copied) = Pin::new(&mut *next).poll(context) else { return Poll::Pending };
            copy.submitted_after = copy.submitted_after.max(next.completion.metrics.submitted_after());
            copy.copies.pop_front();
            match copied {
                Ok(value) => copy.arrived.push(value),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut copy.arrived)))
    }

    fn submitted_after(copy: &AllCopies<T>) -> Option<Duration> {
        copy.submitted_after
    }
}
