// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Kubernetes names of clients' containers.
//!
//! The kernel shows the container of a process in `/proc/PID/cgroup`. A job cannot change the outer
//! part of that path. The kubelet links the log of each container in a folder, and the link's name
//! has the names and the id: `POD_NAMESPACE_CONTAINER-ID.log`. Its pod-resources API has the names
//! without any id, so it cannot name the container of a process.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use super::registry::Entry;
use weft_api::status::PodContainer;

/// Variable with the kubelet's folder of links to containers' logs. Without it pods are not looked
/// up.
const VARIABLE: &str = "WEFT_CONTAINER_LOGS";

/// Letters of a container's id.
const ID_LETTERS: usize = 64;

/// Longest name of a pod, characters; others are shorter.
const LONGEST_NAME: usize = 253;

/// Most names read from the folder. The kubelet's own limit is 110 pods of a node by default.
const MOST_LINKS: usize = 10_000;

/// The names of the containers of this node.
#[derive(Debug, Clone, Default)]
pub struct PodNames {
    folder: Option<PathBuf>,
}

impl PodNames {
    /// The names in the folder that the environment gives.
    pub fn of_environment() -> PodNames {
        let folder = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
        PodNames {
            folder: folder.map(PathBuf::from),
        }
    }

    /// Whether pods are looked up.
    pub fn are_known(&self) -> bool {
        self.folder.is_some()
    }

    /// Ids of the containers that a process is in, the outermost first. Empty if pods are not
    /// looked up.
    pub fn containers_of(&self, pid: u32) -> Vec<String> {
        if !self.are_known() {
            return Vec::new();
        }
        ids(&fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default())
    }

    /// Names the containers of these clients that have no name yet. The folder is read only if
    /// there is such a client.
    pub fn name(&self, entries: &[Arc<Entry>]) {
        let is_open = |entry: &&Arc<Entry>| entry.pod.get().is_none() && !entry.containers.is_empty();
        if !entries.iter().any(|entry| is_open(&entry)) {
            return;
        }
        let links = self.links();
        for entry in entries.iter().filter(is_open) {
            if let Some(found) = entry.containers.iter().find_map(|id| links.get(id)) {
                let _ = entry.pod.set(found.clone());
            }
        }
    }

    /// The containers by id.
    fn links(&self) -> HashMap<String, PodContainer> {
        let files = self.folder.iter().flat_map(fs::read_dir).flatten().flatten();
        let names = files
            .take(MOST_LINKS)
            .filter_map(|file| file.file_name().into_string().ok());
        names.filter_map(|name| of_link(&name)).collect()
    }
}

/// Ids of containers in the text of `/proc/PID/cgroup`, the outermost first.
///
/// A runtime ends the container's part of the path with the id: `cri-containerd-ID.scope`,
/// `crio-ID.scope`, `docker-ID.scope`, or the id alone. A user of the node who is in no container
/// may name own groups like that, all below `user.slice`.
fn ids(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        let own = path.split('/').take_while(|part| *part != "user.slice");
        for word in own.flat_map(|part| part.split(|letter: char| !letter.is_ascii_alphanumeric())) {
            if is_id(word) && !found.iter().any(|id| id == word) {
                found.push(word.to_string());
            }
        }
    }
    found
}

fn is_id(word: &str) -> bool {
    word.len() == ID_LETTERS && word.bytes().all(|letter| matches!(letter, b'0'..=b'9' | b'a'..=b'f'))
}

/// A container's id and names, from the name of the link to its log. The kubelet cuts names of more
/// than 255 bytes; such a container stays without names.
fn of_link(name: &str) -> Option<(String, PodContainer)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut parts = names.split('_');
    let (pod, namespace, container) = (parts.next()?, parts.next()?, parts.next()?);
    // Kubernetes allows these letters in names.
    let letters = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let is_name = |name: &str| (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(letters);
    let are_sound = parts.next().is_none() && is_id(id) && [pod, namespace, container].into_iter().all(is_name);
    are_sound.then(|| {
        let [namespace, pod, container] = [namespace, pod, container].map(str::to_string);
        (
            id.to_string(),
            PodContainer {
                namespace,
                pod,
                container,
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

    #[test]
    fn every_runtimes_path_has_the_id() {
        let uid = "8b1f1c0e-5c7b-4c1f-9a37-0e5d4f3a2b1c";
        let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        let below = "/../../../kubepods.slice/kubepods-burstable.slice";
        for path in [
            // cgroup 2, systemd: containerd, CRI-O (with its inner group), Docker; seen from a
            // container with a control group namespace of its own.
            format!("0::{below}/{slice}/cri-containerd-{ID}.scope"),
            format!("0::{below}/{slice}/crio-{ID}.scope/container"),
            format!("0::/kubepods.slice/{slice}/docker-{ID}.scope"),
            // cgroupfs, version 2 and 1.
            format!("0::/kubepods/burstable/pod{uid}/{ID}"),
            format!("11:memory:/kubepods/besteffort/pod{uid}/{ID}\n10:cpu,cpuacct:/kubepods/pod{uid}/{ID}\n0::/"),
            format!("9:pids:/kubepods.slice/{slice}/cri-containerd-{ID}.scope"),
            // A static pod has a hash in place of the uid.
            format!("0::/kubepods/pod{}/{ID}", &ID[..32]),
            // containerd with cgroupfs under a kubelet with systemd.
            format!("0::/system.slice/containerd.service/{slice}:cri-containerd:{ID}"),
        ] {
            assert_eq!(ids(&path), [ID], "{path}");
        }
    }

    #[test]
    fn the_outermost_container_comes_first_and_a_users_own_groups_do_not_count() {
        // A group that a job makes below its container's own.
        let inner = format!("0::/kubepods/pod1/{ID}/kubepods/pod2/{OTHER}");
        assert_eq!(ids(&inner), [ID, OTHER]);
        let session = format!("0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod2/{OTHER}");
        assert_eq!(ids(&session), [""; 0]);
        for none in [
            "",
            "0::/",
            "no colons",
            "0::/system.slice/ssh.service",
            "0::/a/0123abc",
            ":::::",
        ] {
            assert_eq!(ids(none), [""; 0], "{none}");
        }
        assert_eq!(ids(&format!("0::/{}", ID.to_uppercase())), [""; 0]);
        assert_eq!(ids(&format!("0::/{ID}0")), [""; 0]);
    }

    #[test]
    fn a_links_name_has_all_names() {
        let (id, found) = of_link(&format!("train-0.a_team-a_main-1-{ID}.log")).expect("a link");
        assert_eq!(id, ID);
        assert_eq!(
            (found.namespace.as_str(), found.pod.as_str(), found.container.as_str()),
            ("team-a", "train-0.a", "main-1")
        );
        let long = "x".repeat(LONGEST_NAME + 1);
        for wrong in [
            String::new(),
            format!("train_team_main-{ID}"),
            format!("train_team_main-{}.log", &ID[1..]),
            format!("train_team-{ID}.log"),
            format!("train_team_main_more-{ID}.log"),
            format!("_team_main-{ID}.log"),
            format!("train_te\"am_main-{ID}.log"),
            format!("train_te\nam_main-{ID}.log"),
            format!("{long}_team_main-{ID}.log"),
        ] {
            assert_eq!(of_link(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_or_has_other_files_names_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = |path: PathBuf| PodNames { folder: Some(path) }.links();
        assert!(names(folder.path().join("gone")).is_empty());
        for name in ["README", ".log", &format!("train_team_main-{ID}.log")] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        // As on a node: the link's target is not mounted here.
        std::os::unix::fs::symlink("/gone", folder.path().join(format!("a_b_c-{OTHER}.log"))).expect("linked");
        let found = names(folder.path().to_path_buf());
        assert_eq!((found.len(), found[OTHER].namespace.as_str()), (2, "b"));
        assert!(!PodNames::default().are_known() && PodNames::default().links().is_empty());
        assert_eq!(PodNames::default().containers_of(std::process::id()), [""; 0]);
    }
}
