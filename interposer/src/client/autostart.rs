// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a broker for a job that finds none: the `weft` program next to this library, in the
//! background.
//!
//! * The job cannot notice it as a child: a child without exit signal starts the broker and ends.
//!   An exec restores the exit signal, so there is a child in between.
//! * The broker gets its own session, /dev/null as standard descriptors, no other descriptor, no
//!   `LD_PRELOAD`. It ends when idle.
//! * If several jobs start at once, one of them starts the broker. The others see the lock and wait
//!   for an answer.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::fs::{FlockOperation, flock};
use weft_protocol::transport::path;

/// Seconds without clients after which the broker ends.
const IDLE_EXIT: &CStr = c"30";

/// Stack of a child until its exec: some 75 system calls and no deep calls.
const STACK: usize = 64 * 1024;

#[derive(Debug)]
pub enum Failure {
    NoProgram,
    Folder(weft_protocol::transport::TransportError),
    System(std::io::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::NoProgram => write!(out, "there is no program weft next to libweft.so"),
            Failure::Folder(why) => write!(out, "{why}"),
            Failure::System(why) => write!(out, "{why}"),
        }
    }
}

/// A broker that is being started. Hold this until it answers or the wait for it ends.
#[derive(Debug)]
pub struct Starting {
    _lock: Option<File>,
}

/// Starts a broker for `socket` unless another process is doing so.
pub fn start(socket: &Path) -> Result<Starting, Failure> {
    path::check_folder(socket, true).map_err(Failure::Folder)?;
    let mut lock = socket.as_os_str().to_os_string();
    // Not the lock of `weft broker --background`.
    lock.push(".autostart");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(lock)
        .map_err(Failure::System)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Starting { _lock: None });
    }
    let program = program().ok_or(Failure::NoProgram)?;
    launch(&program, socket)?;
    Ok(Starting { _lock: Some(lock) })
}

/// The program in this library's folder, under any of its names.
fn program() -> Option<PathBuf> {
    let library = library()?;
    let real = library.canonicalize().ok();
    [Some(library), real]
        .into_iter()
        .flatten()
        .filter_map(|library| library.parent().map(Path::to_path_buf))
        // A subfolder holds the library under the driver's name.
        .flat_map(|folder| [folder.join("weft"), folder.join("../weft")])
        .find(|program| {
            std::fs::metadata(program).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
        })
}

fn library() -> Option<PathBuf> {
    let mut facts = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: this very function's address; the pointer is to a local.
    let found = unsafe { libc::dladdr(library as *const c_void, facts.as_mut_ptr()) };
    // SAFETY: valid, zeroed or filled.
    let facts = unsafe { facts.assume_init() };
    if found == 0 || facts.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the linker keeps the name while the library is loaded.
    let name = unsafe { CStr::from_ptr(facts.dli_fname) };
    Some(PathBuf::from(OsString::from_vec(name.to_bytes().to_vec())))
}

/// The child's data. Made before: a child may not allocate.
struct Plan {
    program: CString,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    stack: *mut c_void,
}

pub fn launch(program: &Path, socket: &Path) -> Result<(), Failure> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Failure::NoProgram);
    let program = text(program.as_os_str().as_bytes())?;
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        // The broker is not a job; it gets the resolved socket.
        if name != "LD_PRELOAD" && name != "WEFT_SOCKET" {
            let mut line = name.into_vec();
            line.push(b'=');
            line.extend_from_slice(value.as_bytes());
            variables.push(text(&line)?);
        }
    }
    let mut line = b"WEFT_SOCKET=".to_vec();
    line.extend_from_slice(socket.as_os_str().as_bytes());
    variables.push(text(&line)?);
    // `--quiet`: a faulty weft.toml is reported in the broker's log and fails no job.
    let words: [&CStr; 6] = [
        &program,
        c"broker",
        c"--background",
        c"--quiet",
        c"--idle-exit",
        IDLE_EXIT,
    ];
    let mut stacks = vec![0u8; 2 * STACK];
    // Stacks grow down from a multiple of 16.
    let mut end = |bytes: usize| {
        let end = bytes - (stacks.as_ptr() as usize + bytes) % 16;
        stacks.as_mut_ptr().wrapping_add(end).cast::<c_void>()
    };
    let (upper, lower) = (end(2 * STACK), end(STACK));
    let mut plan = Plan {
        arguments: words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect(),
        environment: variables
            .iter()
            .map(|line| line.as_ptr())
            .chain([ptr::null()])
            .collect(),
        program: program.clone(),
        stack: lower,
    };
    // VFORK: this thread sleeps until the child ends, so the child may use its memory.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: `between` does only what a child with shared memory may. Stacks and plan outlive it:
    // VFORK suspends this thread.
    let pid = unsafe { libc::clone(between, upper, flags, (&raw mut plan).cast()) };
    if pid < 0 {
        return Err(Failure::System(std::io::Error::last_os_error()));
    }
    let mut status: c_int = 0;
    // SAFETY: a pointer to a local. The child has ended, so this does not wait; __WALL accepts a
    // child without exit signal.
    unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    drop(variables);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        Ok(())
    } else {
        Err(Failure::System(std::io::Error::from_raw_os_error(libc::EAGAIN)))
    }
}

/// The child in between: starts the broker and ends.
extern "C" fn between(plan: *mut c_void) -> c_int {
    // SAFETY: the plan of `launch`, which sleeps meanwhile.
    let stack = unsafe { &*plan.cast::<Plan>() }.stack;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: as in `launch`, with the other stack.
    let pid = unsafe { libc::clone(child, stack, flags, plan) };
    // SAFETY: ends only this child, without handlers.
    unsafe { libc::_exit(if pid < 0 { 1 } else { 0 }) }
}

/// The future broker. It shares the job's memory until its exec: system calls only.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: as in `between`.
    let plan = unsafe { &*plan.cast::<Plan>() };
    for signal in 1..=64 {
        // The job's handlers must not run here.
        // SAFETY: changes only this process's own table (no CLONE_SIGHAND).
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: no arguments.
    unsafe { libc::setsid() };
    // SAFETY: the path is a literal.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    for standard in 0..3 {
        // SAFETY: this process's own copies of descriptors (no CLONE_FILES).
        unsafe { libc::dup2(null, standard) };
    }
    // The job's pipes must not live as long as the broker.
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a pointer to a local.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was just emptied.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) };
    // SAFETY: strings and null-ended arrays that the sleeping parent keeps.
    unsafe {
        libc::execve(
            plan.program.as_ptr(),
            plan.arguments.as_ptr(),
            plan.environment.as_ptr(),
        )
    };
    // SAFETY: ends only this child, without handlers.
    unsafe { libc::_exit(127) }
}
