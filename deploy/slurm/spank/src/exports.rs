// SPDX-License-Identifier: MIT OR Apache-2.0
//! The symbols that Slurm looks up in a plugin, and the plugin's callbacks.
//!
//! No panic passes a callback: the callback catches it and logs an error.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::host::{self, HostContext, Spank};
use super::options::JobOption;
use super::settings::PluginSettings;
use super::{books, leftovers, task};

const DONE: c_int = 0;
const REFUSED: c_int = -1;

/// The Slurm release of the header that this build used.
const SLURM_RELEASE: u32 = match u32::from_str_radix(env!("SLURM_VERSION_NUMBER"), 10) {
    Ok(number) => number,
    Err(_) => 0,
};

/// The plugin's name. A filter finds the options by it (`options["spank"]["weft"]`).
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 5] = *b"weft\0";
/// The plugin's kind.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// The Slurm release that the plugin was built for. Slurm refuses plugins of other releases.
#[unsafe(no_mangle)]
pub static plugin_version: u32 = SLURM_RELEASE;
/// The plugin's own version.
#[unsafe(no_mangle)]
pub static spank_plugin_version: u32 = 1;

/// Values of the options that were given in this process.
static CHOSEN: Mutex<Vec<(JobOption, String)>> = Mutex::new(Vec::new());

/// The result of `work`, or `otherwise` if it panics.
fn guarded(otherwise: c_int, work: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let _ = catch_unwind(|| host::error("an error in the plugin itself; the job runs on"));
        otherwise
    })
}

/// The settings in the plugin's line, and the mistakes in it.
fn settings(count: c_int, arguments: *const *const c_char) -> (PluginSettings, Vec<String>) {
    let count = usize::try_from(count).unwrap_or(0);
    let texts = (0..count).filter(|_| !arguments.is_null()).filter_map(|at| {
        // SAFETY: the array has `count` texts.
        let place = unsafe { arguments.add(at) };
        // SAFETY: it is in the array.
        let text = unsafe { *place };
        // SAFETY: each is a text, and lives as long as the callback.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().ok())?
    });
    PluginSettings::read(texts)
}

extern "C" fn chosen(number: c_int, value: *const c_char, remote: c_int) -> c_int {
    guarded(DONE, || {
        let at = usize::try_from(number).ok();
        let Some(&option) = at.and_then(|at| JobOption::ALL.get(at)) else {
            return DONE;
        };
        let text = match value.is_null() {
            true => "",
            // SAFETY: Slurm hands over a text that lives as long as the call.
            false => unsafe { CStr::from_ptr(value) }.to_str().unwrap_or("\u{fffd}"),
        };
        if remote == 0
            && let Err(why) = option.read(text)
        {
            host::refuse(&why);
            return REFUSED;
        }
        if let Ok(mut chosen) = CHOSEN.lock() {
            chosen.retain(|(other, _)| *other != option);
            chosen.push((option, text.to_string()));
        }
        DONE
    })
}

fn chosen_options() -> Vec<(JobOption, String)> {
    CHOSEN.lock().map(|chosen| chosen.clone()).unwrap_or_default()
}

/// Removes the options of the job that submits this one. They are in its environment, and Slurm
/// would apply them to the new job.
fn forget_outer_job() {
    for option in JobOption::ALL {
        let name = option.name().to_string_lossy().replace('-', "_");
        for variable in [
            format!("SLURM_SPANK__SLURM_SPANK_OPTION_weft_{name}"),
            format!("SLURM_SPANK_{}", option.variable()),
        ] {
            // SAFETY: sbatch and salloc load their plugins before they start a thread.
            unsafe { std::env::remove_var(variable) };
        }
    }
}

/// The callback for a process that loads the plugin.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init(spank: *mut c_void, count: c_int, arguments: *const *const c_char) -> c_int {
    guarded(DONE, || {
        // SAFETY: Slurm's handle in its callback.
        let spank = unsafe { Spank::new(spank) };
        if host::context() == HostContext::Node {
            settings(count, arguments).1.iter().for_each(|wrong| host::error(wrong));
            return DONE;
        }
        if host::context() == HostContext::Allocator {
            forget_outer_job();
        }
        for (number, option) in (0..).zip(JobOption::ALL) {
            if !spank.register(option, number, chosen) {
                host::error(&format!("--{} cannot be offered", option.name().to_string_lossy()));
            }
        }
        DONE
    })
}

/// The callback after all options are read. In a user's command it passes them to the controller.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init_post_opt(spank: *mut c_void, _: c_int, _: *const *const c_char) -> c_int {
    guarded(DONE, || {
        // SAFETY: Slurm's handle in its callback.
        let spank = unsafe { Spank::new(spank) };
        if matches!(host::context(), HostContext::Allocator | HostContext::Srun) {
            for (option, text) in chosen_options() {
                if let Ok(value) = option.read(&text) {
                    spank.tell_controller(option.variable(), &value);
                }
            }
        }
        DONE
    })
}

/// The callback on a node before a job begins there, as root. It logs an error if no broker runs.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_job_prolog(spank: *mut c_void, count: c_int, arguments: *const *const c_char) -> c_int {
    guarded(DONE, || {
        // SAFETY: Slurm's handle in its callback.
        let spank = unsafe { Spank::new(spank) };
        let (settings, _) = settings(count, arguments);
        if let Some(job) = spank.job()
            && !answers(&settings.socket)
        {
            let (id, socket) = (job.id, settings.socket);
            host::error(&format!("no broker at {socket}: job {id} runs as without weft"));
        }
        DONE
    })
}

/// Whether a process listens at the socket. The broker's socket has another type than this stream,
/// so if the broker listens, the kernel reports a wrong type and none of the errors below.
fn answers(socket: &str) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::PermissionDenied
        ),
    }
}

/// The callback on a node after a job has ended there, as root. It kills processes left by the job.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_job_epilog(spank: *mut c_void, count: c_int, arguments: *const *const c_char) -> c_int {
    guarded(DONE, || {
        // SAFETY: Slurm's handle in its callback.
        let spank = unsafe { Spank::new(spank) };
        let (settings, _) = settings(count, arguments);
        let Some((job, uid)) = spank.job().zip(spank.uid()) else {
            return DONE;
        };
        if !settings.kills_leftovers {
            return DONE;
        }
        let (proc, gang) = (Path::new("/proc"), job.gang());
        let node = std::env::var("SLURMD_NODENAME").ok();
        let belongs = |pid| leftovers::belongs(proc, pid, uid, &gang, node.as_deref());
        for pid in leftovers::processes(proc) {
            if belongs(pid) && host::kill(pid, || belongs(pid)) {
                host::info(&format!("killed process {pid}, which job {} had left behind", job.id));
            }
        }
        DONE
    })
}

/// Tasks of this step that ended on this node.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// The callback after a task has ended, in its step daemon, as root: the job still runs. After the
/// last task it writes the job's outcome so far into Slurm's books.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_exit(spank: *mut c_void, count: c_int, arguments: *const *const c_char) -> c_int {
    guarded(DONE, || {
        // SAFETY: Slurm's handle in its callback.
        let spank = unsafe { Spank::new(spank) };
        let (settings, _) = settings(count, arguments);
        let Some(weft) = &settings.comment else { return DONE };
        if ENDED.fetch_add(1, Ordering::Relaxed) + 1 == spank.tasks()
            && spank.writes_outcome()
            && task::holds_gpu(&spank)
            && let Some((job, uid)) = spank.job().zip(spank.uid())
            && let Err(why) = books::write(weft, &settings.socket, uid, job)
        {
            host::error(&format!("job {} has no comment: {why}", job.id));
        }
        DONE
    })
}

/// The callback in a task before its program begins, as the job's user.
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_init(spank: *mut c_void, count: c_int, arguments: *const *const c_char) -> c_int {
    guarded(DONE, || {
        // SAFETY: Slurm's handle in its callback.
        let mut spank = unsafe { Spank::new(spank) };
        let Some(job) = spank.job() else {
            return DONE;
        };
        let (settings, _) = settings(count, arguments);
        let wrong = task::prepare(&mut spank, job, &settings, &chosen_options());
        wrong.iter().for_each(|why| host::error(why));
        DONE
    })
}
