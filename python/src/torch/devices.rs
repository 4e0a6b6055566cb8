//! Devices of PyTorch's. Most calls ask for the same one, which takes 10 us to make.

use parking_lot::Mutex;
use pyo3::prelude::*;

use super::Torch;
use crate::place::Place;

/// What was asked for last. Who finds a lock taken makes his own.
#[derive(Default)]
pub struct Devices {
    given: Mutex<Option<Given>>,
    at: Mutex<Option<(Place, Py<PyAny>)>>,
}

/// What names a device, and never another one.
struct Given {
    object: Py<PyAny>,
    /// A `torch.device`.
    device: Py<PyAny>,
    place: Option<Place>,
}

impl Torch {
    /// `torch.device(device)`, with its errors, and where that is: the current device of its kind, if it names none. `None` if the library has no such device.
    pub fn device<'py>(&self, device: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Option<Place>)> {
        let py = device.py();
        if let Some(Some(given)) = self.devices.given.try_lock().as_deref()
            && given.object.is(device)
        {
            return Ok((given.device.bind(py).clone(), given.place));
        }
        let made = self.module.bind(py).getattr("device")?.call1((device,))?;
        let place = self.place_of(&made)?;
        if place == Some(Place::Host) || !made.getattr("index")?.is_none() {
            let given = Given { object: device.clone().unbind(), device: made.clone().unbind(), place };
            let before = self.devices.given.try_lock().and_then(|mut last| last.replace(given));
            drop(before);
        }
        Ok((made, place))
    }

    /// The `torch.device` of a place.
    pub fn device_at<'py>(&self, py: Python<'py>, place: Place) -> PyResult<Bound<'py, PyAny>> {
        if let Some(Some((at, device))) = self.devices.at.try_lock().as_deref()
            && *at == place
        {
            return Ok(device.bind(py).clone());
        }
        let device = self.module.bind(py).getattr("device")?.call1((self.name_of(place),))?;
        let at = (place, device.clone().unbind());
        let before = self.devices.at.try_lock().and_then(|mut last| last.replace(at));
        drop(before);
        Ok(device)
    }

    /// Where a `torch.device` is; the current device of its kind, if it names none. `None` if the library has no such device.
    pub fn place_of(&self, device: &Bound<'_, PyAny>) -> PyResult<Option<Place>> {
        let kind: String = device.getattr("type")?.extract()?;
        match kind.as_str() {
            "cpu" => Ok(Some(Place::Host)),
            "cuda" => {
                let index: Option<i32> = device.getattr("index")?.extract()?;
                let index = match index {
                    Some(index) => index,
                    None => self
                        .module
                        .bind(device.py())
                        .getattr("cuda")?
                        .call_method0("current_device")?
                        .extract()?,
                };
                Ok(Some(self.device_of_number(index)))
            }
            _ => Ok(None),
        }
    }

    /// The place that PyTorch calls the device of CUDA of this number.
    pub fn device_of_number(&self, number: i32) -> Place {
        if self.is_rocm { Place::Hip(number) } else { Place::Cuda(number) }
    }

    /// As PyTorch writes it.
    pub fn name_of(&self, place: Place) -> String {
        match place {
            Place::Host => "cpu".to_owned(),
            Place::Cuda(number) | Place::Hip(number) => format!("cuda:{number}"),
        }
    }
}
