// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's process checkpoint (CUDA 12.8, driver 570 and newer), with the ways in which real
//! drivers lost jobs (`SIMGPU_CHECKPOINT=580|595|595-open|610`).
//!
//! * The target process does each step itself. A caller in another process waits for its answer on
//!   a socket, so a stopped target blocks the caller.
//! * Contents leave the files behind the addresses and become anonymous memory of the process.
//!   Pages that were never used stay unused: they cost the host nothing.
//! * The device's ledger gets all bytes of the process back, contexts included.
//! * Rates and losses are those that were published for an RTX 4090 (gpunap, validation/FINDINGS).
#![deny(unsafe_code)]

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use simgpu_device::lock::lock;

use crate::abi::{Error, In, Out, R};
use crate::away::{self, Branch, ProcessState};
use crate::context::CONTEXTS;
use crate::export::export;
use crate::space::{Contents, space, table};
use crate::state::{self, Driver};
use crate::{memory, stream, thread};

/// Cost of a step besides the copy: contexts end and are made anew.
const FIXED: Duration = Duration::from_millis(60);

/// Interval of looks at the work that a lock waits for.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// Bytes of the reserved part of an argument structure, and of all of it.
const ARGUMENTS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    GetState = 0,
    Lock = 1,
    Checkpoint = 2,
    Restore = 3,
    Unlock = 4,
}

const STEPS: [Step; 5] = [
    Step::GetState,
    Step::Lock,
    Step::Checkpoint,
    Step::Restore,
    Step::Unlock,
];

/// Bytes a microsecond to the host and back.
fn rates(branch: Branch) -> (f64, f64) {
    match branch {
        Branch::R580 => (1_100.0, 2_200.0),
        Branch::R595 | Branch::R610 => (4_000.0, 7_000.0),
    }
}

/// The memory that is away: the bytes of each device, and the contents.
struct AwayMemory {
    bytes: Vec<u64>,
    contents: Contents,
}

static AWAY: Mutex<Option<AwayMemory>> = Mutex::new(None);

/// Held during a step: also the question for the state waits for a move.
static STEPPING: Mutex<()> = Mutex::new(());

fn take_time(driver: &Driver, bytes: u64, rate: f64) {
    let copy = Duration::from_secs_f64(bytes as f64 / rate / 1e6);
    let dilation = driver.timeline.dilation(0).unwrap_or(1.0);
    std::thread::sleep((FIXED + copy).mul_f64(dilation));
}

/// Whether all work of the process has ended.
fn is_still(driver: &Driver) -> bool {
    CONTEXTS.all().iter().all(|(_, context)| {
        let streams = stream::of_context(context);
        let orphans = context.orphans.all(driver);
        streams.iter().all(|stream| stream.is_idle(driver))
            && orphans.into_iter().all(|seq| driver.timeline.is_done(seq))
    })
}

fn take_lock(driver: &Driver, timeout: u32) -> R {
    away::set(ProcessState::Locking);
    let begun = Instant::now();
    loop {
        if away::is_empty() {
            driver.timeline.poll();
            if is_still(driver) {
                away::set(ProcessState::Locked);
                return Ok(());
            }
        }
        if timeout > 0 && begun.elapsed() >= Duration::from_millis(u64::from(timeout)) {
            away::set(ProcessState::Running);
            return Err(Error::NOT_READY);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn checkpoint(driver: &Driver, branch: Branch) -> R {
    if table::has_managed() {
        if branch == Branch::R595 {
            away::set(ProcessState::Failed);
        }
        return Err(Error::NOT_SUPPORTED);
    }
    if memory::is_shared() && branch < Branch::R610 {
        eprintln!("simcuda[{}] a checkpoint with memory shared by IPC", std::process::id());
        if branch == Branch::R595 {
            std::process::abort();
        }
        away::set(ProcessState::Failed);
        return Err(Error::OPERATING_SYSTEM);
    }
    if away::has_group() && branch == Branch::R595 {
        eprintln!("simcuda[{}] a checkpoint with an NCCL group", std::process::id());
        std::process::abort();
    }
    let devices = 0..driver.devices.len();
    let bytes: Vec<u64> = devices.map(|device| driver.timeline.held(device)).collect();
    let contents = space()?.take_contents()?;
    take_time(driver, bytes.iter().sum(), rates(branch).0);
    for (device, bytes) in bytes.iter().enumerate() {
        driver.timeline.release(device, *bytes);
    }
    *lock(&AWAY) = Some(AwayMemory { bytes, contents });
    away::set(ProcessState::Checkpointed);
    Ok(())
}

fn restore(driver: &Driver, branch: Branch) -> R {
    let memory = lock(&AWAY).take().ok_or(Error::ILLEGAL_STATE)?;
    for (device, bytes) in memory.bytes.iter().enumerate() {
        if driver.timeline.reserve(device, *bytes).is_err() {
            // A part of the device stays taken until the process ends.
            let (free, _) = driver.timeline.memory(device);
            let _ = driver.timeline.reserve(device, free / 2);
            away::set(ProcessState::Failed);
            return Err(Error::OUT_OF_MEMORY);
        }
    }
    take_time(driver, memory.bytes.iter().sum(), rates(branch).1);
    space()?.put_contents(&memory.contents)?;
    away::set(ProcessState::Locked);
    if away::hangs_hosts() {
        at_end();
    }
    Ok(())
}

/// Has the end of the process report what it did to real hosts, unless it is away again by then.
#[allow(unsafe_code)]
fn at_end() {
    extern "C" fn report() {
        if away::state() != ProcessState::Checkpointed {
            eprintln!(
                "simcuda[{}] host hung: a restored process has ended",
                std::process::id()
            );
        }
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as this library, which is never unloaded.
        let _ = unsafe { libc::atexit(report) };
    });
}

/// Makes a step in this process.
fn perform(step: Step, timeout: u32) -> R<u32> {
    let branch = away::branch().ok_or(Error::NOT_SUPPORTED)?;
    let _one = lock(&STEPPING);
    let state = away::state();
    if step == Step::GetState {
        let without = !state::is_started();
        return Ok(if without { ProcessState::Failed } else { state } as u32);
    }
    let driver = state::driver()?;
    let wanted = match step {
        Step::GetState | Step::Lock => ProcessState::Running,
        Step::Checkpoint | Step::Unlock => ProcessState::Locked,
        Step::Restore => ProcessState::Checkpointed,
    };
    if state == ProcessState::Failed {
        return Err(Error::OPERATING_SYSTEM);
    }
    if state != wanted {
        return Err(Error::ILLEGAL_STATE);
    }
    match step {
        Step::GetState => {}
        Step::Lock => take_lock(driver, timeout)?,
        Step::Checkpoint => checkpoint(driver, branch)?,
        Step::Restore => restore(driver, branch)?,
        Step::Unlock => away::set(ProcessState::Running),
    }
    Ok(0)
}

fn address(pid: u32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("simcuda-checkpoint-{pid}"))
}

fn words(first: u32, second: u32) -> [u8; 8] {
    (u64::from(first) << 32 | u64::from(second)).to_ne_bytes()
}

fn read_words(from: &mut UnixStream) -> std::io::Result<(u32, u32)> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    let both = u64::from_ne_bytes(bytes);
    Ok(((both >> 32) as u32, both as u32))
}

/// Answers a caller of another process.
fn serve(mut caller: UnixStream) -> std::io::Result<()> {
    let (step, timeout) = read_words(&mut caller)?;
    let step = STEPS.get(step as usize).copied();
    let done = step.map_or(Err(Error::INVALID_VALUE), |step| perform(step, timeout));
    let (code, value) = match done {
        Ok(value) => (0, value),
        Err(Error(code)) => (code, 0),
    };
    caller.write_all(&words(code, value))
}

/// Lets other processes call for this one.
pub(crate) fn listen() {
    if away::branch().is_none() {
        return;
    }
    match address(std::process::id()).and_then(|address| UnixListener::bind_addr(&address)) {
        Ok(listener) => thread::start("simcuda-away", move || {
            for caller in listener.incoming().flatten() {
                let _ = serve(caller);
            }
        }),
        Err(error) => eprintln!("simcuda[{}] checkpoint: {error}", std::process::id()),
    }
}

/// Makes a step in the process `pid`.
fn call(pid: i32, step: Step, timeout: u32) -> R<u32> {
    away::branch().ok_or(Error::NOT_SUPPORTED)?;
    let pid = u32::try_from(pid).map_err(|_| Error::INVALID_VALUE)?;
    if step == Step::Restore {
        // The caller's own cuInit.
        state::driver()?;
    }
    if pid == std::process::id() {
        return perform(step, timeout);
    }
    let Ok(mut target) = address(pid).and_then(|address| UnixStream::connect_addr(&address)) else {
        let lives = Path::new(&format!("/proc/{pid}")).exists();
        return match (lives, step) {
            (true, Step::GetState) => Ok(ProcessState::Failed as u32),
            _ => Err(Error::OPERATING_SYSTEM),
        };
    };
    let answer = target.write_all(&words(step as u32, timeout));
    match answer.and_then(|()| read_words(&mut target)) {
        Ok((0, value)) => Ok(value),
        Ok((code, _)) => Err(Error(code)),
        Err(_) => Err(Error::OPERATING_SYSTEM),
    }
}

/// The first word of an argument structure, whose rest must be zero.
fn only_word(arguments: In<[u64; ARGUMENTS]>) -> R<u64> {
    if arguments.is_null() {
        return Ok(0);
    }
    let [first, rest @ ..] = arguments.get()?;
    match rest.iter().all(|word| *word == 0) {
        true => Ok(first),
        false => Err(Error::INVALID_VALUE),
    }
}

/// Refuses arguments: custom storage and other devices are not simulated.
fn no_word(arguments: In<[u64; ARGUMENTS]>) -> R {
    match only_word(arguments)? {
        0 => Ok(()),
        _ => Err(Error::NOT_SUPPORTED),
    }
}

export! {
    fn cuCheckpointProcessGetState(pid: i32, state: Out<u32>) {
        state.set(call(pid, Step::GetState, 0)?)
    }

    fn cuCheckpointProcessLock(pid: i32, arguments: In<[u64; ARGUMENTS]>) {
        let timeout = u32::try_from(only_word(arguments)?).map_err(|_| Error::INVALID_VALUE)?;
        call(pid, Step::Lock, timeout).map(drop)
    }

    fn cuCheckpointProcessCheckpoint(pid: i32, arguments: In<[u64; ARGUMENTS]>) {
        no_word(arguments)?;
        call(pid, Step::Checkpoint, 0).map(drop)
    }

    fn cuCheckpointProcessRestore(pid: i32, arguments: In<[u64; ARGUMENTS]>) {
        no_word(arguments)?;
        call(pid, Step::Restore, 0).map(drop)
    }

    fn cuCheckpointProcessUnlock(pid: i32, arguments: In<[u64; ARGUMENTS]>) {
        no_word(arguments)?;
        call(pid, Step::Unlock, 0).map(drop)
    }
}
