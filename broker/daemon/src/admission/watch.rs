// SPDX-License-Identifier: MIT OR Apache-2.0
//! Free memory of the devices, read from NVML without a context.
//!
//! NVML runs in a process of its own (`weft probe --memory`), because a driver may hang or crash.
//! The process starts at a query and ends after [`IDLE`] without one, or with the broker. If there
//! is no NVML, no more queries are sent.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::clock;
use crate::server::thread_time;
use weft_protocol::Ns;

/// Time for which the process is kept without a query: a start takes some milliseconds, or a second
/// if no process keeps the devices awake.
const IDLE: Duration = Duration::from_secs(30);

/// Failed queries in a row after which there is no NVML.
const TRIES: u32 = 2;

/// One answer.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Number of the query; it grows.
    pub number: u64,
    /// Time of the query.
    pub at: Ns,
    /// Device UUIDs (hexadecimal) and free bytes.
    pub free: Vec<(String, u64)>,
    /// Device UUIDs and sizes, bytes.
    pub memory: Vec<(String, u64)>,
}

#[derive(Debug, Default)]
struct Questions {
    asked: u64,
    done: u64,
    last: Reading,
    /// CPU time of the thread so far.
    spent: Duration,
    dead: bool,
}

#[derive(Debug, Clone)]
pub struct Watch(Arc<(Mutex<Questions>, Condvar)>);

impl Watch {
    /// A handle without NVML.
    pub fn none() -> Watch {
        let dead = Questions {
            dead: true,
            ..Questions::default()
        };
        Watch(Arc::new((Mutex::new(dead), Condvar::new())))
    }

    /// Starts the thread that queries NVML.
    pub fn begin() -> Watch {
        let watch = Watch(Arc::default());
        let ours = watch.clone();
        let thread = std::thread::Builder::new().name("weft-watch".into());
        match thread.spawn(move || ours.serve()) {
            Ok(_) => watch,
            Err(_) => Watch::none(),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Questions> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether NVML answers, as far as known.
    pub fn tells(&self) -> bool {
        !self.slot().dead
    }

    /// CPU time of the thread so far, without that of NVML's process.
    pub fn spent(&self) -> Duration {
        self.slot().spent
    }

    /// Sends a query without waiting; [`Watch::last`] returns the answer a moment later.
    pub fn ask(&self) {
        let mut slot = self.slot();
        slot.asked += u64::from(!slot.dead && slot.asked == slot.done);
        self.0.1.notify_all();
    }

    /// The last answer, if its number is not `known`.
    pub fn last(&self, known: u64) -> Option<Reading> {
        let slot = self.slot();
        (slot.last.number != known).then(|| slot.last.clone())
    }

    /// Sends a query, and waits at most `patience` for the answer.
    pub fn fresh(&self, patience: Duration) -> Option<Reading> {
        let mut slot = self.slot();
        if slot.dead {
            return None;
        }
        // An answer on its way belongs to an older query.
        slot.asked += 1;
        let this = slot.asked;
        self.0.1.notify_all();
        let waited = self
            .0
            .1
            .wait_timeout_while(slot, patience, |slot| slot.done < this && !slot.dead);
        let (slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (slot.last.number >= this).then(|| slot.last.clone())
    }

    fn serve(&self) {
        let mut failed = 0;
        let mut probe: Option<NvmlProbe> = None;
        while failed < TRIES {
            let wait = self
                .0
                .1
                .wait_timeout_while(self.slot(), IDLE, |slot| slot.asked == slot.done);
            let (slot, late) = wait.unwrap_or_else(PoisonError::into_inner);
            let number = slot.asked;
            drop(slot);
            if late.timed_out() {
                probe = None;
                continue;
            }
            let at = clock::now();
            let told = probe.take().or_else(NvmlProbe::start).and_then(|mut it| {
                let told = it.ask();
                probe = told.is_some().then_some(it);
                told
            });
            failed = if told.is_some() { 0 } else { failed + 1 };
            let mut slot = self.slot();
            slot.done = number;
            slot.spent = thread_time();
            if let Some(told) = told {
                // NVML cannot report free memory of a device without a size, such as one that
                // shares the host's memory.
                let told = told.into_iter().filter(|(_, _, memory)| *memory > 0);
                let (free, memory) = told
                    .map(|(uuid, free, memory)| ((uuid.clone(), free), (uuid, memory)))
                    .unzip();
                slot.last = Reading {
                    number,
                    at,
                    free,
                    memory,
                };
            }
            self.0.1.notify_all();
        }
        log::info!("no NVML: the memory of processes outside weft is known only while a job has a context");
        let mut slot = self.slot();
        slot.dead = true;
        slot.done = slot.asked;
        self.0.1.notify_all();
    }
}

/// The process that queries NVML.
#[derive(Debug)]
struct NvmlProbe {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl NvmlProbe {
    fn start() -> Option<NvmlProbe> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["probe", "--memory"]).env_remove("LD_PRELOAD");
        // Signals to the broker's group must not reach it. It ends when its input closes.
        command.process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let (questions, answers) = (child.stdin.take()?, child.stdout.take()?);
        Some(NvmlProbe {
            child,
            questions,
            answers: BufReader::new(answers),
        })
    }

    /// UUIDs, free bytes, sizes.
    fn ask(&mut self) -> Option<Vec<(String, u64, u64)>> {
        self.questions.write_all(b"\n").ok()?;
        self.questions.flush().ok()?;
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for NvmlProbe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
