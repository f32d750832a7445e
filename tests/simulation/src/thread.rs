// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launch path of one thread, step by step, as in the interposer. Between two steps anything
//! may happen, even the thread's death. The decisions are those of `weft_gate`.
//!
//! | here | interposer |
//! |---|---|
//! | `Next` of a foreground job, `Told` | `Session::foreground` |
//! | `Next` of a background job, `Queued`, `Asleep`, `Through` | `gate`: `pass_at_once`, `pass_in_turn`, `wait_for_credit`, `sleep_for_credit` |
//! | `Took` | `Completion::issue` |
//! | `Booked` | `Session::record` |
//! | `Queues` | the driver's own launch, `Completion::launched` |
//! | `Syncs` | `Session::synced` |
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_gate::accounts::StreamAccount;
use weft_gate::charge;
use weft_gate::fences::{FenceDue, fence_due};
use weft_gate::wait::{GateLook, GateWait, WaitEnd, WaitingClient, longest_wait, nap_length};
use weft_protocol::lane::{DeviceSpeed, HOST_COPY, Kind};
use weft_scheduler::{Mode, Ns};

use crate::process::SimProcess;
use crate::scenario::{ClientOp, US};

/// Time of a launch on the job's own thread, ns.
const LAUNCH_NS: Ns = 4_000;

/// A launch or copy on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingLaunch {
    pub kernel: u64,
    pub cost: Ns,
    /// Its real time, ns.
    pub time: Ns,
    pub spins: bool,
    /// Bytes, if it is a copy.
    pub copies: Option<u64>,
}

/// A thread asleep at the head of the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sleep {
    pub launch: PendingLaunch,
    pub ticket: u32,
    pub wait: GateWait,
    /// The bell as it was when the nap began.
    pub bell: u32,
    /// The world's time, ns, at the start of the wait.
    pub since: Ns,
}

/// Stage of a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    Next,
    /// A foreground job's record is written; next comes the launch epoch.
    Told {
        launch: PendingLaunch,
        ends_silence: bool,
    },
    Queued {
        launch: PendingLaunch,
        ticket: u32,
        arrived: Ns,
        deadline: Ns,
        longest: Ns,
    },
    Asleep(Sleep),
    /// Through the gate; the turn is not yet passed on.
    Through {
        launch: PendingLaunch,
        ticket: u32,
        passed: WaitEnd,
        arrived: Ns,
    },
    Took(PendingLaunch),
    Booked {
        launch: PendingLaunch,
        at: Ns,
    },
    Queues {
        launch: PendingLaunch,
        background: bool,
    },
    Syncs,
    /// A forked child that has no operations left.
    Over,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stepped {
    /// The broker's bell is rung.
    pub rings: bool,
    /// A wait at the gate ended.
    pub passed: Option<(WaitEnd, Ns)>,
}

/// One step of a thread at `now`. Sets when the next one is due.
pub(crate) fn step(process: &mut SimProcess, at: usize, now: Ns) -> Stepped {
    let mut stepped = Stepped::default();
    let clock = process.clock(now);
    let mut next = pause(process, at);
    let stage = match process.threads[at].stage {
        Stage::Next => begin(process, at, now, &mut next, &mut stepped),
        Stage::Told { launch, ends_silence } => {
            process.host.epoch_page.bump(process.epoch());
            if ends_silence {
                stepped.rings = process.ring();
            }
            Stage::Queues {
                launch,
                background: false,
            }
        }
        Stage::Queued {
            launch,
            ticket,
            arrived,
            deadline,
            longest,
        } => {
            if process.tickets.has_come(ticket) {
                wait_for_credit(process, at, now, (launch, ticket, arrived, longest), &mut stepped)
            } else if clock >= deadline {
                through(process, at, now, (launch, ticket, arrived), WaitEnd::Expired)
            } else {
                // The futex of the turn wakes it; polling from time to time is equivalent.
                next = 20 * US;
                process.threads[at].stage
            }
        }
        Stage::Asleep(sleep) => asleep(process, at, now, sleep, &mut next, &mut stepped),
        Stage::Through {
            launch,
            ticket,
            passed,
            arrived,
        } => {
            process.lane().reports.waiting.store(0, Ordering::Release);
            if passed.is_overdraft() {
                process.overdraw(launch.cost);
            }
            process.tickets.leave(ticket);
            stepped.passed = Some((passed, clock.saturating_sub(arrived)));
            Stage::Took(launch)
        }
        Stage::Took(launch) => {
            if launch.copies.is_none() {
                process.active.mark(at);
            }
            let place = process.accounts.place(at);
            if process.accounts.issue(place, launch.cost, clock) {
                process.progress = clock;
            }
            process.lane().reports.issued.fetch_add(launch.cost, Ordering::AcqRel);
            Stage::Booked { launch, at: clock }
        }
        Stage::Booked { launch, at: issued_at } => {
            if launch.copies.is_some() && process.active.is_idle() {
                process.write(Kind::WakeUpHint, at, clock, 0, 0, 0);
            }
            let kind = if launch.copies.is_some() {
                Kind::Transfer
            } else {
                Kind::Launch
            };
            process.write(kind, at, issued_at, launch.kernel, launch.cost, 0);
            if launch.copies.is_some() && process.active.mark(at) {
                stepped.rings = process.ring();
            }
            Stage::Queues {
                launch,
                background: true,
            }
        }
        Stage::Queues { launch, background } => {
            process.threads[at].stream.queue(now, launch.time, launch.spins);
            next = LAUNCH_NS;
            if background {
                fence(process, at, now);
            }
            advance(process, at)
        }
        Stage::Syncs => syncs(process, at, now, &mut next, &mut stepped),
        Stage::Over => {
            next = Ns::MAX / 2;
            Stage::Over
        }
    };
    let thread = &mut process.threads[at];
    thread.stage = stage;
    thread.next_at = now.saturating_add(next);
    stepped
}

/// Instructions take some ns; sometimes the thread loses its core.
fn pause(process: &mut SimProcess, at: usize) -> Ns {
    let chance = &mut process.threads[at].chance;
    match chance.between(0, 199) {
        0 => chance.length(10 * US, 5_000 * US),
        1..=9 => chance.between(US, 20 * US),
        _ => chance.between(10, 400),
    }
}

/// The next operation begins after this one.
fn advance(process: &mut SimProcess, at: usize) -> Stage {
    if process.client.is_none() {
        return Stage::Over;
    }
    let thread = &mut process.threads[at];
    thread.at = (thread.at + 1) % thread.ops.len();
    Stage::Next
}

fn begin(process: &mut SimProcess, at: usize, now: Ns, next: &mut Ns, stepped: &mut Stepped) -> Stage {
    let thread = &mut process.threads[at];
    let op = thread.ops[thread.at];
    // On a device with neighbours a kernel's time varies; some take far longer than any prediction.
    let factor = match thread.chance.between(0, 299) {
        0 => thread.chance.between(1_000, 30_000),
        1..=60 => thread.chance.between(110, 300),
        61..=90 => thread.chance.between(30, 90),
        _ => 100,
    };
    let (kernel, time, spins, copies) = match op {
        ClientOp::Launch { kernel, time } => (kernel, time, false, None),
        ClientOp::Spin { kernel, time } => (kernel, time, true, None),
        ClientOp::Copy { bytes } => (
            HOST_COPY,
            charge::copy_time(bytes, DeviceSpeed::default().host_copy_mb_per_s),
            false,
            Some(bytes),
        ),
        ClientOp::Sync => return Stage::Syncs,
        ClientOp::Host(time) => {
            *next = time.max(1);
            return advance(process, at);
        }
    };
    let time = time.saturating_mul(factor) / 100;
    let cost = match copies {
        Some(bytes) => charge::copy_time(bytes, DeviceSpeed::default().host_copy_mb_per_s),
        None => process.cost(kernel),
    };
    let launch = PendingLaunch {
        kernel,
        cost,
        time,
        spins,
        copies,
    };
    let clock = process.clock(now);
    let passes = Stage::Queues {
        launch,
        background: false,
    };
    match (process.mode(), copies) {
        (Mode::Free | Mode::Alone, _) => passes,
        (Mode::Foreground, None) => {
            let ends_silence = process.active.mark(at);
            process.write(Kind::Launch, at, clock, launch.kernel, launch.cost, 0);
            Stage::Told { launch, ends_silence }
        }
        (Mode::Background, Some(bytes)) if !charge::is_gated(bytes) => copy(process, at, clock, launch, stepped),
        (Mode::Foreground, Some(_)) => copy(process, at, clock, launch, stepped),
        (Mode::Background, _) => {
            // `pass`: a thread that finds the queue empty needs no place in it.
            if process.tickets.is_empty() && process.take_credit(cost) {
                return Stage::Took(launch);
            }
            let ticket = process.tickets.take();
            if process.tickets.has_come(ticket) && process.take_credit(cost) {
                process.tickets.leave(ticket);
                return Stage::Took(launch);
            }
            let longest = longest_wait(process.lane().orders.longest_wait.load(Ordering::Relaxed));
            Stage::Queued {
                launch,
                ticket,
                arrived: clock,
                deadline: clock.saturating_add(longest),
                longest,
            }
        }
    }
}

/// A copy that passes the gate.
fn copy(process: &mut SimProcess, at: usize, clock: Ns, launch: PendingLaunch, stepped: &mut Stepped) -> Stage {
    if process.active.is_idle() {
        process.write(Kind::WakeUpHint, at, clock, 0, 0, 0);
    }
    process.write(
        Kind::Transfer,
        at,
        clock,
        launch.kernel,
        launch.cost,
        launch.copies.unwrap_or(0),
    );
    if process.active.mark(at) {
        stepped.rings = process.ring();
    }
    Stage::Queues {
        launch,
        background: false,
    }
}

/// `wait_for_credit`: at the head of the queue.
fn wait_for_credit(
    process: &mut SimProcess,
    at: usize,
    now: Ns,
    (launch, ticket, arrived, longest): (PendingLaunch, u32, Ns, Ns),
    stepped: &mut Stepped,
) -> Stage {
    if process.take_credit(launch.cost) {
        return through(process, at, now, (launch, ticket, arrived), WaitEnd::Credit);
    }
    let heartbeat = process.host.epoch_page.heartbeat.load(Ordering::Relaxed);
    if process.standstill == Some(heartbeat) {
        return through(process, at, now, (launch, ticket, arrived), WaitEnd::BrokerStopped);
    }
    let reports = &process.lane().reports;
    reports.wanted_kernel.store(launch.kernel, Ordering::Relaxed);
    reports.wanted_cost.store(launch.cost, Ordering::Relaxed);
    reports.waiting_since.store(arrived, Ordering::Relaxed);
    process.write(Kind::Wait, at, arrived, launch.kernel, launch.cost, 0);
    reports.waiting.swap(1, Ordering::SeqCst);
    stepped.rings = process.ring();
    process.put_fence(at);
    let bell = process.lane().orders.bell.load(Ordering::Acquire);
    Stage::Asleep(Sleep {
        launch,
        ticket,
        wait: GateWait::new(arrived, longest, heartbeat),
        bell,
        since: now,
    })
}

fn through(
    _: &mut SimProcess,
    _: usize,
    _: Ns,
    (launch, ticket, arrived): (PendingLaunch, u32, Ns),
    passed: WaitEnd,
) -> Stage {
    Stage::Through {
        launch,
        ticket,
        passed,
        arrived,
    }
}

/// A thread at the head of the queue, at a time of its process's clock.
struct AtTheGate<'a> {
    process: &'a mut SimProcess,
    cost: Ns,
    now: Ns,
    gained: bool,
}

impl WaitingClient for AtTheGate<'_> {
    fn take_credit(&mut self, _: Ns) -> bool {
        self.process.take_credit(self.cost)
    }

    fn is_background(&self) -> bool {
        self.process.mode() == Mode::Background
    }

    fn is_hurried(&self, _: Ns) -> bool {
        false
    }

    fn spin(&self) -> Ns {
        0
    }

    fn poll(&mut self, _: Ns) {
        self.gained = self.process.ask_device(self.now) > 0;
    }

    fn progress(&self) -> Ns {
        self.process.progress
    }

    fn has_fences(&self) -> bool {
        !self.process.fences.is_empty()
    }

    fn heartbeat(&self) -> u32 {
        self.process.host.epoch_page.heartbeat.load(Ordering::Relaxed)
    }

    fn nap(&self, clock: Ns) -> Ns {
        let SimProcess { accounts, fences, .. } = &*self.process;
        let expected = fences.expected_end(accounts, self.process.progress);
        nap_length(clock, expected, || accounts.outstanding() > 0)
    }
}

/// `sleep_for_credit`: one round of its loop.
fn asleep(
    process: &mut SimProcess,
    at: usize,
    now: Ns,
    mut sleep: Sleep,
    next: &mut Ns,
    stepped: &mut Stepped,
) -> Stage {
    let clock = process.clock(now);
    let bell = process.lane().orders.bell.load(Ordering::Acquire);
    let mut client = AtTheGate {
        process,
        cost: sleep.launch.cost,
        now,
        gained: false,
    };
    let look = sleep.wait.look(clock, &mut client);
    if client.gained {
        stepped.rings = process.ring();
    }
    match look {
        GateLook::Ends(passed) => {
            if passed == WaitEnd::BrokerStopped {
                process.standstill = Some(sleep.wait.heartbeat());
            }
            Stage::Through {
                launch: sleep.launch,
                ticket: sleep.ticket,
                passed,
                arrived: sleep.wait.arrived(),
            }
        }
        GateLook::Spin => process.threads[at].stage,
        GateLook::Nap(nap) => {
            sleep.bell = bell;
            *next = nap + process.threads[at].chance.between(US, 30 * US);
            Stage::Asleep(sleep)
        }
    }
}

/// `Completion::launched`.
fn fence(process: &mut SimProcess, at: usize, now: Ns) {
    let account = process.accounts.account(process.accounts.place(at).at);
    let unmarked = account.map_or(0, StreamAccount::unfenced);
    let credit = process.lane().orders.credit.load(Ordering::Relaxed);
    if fence_due(unmarked, credit) == FenceDue::Now {
        process.put_fence(at);
        process.ask_device(now);
    }
}

/// `Session::synced` of the thread's own stream.
fn syncs(process: &mut SimProcess, at: usize, now: Ns, next: &mut Ns, stepped: &mut Stepped) -> Stage {
    match process.threads[at].stream.end() {
        Some(end) if end <= now => {}
        Some(end) => {
            *next = end - now;
            return Stage::Syncs;
        }
        None => {
            *next = 100 * US;
            return Stage::Syncs;
        }
    }
    let mode = process.mode();
    if matches!(mode, Mode::Free | Mode::Alone) {
        return advance(process, at);
    }
    let (idle, certain) = process.synced(at);
    let clock = process.clock(now);
    if mode == Mode::Background {
        let gained = process.complete(at, idle && certain);
        if gained > 0 {
            process.progress = clock;
            process.report_settled(gained);
        }
    }
    if idle {
        process.lane().become_idle_fenced(clock);
        if mode != Mode::Background {
            stepped.rings = process.ring_idle();
        }
    }
    advance(process, at)
}
