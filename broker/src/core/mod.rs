//! The scheduler as a pure state machine: events and the time go in, decisions come out. No clock, no thread, no socket.
//!
//! The same core runs in the daemon (real time) and in the lab (virtual time), so a failing schedule is a seed.
//!
//! How to drive it: tell it what happened with [`Core::handle`], carry out the [`Decision`]s in their order, tell it [`Event::Tick`] at
//! [`Core::next_wake`] at the latest.
#![forbid(unsafe_code)]

mod config;
mod event;
mod snapshot;

pub use config::{Config, PolicyName, UnknownPolicy};
pub use event::{Client, Decision, Event};
pub use snapshot::{ClientView, Counters, GapView, Snapshot, WaitView};

pub use crate::protocol::{Ns, lane::Mode};

/// The scheduler.
#[derive(Debug)]
pub struct Core {
    config: Config,
    clients: Vec<Client>,
}

impl Core {
    /// With no client.
    pub fn new(config: Config) -> Core {
        Core {
            config,
            clients: Vec::new(),
        }
    }

    /// What was chosen.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes in what happened and appends what to do about it to `out`. `now` never goes backwards; if it does it counts as the last one.
    pub fn handle(&mut self, _now: Ns, event: Event, out: &mut Vec<Decision>) {
        if let Event::Attached { client, .. } = event {
            self.clients.push(client);
            out.push(Decision::Mode(client, Mode::Alone));
        }
    }

    /// When [`Event::Tick`] is due, if nothing happens before. `None`: nothing to wait for. In the past: now.
    pub fn next_wake(&self, _now: Ns) -> Option<Ns> {
        None
    }

    /// The state, for people and tests.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            policy: self.config.policy.as_str(),
            clients: Vec::new(),
            gap: None,
            exposure: 0,
            counters: Counters::default(),
        }
    }
}
