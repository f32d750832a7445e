// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds and runs the programs of the tests.
// Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs};

/// No child of these tests needs a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Programs and folders of the tests.
pub struct Stage {
    /// libweft.so.
    pub weft: PathBuf,
    /// The client, and the client that is linked against libcuda.so.1.
    pub client: PathBuf,
    pub linked: PathBuf,
    /// A folder with the counting driver as libcuda.so.1 and libcuda.so.
    pub driver: PathBuf,
    /// The counting driver under its own file name.
    pub counting: PathBuf,
    /// A folder for the files that a test makes.
    pub folder: PathBuf,
}

/// All of it, built once per test program.
pub fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(build)
}

/// Builds weft's library and the driver that only counts, which is of another workspace.
fn build_libraries(profile: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (workspace, package) in [("", "weft-interposer"), ("tests/simgpu", "null-driver")] {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "--offline", "-p", package]);
        cargo.current_dir(root.join(workspace));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        // The folder that cargo itself uses, whatever the environment contains.
        cargo.env("CARGO_TARGET_DIR", profile.parent().unwrap());
        assert!(cargo.status().unwrap().success(), "cannot build {package}");
    }
}

fn build() -> Stage {
    // target/PROFILE/deps/this-test
    let here = env::current_exe().unwrap();
    let profile = here.parent().and_then(Path::parent).unwrap().to_owned();
    // scripts/test has built all of it, with the features of the whole workspace.
    if env::var_os("WEFT_TEST_BUILT").is_none() {
        build_libraries(&profile);
    }

    let all = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    sweep(&all);
    let folder = all.join(format!("interposer-{}", std::process::id()));
    let driver = folder.join("driver");
    fs::create_dir_all(&driver).unwrap();
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::os::unix::fs::symlink(profile.join("libnullcuda.so"), driver.join(name)).unwrap();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/client.c");
    let (client, linked) = (folder.join("client"), folder.join("linked"));
    compile(&[source.as_os_str(), "-o".as_ref(), client.as_os_str()]);
    compile(&[
        source.as_os_str(),
        "-DLINKED".as_ref(),
        "-o".as_ref(),
        linked.as_os_str(),
        driver.join("libcuda.so").as_os_str(),
    ]);
    Stage {
        weft: profile.join("libweft.so"),
        client,
        linked,
        driver,
        counting: profile.join("libnullcuda.so"),
        folder,
    }
}

/// Removes the files of test programs that no longer run.
fn sweep(all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("interposer-"));
        if pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            // Another test program may sweep the same folder.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs the C compiler.
pub fn compile(arguments: &[&std::ffi::OsStr]) {
    let done = Command::new("gcc")
        .args(["-O1", "-rdynamic"])
        .args(arguments)
        .status()
        .unwrap();
    assert!(done.success(), "gcc {arguments:?}");
}

/// Output of a client.
#[derive(Debug)]
pub struct Said {
    pub stdout: String,
    pub stderr: String,
    pub success: bool,
}

impl Said {
    /// The words after a key.
    pub fn get(&self, key: &str) -> &str {
        let lines: BTreeMap<&str, &str> = self.stdout.lines().filter_map(|line| line.split_once(' ')).collect();
        lines
            .get(key)
            .copied()
            .unwrap_or_else(|| panic!("no {key} in {self:#?}"))
    }

    /// The number after a key.
    pub fn number(&self, key: &str) -> i64 {
        self.get(key).parse().unwrap()
    }
}

/// A command with nothing of weft's or the loader's in its environment.
pub fn bare(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("WEFT_") || name.to_string_lossy().starts_with("LD_") {
            command.env_remove(name);
        }
    }
    // No broker: these tests are only about the hooks.
    command
        .env("WEFT_AUTOSTART", "0")
        .env("WEFT_SOCKET", "/nonexistent/weft.sock");
    command
}

/// The same with weft preloaded and the counting driver on the library path.
pub fn under_weft(program: &Path) -> Command {
    let mut command = bare(program);
    command
        .env("LD_PRELOAD", &stage().weft)
        .env("LD_LIBRARY_PATH", &stage().driver);
    command
}

/// Runs a client to its end, within a bound.
pub fn run(command: &mut Command) -> Said {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    Said {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        success: output.status.success(),
    }
}
