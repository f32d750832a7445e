// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events per second and memory of the core with a thousand clients.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use serde::Serialize;
use weft_scheduler::{Client, Config, Core, Decision, Event, PolicyName};

use crate::{Ns, US};

/// The measured figures.
#[derive(Debug, Clone, Serialize)]
pub struct Speed {
    /// The policy.
    pub policy: String,
    /// Clients: one foreground job, the others are background jobs, all of which wait.
    pub clients: u64,
    /// The best of several measurements: other processes use the machine too.
    pub million_events_a_second: f64,
    /// Growth of the process between the first and the last of some million events, KiB.
    pub growth_kib: u64,
}

/// A core with one foreground job and background jobs, all of which wait.
#[derive(Debug)]
pub struct Crowd {
    core: Core,
    now: Ns,
    out: Vec<Decision>,
    issued: Vec<Ns>,
    events: u64,
}

impl Crowd {
    /// A crowd of `clients` clients in all.
    pub fn new(policy: PolicyName, clients: u64) -> Crowd {
        let config = Config {
            policy,
            ..Config::default()
        };
        let mut crowd = Crowd {
            core: Core::new(config),
            now: 1_000_000_000,
            out: Vec::new(),
            issued: vec![0; clients as usize],
            events: 0,
        };
        for client in 0..clients {
            crowd.tell(Event::Attached {
                client: Client(client),
                priority: if client == 0 { 0 } else { 1 + (client % 9) as u8 },
                profile: None,
            });
        }
        crowd.out.clear();
        for client in 1..clients {
            crowd.waits(client);
        }
        crowd
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Number of grants so far.
    pub fn grants(&self) -> u64 {
        self.core.snapshot().counters.grants
    }

    fn tell(&mut self, event: Event) {
        self.events += 1;
        self.core.handle(self.now, event, &mut self.out);
    }

    fn waits(&mut self, client: u64) {
        self.tell(Event::Waits {
            client: Client(client),
            kernel: client,
            cost: (20 + client % 300) * US,
            since: self.now,
        });
    }

    /// A request of the foreground job, then a gap in which each job with credit uses all of it and
    /// waits again. Allocates nothing of its own once grown.
    pub fn round(&mut self) {
        for kernel in 0..60 {
            self.now += 5 * US;
            self.tell(Event::Launched {
                client: Client(0),
                kernel,
                cost: 20 * US,
                at: self.now,
            });
        }
        self.now += 1_000 * US;
        self.tell(Event::Idle(Client(0), self.now));
        for _ in 0..20 {
            self.now += 250 * US;
            self.tell(Event::Tick);
            // The decisions that follow from handling a decision are handled too, up to a limit.
            let most = 4 * self.issued.len() + 64;
            let mut at = 0;
            while at < self.out.len().min(most) {
                match self.out[at] {
                    Decision::Grant { client, credit, .. } => {
                        let issued = &mut self.issued[client.0 as usize];
                        *issued += credit;
                        let issued = *issued;
                        self.tell(Event::Progress {
                            client,
                            issued,
                            settled: issued,
                        });
                        self.waits(client.0);
                    }
                    Decision::RunAheadWindow(..) | Decision::Times(..) | Decision::Charge(..) => {}
                    Decision::Revoke(client) => self.tell(Event::Revoked { client, left: 0 }),
                    Decision::Mode(..) => {}
                }
                at += 1;
            }
            self.out.clear();
        }
    }
}

/// Measures for about a second.
pub fn measure(policy: PolicyName, clients: u64) -> Speed {
    let mut crowd = Crowd::new(policy, clients);
    for _ in 0..200 {
        crowd.round();
    }
    let memory = resident_kib();
    let mut best: f64 = 0.0;
    for _ in 0..10 {
        let (start, before) = (Instant::now(), crowd.events());
        while start.elapsed() < Duration::from_millis(100) {
            crowd.round();
        }
        best = best.max((crowd.events() - before) as f64 / start.elapsed().as_secs_f64());
    }
    Speed {
        policy: policy.as_str().to_string(),
        clients,
        million_events_a_second: best / 1e6,
        growth_kib: resident_kib().saturating_sub(memory),
    }
}

/// This process's resident memory, KiB. 0 if the system does not report it.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
