//! How much memory the process may use.

// The same in every execution of a model, which must not switch threads while a device is opened.
use std::sync::OnceLock;

/// The memory of the machine, or less where a container limits it, in bytes; `None` where that is not known. Asked once.
pub(crate) fn bytes() -> Option<usize> {
    static KNOWN: OnceLock<Option<usize>> = OnceLock::new();
    *KNOWN.get_or_init(|| machine().into_iter().chain(container()).min())
}

/// How many bytes of [`bytes`] nobody uses, now; `None` where that is not known. What the system would drop for others at once, such as files
/// that it has cached, counts as free.
pub(crate) fn free_bytes() -> Option<u64> {
    if cfg!(any(not(target_os = "linux"), miri)) {
        return None;
    }
    let available =
        std::fs::read_to_string("/proc/meminfo").ok().and_then(|all| figure(&all, "MemAvailable:"));
    let machine = available.map(|kibibytes| kibibytes.saturating_mul(1024));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(limit_files(&groups).iter().filter_map(|file| free_below(file))).min()
}

/// What is left of the limit that a file has.
fn free_below(limit_file: &str) -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let limit: u64 = read(limit_file)?.trim().parse().ok()?;
    let (folder, name) = limit_file.rsplit_once('/')?;
    let (usage, cached) = match name {
        "memory.max" => ("memory.current", "inactive_file"),
        _ => ("memory.usage_in_bytes", "total_inactive_file"),
    };
    let used: u64 = read(&format!("{folder}/{usage}"))?.trim().parse().ok()?;
    let cached = read(&format!("{folder}/memory.stat")).and_then(|all| figure(&all, cached)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The number behind a word at the start of a line.
fn figure(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut line = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    line.next()?.parse().ok()
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
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
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
        assert!(free_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    #[cfg(not(miri))]
    fn what_a_group_has_cached_is_free() {
        let folder = std::env::temp_dir().join(format!("transship-group-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        file("memory.max", "1000\n");
        file("memory.current", "700\n");
        let limit = folder.join("memory.max").to_str().unwrap().to_owned();
        assert_eq!(free_below(&limit), Some(300));
        file("memory.stat", "anon 500\ninactive_file 150\n");
        assert_eq!(free_below(&limit), Some(450));
        file("memory.max", "max\n");
        assert_eq!(free_below(&limit), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn figures_are_found_by_their_whole_name() {
        let text = "MemTotal:       24684084 kB\nMemAvailable:   24212452 kB\ninactive_file 7\n";
        assert_eq!(figure(text, "MemAvailable:"), Some(24_212_452));
        assert_eq!((figure(text, "inactive_file"), figure(text, "file")), (Some(7), None));
    }
}
