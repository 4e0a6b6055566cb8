//! The files that drivers open, and whether this user may.

use crate::finding::{Check, Finding, Level};
use crate::system::{AMD, NVIDIA, System};

/// What programs need to open, beside the file of each GPU.
const OF_NVIDIA: [&str; 2] = ["nvidiactl", "nvidia-uvm"];

/// Looks at the files of NVIDIA's and AMD's drivers, where there is a GPU of theirs, and at those of the kernel for GPUs.
pub(crate) fn check(system: &System) -> Vec<Finding> {
    let mut findings = nvidia(system);
    findings.extend(amd(system));
    findings.extend(system.names("dev/dri").iter().filter(|name| name.starts_with("renderD")).map(|name| {
        let group = "add the user to the group that the file belongs to (render or video), and log in again";
        access(system, &format!("dev/dri/{name}"), group)
    }));
    findings
}

fn nvidia(system: &System) -> Vec<Finding> {
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let gpus: Vec<String> = system.names("dev").into_iter().filter(|name| is_gpu(name)).collect();
    if gpus.is_empty() {
        let cure = "load the kernel module (modprobe nvidia); in a container, start it with the GPU (docker run --gpus all)";
        return none_for(system, NVIDIA, "/dev/nvidia0", Level::Problem, cure).into_iter().collect();
    }
    let files = OF_NVIDIA.into_iter().map(str::to_owned).chain(gpus);
    let cure = "nvidia-modprobe -c 0 -u as root makes the files; chmod a+rw lets everybody use them";
    files.map(|name| access(system, &format!("dev/{name}"), cure)).collect()
}

fn amd(system: &System) -> Option<Finding> {
    match system.path("dev/kfd").exists() {
        true => {
            let cure = "add the user to the groups render and video, and log in again";
            Some(access(system, "dev/kfd", cure))
        }
        // Not every GPU of AMD is one for ROCm.
        false => {
            let cure = "load the kernel module amdgpu; in a container, hand it the file (--device /dev/kfd)";
            none_for(system, AMD, "/dev/kfd", Level::Warning, cure)
        }
    }
}

/// There is no such file, although there is a GPU.
fn none_for(system: &System, vendor: u32, file: &str, level: Level, cure: &str) -> Option<Finding> {
    let gpu = system.gpus().into_iter().find(|gpu| gpu.vendor == vendor)?;
    let what = format!("it is not there, but a GPU on the bus at {}", gpu.address);
    Some(Finding::new(level, Check::DeviceFile, what).of(file).cure(cure))
}

fn access(system: &System, file: &str, cure: &str) -> Finding {
    let shown = format!("/{file}");
    match may_open(system, file) {
        Ok(()) => Finding::new(Level::Ok, Check::DeviceFile, "may be read and written").of(shown),
        Err(reason) => Finding::new(Level::Problem, Check::DeviceFile, reason).of(shown).cure(cure),
    }
}

#[cfg(unix)]
fn may_open(system: &System, file: &str) -> Result<(), String> {
    use rustix::fs::Access;
    let both = Access::READ_OK | Access::WRITE_OK;
    rustix::fs::access(system.path(file), both).map_err(|error| std::io::Error::from(error).to_string())
}

#[cfg(not(unix))]
fn may_open(_: &System, _: &str) -> Result<(), String> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::system::tests::system;

    fn levels(files: &[(&str, &str)]) -> Vec<(String, Level)> {
        let (_root, system) = system(files);
        check(&system).into_iter().map(|found| (found.subject.unwrap_or_default(), found.level)).collect()
    }

    #[test]
    fn a_file_that_is_missing_is_a_problem_where_there_is_a_gpu() {
        assert_eq!(levels(&[]), []);
        let of_nvidia = [
            ("sys/bus/pci/devices/0000:01:00.0/class", "0x030000"),
            ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de"),
        ];
        assert_eq!(levels(&of_nvidia), [("/dev/nvidia0".to_owned(), Level::Problem)]);
        let without_uvm = [("dev/nvidia0", ""), ("dev/nvidiactl", ""), ("dev/nvidia-caps/x", "")];
        let expected =
            [("/dev/nvidiactl", Level::Ok), ("/dev/nvidia-uvm", Level::Problem), ("/dev/nvidia0", Level::Ok)];
        assert_eq!(levels(&without_uvm), expected.map(|(file, level)| (file.to_owned(), level)));
    }

    #[test]
    fn files_of_amd_and_of_the_kernel_are_looked_at() {
        let found = levels(&[("dev/kfd", ""), ("dev/dri/renderD128", ""), ("dev/dri/card0", "")]);
        assert_eq!(
            found,
            [("/dev/kfd".to_owned(), Level::Ok), ("/dev/dri/renderD128".to_owned(), Level::Ok)]
        );
    }
}
