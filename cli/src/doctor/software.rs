//! Drivers, and the devices that must be there.

use transship::{Device, DeviceId};

use crate::drivers::DriverState;
use crate::finding::Check::{Device as DeviceCheck, Driver};
use crate::finding::{Finding, Level};
use crate::named;
use crate::system::{AMD, BusGpu, NVIDIA, System};

/// Looks at every driver, and for every device of `wanted` among those that are `there`.
pub(crate) fn check(
    system: &System,
    drivers: &[DriverState],
    there: &[DeviceId],
    wanted: &[DeviceId],
) -> Vec<Finding> {
    let gpus = system.gpus();
    let mut findings: Vec<Finding> = drivers.iter().map(|driver| of_driver(driver, &gpus)).collect();
    let answers = |id: &DeviceId| drivers.iter().all(|driver| driver.answers || driver.name != id.driver());
    let absent = wanted.iter().filter(|id| !there.contains(id));
    findings.extend(absent.map(|id| missing(*id, answers(id), there)));
    findings
}

fn of_driver(driver: &DriverState, gpus: &[BusGpu]) -> Finding {
    let gpu = gpus.iter().find(|gpu| drives(driver.name, gpu.vendor));
    let finding = match (&driver.missing, gpu) {
        (Some(silence), _) if !driver.answers => Finding::new(Level::Problem, Driver, silence.clone())
            .cure("look into the log of the system (dmesg); then reset the device or restart the machine; or allow more time (--timeout)"),
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

/// Why a device that must be there is not; its driver is only asked if it `answers`.
fn missing(id: DeviceId, answers: bool, there: &[DeviceId]) -> Finding {
    if !answers {
        return Finding::new(Level::Problem, DeviceCheck, "its driver does not answer")
            .of(id)
            .cure(format!("name another one; {}", named::are_there(there)));
    }
    let why = match Device::properties_of(id) {
        Ok(_) => "it is not listed".to_owned(),
        Err(error) => error.to_string(),
    };
    Finding::new(Level::Problem, DeviceCheck, why)
        .of(id)
        .cure(format!("name another one; {}", named::are_there(there)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn state(name: &'static str, compiled_in: bool, missing: Option<&str>) -> DriverState {
        DriverState { name, compiled_in, answers: true, devices: 0, missing: missing.map(str::to_owned) }
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

    #[test]
    fn a_driver_that_does_not_answer_is_a_problem_and_so_are_its_devices() {
        let drivers = [DriverState::silent("hip", true), state("cuda", true, Some("no libcuda"))];
        let ids = ["hip:0", "cuda:9999"].map(|name| name.parse().unwrap());
        let found = check(&System::new("/nowhere"), &drivers, &[], &ids);
        let of =
            |subject: &str| found.iter().find(|found| found.subject.as_deref() == Some(subject)).unwrap();
        assert_eq!((of("hip").level, of("cuda").level), (Level::Problem, Level::Note));
        assert!(of("hip").cure.is_some() && of("hip:0").what.contains("does not answer"));
        assert!(!of("cuda:9999").what.contains("does not answer"), "{}", of("cuda:9999").what);
    }
}
