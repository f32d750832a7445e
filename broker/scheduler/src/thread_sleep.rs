// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits of the scheduler thread between two iterations.
//!
//! | situation | wait | woken by |
//! |---|---|---|
//! | a background job waits, a gap is near, a core is idle | spin | nothing |
//! | a background job waits | nap | background jobs; a foreground job that becomes idle (once per ms) |
//! | no job waits, a foreground job launches | doze | a background job that begins to wait |
//! | nothing happens | sleep | any record |
//!
//! Before a sleep the broker requests rings (`broker_sleeps`) and reads all lanes once more. It
//! finds a record that was written in between, or the record's writer rings.
//!
//! A nap is too short for a second read. Rings are requested before the iteration that precedes the
//! nap, so only the first of several naps in a row gets none. A launching foreground job is never
//! asked to ring, because a ring costs it a system call; its records wait in the lane.
#![forbid(unsafe_code)]

use std::time::Duration;

use weft_protocol::Ns;

/// A gap worth a spin, ns: a nap would end after it (timer slack and wake-up: 25-65 us).
const NEAR_NS: Ns = 100_000;

/// The shortest nap, ns; a shorter one is a spin with system calls.
const SHORTEST_NAP_NS: Ns = 50_000;

/// The longest nap, ns: the longest delay until a background job gets credit in an unforeseen gap.
const LONGEST_NAP_NS: Ns = 200_000;

/// Part of the silence after which a gap is open, as a divisor: a nap may always last that long. On
/// a device that is many times slower this is more than [`LONGEST_NAP_NS`], and naps cost less of a
/// core.
const LONGEST_NAP_PART: u64 = 16;

/// A doze, ns, without rings. A lane holds 4096 records: 8 ms at one per 2 us.
const DOZE_NS: Ns = 2_000_000;

/// A doze with a single client, ns: 3000 records at one per 2 us. Such a client writes records only
/// in stage 1.
///
/// No job waits, and each wake-up takes a core from the sampled job. On two cores 500 wake-ups/s
/// cost it several per cent.
const DOZE_ALONE_NS: Ns = 6_000_000;

/// A sleep, ns. It is also the longest interval of the heartbeat on the epoch page.
const SLEEP_NS: Ns = 200_000_000;

/// Distance of records, ns, beyond which clients ring for each.
const QUIET_NS: Ns = 20_000_000;

/// The situation at the begin of a wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scene {
    /// Whether a background job's launch waits at the gate.
    pub background_waits: bool,
    /// Whether exactly one client is attached.
    pub alone: bool,
    /// Time of the last record.
    pub last_record: Ns,
    /// Time of the core's next tick.
    pub next_wake: Option<Ns>,
}

/// Kind of a wait, with its longest duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// No wait: the next iteration is due or very near.
    Spin,
    /// A wait in which background jobs ring, and a foreground job that becomes idle.
    Nap(Duration),
    /// A wait in which all clients ring except foreground jobs.
    Doze(Duration),
    /// A wait in which all clients ring.
    Sleep(Duration),
}

impl Wait {
    /// The wait's name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Spin => "spinning",
            Wait::Nap(_) => "napping",
            Wait::Doze(_) => "dozing",
            Wait::Sleep(_) => "parked",
        }
    }
}

/// The waits that this machine and its device allow.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    spin: bool,
    nap: Ns,
}

impl Waiting {
    /// The waits for a machine and device. `spin`: a core is idle. `reaction`: silence, ns, after
    /// which a gap is open.
    ///
    /// A nap is `reaction / 4`, or `reaction / 2` if it takes a core that a job needs.
    pub fn new(spin: bool, reaction: Ns) -> Waiting {
        let nap = if spin { reaction / 4 } else { reaction / 2 };
        Waiting {
            spin,
            nap: nap.clamp(SHORTEST_NAP_NS, LONGEST_NAP_NS.max(reaction / LONGEST_NAP_PART)),
        }
    }

    /// The wait for this situation.
    pub fn choose(&self, now: Ns, scene: &Scene) -> Wait {
        let due = scene.next_wake.map(|at| at.saturating_sub(now));
        if due == Some(0) {
            return Wait::Spin;
        }
        let at_most = |longest: Ns| Duration::from_nanos(due.map_or(longest, |due| due.min(longest)));
        if scene.background_waits {
            if self.spin && due.is_some_and(|due| due <= NEAR_NS) {
                return Wait::Spin;
            }
            return Wait::Nap(at_most(self.nap));
        }
        if now.saturating_sub(scene.last_record) < QUIET_NS {
            return Wait::Doze(at_most(if scene.alone { DOZE_ALONE_NS } else { DOZE_NS }));
        }
        Wait::Sleep(at_most(SLEEP_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: Ns = 1_000_000_000;

    #[test]
    fn it_spins_only_for_a_waiting_background_job_with_a_gap_near_and_a_core_to_spare() {
        let near = Scene {
            background_waits: true,
            alone: false,
            last_record: NOW_NS,
            next_wake: Some(NOW_NS + NEAR_NS / 2),
        };
        assert_eq!(Waiting::new(true, 200_000).choose(NOW_NS, &near), Wait::Spin);
        assert!(matches!(
            Waiting::new(false, 200_000).choose(NOW_NS, &near),
            Wait::Nap(_)
        ));
        let nobody = Scene {
            background_waits: false,
            ..near
        };
        assert!(matches!(
            Waiting::new(true, 200_000).choose(NOW_NS, &nobody),
            Wait::Doze(_)
        ));
        let far = Scene {
            next_wake: Some(NOW_NS + 10 * NEAR_NS),
            ..near
        };
        assert!(matches!(Waiting::new(true, 200_000).choose(NOW_NS, &far), Wait::Nap(_)));
    }

    #[test]
    fn it_is_never_late_for_the_core() {
        for background_waits in [false, true] {
            for last_record in [0, NOW_NS] {
                for ahead in [0, 1, 60_000, 1_000_000, 10_000_000_000] {
                    let scene = Scene {
                        background_waits,
                        alone: !background_waits,
                        last_record,
                        next_wake: Some(NOW_NS + ahead),
                    };
                    match Waiting::new(true, 200_000).choose(NOW_NS, &scene) {
                        Wait::Spin => {}
                        Wait::Nap(time) | Wait::Doze(time) | Wait::Sleep(time) => {
                            assert!(time <= Duration::from_nanos(ahead));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_slow_device_is_looked_at_less_often() {
        let waits = Scene {
            background_waits: true,
            ..Scene::default()
        };
        let nap = |reaction| Waiting::new(false, reaction).choose(NOW_NS, &waits);
        assert_eq!(nap(200_000), Wait::Nap(Duration::from_micros(100)));
        assert_eq!(nap(20 * 100_000), Wait::Nap(Duration::from_micros(200)));
        assert_eq!(nap(240 * 200_000), Wait::Nap(Duration::from_millis(3)));
    }

    #[test]
    fn it_sleeps_when_nothing_happens() {
        let scene = Scene::default();
        assert!(matches!(
            Waiting::new(true, 200_000).choose(NOW_NS, &scene),
            Wait::Sleep(_)
        ));
    }
}
