// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding the device, or starting it.
//!
//! If several clients find no device, one takes the start lock and starts it; the others look for
//! its socket every few milliseconds. The device holds a second lock for its life, so two never
//! serve one socket. Every step has a bound.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::error::LinkError;
use crate::config::Config;
use crate::wire::{self, Answer, Request, Welcome};

/// Longest attempt to attach. A start takes some 10 ms; the rest is for a machine with 300 of them.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time for a started device to listen before it is started again.
const START: Duration = Duration::from_secs(3);

/// The start lock's file, next to the socket.
const START_LOCK: &str = "start";

/// How to find the device.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Socket of the device. `None`: [`default_socket`].
    pub socket: Option<PathBuf>,
    /// Program `simgpu-device`. `None`: `SIMGPU_DEVICE_BIN`, else in the folder of the library or
    /// program that holds this code, or in `../bin` of that folder.
    pub program: Option<PathBuf>,
    /// Name of this client in the device's log. `None`: the process's name.
    pub name: Option<String>,
    /// Variables for a device that this client starts, in addition to the client's own.
    pub variables: Vec<(&'static str, String)>,
    /// Priority of this client's contexts under MPS; a lower number goes first.
    pub client_priority: i32,
}

/// The path `SOCKET.suffix`.
pub(crate) fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// The environment's socket, or the default one.
pub fn default_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("SIMGPU_SOCKET").filter(|path| !path.is_empty()) {
        return PathBuf::from(path);
    }
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let user = rustix::process::getuid().as_raw();
    base.join(format!("simgpu-{user}")).join("device.sock")
}

/// A close-on-exec socket connected to the device at `path`.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &address)?;
    let limit = Some(Duration::from_secs(10));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, limit)?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, limit)?;
    Ok(socket)
}

/// Attaches to the device, starting it if there is none.
pub(crate) fn attach(options: &Options) -> Result<(OwnedFd, Welcome, Vec<OwnedFd>), LinkError> {
    let path = options.socket.clone().unwrap_or_else(default_socket);
    let name = options.name.clone().unwrap_or_else(process_name);
    let deadline = Instant::now() + PATIENCE;
    let mut starter = Starter {
        path: &path,
        options,
        lock: None,
        started: None,
        since: Instant::now(),
    };
    // Short against the 10 ms of a start, then longer: 300 clients that look every 2 ms would keep
    // a core from it.
    let mut pause = Duration::from_millis(2);
    loop {
        let error = match try_attach(&path, &name) {
            Ok(Some(attached)) => return Ok(attached),
            Ok(None) => "the device left".to_owned(),
            Err(LinkError::Unreachable(error)) => error,
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            return Err(LinkError::Unreachable(format!("{}: {error}", path.display())));
        }
        starter.step()?;
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// One attempt. `None`: the device was about to leave.
fn try_attach(path: &Path, name: &str) -> Result<Option<(OwnedFd, Welcome, Vec<OwnedFd>)>, LinkError> {
    let socket = match connect(path) {
        Ok(socket) => socket,
        Err(error)
            if error.kind() == io::ErrorKind::InvalidInput || error.raw_os_error() == Some(libc::ENAMETOOLONG) =>
        {
            // No later attempt can succeed.
            return Err(LinkError::Unusable(format!(
                "{} is no usable socket path: {error}",
                path.display()
            )));
        }
        Err(error) => return Err(LinkError::Unreachable(error.to_string())),
    };
    let request = Request::Attach {
        version: wire::VERSION,
        name: name.to_owned(),
    };
    if wire::send(&socket, &request, &[]).is_err() {
        return Ok(None);
    }
    match wire::receive::<Answer>(&socket) {
        Ok(Some((Answer::Welcome(welcome), fds))) => Ok(Some((socket, welcome, fds))),
        Ok(Some((Answer::Refused(why), _))) => Err(LinkError::Unusable(format!("the device refused: {why}"))),
        Ok(None) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(LinkError::Unreachable(error.to_string())),
    }
}

/// Starts the device when it is this client's turn.
struct Starter<'a> {
    path: &'a Path,
    options: &'a Options,
    lock: Option<StartLock>,
    started: Option<Instant>,
    since: Instant,
}

/// The start lock, released explicitly: a child forked meanwhile holds a copy of the descriptor.
struct StartLock(OwnedFd);

impl Drop for StartLock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Starter<'_> {
    fn step(&mut self) -> Result<(), LinkError> {
        if self.started.is_some_and(|started| started.elapsed() < START) {
            return Ok(());
        }
        if self.lock.is_none() {
            match self.try_lock() {
                Ok(lock) => self.lock = lock,
                Err(error) => {
                    return Err(LinkError::Unusable(format!(
                        "cannot lock beside {}: {error}",
                        self.path.display()
                    )));
                }
            }
        }
        // A process that has held the lock for this long may be dead, with a forked child that
        // keeps its descriptor. Two starts do no harm: the device has a lock of its own.
        if self.lock.is_some() || self.since.elapsed() >= START {
            self.start()?;
            self.started = Some(Instant::now());
        }
        Ok(())
    }

    fn try_lock(&self) -> io::Result<Option<StartLock>> {
        if let Some(directory) = self.path.parent() {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
        }
        let fd = rustix::fs::open(
            beside(self.path, START_LOCK),
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::RUSR | Mode::WUSR,
        )?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(StartLock(fd))),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn start(&self) -> Result<(), LinkError> {
        // The device would die unheard of an unusable configuration.
        Config::from_environment().map_err(LinkError::Config)?;
        let program = match &self.options.program {
            Some(program) => program.clone(),
            None => find_program()?,
        };
        let mut command = Command::new(&program);
        command.arg("serve").arg("--detach").arg("--socket").arg(self.path);
        // The device is no job: libraries that are preloaded into jobs must not come with it.
        command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
        command.envs(self.options.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|error| LinkError::Unusable(format!("cannot start {}: {error}", program.display())))?;
        // The program forks and its first process ends at once: this waits a moment and leaves no
        // zombie. A client that reaps children itself may be faster.
        let _ = child.wait();
        Ok(())
    }
}

/// The program `simgpu-device`: by the environment, else in the folder of the file that holds this
/// code, or in `../bin` of that folder.
fn find_program() -> Result<PathBuf, LinkError> {
    const NAME: &str = "simgpu-device";
    if let Some(path) = std::env::var_os("SIMGPU_DEVICE_BIN").filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let mut tried = Vec::new();
    let here = this_object();
    let real = here.as_deref().and_then(|path| path.canonicalize().ok());
    for directory in here.iter().chain(&real).filter_map(|path| path.parent()) {
        // Cargo puts programs in the last one, seen from its test programs.
        for place in [directory.join("../bin"), directory.to_owned(), directory.join("..")] {
            let program = place.join(NAME);
            if program.is_file() {
                return Ok(program);
            }
            tried.push(program.display().to_string());
        }
    }
    Err(LinkError::Unusable(format!(
        "no simgpu-device found (SIMGPU_DEVICE_BIN is not set; tried {})",
        tried.join(", ")
    )))
}

/// The file that this code was loaded from.
fn this_object() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let address: fn() -> Option<PathBuf> = this_object;
    // SAFETY: dladdr takes any address and writes only to `info`.
    let found = unsafe { libc::dladdr(address as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr found an object, so this is its name: a string that lives as long as the
    // object, which holds this code.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    // A program's name may be relative, as typed.
    std::env::current_exe().ok()
}

fn process_name() -> String {
    let read = |path: &str| -> io::Result<String> {
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(File::open(path)?, 64), &mut text)?;
        Ok(text.trim().to_owned())
    };
    read("/proc/self/comm").unwrap_or_default()
}
