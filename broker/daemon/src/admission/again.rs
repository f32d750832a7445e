//! Jobs that end, and those that ended for want of memory and are started again: the same work is the same user's command line.
//!
//! The core knows who keeps the age of whom, and for how long ([`weft_admission::Event::AsksAgain`]); here is which newcomer may be meant. What holds: no more are remembered than
//! the core remembers; a command line that is not known (empty) is nobody's.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::book::{Book, Gang, brief};
use crate::clock;
use weft_admission::{Ask, Event, Job};

/// Command lines are told apart by so many bytes: as many as are written down.
const COMMAND: usize = 4096;

/// A job that ended so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    job: Job,
    user: String,
    command: String,
}

impl Book {
    /// One process less of a job.
    pub fn leaves(&mut self, job: Job) {
        if self.gangs.get(&job).is_none_or(Gang::is_empty) {
            let since = self.machine.since(job);
            let took = self.gangs.remove(&job).and_then(|gang| Some((gang.took?, gang.stated)));
            self.tell(Event::Ends(job));
            if let (Some((mut took, stated)), Some(since)) = (took, since) {
                self.remembers(job, &took.user, &took.command);
                if !stated {
                    took.ran = clock::now().saturating_sub(since);
                    self.learnt.add(took);
                    self.known.took(self.learnt.all());
                }
            }
        } else {
            self.tell(Event::Leaves(job));
        }
    }

    /// A job has ended, and the machine has heard so.
    fn remembers(&mut self, job: Job, user: &str, command: &str) {
        let machine = &self.machine;
        self.ended.retain(|ended| machine.keeps_age(ended.job));
        if !command.is_empty() && self.machine.keeps_age(job) {
            self.ended.push(Ended {
                job,
                user: user.to_string(),
                command: brief(command, COMMAND),
            });
        }
    }

    /// A job asks: as itself, or in the place of its last try.
    pub fn asks(&mut self, ask: Ask, user: &str, command: &str) {
        let command = brief(command, COMMAND);
        let same = |ended: &Ended| ended.user == user && ended.command == command;
        let first = self.ended.iter().rev().find(|ended| same(ended)).map(|ended| ended.job);
        self.tell(match first {
            Some(first) => Event::AsksAgain(ask, first),
            None => Event::Asks(ask),
        });
    }
}
