//! How much memory the process may use.

// The same in every execution of a model, which must not switch threads while a device is opened.
use std::sync::OnceLock;

/// The memory of the machine, or less where a container limits it, in bytes; `None` where that is not known. Asked once.
pub(crate) fn bytes() -> Option<usize> {
    static KNOWN: OnceLock<Option<usize>> = OnceLock::new();
    *KNOWN.get_or_init(|| machine().into_iter().chain(container()).min())
}

#[cfg(all(unix, not(miri)))]
fn machine() -> Option<usize> {
    // SAFETY: both ask for a number.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).ok()?.checked_mul(usize::try_from(page).ok()?).filter(|bytes| *bytes > 0)
}

#[cfg(not(all(unix, not(miri))))]
fn machine() -> Option<usize> {
    None
}

/// The least limit of the control groups that the process is in.
fn container() -> Option<usize> {
    if cfg!(any(not(target_os = "linux"), miri)) {
        return None;
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let limit = |file: String| std::fs::read_to_string(file).ok()?.trim().parse().ok();
    limit_files(&groups).into_iter().filter_map(limit).min()
}

/// The files that may hold a limit, where `groups` is what the system says of a process. A group is limited by those above it as well. In
/// a container the path may be one of the machine outside: then the topmost folder is its own.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut group = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{group}/{file}"));
            let Some((above, _)) = group.rsplit_once('/') else { break };
            group = above;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_above_is_asked() {
        assert_eq!(
            limit_files("0::/user.slice/job\n"),
            [
                "/sys/fs/cgroup/user.slice/job/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(limit_files("0::/"), ["/sys/fs/cgroup/memory.max"]);
    }

    #[test]
    fn the_older_layout_has_a_folder_for_memory() {
        let groups = "12:cpu,cpuacct:/a\n7:memory:/docker/b\n";
        assert_eq!(
            limit_files(groups),
            [
                "/sys/fs/cgroup/memory/docker/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
        assert!(limit_files("7:cpu:/a\nnonsense\n\n").is_empty());
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn the_machine_has_some() {
        assert!(bytes().is_some_and(|bytes| bytes > 64 << 20));
    }
}
