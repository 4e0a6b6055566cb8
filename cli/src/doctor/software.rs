//! Drivers, and the devices that must be there.

use transship::{Device, DeviceId};

use crate::drivers::{self, DriverState};
use crate::finding::Check::{Device as DeviceCheck, Driver};
use crate::finding::{Finding, Level};
use crate::named;
use crate::system::{AMD, BusGpu, NVIDIA, System};

/// Looks at every driver, and for every device of `wanted`.
pub(crate) fn check(system: &System, wanted: &[DeviceId]) -> Vec<Finding> {
    let gpus = system.gpus();
    let mut findings: Vec<Finding> = drivers::all().iter().map(|driver| of_driver(driver, &gpus)).collect();
    let there = Device::list();
    findings.extend(wanted.iter().filter(|id| !there.contains(id)).map(|id| missing(*id)));
    findings
}

fn of_driver(driver: &DriverState, gpus: &[BusGpu]) -> Finding {
    let gpu = gpus.iter().find(|gpu| drives(driver.name, gpu.vendor));
    let finding = match (&driver.missing, gpu) {
        (None, _) => {
            let plural = if driver.devices == 1 { "" } else { "s" };
            Finding::new(Level::Ok, Driver, format!("{} device{plural}", driver.devices))
        }
        (Some(missing), Some(gpu)) => {
            // CUDA is the only one that drives every GPU of its vendor.
            let level = match (driver.compiled_in, driver.name) {
                (false, _) => Level::Note,
                (true, "cuda") => Level::Problem,
                (true, _) => Level::Warning,
            };
            let what = format!("{missing}; there is a GPU for it on the bus at {}", gpu.address);
            Finding::new(level, Driver, what).cure(cure(driver))
        }
        (Some(missing), None) => Finding::new(Level::Note, Driver, missing.clone()),
    };
    finding.of(driver.name)
}

/// Whether a driver may be one for GPUs of a vendor.
fn drives(driver: &str, vendor: u32) -> bool {
    match driver {
        "cuda" => vendor == NVIDIA,
        "hip" => vendor == AMD,
        "wgpu" => true,
        _ => false,
    }
}

fn cure(driver: &DriverState) -> String {
    match (driver.compiled_in, driver.name) {
        (false, name) => format!("cargo install transship-cli --features {name}"),
        (true, "cuda") => {
            "install NVIDIA's driver; in a container, start it with the GPU (docker run --gpus all)"
                .to_owned()
        }
        (true, "hip") => {
            "install ROCm's HIP runtime; in a container, hand it /dev/kfd and /dev/dri".to_owned()
        }
        (true, _) => {
            "install a Vulkan driver for it (Debian: mesa-vulkan-drivers, or that of NVIDIA's driver)"
                .to_owned()
        }
    }
}

/// Why a device that must be there is not.
fn missing(id: DeviceId) -> Finding {
    let why = match Device::properties_of(id) {
        Ok(_) => "it is not listed".to_owned(),
        Err(error) => error.to_string(),
    };
    Finding::new(Level::Problem, DeviceCheck, why)
        .of(id)
        .cure(format!("name another one; {}", named::all_that_are_there()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: &'static str, compiled_in: bool, missing: Option<&str>) -> DriverState {
        DriverState { name, compiled_in, devices: 0, missing: missing.map(str::to_owned) }
    }

    #[test]
    fn a_driver_is_missed_where_there_is_a_gpu_for_it() {
        let gpu = |vendor| [BusGpu { address: "0000:01:00.0".to_owned(), vendor }];
        let level = |driver: &DriverState, gpus: &[BusGpu]| of_driver(driver, gpus).level;
        let cuda = state("cuda", true, Some("no libcuda"));
        assert_eq!(level(&cuda, &gpu(NVIDIA)), Level::Problem);
        assert!(of_driver(&cuda, &gpu(NVIDIA)).what.contains("no libcuda"));
        assert_eq!((level(&cuda, &gpu(AMD)), level(&cuda, &[])), (Level::Note, Level::Note));
        assert_eq!(level(&state("cuda", false, Some("left out")), &gpu(NVIDIA)), Level::Note);
        assert_eq!(level(&state("hip", true, Some("no runtime")), &gpu(AMD)), Level::Warning);
        assert_eq!(level(&state("cuda", true, None), &gpu(NVIDIA)), Level::Ok);
    }
}
