//! The successor of a killed broker: the last book, and how clients reattach.
//!
//! Clients look for a broker once a second. Until a client is back, its job keeps its share or its
//! place in the queue. So new jobs are judged as if the broker had never been away.
//!
//! * An ended process is gone.
//! * A waiting job that does not reattach within [`RETURN`] leaves the queue. A running process
//!   keeps its share while it runs, attached or not: it keeps its memory.
#![forbid(unsafe_code)]

use super::controller::{Controller, Gang, Member, stated};
use super::ledger::{Ledger, Page};
use crate::clock;
use crate::process::Process;
use weft_admission::{Admission, Config, DeviceId, Event, Job};
use weft_protocol::Ns;
use weft_protocol::control::Wants;

/// Time to reattach. Clients try once a second; a busy machine may delay hundreds of them.
const RETURN: Ns = 30_000_000_000;

/// Interval of checks of unreattached processes.
const LOOK: Ns = 100_000_000;

/// An unreattached process of the last broker.
#[derive(Debug)]
pub struct Absent {
    pub process: Process,
    pub command: String,
    /// When it may be forgotten.
    pub until: Ns,
}

impl Controller {
    /// Goes on from the last broker's page.
    pub fn go_on(config: Config, ledger: Option<Ledger>, page: Page) -> Controller {
        let mut book = Controller::new(config.clone(), ledger);
        book.machine = Admission::go_on(config, page.machine);
        book.devices = page.devices;
        book.users = page.users;
        book.weights = page.weights;
        book.next = page.next;
        book.sums = page.sums;
        let until = clock::now().saturating_add(RETURN);
        for kept in page.jobs {
            let job = kept.job;
            let absent = kept.members.into_iter().map(|(process, command)| Absent {
                process,
                command,
                until,
            });
            let gang = Gang {
                name: kept.name,
                device: kept.device,
                family: kept.family,
                asked: kept.asked,
                user: kept.user,
                uid: kept.uid,
                stated: kept.stated,
                timed: kept.timed,
                waited: book.machine.waits(job),
                managed: kept.managed,
                processes: kept.processes,
                // Earlier observed usage is lost.
                took: None,
                members: Default::default(),
                absent: absent.collect(),
                still: Default::default(),
                told: 0,
                cramped: None,
            };
            book.next = book.next.max(job.0);
            book.gangs.insert(job, gang);
        }
        // A job without a known process cannot reattach.
        let known: Vec<Job> = book.machine.jobs().collect();
        for job in known {
            if book.gangs.get(&job).is_none_or(|gang| gang.absent.is_empty()) {
                book.gangs.remove(&job);
                book.tell(Event::Ends(job));
            }
        }
        let machine = &book.machine;
        book.gangs
            .retain(|job, _| machine.waits(*job) || machine.share(*job).is_some());
        book.look_at_once();
        let (waiting, running) = book.machine.count();
        log::info!("goes on where a broker was before: {running} jobs run, {waiting} wait for memory");
        book
    }

    /// The job on this device that this user's process belonged to. Pids that `/proc` hides may be
    /// reused, so the user must match.
    pub fn back_from(&self, process: &Process, user: &str, device: DeviceId) -> Option<Job> {
        let belonged = |gang: &Gang| {
            let there = gang.absent.iter().any(|absent| absent.process == *process);
            there && gang.device == device && gang.user == user
        };
        self.gangs.iter().find(|(_, gang)| belonged(gang)).map(|(job, _)| *job)
    }

    /// Reattaches a process to its job.
    pub fn comes_back(&mut self, job: Job, member: Member, wants: &Wants, device: DeviceId) {
        let (client, process) = (member.entry.client, member.process);
        let entry = std::sync::Arc::clone(&member.entry);
        // Its part by the book, before the share is divided anew.
        let part = self.part(job);
        if let Some(gang) = self.gangs.get_mut(&job) {
            gang.absent.retain(|absent| absent.process != process);
            gang.members.insert(client, member);
        }
        self.ledger.mark(true);
        match (wants.runs, part) {
            (Some(has), Some(part)) => {
                // Admitted just before the kill, it began without hearing its backing.
                if !wants.managed && self.machine.is_managed(job) {
                    self.is_on_device(job);
                }
                // It got more just before the kill.
                if !wants.managed {
                    self.tell(Event::Has(job, has.saturating_sub(part)));
                }
                self.carry_out();
                self.admission_slot(client, has.max(part));
            }
            (Some(has), None) => {
                // It waited, and began without a broker.
                let ask = self.ask(job, &entry, wants, device, stated(&entry, wants));
                let fixed = self.fixed(wants, device, has);
                self.tell(Event::Holds(ask, device, fixed));
                self.carry_out();
                self.admission_slot(client, has);
            }
            (None, _) => {
                self.carry_out();
                self.admission_slot_or_wait(client, job);
            }
        }
    }

    /// Forgets unreattached processes that ended or stay away.
    pub fn look_for_the_absent(&mut self) {
        let now = clock::now();
        if now.saturating_sub(self.looked) >= LOOK && self.gangs.values().any(|gang| !gang.absent.is_empty()) {
            self.look_at_once();
        }
    }

    fn look_at_once(&mut self) {
        let now = clock::now();
        self.looked = now;
        let mut left = Vec::new();
        for (job, gang) in &mut self.gangs {
            let waits = self.machine.waits(*job);
            gang.absent.retain(|absent| {
                let stays = match absent.process.runs() {
                    Some(true) => !waits || now < absent.until,
                    Some(false) => false,
                    None => now < absent.until,
                };
                if !stays {
                    log::info!("process {} does not come back: {}", absent.process.pid, absent.command);
                    left.push(*job);
                }
                stays
            });
        }
        if left.is_empty() {
            return;
        }
        for job in left {
            self.leaves(job);
        }
        self.carry_out();
    }
}
