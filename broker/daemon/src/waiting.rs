//! How the scheduler thread waits between two turns.
//!
//! | what is going on | it | who must wake it |
//! |---|---|---|
//! | a background job waits, a gap is near, there are cores to spare | spins | nobody |
//! | a background job waits | naps | background jobs, and a foreground job that becomes idle (once a millisecond) |
//! | nobody waits, a foreground job launches | dozes | a background job that begins to wait |
//! | nothing | sleeps | any record |
//!
//! A sleeping broker asks to be rung (`broker_sleeps`), then looks once more, then sleeps: a record
//! that was written in between is either seen by that look or rings. A nap is too short for a
//! second look: who is asked to ring is asked before the turn that precedes the nap, so only the
//! first of a row of naps is not rung for. A foreground job that launches is never asked to ring,
//! since a ring costs it a system call; its records wait in the ring.
#![forbid(unsafe_code)]

use std::time::Duration;

use weft_protocol::Ns;

/// A gap this near is worth a spin: a nap would end after it (a timer's slack and a wake-up are
/// 25-65 us).
const NEAR: Ns = 100_000;

/// The shortest nap. Less is a spin with system calls.
const SHORTEST_NAP: Ns = 50_000;

/// The longest nap: a background job waits, and this is how late an unforeseen gap is seen.
const LONGEST_NAP: Ns = 200_000;

/// A doze, while records come that nobody rings for: a lane holds 4096 of them, 8 ms at one each 2
/// us.
const DOZE: Ns = 2_000_000;

/// A doze beside one client alone, which only stage 1 keeps writing: nobody is to be let in, and
/// every wake-up takes a core from the job whose speed is being learnt (measured on two cores: 500
/// wake-ups a second made it several per cent slower). 3000 records at one each 2 us.
const DOZE_ALONE: Ns = 6_000_000;

/// A sleep. The heartbeat on the epoch page beats this often at least.
const SLEEP: Ns = 200_000_000;

/// A lane whose records come no faster than this apart may as well ring.
const QUIET: Ns = 20_000_000;

/// What is going on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scene {
    /// A background job's launch waits at the gate.
    pub background_waits: bool,
    /// One client is attached and no other.
    pub alone: bool,
    /// When a record last came that nobody rang for.
    pub last_record: Ns,
    /// When the core wants to be told the time.
    pub next_wake: Option<Ns>,
}

/// How to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: the next turn is due, or so near that it is spun for.
    Spin,
    /// So long at most, rung for by background jobs and by a foreground job that becomes idle.
    Nap(Duration),
    /// At most so long, rung for by background jobs.
    Doze(Duration),
    /// At most so long, rung for by anybody.
    Sleep(Duration),
}

impl Wait {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Spin => "spinning",
            Wait::Nap(_) => "napping",
            Wait::Doze(_) => "dozing",
            Wait::Sleep(_) => "parked",
        }
    }
}

/// What this machine and its device allow.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    spin: bool,
    nap: Ns,
}

impl Waiting {
    /// `spin`: whether there is a core to spare. `reaction`: how soon after a silence begins a gap
    /// is open (the core's own setting); a quarter of it is soon enough to look, twice that where
    /// the nap takes a core that a job needs.
    pub fn new(spin: bool, reaction: Ns) -> Waiting {
        let nap = if spin { reaction / 4 } else { reaction / 2 };
        Waiting {
            spin,
            nap: nap.clamp(SHORTEST_NAP, LONGEST_NAP),
        }
    }

    /// How to wait now.
    pub fn choose(&self, now: Ns, scene: &Scene) -> Wait {
        let due = scene.next_wake.map(|at| at.saturating_sub(now));
        if due == Some(0) {
            return Wait::Spin;
        }
        let at_most = |longest: Ns| Duration::from_nanos(due.map_or(longest, |due| due.min(longest)));
        if scene.background_waits {
            if self.spin && due.is_some_and(|due| due <= NEAR) {
                return Wait::Spin;
            }
            return Wait::Nap(at_most(self.nap));
        }
        if now.saturating_sub(scene.last_record) < QUIET {
            return Wait::Doze(at_most(if scene.alone { DOZE_ALONE } else { DOZE }));
        }
        Wait::Sleep(at_most(SLEEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Ns = 1_000_000_000;

    #[test]
    fn it_spins_only_for_a_waiting_background_job_with_a_gap_near_and_a_core_to_spare() {
        let near = Scene {
            background_waits: true,
            alone: false,
            last_record: NOW,
            next_wake: Some(NOW + NEAR / 2),
        };
        assert_eq!(Waiting::new(true, 200_000).choose(NOW, &near), Wait::Spin);
        assert!(matches!(Waiting::new(false, 200_000).choose(NOW, &near), Wait::Nap(_)));
        let nobody = Scene {
            background_waits: false,
            ..near
        };
        assert!(matches!(
            Waiting::new(true, 200_000).choose(NOW, &nobody),
            Wait::Doze(_)
        ));
        let far = Scene {
            next_wake: Some(NOW + 10 * NEAR),
            ..near
        };
        assert!(matches!(Waiting::new(true, 200_000).choose(NOW, &far), Wait::Nap(_)));
    }

    #[test]
    fn it_is_never_late_for_the_core() {
        for background_waits in [false, true] {
            for last_record in [0, NOW] {
                for ahead in [0, 1, 60_000, 1_000_000, 10_000_000_000] {
                    let scene = Scene {
                        background_waits,
                        alone: !background_waits,
                        last_record,
                        next_wake: Some(NOW + ahead),
                    };
                    match Waiting::new(true, 200_000).choose(NOW, &scene) {
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
    fn it_sleeps_when_nothing_happens() {
        let scene = Scene::default();
        assert!(matches!(
            Waiting::new(true, 200_000).choose(NOW, &scene),
            Wait::Sleep(_)
        ));
    }
}
