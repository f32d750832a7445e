// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of an ended job that Slurm no longer tracks, such as daemons that the job started.
//!
//! They would keep GPU memory that Slurm has given to the next job. The plugin recognizes them by
//! variables that it set in their environment.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use super::task::GANG;

/// Slurm's variable with the name of a task's node.
const NODE: &str = "SLURMD_NODENAME";

/// Whether the process belongs to this user's job on this node. `proc` is the path of `/proc`.
/// `node` is the node's name, needed if several node daemons run on one machine.
pub fn belongs(proc: &Path, pid: u32, uid: u32, gang: &str, node: Option<&str>) -> bool {
    let folder = proc.join(pid.to_string());
    let Ok(environment) = fs::read(folder.join("environ")) else {
        return false;
    };
    let value = |name: &str| {
        let mut entries = environment.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let here = match (node, value(NODE)) {
        (Some(node), Some(told)) => told == node.as_bytes(),
        _ => true,
    };
    // Read last, and so for few processes: it costs the kernel more than the environment.
    let owned = || {
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        owner(&status) == Some(uid)
    };
    value(GANG) == Some(gang.as_bytes()) && here && owned()
}

/// All processes of this machine.
pub fn processes(proc: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The real user of a process, from the text of its status file.
fn owner(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc(test: &str) -> std::path::PathBuf {
        let place = std::env::temp_dir().join(format!("weft-slurm-{}-{test}", std::process::id()));
        let add = |pid: u32, uid: u32, environment: &str| {
            let folder = place.join(pid.to_string());
            fs::create_dir_all(&folder).expect("made");
            let status = format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
            fs::write(folder.join("status"), status).expect("written");
            fs::write(folder.join("environ"), environment).expect("written");
        };
        add(10, 7, "HOME=/\0WEFT_GANG=slurm-5\0SLURMD_NODENAME=n1\0");
        add(11, 8, "WEFT_GANG=slurm-5\0SLURMD_NODENAME=n1\0");
        add(12, 7, "WEFT_GANG=slurm-50\0SLURMD_NODENAME=n1\0");
        add(13, 7, "WEFT_GANG=slurm-5\0SLURMD_NODENAME=n2\0");
        add(14, 7, "X_WEFT_GANG=slurm-5\0");
        add(15, 7, "");
        fs::create_dir_all(place.join("self")).expect("made");
        place
    }

    #[test]
    fn only_the_users_processes_of_that_job_on_that_node_are_left_over() {
        let proc = proc("some");
        let mut all = processes(&proc);
        all.sort_unstable();
        assert_eq!(all, [10, 11, 12, 13, 14, 15]);
        let found = |uid, gang, node| {
            let mut found = all.clone();
            found.retain(|pid| belongs(&proc, *pid, uid, gang, node));
            found
        };
        assert_eq!(found(7, "slurm-5", Some("n1")), [10]);
        assert_eq!(found(7, "slurm-5", None), [10, 13]);
        assert_eq!(found(8, "slurm-5", Some("n1")), [11]);
        assert_eq!(found(9, "slurm-5", Some("n1")), [0u32; 0]);
        assert!(!belongs(&proc, 99, 7, "slurm-5", None), "it is gone");
        let _ = fs::remove_dir_all(proc);
    }
}
