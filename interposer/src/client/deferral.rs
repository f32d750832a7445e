// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether launches of this process may be deferred at a closed gate (`WEFT_QUEUE`).
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use super::backing_mode;

/// Value of `WEFT_QUEUE`: when launches may be deferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueChoice {
    /// Never.
    Off,
    /// Unless the process has private driver tables that weft does not know.
    On,
    /// With unknown tables, too.
    Always,
}

impl QueueChoice {
    /// Reads the variable's value. An error is a complaint in one line.
    pub fn parse(value: Option<&str>) -> Result<QueueChoice, String> {
        match value {
            None | Some("on") => Ok(QueueChoice::On),
            Some("off" | "0") => Ok(QueueChoice::Off),
            Some("always") => Ok(QueueChoice::Always),
            Some(other) => Err(format!("WEFT_QUEUE={other} is not one of on, off, always; using on")),
        }
    }
}

static CHOICE: LazyLock<QueueChoice> = LazyLock::new(|| {
    let value = std::env::var("WEFT_QUEUE").unwrap_or_default();
    let value = Some(value.trim()).filter(|value| !value.is_empty());
    QueueChoice::parse(value).unwrap_or(QueueChoice::On)
});

/// Whether launches are deferred despite unknown tables.
pub fn always() -> bool {
    *CHOICE == QueueChoice::Always
}

/// Whether launches may be deferred, now or later. Not on managed memory, nor if launches are
/// debugged or profiled ([`looked_into`]).
pub fn on() -> bool {
    static WANTED: LazyLock<bool> = LazyLock::new(|| {
        let said = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        *CHOICE != QueueChoice::Off && !looked_into(said)
    });
    *WANTED && !backing_mode::managed()
}

/// Whether launches are debugged or profiled. `CUDA_LAUNCH_BLOCKING` makes a launch return at its
/// kernel's end; injected profilers (Nsight, compute-sanitizer) match kernels with calls.
fn looked_into(said: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    let blocking = said("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0");
    blocking || said("CUDA_INJECTION64_PATH").is_some() || said("CUDA_INJECTION32_PATH").is_some()
}

/// Whether launches are deferred now. While the backing is undecided, the managed jobs' hooks are
/// in place, whose launches wait at the gate.
pub fn leaves() -> bool {
    on() && !backing_mode::is_open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_looked_into_leaves_nothing_behind() {
        let said = |name: &'static str, value: &'static str| move |asked: &str| (asked == name).then(|| value.into());
        assert!(!looked_into(|_| None));
        assert!(looked_into(said("CUDA_LAUNCH_BLOCKING", "1")));
        assert!(!looked_into(said("CUDA_LAUNCH_BLOCKING", "0")));
        assert!(looked_into(said(
            "CUDA_INJECTION64_PATH",
            "/opt/nvidia/libToolsInjection64.so"
        )));
    }
}
