//! What a case works with.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use late_backend::LateHandle;
use libtest_mimic::Failed;
use transship::{
    CopyHandle, CopyOptions, CopyPolicy, CopyReport, DType, Device, Error, Tensor, TensorTree,
    for_each_tensor, start_copy,
};

use crate::backends::{Backend, Devices};
use crate::data::{Contents, Random, assert_same};

/// So long a case tries to copy to a device that others keep busy.
const MOST_BUSY: Duration = Duration::from_secs(10);

/// The device under test, and what belongs to it.
pub(crate) struct Bed {
    /// The device under test.
    pub(crate) device: Device,
    /// The other end of most copies.
    pub(crate) host: Device,
    second: Option<Device>,
    late: Option<LateHandle>,
    random: Mutex<Random>,
}

/// A structure that went to the device and came back.
pub(crate) struct Trip<S> {
    pub(crate) value: S,
    pub(crate) up: CopyReport,
    pub(crate) down: CopyReport,
}

impl Bed {
    pub(crate) fn new(backend: &Backend, case: usize, seed: u64) -> Result<Self, Failed> {
        let Devices { first, second, late } = backend.open(case)?;
        let random = Mutex::new(Random::new(seed));
        Ok(Self { device: first, host: Device::host(), second, late, random })
    }

    /// The second device, in cases that need one.
    pub(crate) fn second(&self) -> Result<&Device, Failed> {
        self.second.as_ref().ok_or_else(|| Failed::from("there is no second device"))
    }

    /// The device under test with pools and copy streams of its own, for cases that change or count those.
    pub(crate) fn private(&self) -> Result<Device, Failed> {
        Ok(Device::from_backend(self.device.backend().clone())?)
    }

    /// The same with devices whose pools and copy streams no other case uses, for cases that say which way a copy takes.
    pub(crate) fn alone(&self) -> Result<Self, Failed> {
        let second = self.second.as_ref().map(|second| Device::from_backend(second.backend().clone()));
        Ok(Self {
            device: self.private()?,
            host: self.host.clone(),
            second: second.transpose()?,
            late: self.late.clone(),
            random: Mutex::new(Random::new(self.random().next())),
        })
    }

    /// Options under which every tensor is copied: on the host all of them are there already.
    pub(crate) fn options(&self) -> CopyOptions {
        let always = self.device.is_host();
        CopyOptions::default().policy(if always { CopyPolicy::Always } else { CopyPolicy::IfNeeded })
    }

    /// A tensor on the host with random elements.
    pub(crate) fn tensor(&self, dtype: DType, shape: &[usize]) -> Tensor {
        self.random().tensor(dtype, shape)
    }

    /// So many random bytes on the host.
    pub(crate) fn bytes(&self, count: usize) -> Tensor {
        self.tensor(DType::U8, &[count])
    }

    /// Small tensors of all types.
    pub(crate) fn batch(&self, count: usize) -> Vec<Tensor> {
        let dtypes = DType::ALL.iter().copied().cycle();
        dtypes.take(count).enumerate().map(|(index, dtype)| self.tensor(dtype, &[index % 7 + 1, 3])).collect()
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a copy. Other cases use the same device: one that must not wait may find it [busy](Error::Busy) for a while,
    /// and tries again.
    pub(crate) fn start<S: TensorTree>(
        &self,
        mut value: S,
        to: &Device,
        options: CopyOptions,
    ) -> Result<CopyHandle<S>, Failed> {
        let begin = Instant::now();
        loop {
            match start_copy(value, to, options.clone()) {
                Err(refused)
                    if matches!(refused.error(), Error::Busy { .. }) && begin.elapsed() < MOST_BUSY =>
                {
                    value = refused.into_value().ok_or("a busy device keeps the structure")?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                started => return Ok(started?),
            }
        }
    }

    /// Copies `value` to `to` and waits for it.
    pub(crate) fn copy<S: TensorTree>(
        &self,
        value: S,
        to: &Device,
        options: CopyOptions,
    ) -> Result<(S, CopyReport), Failed> {
        let (mut value, report) = self.start(value, to, options)?.wait_with_report()?;
        for_each_tensor(&mut value, |tensor| {
            assert_eq!(tensor.device_id()?, to.id());
            assert!(tensor.is_ready()?, "a tensor that was waited for is not ready");
            Ok(())
        })?;
        let routes = [report.packed, report.alone, report.resident, report.aliased, report.empty];
        assert_eq!(routes.iter().sum::<usize>(), report.leaves, "the report does not add up: {report}");
        Ok((value, report))
    }

    /// Copies `value` to the device.
    pub(crate) fn up<S: TensorTree>(&self, value: S) -> Result<S, Failed> {
        Ok(self.copy(value, &self.device, self.options())?.0)
    }

    /// Copies `value` to the host.
    pub(crate) fn down<S: TensorTree>(&self, value: S) -> Result<S, Failed> {
        Ok(self.copy(value, &self.host, self.options())?.0)
    }

    /// Copies `value` to the device and back, and compares every tensor.
    pub(crate) fn round_trip<S: TensorTree>(
        &self,
        mut value: S,
        options: CopyOptions,
    ) -> Result<Trip<S>, Failed> {
        let before = Contents::of_all(&mut value);
        let (there, up) = self.copy(value, &self.device, options.clone())?;
        let (mut value, down) = self.copy(there, &self.host, options)?;
        assert_same(&before, &Contents::of_all(&mut value));
        Ok(Trip { value, up, down })
    }

    /// A round trip of a small batch: the proof that the device still works.
    pub(crate) fn still_works(&self) -> Result<(), Failed> {
        self.round_trip(self.batch(20), self.options()).map(|_| ())
    }

    /// Keeps the device from making progress until the guard goes, where it can be told to (a simulated one can).
    pub(crate) fn hold(&self) -> Hold<'_> {
        if let Some(late) = &self.late {
            late.stall();
        }
        Hold { late: self.late.as_ref(), writes: self.device.limits().largest_open > 0 }
    }

    /// Waits until nothing is in flight, and looks for what a simulated device has found fault with.
    pub(crate) fn finish(&self) -> Result<(), Failed> {
        let devices = || [Some(&self.device), self.second.as_ref()].into_iter().flatten();
        let Some(late) = &self.late else {
            // Other cases use the device as well: their memory is left alone.
            return Ok(devices().try_for_each(Device::synchronize)?);
        };
        late.release();
        devices().try_for_each(Device::drain)?;
        devices().try_for_each(Device::synchronize)?;
        late.clear_calls();
        match late.violations() {
            none if none.is_empty() => Ok(()),
            found => Err(format!("breaches of the contract of the seam: {found:?}").into()),
        }
    }

    /// What breaches a simulated device reports, for a look at the end of the program.
    pub(crate) fn late(&self) -> Option<LateHandle> {
        self.late.clone()
    }
}

/// While it lives, a simulated device stands still.
pub(crate) struct Hold<'a> {
    late: Option<&'a LateHandle>,
    /// The host writes small tensors to where they go, whatever the device does.
    writes: bool,
}

impl Hold<'_> {
    /// Whether copies really stand still, small ones to the device included.
    pub(crate) fn holds(&self) -> bool {
        self.late.is_some() && !self.writes
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(late) = self.late {
            late.release();
        }
    }
}

/// Waits until `holds`; fails after a time that is long for any machine.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), Failed> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("{what}: not within 30 seconds").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
