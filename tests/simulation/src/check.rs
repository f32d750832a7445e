// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invariants after every event of the core, and after every turn of the broker.
//!
//! * **The foreground job never waits.** The most important client is the foreground job. It may
//!   also be alone. If equals take long turns, it is a background job. The core's mode is
//!   checked after every event, its lane's after every turn. No thread of the foreground job stands
//!   at the gate, except those that stood there when it became the foreground job.
//! * **The bound.** No event raises the background jobs' outstanding work above
//!   `max(bound, bound / 2 + the kernel that the credit is for)`. Two exceptions are counted: a
//!   grant to a job whose own work does not end, and a client that took more than it had. By the
//!   lanes of all honest background jobs (usable credit + issued - reported as ended) the same
//!   bound holds.
//! * **Credit is conserved.** `granted = issued + revoked + left` in the books, and the books never
//!   have more issued than taken from the word. After each turn
//!   `granted - revoked - taken = the word`, to the ns, unless the client writes into the word.
//! * **A dead client holds nothing.** It is not in the books, no decision is about it, and the
//!   outstanding work is the sum over the living.
//! * **The broker is woken.** While a client waits in the books, the core names a time for its next
//!   turn: not always at once, and not unreasonably late.
//! * **A client's launches are reported in order**, for each thread. Not judged: liars, overrun
//!   rings, and launches from before a jump of the clock.
//! * **The broker never lets go of an honest client.**
//!
//! The device is one queue per stream. Each kernel ends at a random time, which stands for all
//! effects of neighbours. So the delay of a foreground job is not judged here (the lab does that).
//! A graph is a launch like others.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use weft_scheduler::{Client, ClientView, Core, Decision, Event, Mode, Ns, Snapshot};

use crate::process::{ProcessLife, SimProcess};
use crate::scenario::MS;

/// Latest next turn, ns, while a client waits: the longest cost / the minimum share, 10 s / 0.02.
const MAX_DEADLINE_NS: Ns = 600_000 * MS;

/// Turns in a row that may ask for the next one at once.
const AT_ONCE: u32 = 64;

/// Violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Name of the invariant.
    pub what: &'static str,
    /// Values that break it.
    pub how: String,
}

pub(crate) type Check = Result<(), Broken>;

fn broken(what: &'static str, how: impl FnOnce() -> String) -> Check {
    Err(Broken { what, how: how() })
}

/// Names of the invariants. `sabotage` shows that each can fail.
pub(crate) mod name {
    pub(crate) const FOREGROUND: &str = "the foreground job never waits";
    pub(crate) const BOUND: &str = "what background jobs have out is bounded";
    pub(crate) const CREDIT: &str = "credit is conserved";
    pub(crate) const ORDER: &str = "a client's launches are told in order";
    pub(crate) const PROGRESS: &str = "every background job makes progress";
    pub(crate) const DEAD: &str = "a dead client holds nothing";
    pub(crate) const WAKE: &str = "somebody wakes the broker";
    pub(crate) const HONEST: &str = "an honest client is never let go";
}

/// State of the checks from event to event.
#[derive(Debug, Default)]
pub(crate) struct Books {
    attached: HashMap<Client, bool>,
    last: Option<Snapshot>,
    /// Largest cost of an honest client's granted kernel, ns.
    longest: Ns,
    /// Longest kernel, ns, that each client may have out.
    out: HashMap<Client, Ns>,
    /// Work beyond the bound that each client may have out, ns: credit against standstill, and
    /// launches whose wait expired.
    beyond: HashMap<Client, Ns>,
    /// Room beyond the bound for counted reasons, ns.
    excused: Ns,
    at_once: u32,
    /// Divisor of the bound, for sabotage; 0 and 1 change nothing.
    pub(crate) strict: Ns,
}

impl Books {
    /// Checks the books after an event.
    pub(crate) fn event(
        &mut self,
        event: &Event,
        decisions: &[Decision],
        core: &Core,
        honest: impl Fn(Client) -> Option<bool>,
    ) -> Check {
        match event {
            Event::Attached { client, .. } => {
                self.attached.insert(*client, true);
            }
            Event::Gone(client) => {
                self.attached.remove(client);
            }
            _ => {}
        }
        let snapshot = core.snapshot();
        if snapshot.clients.len() != self.attached.len() {
            return broken(name::DEAD, || {
                format!("{} attached, {:?}", self.attached.len(), snapshot.clients)
            });
        }
        let mut out: Ns = 0;
        for view in &snapshot.clients {
            if !self.attached.contains_key(&Client(view.client)) {
                return broken(name::DEAD, || format!("client {} is in the books", view.client));
            }
            let sum = i128::from(view.issued) + i128::from(view.revoked) + i128::from(view.left);
            if i128::from(view.granted) != sum {
                return broken(name::CREDIT, || format!("in the books: {view:?}"));
            }
            out = out
                .saturating_add(view.outstanding)
                .saturating_add(view.left.max(0).unsigned_abs());
        }
        if snapshot.exposure > out {
            return broken(name::DEAD, || {
                format!("{} is out, {out} of those who live", snapshot.exposure)
            });
        }
        for decision in decisions {
            let client = match decision {
                Decision::Mode(client, _)
                | Decision::RunAheadWindow(client, _)
                | Decision::Times(client, _)
                | Decision::Charge(client, ..)
                | Decision::Grant { client, .. }
                | Decision::Revoke(client) => client,
            };
            if !self.attached.contains_key(client) {
                return broken(name::DEAD, || format!("{decision:?}"));
            }
        }
        modes(&snapshot)?;
        turns(&snapshot)?;
        let bound = self.bound(event, decisions, core, &snapshot, honest);
        self.last = Some(snapshot);
        bound
    }

    /// Checks that only grants raise the outstanding work, and none above the bound.
    fn bound(
        &mut self,
        event: &Event,
        decisions: &[Decision],
        core: &Core,
        now: &Snapshot,
        honest: impl Fn(Client) -> Option<bool>,
    ) -> Check {
        let config = core.config();
        let Some(before) = &self.last else { return Ok(()) };
        let stuck = now.counters.stuck_grants - before.counters.stuck_grants;
        // A report may raise it if more was taken than granted.
        let mut room = before.exposure;
        let out_of = |view: &ClientView| view.outstanding.saturating_add(view.left.max(0).unsigned_abs());
        let of = |snapshot: &Snapshot, client: Client| snapshot.client(client).map_or(0, out_of);
        if let Event::Progress { client, .. } | Event::Revoked { client, left: ..0 } = event {
            room = room.saturating_add(of(now, *client).saturating_sub(of(before, *client)));
        }
        // Replenished credit was bounded together with the outstanding work of that time. A liar's
        // claimed work does not exist, so another client's window continues.
        if let Event::Renewed { client, .. } = event {
            let lied: Ns = before
                .clients
                .iter()
                .filter(|view| honest(Client(view.client)) == Some(false))
                .map(out_of)
                .fold(0, Ns::saturating_add);
            let growth = of(now, *client).saturating_sub(of(before, *client));
            room = room.saturating_add(growth.min(lied));
        }
        // A liar may only not harm other clients; its reports of its own credit are not judged.
        if let Event::Renewed { client, .. } | Event::Holds { client, .. } = event
            && honest(*client) == Some(false)
        {
            room = room.saturating_add(of(now, *client));
        }
        // A word below zero: an expired wait let a launch go, which took the credit in the word
        // too. That credit did not count while the client waited: only the end of the wait could
        // use it. If another thread of the process still waits, the launch's own report shows this
        // first.
        let overdrawn = match event {
            Event::Holds { client, left: ..0 } | Event::Revoked { client, left: ..0 } => Some(*client),
            Event::Progress { client, .. } => now.client(*client).filter(|view| view.left < 0).map(|_| *client),
            _ => None,
        };
        if let Some(client) = overdrawn
            && let Some(view) = before.client(client).filter(|view| view.waiting.is_some())
        {
            room = room.saturating_add(view.left.max(0).unsigned_abs());
        }
        // Credit that its client could not use during a wait counts again after it.
        for view in &before.clients {
            let waits_still = now
                .client(Client(view.client))
                .is_some_and(|later| later.waiting == view.waiting);
            if view.waiting.is_some() && !waits_still {
                room = room.saturating_add(view.left.max(0).unsigned_abs());
            }
        }
        match event {
            Event::Launched { client, cost, .. } => {
                let known = self.out.entry(*client).or_default();
                *known = (*known).max((*cost).min(config.longest_cost));
            }
            Event::Gone(client) => {
                self.out.remove(client);
                self.beyond.remove(client);
            }
            _ => {}
        }
        for view in now
            .clients
            .iter()
            .filter(|view| view.outstanding == 0 && view.left <= 0)
        {
            self.out.remove(&Client(view.client));
            self.beyond.remove(&Client(view.client));
        }
        for view in now.clients.iter().filter(|view| view.left < 0 && view.outstanding > 0) {
            let beyond = self.beyond.entry(Client(view.client)).or_default();
            *beyond = (*beyond).max(view.left.unsigned_abs());
        }
        // Behind one long kernel half the bound may go.
        let long = self
            .out
            .values()
            .chain(self.beyond.values())
            .copied()
            .max()
            .unwrap_or(0);
        let mut most = config.delay_bound.max(config.delay_bound / 2 + long) / self.strict.max(1);
        for decision in decisions {
            let Decision::Grant { client, credit, .. } = decision else {
                continue;
            };
            let cost = before
                .client(*client)
                .into_iter()
                .chain(now.client(*client))
                .filter_map(|view| view.waiting);
            let cost = cost.map(|wait| wait.cost).max().unwrap_or(0);
            most = most.max((config.delay_bound / 2 + cost) / self.strict.max(1));
            let known = self.out.entry(*client).or_default();
            *known = (*known).max(cost);
            if honest(*client) == Some(true) {
                self.longest = self.longest.max(cost);
            }
            if stuck > 0 {
                // Its next launch uses what it had left, and the new credit.
                let had = before.client(*client).map_or(0, |view| view.left.max(0).unsigned_abs());
                room = room.saturating_add(*credit).saturating_add(had);
                self.excused = self.excused.saturating_add(*credit).saturating_add(had);
                let beyond = self.beyond.entry(*client).or_default();
                *beyond = beyond.saturating_add(*credit).saturating_add(had);
            }
        }
        // A job that becomes the foreground job at the gate launches without credit. That is in the
        // books, but is not background work. An earlier window of another job continues until
        // the launch epoch or a revocation ends it. So credit may be replenished, as long as the
        // background jobs stay in the bound without the foreground jobs.
        if let Event::Renewed { .. } = event {
            // Another job's window goes on next to it.
            most = most.saturating_add(self.beyond.values().sum::<Ns>());
            let of_background_jobs = now.clients.iter().filter(|view| view.mode == "background").map(out_of);
            if of_background_jobs.fold(0, Ns::saturating_add) <= most {
                room = room.max(most.saturating_add(let_go_as_foreground_jobs(now)));
            }
        }
        if now.exposure > room.max(most) {
            return broken(name::BOUND, || {
                format!(
                    "{} is out after {event:?}, {} was before; {most} may be; {decisions:?}",
                    now.exposure, before.exposure
                )
            });
        }
        Ok(())
    }

    /// Checks a turn whose decisions are carried out. `wake`: time of the core's next turn.
    pub(crate) fn turn(&mut self, core: &Core, wake: Option<Ns>, now: Ns, processes: &[SimProcess]) -> Check {
        let snapshot = core.snapshot();
        let config = core.config();
        let mut out: i64 = 0;
        let mut excused = self.excused;
        for process in processes
            .iter()
            .filter(|process| process.life == ProcessLife::Lives && !process.lies)
        {
            let Some(view) = process.client.and_then(|client| snapshot.client(client)) else {
                continue;
            };
            let lane = process.lane();
            let word = lane.orders.credit.load(Ordering::Relaxed);
            credit(process, view, word)?;
            let told = process.mode();
            let meant = match view.mode {
                "foreground" => Mode::Foreground,
                "background" => Mode::Background,
                // A client that is sampled reports its launches even when it is alone.
                "alone" if told == Mode::Foreground => Mode::Foreground,
                "alone" => Mode::Alone,
                _ => Mode::Free,
            };
            if told != meant {
                return broken(name::FOREGROUND, || {
                    format!("client {} is told {told:?}, meant is {meant:?}", view.client)
                });
            }
            if told == Mode::Background {
                let waits = view
                    .waiting
                    .is_some_and(|wait| word < i64::try_from(wait.cost).unwrap_or(i64::MAX));
                let usable = if waits { 0 } else { word.max(0) };
                let settled = lane.reports.completed.load(Ordering::Relaxed);
                out += usable + process.taken - settled as i64;
                excused = excused.saturating_add(view.written_off);
            }
            excused = excused.saturating_add(process.overdrawn.unsigned_abs());
        }
        let most = config.delay_bound.max(config.delay_bound / 2 + self.longest);
        if out > 0 && out.unsigned_abs() > most.saturating_add(excused) {
            return broken(name::BOUND, || {
                format!("{out} is out by the lanes, {most} may be, {excused} is excused")
            });
        }
        self.wakes(wake, &snapshot, now, processes)
    }

    fn wakes(&mut self, wake: Option<Ns>, snapshot: &Snapshot, now: Ns, processes: &[SimProcess]) -> Check {
        let waits = snapshot.clients.iter().find(|view| view.waiting.is_some());
        let Some(waits) = waits else {
            self.at_once = 0;
            return Ok(());
        };
        let Some(wake) = wake else {
            // A client that took its credit and will report it needs no wake-up. Nor does a wait
            // that is not reported to the core yet.
            let known = |process: &SimProcess| {
                let sleep = process.at_the_gate()?;
                let view = snapshot.client(process.client?)?;
                // Credit that another thread took and did not report yet is also pending news.
                let told = process.lane().reports.issued.load(Ordering::Relaxed);
                if i64::try_from(told).is_ok_and(|told| told < process.taken) {
                    return None;
                }
                let wait = view.waiting.filter(|wait| wait.since == sleep.wait.arrived())?;
                Some((wait, sleep))
            };
            return match processes.iter().find_map(known) {
                Some((wait, sleep)) => broken(name::WAKE, || format!("nobody will, and {wait:?}: {sleep:?}")),
                None => Ok(()),
            };
        };
        if wake < now || wake > now.saturating_add(MAX_DEADLINE_NS) {
            return broken(name::WAKE, || format!("at {wake}, it is {now}, and {waits:?}"));
        }
        self.at_once = if wake == now { self.at_once + 1 } else { 0 };
        if self.at_once > AT_ONCE {
            return broken(name::WAKE, || {
                format!("{AT_ONCE} turns ask for the next one at once, and {waits:?}")
            });
        }
        Ok(())
    }
}

/// Outstanding work, ns, that foreground jobs launched without credit as they left the gate.
fn let_go_as_foreground_jobs(snapshot: &Snapshot) -> Ns {
    let foreground_jobs = snapshot.clients.iter().filter(|view| view.mode == "foreground");
    let without_credit = |view: &ClientView| view.outstanding.min(view.left.min(0).unsigned_abs());
    foreground_jobs.map(without_credit).fold(0, Ns::saturating_add)
}

/// Compares the books of one client with its memory.
fn credit(process: &SimProcess, view: &ClientView, word: i64) -> Check {
    // Credit replenished in the meantime is in the word, but not yet in the books.
    let renewed = process.lane().reports.replenished.load(Ordering::Relaxed);
    let given = i128::from(view.granted) - i128::from(view.renewed) + i128::from(renewed) - i128::from(view.revoked);
    if given - i128::from(process.taken) != i128::from(word) {
        return broken(name::CREDIT, || {
            format!(
                "job {}: {} taken, {word} in the word, {view:?}",
                process.number, process.taken
            )
        });
    }
    if i128::from(view.issued) > i128::from(process.taken) {
        return broken(name::CREDIT, || {
            format!(
                "job {}: {} taken, less than it reports: {view:?}",
                process.number, process.taken
            )
        });
    }
    Ok(())
}

/// Checks that each client in long turns has at least one equal.
fn turns(snapshot: &Snapshot) -> Check {
    for view in snapshot.clients.iter().filter(|view| view.turns) {
        let equals = snapshot
            .clients
            .iter()
            .filter(|other| other.turns && other.priority == view.priority);
        if equals.count() < 2 {
            return broken(name::FOREGROUND, || {
                format!("client {} takes turns with nobody", view.client)
            });
        }
    }
    Ok(())
}

/// Checks each client's mode, by priority.
fn modes(snapshot: &Snapshot) -> Check {
    let first = snapshot.clients.iter().map(|view| view.priority).min();
    for view in &snapshot.clients {
        let expected = match snapshot.clients.len() {
            1 => "alone",
            _ if Some(view.priority) == first && !view.turns => "foreground",
            _ => "background",
        };
        if view.mode != expected {
            return broken(name::FOREGROUND, || {
                format!("client {} is {}, should be {expected}", view.client, view.mode)
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_profiles::Aggregator;
    use weft_scheduler::{Config, PolicyName};

    use super::*;

    const FOREGROUND: Client = Client(1);
    const NEXT: Client = Client(2);
    const BACKGROUND: Client = Client(3);
    const US: Ns = 1_000;

    /// A foreground job dies while two background jobs stand at the gate. The more important one
    /// becomes the foreground job and launches without credit. The other has an older run-ahead
    /// window and replenishes its credit. Returns the violation if the bound is then divided by
    /// `strict`.
    fn goes_on_beside_a_new_foreground_job(strict: Ns) -> Option<Broken> {
        let mut run = Aggregator::new();
        (0..20).for_each(|_| run.sampled(9, 100 * US, None));
        let profile = Arc::new(run.finish("background", 0));
        let mut core = Core::new(Config {
            policy: PolicyName::Weft,
            switch_cost: 0,
            ..Config::default()
        });
        let (mut books, mut out) = (Books::default(), Vec::new());
        let begin = 1_000 * MS;
        let mut tell = |core: &mut Core, now: Ns, event: Event| {
            let before = out.len();
            core.handle(now, event.clone(), &mut out);
            let decisions = out[before..].to_vec();
            books.strict = if matches!(event, Event::Renewed { .. }) {
                strict
            } else {
                1
            };
            let checked = books.event(&event, &decisions, core, |_| Some(true));
            (checked, decisions)
        };
        let attached = |client, priority, profile| Event::Attached {
            client,
            priority,
            profile,
        };
        let waits = |client, kernel, cost| Event::Waits {
            client,
            kernel,
            cost,
            since: begin,
        };
        let progress = |client, issued, settled| Event::Progress {
            client,
            issued,
            settled,
        };
        let long = 1_500 * US;
        let busy = Event::Launched {
            client: FOREGROUND,
            kernel: 1,
            cost: 100 * US,
            at: begin,
        };
        for event in [
            attached(FOREGROUND, 0, None),
            attached(NEXT, 5, None),
            attached(BACKGROUND, 9, Some(profile)),
            busy,
        ] {
            tell(&mut core, begin, event).0.expect("nothing is out");
        }
        for event in [waits(NEXT, 5, long), waits(BACKGROUND, 9, 100 * US)] {
            let (checked, decisions) = tell(&mut core, begin, event);
            checked.expect("nothing is out");
            assert_eq!(decisions, [], "the foreground job works");
        }
        // Before any job is due for the minimum share. The new job's beginning is unknown, so the
        // gap opens after some silence.
        let mut now = begin + MS;
        let (mut checked, mut decisions) = tell(&mut core, now, Event::Gone(FOREGROUND));
        let granted = |decisions: &[Decision]| {
            decisions.iter().find_map(|decision| match decision {
                Decision::Grant {
                    client: BACKGROUND,
                    credit,
                    bound: true,
                    ..
                } => Some(*credit),
                _ => None,
            })
        };
        while granted(&decisions).is_none() && now < begin + 4 * MS {
            checked.expect("nothing is out");
            now += 50 * US;
            (checked, decisions) = tell(&mut core, now, Event::Tick);
        }
        checked.expect("what was granted is within the bound");
        let leased = decisions
            .iter()
            .any(|decision| matches!(decision, Decision::RunAheadWindow(BACKGROUND, Some(_))));
        let credit = granted(&decisions).expect("nobody else waits");
        assert!(leased && credit > 100 * US, "{decisions:?}");
        // The new foreground job's totals are reported first; then the background job's, which has
        // used all of its credit and seen the end of a part.
        for event in [
            progress(NEXT, long, 0),
            progress(BACKGROUND, credit, 100 * US),
            Event::Renewed {
                client: BACKGROUND,
                total: 100 * US,
            },
        ] {
            if let Err(broken) = tell(&mut core, now + MS, event).0 {
                return Some(broken);
            }
        }
        let out: Ns = core.snapshot().exposure;
        assert_eq!(out, credit, "a foreground job reports no ends");
        None
    }

    #[test]
    fn what_a_new_foreground_job_launched_is_no_background_jobs_work() {
        assert_eq!(goes_on_beside_a_new_foreground_job(1), None);
        // It is not excused that the background jobs themselves have more out.
        let broken = goes_on_beside_a_new_foreground_job(10).expect("it is ten times the bound");
        assert_eq!(broken.what, name::BOUND);
    }
}
