//! Devices by the names that programs give them.

use pyo3::prelude::*;
use transship::{DeviceId, Error, ParseDeviceIdError};

use crate::errors;
use crate::place::Place;
use crate::torch::Torch;

const HOLDS_NONE: &str = "hold tensors of Python; name \"cpu\", or a device such as \"cuda:0\"";

/// Where the device of this name is.
pub fn place_of(py: Python<'_>, device: &str) -> PyResult<Place> {
    let error = |error: Error| errors::of(py, &error);
    let id: DeviceId = device.parse().map_err(|failed: ParseDeviceIdError| error(failed.into()))?;
    let unsupported = Error::Unsupported { device: id, what: HOLDS_NONE };
    match Place::of_id(id).ok_or_else(|| error(unsupported))? {
        // PyTorch for ROCm calls devices of HIP so, and programs as it does.
        Place::Cuda(number) => {
            Ok(Torch::loaded(py)?.map_or(Place::Cuda(number), |torch| torch.device_of_number(number)))
        }
        place => Ok(place),
    }
}

/// The same, of a device that is there: PyTorch, whose memory results lie in, says less of one that is not.
pub fn opened(py: Python<'_>, device: &str) -> PyResult<Place> {
    let place = place_of(py, device)?;
    let is_there =
        place == Place::Host || place.opened().map_err(|failed| errors::of(py, &failed))?.is_some();
    // The GIL is let go of for the first copy alone: another thread may keep it for milliseconds.
    if !is_there {
        py.detach(|| place.device()).map_err(|failed| errors::of(py, &failed))?;
    }
    Ok(place)
}
