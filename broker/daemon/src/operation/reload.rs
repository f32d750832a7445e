// SPDX-License-Identifier: MIT OR Apache-2.0
//! SIGHUP: the broker reads its options again and applies those that may change while it runs.
//!
//! [`changes`] is pure: it lists the changes, and the options that need a restart. A separate
//! thread reads and applies them, because a slow disk must not keep clients waiting. If a file has
//! an error, nothing changes.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::supervisor;
use crate::admission::AdmissionHandle;
use crate::base::log_file;
use crate::base::options::{Options, Rights, UserFigures};
use crate::scheduler_mailbox::{Notice, SchedulerHandle};
use weft_api::formatting::percent;
use weft_api::users;
use weft_protocol::amount::shown;

/// Present values of the options that other threads read.
#[derive(Debug)]
pub struct LiveOptions {
    rights: RwLock<Rights>,
    idle_exit: RwLock<Option<Duration>>,
}

impl LiveOptions {
    /// The options with which a broker begins.
    pub fn new(options: &Options) -> LiveOptions {
        LiveOptions {
            rights: RwLock::new(options.rights.clone()),
            idle_exit: RwLock::new(options.idle_exit),
        }
    }

    /// The priority that a user's job gets.
    pub fn allows(&self, uid: u32, asked: u8) -> u8 {
        let rights = self.rights.read().unwrap_or_else(PoisonError::into_inner);
        rights.allows(uid, asked)
    }

    /// Time without a client after which the broker ends.
    pub fn idle_exit(&self) -> Option<Duration> {
        *self.idle_exit.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change that a running broker can apply.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionChange {
    /// The default slowdown, before and now.
    Slowdown(f64, f64),
    /// A user's new weight; 1 if it is no longer set.
    Weight(u32, u32),
    /// A user's new most important priority; `None`: no longer set.
    Priority(u32, Option<u8>),
    /// Most jobs at once of a user, or of all others; `None`: the cap was removed.
    Jobs(Option<u32>, Option<u32>),
    /// Most device memory at once of a user, or of all others, bytes; `None`: the cap was removed.
    Memory(Option<u32>, Option<u64>),
    /// Time without a client after which the broker ends.
    IdleExit(Option<Duration>),
    /// The log's level.
    Log(Option<String>),
}

impl OptionChange {
    /// The change in one line.
    fn line(&self) -> String {
        match self {
            OptionChange::Slowdown(before, now) => {
                format!("slowdown is {} (was {})", percent(*now), percent(*before))
            }
            OptionChange::Weight(uid, weight) => format!("weight of {} is {weight}", users::name_of(*uid)),
            OptionChange::Priority(uid, Some(priority)) => {
                format!("priority of {} is {priority}", users::name_of(*uid))
            }
            OptionChange::Priority(uid, None) => {
                format!("priority of {} is the default", users::name_of(*uid))
            }
            OptionChange::Jobs(who, Some(most)) => format!("cap on jobs of {} is {most}", whose(*who)),
            OptionChange::Jobs(who, None) => format!("cap on jobs of {} is removed", whose(*who)),
            OptionChange::Memory(who, Some(most)) => format!("cap on memory of {} is {}", whose(*who), shown(*most)),
            OptionChange::Memory(who, None) => format!("cap on memory of {} is removed", whose(*who)),
            OptionChange::IdleExit(None) => "idle-exit is never".to_string(),
            OptionChange::IdleExit(Some(time)) => format!("idle-exit is {} s", time.as_secs()),
            OptionChange::Log(level) => format!("log is {}", level.as_deref().unwrap_or("info")),
        }
    }
}

/// A user by name, or all others.
fn whose(who: Option<u32>) -> String {
    who.map_or_else(|| "all others".to_string(), users::name_of)
}

/// Users whose figures changed, with the new figures.
fn figures<T: Copy + PartialEq>(was: &UserFigures<T>, is: &UserFigures<T>) -> Vec<(Option<u32>, Option<T>)> {
    let named: BTreeSet<u32> = was.users.keys().chain(is.users.keys()).copied().collect();
    let named = named.into_iter().filter(|uid| was.users.get(uid) != is.users.get(uid));
    let named = named.map(|uid| (Some(uid), is.users.get(&uid).copied()));
    let others = (was.others != is.others).then_some((None, is.others));
    named.chain(others).collect()
}

/// The changes that can be applied, and the names of changed options that need a restart.
pub fn changes(before: &Options, now: &Options) -> (Vec<OptionChange>, Vec<&'static str>) {
    let mut taken = Vec::new();
    let (was, is) = (&before.core, &now.core);
    if was.slowdown != is.slowdown {
        taken.push(OptionChange::Slowdown(was.slowdown, is.slowdown));
    }
    let (was_of, is_of) = (&before.rights.weights, &now.rights.weights);
    let named = was_of
        .keys()
        .chain(is_of.keys().filter(|uid| !was_of.contains_key(uid)));
    for uid in named.filter(|uid| was_of.get(uid) != is_of.get(uid)) {
        taken.push(OptionChange::Weight(*uid, is_of.get(uid).copied().unwrap_or(1)));
    }
    let (was_of, is_of) = (&before.rights.priorities, &now.rights.priorities);
    let named = was_of
        .keys()
        .chain(is_of.keys().filter(|uid| !was_of.contains_key(uid)));
    for uid in named.filter(|uid| was_of.get(uid) != is_of.get(uid)) {
        taken.push(OptionChange::Priority(*uid, is_of.get(uid).copied()));
    }
    let jobs = figures(&before.rights.jobs, &now.rights.jobs).into_iter();
    taken.extend(jobs.map(|(who, most)| OptionChange::Jobs(who, most)));
    let memory = figures(&before.rights.memory, &now.rights.memory).into_iter();
    taken.extend(memory.map(|(who, most)| OptionChange::Memory(who, most)));
    if before.idle_exit != now.idle_exit {
        taken.push(OptionChange::IdleExit(now.idle_exit));
    }
    if before.log != now.log {
        taken.push(OptionChange::Log(now.log.clone()));
    }
    let restart = [
        ("policy", was.policy != is.policy),
        ("delay-bound", was.delay_bound != is.delay_bound),
        ("longest-wait", before.longest_wait != now.longest_wait),
        ("max-swapped-out", was.max_swapped_out != is.max_swapped_out),
        ("swapped-out-limit", was.swapped_out_limit != is.swapped_out_limit),
        (
            "switch-cost",
            (was.switch_cost, before.switch_cost_said) != (is.switch_cost, now.switch_cost_said),
        ),
        ("mps", before.mps != now.mps),
        ("checkpoint", before.checkpoint != now.checkpoint),
        ("group", before.door != now.door),
        ("trace", before.trace != now.trace),
    ];
    let restart = restart.into_iter().filter(|(_, changed)| *changed);
    (taken, restart.map(|(name, _)| name).collect())
}

/// Applies changes.
#[derive(Debug)]
pub struct Reloader {
    /// The options in force. Those that need a restart have their values from the broker's begin.
    pub in_force: Mutex<Options>,
    /// The values that other threads read.
    pub live: Arc<LiveOptions>,
    /// Set by SIGHUP.
    pub asked: Arc<AtomicBool>,
    /// Gets weights and caps.
    pub admission: AdmissionHandle,
    /// Gets the default slowdown.
    pub to_scheduler: SchedulerHandle,
}

impl Reloader {
    /// Starts a thread that reads the options, if a SIGHUP came. Never waits.
    pub fn tend(self: &Arc<Reloader>) {
        // A read in progress may have missed later changes to the file, so another one follows it.
        let Ok(_) = self.in_force.try_lock().map(drop) else {
            return;
        };
        if !self.asked.swap(false, Ordering::AcqRel) {
            return;
        }
        let reloader = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("weft-reload".into())
            .spawn(move || reloader.reload());
        if let Err(error) = started {
            log::warn!("cannot start the thread that reads the options: {error}; they are unchanged");
        }
    }

    fn reload(&self) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        supervisor::reloading();
        let read = match &in_force.source {
            Some(source) => source.read(),
            None => Err("this broker has no settings file".to_string()),
        };
        match read {
            Err(why) => log::warn!("not reloaded: {why}; all options are unchanged"),
            Ok(now) => self.take(&mut in_force, now),
        }
        supervisor::ready();
    }

    fn take(&self, in_force: &mut Options, now: Options) {
        let (taken, restart) = changes(in_force, &now);
        for change in &taken {
            match change {
                OptionChange::Slowdown(_, part) => {
                    self.to_scheduler.tell(Notice::Slowdown(*part));
                }
                OptionChange::Weight(uid, weight) => self.admission.weigh(&uid.to_string(), *weight),
                OptionChange::Log(level) => log_file::set_level(level.as_deref()),
                // Other threads read them from `live`.
                OptionChange::Priority(..) | OptionChange::IdleExit(_) => {}
                // Applied together with `set_rights` below.
                OptionChange::Jobs(..) | OptionChange::Memory(..) => {}
            }
            log::info!("reloaded: {}", change.line());
        }
        self.admission.set_rights(&now.rights);
        if !restart.is_empty() {
            log::warn!(
                "reloaded: {} change only when the broker is restarted",
                restart.join(", ")
            );
        }
        if taken.is_empty() && restart.is_empty() {
            log::info!("reloaded: nothing changed");
        }
        *self.live.rights.write().unwrap_or_else(PoisonError::into_inner) = now.rights.clone();
        *self.live.idle_exit.write().unwrap_or_else(PoisonError::into_inner) = now.idle_exit;
        (in_force.rights, in_force.idle_exit, in_force.log) = (now.rights, now.idle_exit, now.log);
        in_force.core.slowdown = now.core.slowdown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_scheduler::PolicyName;

    #[test]
    fn what_may_change_is_told_from_what_needs_a_restart() {
        let mut before = Options::default();
        before.rights.weights = [(1, 3), (2, 2)].into();
        before.rights.priorities = [(1, 0)].into();
        assert_eq!(changes(&before, &before.clone()), (vec![], vec![]));
        let mut now = before.clone();
        now.core.slowdown = 0.05;
        now.core.policy = PolicyName::Fikit;
        now.core.delay_bound += 1;
        now.rights.weights = [(1, 3), (3, 9)].into();
        now.rights.priorities = [(2, 4)].into();
        before.rights.jobs = [(Some(1), 2), (Some(2), 3)].into_iter().collect();
        now.rights.jobs = [(Some(1), 2), (Some(2), 4), (None, 8)].into_iter().collect();
        before.rights.memory = [(Some(3), 1 << 30)].into_iter().collect();
        now.idle_exit = Some(Duration::from_secs(7));
        now.log = Some("debug".to_string());
        let (taken, restart) = changes(&before, &now);
        let expected = [
            OptionChange::Slowdown(0.01, 0.05),
            OptionChange::Weight(2, 1),
            OptionChange::Weight(3, 9),
            OptionChange::Priority(1, None),
            OptionChange::Priority(2, Some(4)),
            OptionChange::Jobs(Some(2), Some(4)),
            OptionChange::Jobs(None, Some(8)),
            OptionChange::Memory(Some(3), None),
            OptionChange::IdleExit(Some(Duration::from_secs(7))),
            OptionChange::Log(Some("debug".to_string())),
        ];
        assert_eq!(taken, expected);
        assert_eq!(restart, ["policy", "delay-bound"]);
        assert_eq!(taken[0].line(), "slowdown is 5 % (was 1 %)");
        assert_eq!(taken[6].line(), "cap on jobs of all others is 8");
        let rights = &now.rights;
        assert_eq!((rights.cap(2).jobs, rights.cap(4_000_000).jobs), (Some(4), Some(8)));
        assert_eq!(rights.cap(0).jobs, None, "root is no guest");
        let live = LiveOptions::new(&before);
        assert_eq!((live.allows(1, 0), live.allows(2, 0)), (0, 5));
    }
}
