// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spare host memory for pages that are moved off devices.
//!
//! Evicted managed pages are charged to the control group of their process, and the kernel kills a
//! process over its limit. The job's side reads the groups, because only its paths are right in a
//! container.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// Host memory that this process could have now, bytes.
pub fn available() -> u64 {
    of_system().min(left_of_groups().unwrap_or(u64::MAX / 2))
}

/// Bytes that the machine has available.
pub fn of_system() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").ok();
    // Unknown: the driver will refuse.
    text.as_deref().and_then(mem_available).unwrap_or(u64::MAX / 2)
}

/// Host memory in all, bytes; if unknown, more than any machine has.
pub fn total() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").ok();
    let total = text.as_deref().and_then(|text| figure(text, "MemTotal:"));
    total.unwrap_or(1 << 44)
}

/// Bytes that this process's control groups leave it; `None`: no visible limit.
pub fn left_of_groups() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let root = Path::new("/sys/fs/cgroup");
    left_of(&own, root, &root.join("memory"))
}

/// No limit from here on: version 1 writes nearly 2^63.
const NONE: u64 = 1 << 60;

fn mem_available(text: &str) -> Option<u64> {
    figure(text, "MemAvailable:")
}

fn figure(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Least rest of the process's group and the groups above it, bytes. `own`: text of
/// `/proc/PID/cgroup`; `second`, `first`: roots of version 2 and of version 1's memory groups.
fn left_of(own: &str, second: &Path, first: &Path) -> Option<u64> {
    let lines = own.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, files): (_, &Files) = match controllers {
            "" => (second, &SECOND),
            _ if controllers.split(',').any(|name| name == "memory") => (first, &FIRST),
            _ => return None,
        };
        least(root, path, files)
    });
    lines.min()
}

/// Files of one version of control groups.
struct Files {
    /// Limits that kill a group, or (`memory.high`) throttle it to a standstill.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Line of `memory.stat` with the pages reclaimed first.
    reclaimable: &'static str,
}

const SECOND: Files = Files {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: "inactive_file ",
};

const FIRST: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

fn least(root: &Path, path: &str, files: &Files) -> Option<u64> {
    // A container may see the host's path: its own group is then the root.
    let group: PathBuf = root.join(path.trim_start_matches('/'));
    let folders = group.ancestors().take_while(|folder| folder.starts_with(root));
    folders.filter_map(|folder| left(folder, files)).min()
}

fn left(folder: &Path, files: &Files) -> Option<u64> {
    let read = |file: &str| -> Option<u64> { fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok() };
    // `max` is not a number: there is no limit.
    let limits = files.limits.iter().filter_map(|file| read(file));
    let limit = limits.min().filter(|limit| *limit < NONE)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(files.reclaimable));
    let cached = cached.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    let used = read(files.usage).unwrap_or(0).saturating_sub(cached);
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       16 kB\nMemAvailable:   12 kB\n";
        assert_eq!(mem_available(text), Some(12 * 1024));
        assert_eq!(mem_available("MemTotal: 16 kB"), None);
        assert!(available() > 0 && total() > available() && of_system() >= available());
    }

    #[test]
    fn the_tightest_limit_on_the_way_counts() {
        let root = tempfile::tempdir().unwrap();
        let first = root.path().join("memory");
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let own = "1:name=x:/other\n0::/a/b\n";
        let left = |own: &str| left_of(own, root.path(), &first);
        assert_eq!(left(own), None);
        let write = |folder: &str, limit: &str, current: &str| {
            fs::write(root.path().join(folder).join("memory.max"), limit).unwrap();
            fs::write(root.path().join(folder).join("memory.current"), current).unwrap();
        };
        write("a/b", "max\n", "10\n");
        assert_eq!(left(own), None);
        write("a", "100\n", "30\n");
        assert_eq!(left(own), Some(70));
        // Throttling limits count; inactive file pages do not.
        fs::write(root.path().join("a/memory.high"), "80\n").unwrap();
        assert_eq!(left(own), Some(50));
        fs::write(
            root.path().join("a/memory.stat"),
            "anon 7\ninactive_file 20\nactive_file 9\n",
        )
        .unwrap();
        assert_eq!(left(own), Some(70));
        write("a/b", "50\n", "60\n");
        assert_eq!(left(own), Some(0), "more than it may have");
    }

    #[test]
    fn groups_of_the_first_version_count_as_well() {
        let root = tempfile::tempdir().unwrap();
        let first = root.path().join("memory");
        let group = first.join("slurm/job_7");
        fs::create_dir_all(&group).unwrap();
        let own = "9:name=systemd:/\n4:cpuacct,memory:/slurm/job_7\n0::/\n";
        let left = |own: &str| left_of(own, root.path(), &first);
        let write = |folder: &Path, limit: &str, usage: &str| {
            fs::write(folder.join("memory.limit_in_bytes"), limit).unwrap();
            fs::write(folder.join("memory.usage_in_bytes"), usage).unwrap();
        };
        write(&first, "9223372036854771712\n", "900\n");
        assert_eq!(left(own), None, "nothing was set");
        write(&first.join("slurm"), "1000\n", "400\n");
        assert_eq!(left(own), Some(600));
        write(&group, "500\n", "100\n");
        fs::write(group.join("memory.stat"), "inactive_file 1\ntotal_inactive_file 30\n").unwrap();
        assert_eq!(left(own), Some(430));
        // The path is the host's, the own group at the root.
        write(&first, "300\n", "100\n");
        assert_eq!(left("4:memory:/docker/0123abcd\n"), Some(200));
    }
}
