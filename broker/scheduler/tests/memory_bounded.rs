// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's memory is bounded: clients come and go, with new names and kernels each time.
//!
//! One test in a binary of its own, so that the process's resident memory is the core's.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

use weft_scheduler::{Client, Config, Core, Decision, Event, PolicyName};

const US: u64 = 1_000;

const FOREGROUND: Client = Client(0);
const BACKGROUND: Client = Client(1);

/// Kernels of one visit.
const KERNELS: u64 = 60;

/// Visits until every table is full (a predictor keeps 16,384 contexts), and the factor after that.
const FIRST: u64 = 3_000;
const TIMES: u64 = 4;

/// Allowed growth after that, KiB. A table that kept 16 bytes of each kernel would grow by 11 MiB.
const MOST_KIB: u64 = 4 << 10;

struct World {
    core: Core,
    now: u64,
    /// The next unused name.
    fresh: u64,
    issued: u64,
}

impl World {
    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        self.core.handle(self.now, event, &mut out);
        let mut at = 0;
        while at < out.len() {
            if let Decision::Revoke(client) = out[at] {
                let left = self.core.snapshot().client(client).map_or(0, |view| view.left);
                self.core.handle(self.now, Event::Revoked { client, left }, &mut out);
            }
            at += 1;
            assert!(at < 10_000, "decisions without end");
        }
    }

    fn launches(&mut self, client: Client) {
        for _ in 0..KERNELS {
            self.now += 10 * US;
            self.fresh += 1;
            let (kernel, at) = (self.fresh, self.now);
            let cost = 8 * US;
            self.tell(Event::Launched {
                client,
                kernel,
                cost,
                at,
            });
            let time = 9 * US;
            self.tell(Event::Sampled {
                client,
                kernel,
                time,
                at: self.now,
            });
        }
    }

    /// The foreground job works. A guest comes, works and goes. The background job waits.
    fn visit(&mut self) {
        self.launches(FOREGROUND);
        self.now += 500 * US;
        self.tell(Event::Idle(FOREGROUND, self.now));
        self.fresh += 1;
        let guest = Client(1_000 + self.fresh);
        let priority = 1 + (self.fresh % 9) as u8;
        self.tell(Event::Attached {
            client: guest,
            priority,
            profile: None,
        });
        self.launches(guest);
        for client in [BACKGROUND, guest] {
            self.fresh += 1;
            let (kernel, since) = (self.fresh, self.now);
            let cost = 20 * US;
            self.tell(Event::Waits {
                client,
                kernel,
                cost,
                since,
            });
        }
        self.now += 5_000 * US;
        self.tell(Event::Tick);
        let left = self
            .core
            .snapshot()
            .client(BACKGROUND)
            .map_or(0, |view| view.left.max(0));
        self.issued += left.unsigned_abs();
        self.launches(BACKGROUND);
        self.tell(Event::Progress {
            client: BACKGROUND,
            issued: self.issued,
            settled: self.issued,
        });
        self.tell(Event::Gone(guest));
    }
}

/// Resident memory, KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("a number")
}

#[test]
fn memory_does_not_grow_with_who_came_and_what_was_launched() {
    for policy in [PolicyName::Weft, PolicyName::Fikit] {
        let config = Config {
            policy,
            ..Config::default()
        };
        let mut world = World {
            core: Core::new(config),
            now: 1_000_000 * US,
            fresh: 0,
            issued: 0,
        };
        for (client, priority) in [(FOREGROUND, 0), (BACKGROUND, 5)] {
            world.tell(Event::Attached {
                client,
                priority,
                profile: None,
            });
        }
        (0..FIRST).for_each(|_| world.visit());
        let before = resident();
        (0..TIMES * FIRST).for_each(|_| world.visit());
        let grown = resident().saturating_sub(before);
        assert!(grown <= MOST_KIB, "{policy:?}: {grown} KiB more");
        let snapshot = world.core.snapshot();
        assert_eq!(snapshot.clients.len(), 2, "whoever went is forgotten");
        assert!(snapshot.counters.grants > 0, "{:?}", snapshot.counters);
    }
}
