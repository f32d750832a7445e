// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other brokers that manage a GPU of this one: another user's, one in a container, or one behind
//! a job's own `/tmp`.
//!
//! The brokers do not coordinate their jobs, so both warn their users. Each takes a name per used
//! device in the network namespace ([`Claim`]), or connects to the owner of the name: so each finds
//! the other. The acceptor checks every [`PERIOD`] and never waits. A broker in another network
//! namespace is not found.
//!
//! A device that a client invents costs a descriptor. Names are limited to [`EACH`] per user and
//! [`MOST`] in all; devices with the most users come first.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::server::{Claim, Claimant};
use weft_api::status::OtherBroker;

/// Interval at which names are taken and callers accepted.
const PERIOD: Duration = Duration::from_secs(2);

/// Time for which a caller counts as present; it calls every [`PERIOD`].
const STAYS: Duration = Duration::from_secs(5);

/// Time between log lines about one device.
const QUIET: Duration = Duration::from_secs(600);

/// Most devices with a name.
const MOST: usize = 64;
/// Most devices with a name for one user's clients.
const EACH: usize = 16;

/// Most other brokers kept per device.
const OTHERS: usize = 4;

/// The other brokers known, shared by all threads.
#[derive(Debug, Clone, Default)]
pub struct OtherBrokers(Arc<Mutex<KnownBrokers>>);

#[derive(Debug, Default)]
struct KnownBrokers {
    looked: Option<Instant>,
    devices: BTreeMap<String, Device>,
    /// Time of the last log line about each device, used or not; bounded.
    said: BTreeMap<String, Instant>,
}

#[derive(Debug, Default)]
struct Device {
    claim: Option<Claim>,
    others: BTreeMap<Claimant, (Instant, Instant)>,
}

impl OtherBrokers {
    fn inside(&self) -> MutexGuard<'_, KnownBrokers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes names and accepts callers, each [`PERIOD`]. `used`: each client's device and user.
    pub fn tend<I: Iterator<Item = (String, u32)>>(&self, used: impl FnOnce() -> I) {
        let mut inside = self.inside();
        let now = Instant::now();
        if inside.looked.is_some_and(|at| now.duration_since(at) < PERIOD) {
            return;
        }
        inside.looked = Some(now);
        let chosen = chosen(used());
        inside.devices.retain(|uuid, _| chosen.contains(uuid));
        for uuid in chosen {
            let device = inside.devices.entry(uuid.clone()).or_default();
            let news = device.look(&uuid, now);
            if news && inside.said.get(&uuid).is_none_or(|at| now.duration_since(*at) >= QUIET) {
                if inside.said.len() >= 2 * MOST {
                    inside.said.clear();
                }
                inside.said.insert(uuid.clone(), now);
                let all = inside.others();
                for other in all.iter().filter(|other| other.device == uuid) {
                    log::warn!("{other}");
                }
            }
        }
    }

    /// Other brokers that manage a device of this one now.
    pub fn others(&self) -> Vec<OtherBroker> {
        self.inside().others()
    }
}

impl KnownBrokers {
    fn others(&self) -> Vec<OtherBroker> {
        let of = |(uuid, device): (&String, &Device)| {
            let uuid = uuid.clone();
            let others = device.others.iter();
            let rows = others.map(move |(who, (since, _))| OtherBroker {
                device: uuid.clone(),
                pid: who.pid,
                uid: who.uid,
                since_s: since.elapsed().as_secs_f64(),
            });
            rows.collect::<Vec<_>>()
        };
        self.devices.iter().flat_map(of).collect()
    }
}

impl Device {
    /// Returns whether a new broker was found.
    fn look(&mut self, uuid: &str, now: Instant) -> bool {
        let found = match &self.claim {
            Some(claim) => claim.callers(),
            None => match Claim::take(&format!("weft-gpu-{uuid}")) {
                Some(Ok(claim)) => {
                    self.claim = Some(claim);
                    Vec::new()
                }
                Some(Err(who)) => vec![who],
                None => Vec::new(),
            },
        };
        let mut news = false;
        for who in found {
            if let Some((_, last)) = self.others.get_mut(&who) {
                *last = now;
            } else if self.others.len() < OTHERS {
                self.others.insert(who, (now, now));
                news = true;
            }
        }
        self.others.retain(|_, (_, last)| now.duration_since(*last) < STAYS);
        news
    }
}

/// The devices that get a name.
fn chosen(used: impl Iterator<Item = (String, u32)>) -> BTreeSet<String> {
    let mut users: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (uuid, uid) in used {
        // All zeros: the driver reports no UUID.
        if uuid.bytes().any(|byte| byte != b'0') {
            users.entry(uuid).or_default().insert(uid);
        }
    }
    let mut all: Vec<(String, BTreeSet<u32>)> = users.into_iter().collect();
    all.sort_by_key(|(_, uids)| std::cmp::Reverse(uids.len()));
    let mut had: BTreeMap<u32, usize> = BTreeMap::new();
    let mut chosen = BTreeSet::new();
    for (uuid, uids) in all {
        let room = |uid: &u32| had.get(uid).copied().unwrap_or(0) < EACH;
        if let Some(uid) = uids.iter().copied().find(room).filter(|_| chosen.len() < MOST) {
            *had.entry(uid).or_default() += 1;
            chosen.insert(uuid);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(number: usize) -> String {
        format!("{number:032x}")
    }

    #[test]
    fn what_a_guest_makes_up_costs_a_few_names_and_takes_nobody_elses() {
        let made_up = |uid: u32| (0..100).map(move |at| (uuid(1 + 1000 * uid as usize + at), uid));
        assert_eq!(chosen(made_up(7)).len(), EACH);
        let shared = "ff".repeat(16);
        let honest = [(shared.clone(), 1), (shared.clone(), 2)];
        let many = chosen((3..20).flat_map(made_up).chain(honest));
        assert_eq!(many.len(), MOST);
        assert!(many.contains(&shared), "what several users use comes first");
        assert!(chosen([("0".repeat(32), 1), (String::new(), 1)].into_iter()).is_empty());
    }

    #[test]
    fn two_brokers_of_one_device_hear_of_one_another_until_one_has_no_job_there() {
        let ours = format!("{:032x}", (u128::from(std::process::id()) << 64) | 5);
        let (one, two) = (OtherBrokers::default(), OtherBrokers::default());
        let uses = || [(ours.clone(), 1)].into_iter();
        let again = |which: &OtherBrokers| which.inside().looked = None;
        one.tend(uses);
        two.tend(uses);
        assert_eq!(one.others(), [], "it has not looked since");
        again(&one);
        one.tend(uses);
        for side in [&one, &two] {
            let [other] = &side.others()[..] else {
                panic!("{:?}", side.others())
            };
            assert_eq!((other.pid, &other.device), (Some(std::process::id()), &ours));
        }
        // No job of the first uses the device now: the other gets the name at its next check.
        again(&one);
        one.tend(std::iter::empty);
        assert_eq!(one.others(), []);
        again(&two);
        two.tend(uses);
        assert!(two.inside().devices[&ours].claim.is_some());
        let stale = Instant::now()
            .checked_sub(2 * STAYS)
            .expect("the machine is up for a while");
        for device in two.inside().devices.values_mut() {
            device.others.values_mut().for_each(|(_, last)| *last = stale);
        }
        again(&two);
        two.tend(uses);
        assert_eq!(two.others(), [], "who calls no more is gone");
    }
}
