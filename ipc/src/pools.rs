//! The pools of device memory that an importer has.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use transship_core::backend::{ImportedPool, SharedPool};
use transship_core::{Device, DeviceId, DeviceUuid, Error};

use crate::error::{IpcError, broken};

/// An exporter may have so many devices.
const MOST_POOLS: usize = 64;

/// Pools of an exporter, one for each device, for one importer alone: that can see all of their memory.
#[derive(Default)]
pub(crate) struct Shared(Vec<(DeviceId, Arc<dyn SharedPool>)>);

impl Shared {
    /// The number of the pool of `device`, and the pool. A new one is told to the importer by `tell`, with its number, UUID and descriptor.
    pub(crate) fn of(
        &mut self,
        device: &Device,
        tell: impl FnOnce(u64, DeviceUuid, OwnedFd) -> Result<(), IpcError>,
    ) -> Result<(u64, Arc<dyn SharedPool>), IpcError> {
        let known = self.0.iter().position(|(id, _)| *id == device.id());
        if let Some((number, (_, pool))) = known.and_then(|number| Some((number, self.0.get(number)?))) {
            return Ok((number as u64, Arc::clone(pool)));
        }
        let (pool, number) = (device.backend().create_shared_pool()?, self.0.len() as u64);
        let uuid = uuid_of(device).ok_or(Error::Unsupported { device: device.id(), what: HAS_NO_UUID })?;
        tell(number, uuid, pool.export()?)?;
        self.0.push((device.id(), Arc::clone(&pool)));
        Ok((number, pool))
    }
}

const HAS_NO_UUID: &str =
    "share its memory with another process: its driver tells no UUID to know it by; copy to the host first";

/// Pools of another process.
#[derive(Default)]
pub(crate) struct Imported(Vec<(DeviceUuid, State)>);

enum State {
    Sent(OwnedFd),
    There(Arc<dyn ImportedPool>),
}

impl Imported {
    /// The exporter has one more.
    pub(crate) fn add(&mut self, number: u64, uuid: DeviceUuid, descriptor: OwnedFd) -> Result<(), IpcError> {
        if number != self.0.len() as u64 || self.0.len() >= MOST_POOLS {
            return Err(broken("an exporter has too many pools"));
        }
        self.0.push((uuid, State::Sent(descriptor)));
        Ok(())
    }

    /// The pool of this number, which is one of `device`. The first time it is imported.
    pub(crate) fn get(&mut self, number: u64, device: &Device) -> Result<Arc<dyn ImportedPool>, IpcError> {
        let known = usize::try_from(number).ok().and_then(|number| self.0.get_mut(number));
        let (theirs, state) = known.ok_or_else(|| broken("there is no such pool"))?;
        let descriptor = match &*state {
            State::There(pool) => return Ok(Arc::clone(pool)),
            State::Sent(descriptor) => descriptor.as_fd(),
        };
        let own = uuid_of(device);
        if own != Some(*theirs) {
            let own = own.map_or_else(|| "a device without one".to_owned(), |own| own.to_string());
            return Err(IpcError::OtherDevice { theirs: *theirs, device: device.id(), own });
        }
        let pool = device.backend().import_pool(descriptor)?;
        *state = State::There(Arc::clone(&pool));
        Ok(pool)
    }
}

fn uuid_of(device: &Device) -> Option<DeviceUuid> {
    device.backend().properties().ok()?.uuid
}

/// A UUID as a message has it.
pub(crate) fn words(uuid: DeviceUuid) -> [u64; 2] {
    let number = u128::from_be_bytes(uuid.0);
    [(number >> 64) as u64, number as u64]
}

/// The same read.
pub(crate) fn uuid([first, second]: [u64; 2]) -> DeviceUuid {
    DeviceUuid((u128::from(first) << 64 | u128::from(second)).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_number_are_it() {
        let number = DeviceUuid([0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(uuid(words(number)), number);
    }
}
