// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device of one's own for each test.
#![allow(dead_code, reason = "each test program uses its part")]

#[path = "../../../../bounded.rs"]
mod bounded;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use simgpu_device::{Effects, KernelLaunch, Link, NoEffects, Op, Options};

use self::bounded::Bounded;

/// Longer than anything here takes on a machine that does three other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a socket path that no other test uses.
pub struct Place {
    pub directory: tempfile::TempDir,
    _bounded: Bounded,
}

impl Place {
    pub fn new() -> Place {
        Place {
            directory: tempfile::tempdir().unwrap(),
            _bounded: Bounded::new(),
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("device.sock")
    }

    pub fn options(&self) -> Options {
        Options {
            socket: Some(self.socket()),
            program: Some(device_program()),
            name: Some("test".to_owned()),
            ..Options::default()
        }
    }

    pub fn open(&self) -> Link {
        self.open_with(Arc::new(NoEffects))
    }

    pub fn open_with(&self, effects: Arc<dyn Effects>) -> Link {
        Link::open(&self.options(), effects).unwrap()
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&simgpu_device::status(&self.socket()).unwrap()).unwrap()
    }

    /// The same once `ready` likes it.
    pub fn status_when(&self, ready: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if ready(&status) {
                return status;
            }
            assert!(Instant::now() < end, "never came true: {status:#}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the device to leave.
    pub fn wait_until_gone(&self, pid: u32) {
        eventually("the device leaves", || !alive(pid) && !self.socket().exists());
    }
}

pub fn device_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_simgpu-device"))
}

/// Whether a process exists and is no zombie.
pub fn alive(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z'),
        Err(_) => false,
    }
}

pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A kernel of a given time.
pub fn kernel(ns: u64) -> Op {
    Op::Kernel(KernelLaunch {
        grid: [1; 3],
        block: [32, 1, 1],
        duration: Some(ns),
        ..KernelLaunch::default()
    })
}
