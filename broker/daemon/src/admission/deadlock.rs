//! Multi-device groups: jobs on several devices.
//!
//! A job's part on one device is a gang, admitted by itself. Gangs of one job are *kin*; the first
//! gives the family its number. A process attaches once for each of its devices.
//!
//! A declared need covers all devices together:
//! * The first gang asks for all that its device has room for.
//! * A further process (a rank) on another device takes an equal part with it. The first gang asks
//!   for that much less, or gives it back.
//! * A process that goes on to another device asks there for the rest. Without a rest, it begins
//!   with little and grows.
//!
//! Jobs that hold memory on one device and wait on another can wait for each other for ever.
//! [`Controller::untie`] gives the latest waiter of such jobs CUDA's out-of-memory error, whether
//! it waits to begin or for more.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::controller::{Controller, Gang};
use crate::process::Process;
use weft_admission::{Ask, Backing, DeviceId, Event, Job};
use weft_protocol::Ns;
use weft_protocol::control::Wants;

impl Gang {
    fn has(&self, process: &Process) -> bool {
        let here = self.members.values().any(|member| member.process == *process);
        here || self.absent.iter().any(|absent| absent.process == *process)
    }

    fn there(&self) -> u64 {
        (self.members.len() + self.absent.len()) as u64
    }
}

impl Controller {
    /// The gangs and devices of a process's job, the first gang first.
    pub fn kin(&self, process: &Process, wants: &Wants) -> Vec<(Job, DeviceId)> {
        let related = |gang: &Gang| {
            let named = !wants.gang.is_empty() && gang.name == wants.gang;
            named || (wants.further > 0 && gang.has(process))
        };
        let mut kin: Vec<(Job, DeviceId)> = self
            .gangs
            .iter()
            .filter(|(_, gang)| related(gang))
            .map(|(job, gang)| (*job, gang.device))
            .collect();
        kin.sort();
        kin
    }

    fn family(&self, family: Job) -> impl Iterator<Item = (&Job, &Gang)> {
        self.gangs.iter().filter(move |(_, gang)| gang.family == family)
    }

    /// The part of the declared need `said` for one more process on a further device; the first
    /// gang's need shrinks.
    pub fn part_elsewhere(&mut self, family: Job, said: Option<u64>, wants: &Wants) -> Option<u64> {
        let said = said?;
        if wants.further > 0 {
            // A rank's part counts on its first device.
            let asked = self.family(family).map(|(_, gang)| gang.asked);
            let left = said.saturating_sub(asked.fold(0, u64::saturating_add));
            return (left > 0 && wants.processes <= 1).then_some(left);
        }
        let there: u64 = self.family(family).map(|(_, gang)| gang.there()).sum();
        let elsewhere: u64 = self
            .family(family)
            .filter(|(job, _)| **job != family)
            .map(|(_, gang)| gang.there())
            .sum();
        let part = said / u64::from(wants.processes).max(there + 1);
        self.asks_less(family, said.saturating_sub(part.saturating_mul(elsewhere + 1)));
        Some(part)
    }

    /// Lowers the first gang's need to `needs` bytes, and its processes by one.
    fn asks_less(&mut self, job: Job, needs: u64) {
        let Some(gang) = self.gangs.get_mut(&job) else { return };
        let less = gang.asked.saturating_sub(needs);
        gang.asked -= less;
        gang.processes = gang.processes.saturating_sub(1).max(1);
        let (device, processes) = (gang.device, gang.processes);
        if let Some((_, share)) = self.machine.share(job) {
            // Processes keep what they were given.
            let context = self.about(device).map_or(0, |about| about.context);
            let spare = share.saturating_sub(self.given(job, context));
            let back = less.saturating_add(context).min(spare);
            self.tell(Event::Gives(job, back));
        } else {
            self.asks_anew(job, |ask| {
                ask.need.peak = ask.need.peak.saturating_sub(less);
                ask.need.processes = processes;
            });
        }
    }

    /// Adds the part of one more process on a further device where its job has others.
    pub fn brings(&mut self, job: Job, said: Option<u64>, wants: &Wants) {
        let Some(gang) = self.gangs.get(&job) else { return };
        let (family, stated) = (gang.family, gang.stated);
        if family == job || !stated || wants.further > 0 {
            return;
        }
        let Some(part) = self.part_elsewhere(family, said, wants) else {
            return;
        };
        if let Some(gang) = self.gangs.get_mut(&job) {
            gang.asked = gang.asked.saturating_add(part);
            gang.processes = gang.processes.saturating_add(1);
        }
        if self.machine.share(job).is_some() {
            // If that is not free, its part is what its siblings do not hold.
            self.tell(Event::Grows(job, part));
        } else {
            self.asks_anew(job, |ask| {
                ask.need.peak = ask.need.peak.saturating_add(part);
                ask.need.processes = ask.need.processes.saturating_add(1);
            });
        }
    }

    /// Replaces a waiting gang's request, which moves behind arrivals of the last moments: its
    /// processes come together.
    fn asks_anew(&mut self, job: Job, change: impl Fn(&mut Ask)) {
        let waiting = self.machine.view().waiting;
        let Some(mut ask) = waiting.into_iter().map(|row| row.ask).find(|ask| ask.job == job) else {
            return;
        };
        change(&mut ask);
        if let Backing::Managed { working_set } | Backing::Either { working_set } = &mut ask.need.backing {
            *working_set = (*working_set).min(ask.need.peak);
        }
        let present = self.gangs.get(&job).map_or(1, |gang| gang.there());
        self.tell(Event::Ends(job));
        self.tell(Event::Asks(ask));
        for _ in 1..present {
            self.tell(Event::Joins(job));
        }
    }

    /// Ends the wait of one job of each knot.
    pub fn untie(&mut self) {
        while let Some(tied) = self.knot() {
            match tied {
                Tied::Grows(client) => {
                    log::info!("client {client} waits on one device for jobs that wait on another for its own");
                    self.grows_in_vain(client);
                }
                Tied::Begins(job) => {
                    self.turns_away(job, "it holds memory on one device and waits for it on another, and jobs that hold it there wait for this one");
                    self.tell(Event::Ends(job));
                    self.carry_out();
                }
            }
        }
    }

    /// The latest waiter of a knot of jobs that wait for each other.
    fn knot(&self) -> Option<Tied> {
        let spread = self.gangs.iter().any(|(job, gang)| gang.family != *job);
        if !spread {
            return None;
        }
        let family = |job: &Job| self.gangs.get(job).map_or(*job, |gang| gang.family);
        let view = self.machine.view();
        let mut held: BTreeMap<Job, Vec<(DeviceId, u64)>> = BTreeMap::new();
        for row in &view.running {
            let share = (row.device, row.share);
            held.entry(family(&row.ask.job)).or_default().push(share);
        }
        let mut waits: Vec<Wait> = Vec::new();
        for row in &view.waiting {
            let device = row.ask.devices.first().and_then(|device| self.about(*device));
            let needs = device.map(|device| (device.id, row.ask.need.fixed(device)));
            waits.push(Wait {
                family: family(&row.ask.job),
                needs,
                since: row.came,
                who: Tied::Begins(row.ask.job),
            });
        }
        for grower in self.growth.iter() {
            let needs = self
                .machine
                .share(grower.job())
                .map(|(device, _)| (device, grower.lacking()));
            waits.push(Wait {
                family: family(&grower.job()),
                needs,
                since: grower.since(),
                who: Tied::Grows(grower.client()),
            });
        }
        let mut stuck: BTreeSet<Job> = waits.iter().map(|wait| wait.family).collect();
        // A job that waits for nothing ends in time; so do jobs that then have room.
        while let Some(freed) = stuck.iter().copied().find(|job| {
            let mut needs = waits.iter().filter(|wait| wait.family == *job);
            needs.all(|wait| {
                let known = wait
                    .needs
                    .and_then(|(device, bytes)| Some((self.about(device)?, bytes)));
                known.is_none_or(|(device, bytes)| {
                    let shares = stuck.iter().filter_map(|job| held.get(job)).flatten();
                    let taken = shares.filter(|(at, _)| *at == device.id).map(|(_, share)| *share);
                    let taken = taken.fold(0, u64::saturating_add);
                    taken.saturating_add(bytes) <= device.memory
                })
            })
        }) {
            stuck.remove(&freed);
        }
        let tied = waits
            .iter()
            .filter(|wait| stuck.contains(&wait.family) && held.contains_key(&wait.family));
        tied.max_by_key(|wait| (wait.since, wait.who)).map(|wait| wait.who)
    }
}

/// A wait for memory of a device.
#[derive(Debug)]
struct Wait {
    family: Job,
    /// Device and bytes; `None`: the device is not known.
    needs: Option<(DeviceId, u64)>,
    since: Ns,
    who: Tied,
}

/// A wait to be ended so that others can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tied {
    /// A running client that waits for more.
    Grows(u64),
    /// A job that waits to begin.
    Begins(Job),
}
