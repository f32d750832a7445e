// SPDX-License-Identifier: MIT OR Apache-2.0
//! NVIDIA's kernel module, as `/proc/driver/nvidia/version` names it.
#![forbid(unsafe_code)]

use std::fs;

/// The loaded kernel module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelModule {
    /// Its version, such as `580.159.04`.
    pub version: String,
    /// Whether it is the open one.
    pub is_open: bool,
}

impl KernelModule {
    /// The machine's module; `None`: there is none, or its line is not understood.
    pub fn of_system() -> Option<KernelModule> {
        KernelModule::parse(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
    }

    fn parse(text: &str) -> Option<KernelModule> {
        let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
        let (_, rest) = line.split_once("Kernel Module")?;
        let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
        Some(KernelModule {
            version: rest.split_whitespace().find(is_version)?.to_string(),
            is_open: line.contains("Open Kernel Module"),
        })
    }

    /// The driver's branch: the first number of its version.
    pub fn branch(&self) -> Option<u32> {
        self.version.split('.').next()?.parse().ok()
    }

    /// Whether the driver's checkpoint has ended processes with an NCCL group on one device: it did
    /// on branch 595, and not on 580.
    pub fn loses_groups(&self) -> bool {
        self.branch() == Some(595)
    }

    /// Whether the end of a process that the driver's checkpoint had moved has hung whole machines:
    /// 4 of 4 on the open module of branch 595 (NVIDIA/cuda-checkpoint, issue 53).
    pub fn hangs_after_checkpoint(&self) -> bool {
        self.is_open && self.branch() == Some(595)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_read_from_its_line() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Jun  1 12:00:00 UTC 2026\n\
                      GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        let module = KernelModule::parse(closed).expect("a module");
        assert_eq!((module.version.as_str(), module.is_open), ("580.159.04", false));
        assert_eq!((module.branch(), module.hangs_after_checkpoint()), (Some(580), false));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71  Release Build  (root@host)";
        let module = KernelModule::parse(open).expect("a module");
        assert_eq!((module.version.as_str(), module.is_open), ("595.71", true));
        assert!(module.hangs_after_checkpoint() && module.loses_groups());
        for wrong in ["", "NVRM version: something", "NVRM version: Kernel Module none"] {
            assert_eq!(KernelModule::parse(wrong), None, "{wrong}");
        }
    }
}
