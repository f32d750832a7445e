// SPDX-License-Identifier: MIT OR Apache-2.0
//! The probe on a simulated GPU of the test's own.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest a run may take: far more than any needs on a busy machine.
const BOUND: Duration = Duration::from_secs(300);

/// The simulated driver and its device's program. Cargo builds neither for a test program, so the
/// test builds them.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = std::env::current_exe().unwrap();
        let profile = program.parent().and_then(Path::parent).expect("cargo's layout");
        // scripts/test has built all of it, with the features of the whole workspace.
        if std::env::var_os("WEFT_TEST_BUILT").is_none() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "-q", "-p", "simgpu-driver", "-p", "simgpu-device"]);
            build.args(["--features", "simgpu-driver/cuda-runtime"]);
            // The workspace's folder, whose configuration names the target folder.
            build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../simgpu"));
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the driver builds");
        }
        profile.to_owned()
    })
}

/// A device: its socket, its configuration, a folder in which clients find the driver.
pub struct Device {
    folder: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

/// The output of a run and its exit code.
pub struct Run {
    pub lines: Vec<Value>,
    pub code: Option<i32>,
    pub stderr: String,
}

impl Device {
    /// A device with this configuration file.
    pub fn new(config: &str) -> Device {
        let folder = tempfile::Builder::new().prefix("weft-probe").tempdir().unwrap();
        let library = built().join("libsimcuda.so");
        std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).unwrap();
        std::fs::write(folder.path().join("device.toml"), config).unwrap();
        Device {
            folder,
            variables: Vec::new(),
        }
    }

    /// No device: a file that is no driver is in the driver's place.
    pub fn none() -> Device {
        let folder = tempfile::Builder::new().prefix("weft-probe").tempdir().unwrap();
        std::fs::write(
            folder.path().join("libcuda.so.1"),
            "no library at all, but long enough to be read as one, it might seem",
        )
        .unwrap();
        Device {
            folder,
            variables: Vec::new(),
        }
    }

    /// Adds an environment variable.
    pub fn with(mut self, name: &'static str, value: &str) -> Device {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Writes a file next to the driver. Returns its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs the probe.
    pub fn probe(&self, arguments: &[&str]) -> Run {
        let out = self.folder.path().join("out");
        let errors = self.folder.path().join("errors");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weft-gpu-probe"));
        command
            .args(arguments)
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("SIMGPU_SOCKET", self.folder.path().join("device.sock"))
            .env("SIMGPU_CONFIG", self.folder.path().join("device.toml"))
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&errors).unwrap());
        // A developer's environment must not decide a test.
        for variable in [
            "SIMGPU_CALIBRATION",
            "SIMGPU_MEMORY",
            "SIMGPU_DILATION",
            "SIMGPU_MODE",
            "SIMGPU_LOG",
            "CUDA_VISIBLE_DEVICES",
            "LD_PRELOAD",
        ] {
            command.env_remove(variable);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut process = command.spawn().unwrap();
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > BOUND {
                let _ = process.kill();
                panic!("{arguments:?} still runs after {BOUND:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = std::fs::read_to_string(out).unwrap();
        Run {
            lines: text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
                .collect(),
            code: status.code(),
            stderr: std::fs::read_to_string(errors).unwrap(),
        }
    }
}

impl Run {
    /// The line of a probe with this name.
    pub fn line(&self, probe: &str, name: &str) -> Option<&Value> {
        self.lines
            .iter()
            .rfind(|line| line["probe"] == probe && line["name"] == name)
    }

    /// Its value.
    pub fn value(&self, probe: &str, name: &str) -> f64 {
        let line = self.line(probe, name);
        line.and_then(|line| line["value"].as_f64())
            .unwrap_or_else(|| panic!("no value {probe} {name} in {:#?}\n{}", self.lines, self.stderr))
    }

    /// The reason why a probe failed.
    pub fn error(&self, probe: &str) -> Option<&str> {
        self.lines
            .iter()
            .find(|line| line["probe"] == probe && line["error"].is_string())
            .and_then(|line| line["error"].as_str())
    }

    /// The names under a key of the last line.
    pub fn end(&self, key: &str) -> Vec<&str> {
        let end = self.lines.last().unwrap_or(&Value::Null);
        assert_eq!(end["probe"], "end", "{}", self.stderr);
        let names = end[key].as_array().expect("a list");
        names.iter().filter_map(Value::as_str).collect()
    }

    /// Asserts that all probes succeeded.
    pub fn is_good(&self) -> &Run {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        let errors: Vec<_> = self.lines.iter().filter(|line| line["error"].is_string()).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        assert!(self.end("failed").is_empty() && self.end("left_out").is_empty());
        self
    }
}
