//! How much host memory there is to spare, for what is moved off devices.
#![forbid(unsafe_code)]

use std::path::Path;

/// Bytes that the host has to spare now: what the system calls available, and no more than what is left of the caller's control group, where it has a limit. Of a broker's jobs, those in groups
/// of their own may have less; their driver says so then.
pub fn available() -> u64 {
    let system = std::fs::read_to_string("/proc/meminfo").ok();
    let system = system.as_deref().and_then(mem_available);
    let own = std::fs::read_to_string("/proc/self/cgroup").ok();
    let group = own
        .as_deref()
        .and_then(|own| left_of_group(own, Path::new("/sys/fs/cgroup")));
    // Where the system does not say, the driver will.
    system.unwrap_or(u64::MAX / 2).min(group.unwrap_or(u64::MAX / 2))
}

/// Bytes of the host's memory. Where the system does not say, more than any has.
pub fn total() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let total = text.as_deref().and_then(|text| figure(text, "MemTotal:"));
    total.unwrap_or(1 << 44)
}

fn mem_available(text: &str) -> Option<u64> {
    figure(text, "MemAvailable:")
}

fn figure(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// What is left of the tightest limit on the way from the group to the root (control groups of version 2).
fn left_of_group(own: &str, root: &Path) -> Option<u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(path);
    let read = |folder: &Path, file: &str| {
        std::fs::read_to_string(folder.join(file))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let folders = group.ancestors().take_while(|folder| folder.starts_with(root));
    // `max` is no number: no limit.
    let left = folders.filter_map(|folder| {
        let limit = read(folder, "memory.max")?;
        Some(limit.saturating_sub(read(folder, "memory.current").unwrap_or(0)))
    });
    left.min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       16 kB\nMemAvailable:   12 kB\n";
        assert_eq!(mem_available(text), Some(12 * 1024));
        assert_eq!(mem_available("MemTotal: 16 kB"), None);
        assert!(available() > 0 && total() > available());
    }

    #[test]
    fn the_tightest_limit_on_the_way_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let own = "1:name=x:/other\n0::/a/b\n";
        assert_eq!(left_of_group(own, root.path()), None);
        let write = |folder: &str, limit: &str, current: &str| {
            fs::write(root.path().join(folder).join("memory.max"), limit).unwrap();
            fs::write(root.path().join(folder).join("memory.current"), current).unwrap();
        };
        write("a/b", "max\n", "10\n");
        assert_eq!(left_of_group(own, root.path()), None);
        write("a", "100\n", "30\n");
        assert_eq!(left_of_group(own, root.path()), Some(70));
        write("a/b", "50\n", "60\n");
        assert_eq!(left_of_group(own, root.path()), Some(0), "more than it may have");
        assert_eq!(left_of_group("1:memory:/a", root.path()), None);
    }
}
