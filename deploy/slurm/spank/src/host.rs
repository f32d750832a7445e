// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe wrappers of the functions that Slurm offers to a plugin (`spank.h`). The process that loads
//! the plugin has the symbols.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::options::JobOption;
use super::task::{SlurmJob, Variables};

/// The kind of process that runs the plugin: `spank_context_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostContext {
    /// In `srun`.
    Srun,
    /// In `sbatch` or `salloc`.
    Allocator,
    /// In the step daemon of a job.
    Step,
    /// In the node daemon, or its prolog and epilog.
    Node,
    /// Not known.
    Unknown,
}

/// `struct spank_option`.
#[repr(C)]
struct HostOption {
    name: *mut c_char,
    value_name: *mut c_char,
    help: *mut c_char,
    has_value: c_int,
    number: c_int,
    callback: Option<OptionCallback>,
}

/// The callback for an option. Its arguments are the option's number, its value, and whether this
/// process is not the user's command.
pub type OptionCallback = extern "C" fn(c_int, *const c_char, c_int) -> c_int;

unsafe extern "C" {
    fn spank_context() -> c_int;
    fn spank_option_register(spank: *mut c_void, option: *mut HostOption) -> c_int;
    fn spank_get_item(spank: *mut c_void, item: c_int, ...) -> c_int;
    fn spank_getenv(spank: *mut c_void, name: *const c_char, buffer: *mut c_char, length: c_int) -> c_int;
    fn spank_setenv(spank: *mut c_void, name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    fn spank_unsetenv(spank: *mut c_void, name: *const c_char) -> c_int;
    fn spank_job_control_setenv(
        spank: *mut c_void,
        name: *const c_char,
        value: *const c_char,
        overwrite: c_int,
    ) -> c_int;
    fn slurm_error(format: *const c_char, ...);
    fn slurm_info(format: *const c_char, ...);
    fn slurm_spank_log(format: *const c_char, ...);
    // From the C library.
    fn syscall(number: c_long, ...) -> c_long;
}

/// System calls and a signal, by their numbers on every architecture that has them.
const PIDFD_SEND_SIGNAL: c_long = 424;
const PIDFD_OPEN: c_long = 434;
const SIGKILL: c_int = 9;

/// `ESPANK_SUCCESS`.
const SUCCESS: c_int = 0;

/// `spank_item_t`.
const JOB_UID: c_int = 0;
const JOB_ID: c_int = 2;
const JOB_STEP: c_int = 3;
const JOB_NODE: c_int = 5;
const LOCAL_TASKS: c_int = 6;
const JOB_ARRAY_ID: c_int = 30;
const JOB_ARRAY_TASK_ID: c_int = 31;

/// `SLURM_BATCH_SCRIPT`.
const BATCH_STEP: u32 = 0xffff_fffb;

/// The smallest number that means "none": `NO_VAL`. `INFINITE` is above it.
const NO_NUMBER: u32 = 0xffff_fffe;

/// Size of the buffer for a variable, bytes. A longer variable cannot be read and is left as it is.
const VARIABLE_BYTES: usize = 128 * 1024;

/// Slurm's handle in a callback.
pub struct Spank(*mut c_void);

impl Spank {
    /// A wrapper of the handle that Slurm passes to a callback.
    ///
    /// # Safety
    ///
    /// The handle is that of the running callback, and is not used after the callback returns.
    pub unsafe fn new(handle: *mut c_void) -> Spank {
        Spank(handle)
    }

    /// Adds an option to the command.
    pub fn register(&self, option: JobOption, number: c_int, callback: OptionCallback) -> bool {
        let mut host = HostOption {
            name: option.name().as_ptr().cast_mut(),
            value_name: option.value_name().as_ptr().cast_mut(),
            help: option.help().as_ptr().cast_mut(),
            has_value: 1,
            number,
            callback: Some(callback),
        };
        // SAFETY: Slurm copies the structure and its texts, and does not write to them.
        unsafe { spank_option_register(self.0, &raw mut host) == SUCCESS }
    }

    /// The job of the step.
    pub fn job(&self) -> Option<SlurmJob> {
        let id = self.number(JOB_ID)?;
        let array = self.number(JOB_ARRAY_ID).filter(|array| *array != 0);
        // For a job of no array, 22.05 returns 0, and 24.11 the job's own number and no place.
        let place = self.number(JOB_ARRAY_TASK_ID).filter(|place| *place < NO_NUMBER);
        Some(SlurmJob {
            id,
            array: array.zip(place),
        })
    }

    /// The job's user.
    pub fn uid(&self) -> Option<u32> {
        self.number(JOB_UID)
    }

    /// Tasks of the step on this node.
    pub fn tasks(&self) -> u32 {
        self.number(LOCAL_TASKS).unwrap_or(0)
    }

    /// Whether this step daemon writes the job's outcome: that of the batch script, or, in a job
    /// without one, that of a step on its first node.
    pub fn writes_outcome(&self) -> bool {
        let is_batch = self.number(JOB_STEP) == Some(BATCH_STEP);
        // Slurm's commands take the number of a heterogeneous job for all of its parts.
        let is_one = !self.is_set("SLURM_HET_SIZE");
        is_one
            && (is_batch || (self.get("ENVIRONMENT").as_deref() != Some("BATCH") && self.number(JOB_NODE) == Some(0)))
    }

    /// A variable as Slurm reports it: whether it is complete, and its bytes.
    fn variable(&self, name: &str) -> Option<(bool, Vec<u8>)> {
        let name = CString::new(name).ok()?;
        let mut buffer = vec![0u8; VARIABLE_BYTES];
        let length = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: Slurm writes a text of at most `length` bytes, including its end.
        let done = unsafe { spank_getenv(self.0, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
        Some((done == SUCCESS, buffer))
    }

    fn number(&self, item: c_int) -> Option<u32> {
        let mut value: u32 = 0;
        // SAFETY: these items are written to one u32.
        let done = unsafe { spank_get_item(self.0, item, &raw mut value) };
        (done == SUCCESS).then_some(value)
    }

    /// Sets `SPANK_NAME` for the controller's plugins, the prolog and the epilog.
    pub fn tell_controller(&self, name: &str, value: &str) {
        if let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) {
            // SAFETY: two texts that Slurm copies.
            unsafe { spank_job_control_setenv(self.0, name.as_ptr(), value.as_ptr(), 1) };
        }
    }
}

impl Variables for Spank {
    fn get(&self, name: &str) -> Option<String> {
        let (all, buffer) = self.variable(name)?;
        let text = CStr::from_bytes_until_nul(&buffer).ok()?;
        all.then(|| text.to_str().ok().map(str::to_string))?
    }

    fn is_set(&self, name: &str) -> bool {
        // If a variable is too long, Slurm returns its beginning.
        self.variable(name)
            .is_some_and(|(all, buffer)| all || buffer.first().is_some_and(|byte| *byte != 0))
    }

    fn set(&mut self, name: &str, value: &str) {
        if let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) {
            // SAFETY: two texts that Slurm copies.
            unsafe { spank_setenv(self.0, name.as_ptr(), value.as_ptr(), 1) };
        }
    }

    fn remove(&mut self, name: &str) {
        if let Ok(name) = CString::new(name) {
            // SAFETY: a text that Slurm reads.
            unsafe { spank_unsetenv(self.0, name.as_ptr()) };
        }
    }
}

/// The kind of process that runs the plugin.
pub fn context() -> HostContext {
    // SAFETY: it takes no argument and returns a number.
    match unsafe { spank_context() } {
        1 => HostContext::Srun,
        3 => HostContext::Allocator,
        2 => HostContext::Step,
        4 | 5 => HostContext::Node,
        _ => HostContext::Unknown,
    }
}

/// Prints a line for the user, or in the daemon's log.
pub fn refuse(line: &str) {
    if let Ok(line) = CString::new(format!("weft: {line}")) {
        // SAFETY: the format takes one text.
        unsafe { slurm_spank_log(c"%s".as_ptr(), line.as_ptr()) };
    }
}

/// Logs a line as an error.
pub fn error(line: &str) {
    if let Ok(line) = CString::new(format!("weft: {line}")) {
        // SAFETY: the format takes one text.
        unsafe { slurm_error(c"%s".as_ptr(), line.as_ptr()) };
    }
}

/// Logs a line.
pub fn info(line: &str) {
    if let Ok(line) = CString::new(format!("weft: {line}")) {
        // SAFETY: the format takes one text.
        unsafe { slurm_info(c"%s".as_ptr(), line.as_ptr()) };
    }
}

/// Kills a process, and returns whether it did. It first opens a descriptor of the process and then
/// checks `is_meant`. So it never kills another process that got the same number.
pub fn kill(pid: u32, is_meant: impl Fn() -> bool) -> bool {
    let Ok(pid) = c_int::try_from(pid) else {
        return false;
    };
    // SAFETY: it takes two numbers, and returns a descriptor of this process or -1.
    let opened = unsafe { syscall(PIDFD_OPEN, pid, 0 as c_int) };
    let Some(number) = c_int::try_from(opened).ok().filter(|number| *number >= 0) else {
        return false;
    };
    // SAFETY: the kernel has just opened it for this process.
    let process = unsafe { OwnedFd::from_raw_fd(number) };
    if !is_meant() {
        return false;
    }
    let none: *const c_void = std::ptr::null();
    // SAFETY: a descriptor, a number, no further information, and no flags.
    let sent = unsafe { syscall(PIDFD_SEND_SIGNAL, process.as_raw_fd(), SIGKILL, none, 0 as c_int) };
    sent == 0
}
