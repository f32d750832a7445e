// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policies. Each is a file, or a folder with its models.

mod copies;
#[cfg(test)]
mod example;
mod fikit;
mod interface;
mod minimum_share;
mod round_robin;
mod weft;

pub(crate) use interface::{Observed, Policy, PolicyTraits};

use crate::PolicyName;

/// The policy of this name.
pub(crate) fn by_name(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Fikit => Box::new(fikit::Fikit::default()),
        PolicyName::Weft => Box::new(weft::Weft::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Client, Config, Core, Decision, Event,
        config::{MS, US},
    };

    #[test]
    fn the_example_grants_while_foreground_jobs_are_silent_and_by_the_minimum_share() {
        let (service, batch) = (Client(1), Client(2));
        let mut core = Core::under(Box::new(example::Example::default()), Config::default());
        let mut now = 1_000 * MS;
        let mut granted = |now, event| {
            let mut out = Vec::new();
            core.handle(now, event, &mut out);
            out.iter().any(|decision| matches!(decision, Decision::Grant { .. }))
        };
        for (client, priority) in [(service, 0), (batch, 5)] {
            let profile = None;
            granted(
                now,
                Event::Attached {
                    client,
                    priority,
                    profile,
                },
            );
        }
        now += 100 * MS;
        let (kernel, cost, since) = (9, 100 * US, now);
        let launch = Event::Launched {
            client: service,
            kernel: 3,
            cost: 200 * MS,
            at: now,
        };
        granted(now, launch);
        let wait = Event::Waits {
            client: batch,
            kernel,
            cost,
            since,
        };
        assert!(!granted(now, wait), "the service works");
        assert!(granted(now + 60 * MS, Event::Tick), "by the minimum share");
        granted(
            now + 61 * MS,
            Event::Progress {
                client: batch,
                issued: cost,
                settled: cost,
            },
        );
        let since = now + 62 * MS;
        assert!(!granted(
            since,
            Event::Waits {
                client: batch,
                kernel,
                cost,
                since
            }
        ));
        granted(now + 63 * MS, Event::Idle(service, now + 63 * MS));
        assert!(granted(now + 64 * MS, Event::Tick), "the service is silent");
    }
}
