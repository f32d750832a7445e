// SPDX-License-Identifier: MIT OR Apache-2.0
//! Length of a turn for the memory that it moves.
//!
//! A round has a turn of each of `k` clients, of `T` own time each, and takes `W`. While a client
//! runs, the next one's granules come into the room next to its own. The more of that room they
//! take, the less is left for all others, and the more has to come again:
//! |---|---|---|
//! | `s` of the necessary migration | comes when its turn has begun | moves in a round |
//! | 1 | all | [`Round::least`] `L` |
//!
//! Between them it is linear. The link carries the migration in the round:
//! `kT + s L = (1 - s) A + s L`. So `s = 1 - kT / A`, and `W = kT + s L`. There are no waits from
//! `kT = A` on. No round that holds whole sets is shorter than `L`, however short its turns.
//!
//! Without moving ahead `W = kT + L` (MSched, arXiv 2512.24637). A turn shorter than a client's
//! period moves only the granules that it touches in that time. So short turns keep almost any
//! bound, and run next to nothing.
//!
//! # The bound on being swapped out
//!
//! The bound takes precedence over the link. Suppose that the device works for less than [`BUSY`]
//! of the time in turns that keep the bound. Then [`TurnPlan::needed`] gives the time swapped out
//! in the shortest turns with that much work. These turns are taken only if a second bound allows
//! them, and if they gain more work than time swapped out. A client's period ends no sooner in
//! turns that are too short for it: all memory beyond the device's has to come in before each
//! client has seen all of its memory once.
#![forbid(unsafe_code)]

use super::{Link, Overlap};
use weft_protocol::{Client, Ns};

/// Granules that one client's turn moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migration {
    /// Granules to the device.
    pub inward: u64,
    /// Granules to the host that must be copied.
    pub outward: u64,
}

impl Migration {
    /// Time of the migration on the link.
    pub fn time(&self, link: &Link) -> Ns {
        link.time(self.inward, self.outward)
    }
}

/// Migrations of a round of turns of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Least migration of each client: no granules are held ready for the next one.
    pub least: Vec<Migration>,
    /// Migration of each client, if the next one's granules are all there when its turn begins.
    pub ahead: Vec<Migration>,
    /// Migration of each client that finds no room before its turn has begun.
    pub late: Vec<Migration>,
    /// Own time in which running clients use granules for the last time in their turns, ns. The
    /// next one's may come in their place.
    pub last_uses: Ns,
}

impl Round {
    /// Time of a round of turns of `length` ns of own time each.
    pub fn time(&self, length: Ns, link: &Link, overlap: Overlap) -> Ns {
        let own = length.saturating_mul(self.least.len() as u64);
        let least = time(&self.least, link);
        let waits = match overlap {
            Overlap::AtSwitch | Overlap::Nothing => least,
            Overlap::Ahead => {
                let ahead = time(&self.ahead, link);
                let short = ahead.saturating_sub(own);
                let by_link = (least as f64 * short as f64 / ahead.max(1) as f64) as Ns;
                by_link.max(time(&self.late, link).saturating_sub(self.last_uses))
            }
        };
        own.saturating_add(waits)
    }

    /// Own time of a round from which on there are no waits for the link, ns.
    fn hides(&self, link: &Link) -> Ns {
        let (least, late) = (time(&self.least, link), time(&self.late, link));
        let room = least.saturating_sub(late) as f64 / least.max(1) as f64;
        (time(&self.ahead, link) as f64 * room) as Ns
    }
}

fn time(all: &[Migration], link: &Link) -> Ns {
    all.iter().map(|one| one.time(link)).sum()
}

/// Limits that turns are to keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnRule {
    /// Most of a turn for which the link is busy, as a part. The rest is for late orders and
    /// faults.
    pub link_share: f64,
    /// Shortest turn, ns. It yields to the bounds, down to 1 ms.
    pub least: Ns,
    /// Longest time that a client is swapped out, ns.
    pub max_swapped_out: Ns,
    /// The same if such turns are too short for their migration, ns. If it is at most
    /// `max_swapped_out`, turns stay too short.
    pub swapped_out_limit: Ns,
    /// Total lateness of the ends of a round's turns, ns ([`TurnLateness::of_a_round`]).
    pub late: Ns,
}

impl TurnRule {
    /// The broker's rule with these bounds, ns.
    ///
    /// Two jobs of 1 GB each on 1.3 GB (`pytest tests/clients -k together`) get turns of some 120
    /// ms. In 20 ms a hundred granules come twice.
    pub fn new(max_swapped_out: Ns, swapped_out_limit: Ns) -> TurnRule {
        TurnRule {
            link_share: 0.65,
            least: 20_000_000,
            max_swapped_out,
            swapped_out_limit: swapped_out_limit.max(max_swapped_out),
            late: TurnLateness::default().of_a_round(),
        }
    }
}

/// Lateness of turns: by a kernel each, and its wait.
#[derive(Debug, Clone)]
pub struct TurnLateness {
    /// For each client's last turn: lateness of its end, and wait of its first kernel, ns.
    last: Vec<(Client, Ns, Ns)>,
    round: Ns,
}

impl Default for TurnLateness {
    /// Before any turn: 10 ms, a few long kernels.
    fn default() -> TurnLateness {
        TurnLateness {
            last: Vec::new(),
            round: 10_000_000,
        }
    }
}

impl TurnLateness {
    /// Notes that a client's turn of `planned` ns took `took` ns, and that its first kernel ran
    /// after `first` ns. Each counts as late by at most half of the turn: a longer turn had no
    /// successor.
    pub fn note(&mut self, client: Client, planned: Ns, took: Ns, first: Ns) {
        let late = took.saturating_sub(planned).min(planned / 2);
        self.forget(client);
        self.last.push((client, late, first.min(planned / 2)));
        let ends: Ns = self.last.iter().map(|(_, late, _)| late).sum();
        let first = self.last.iter().map(|(.., first)| *first).max();
        self.round = (self.round - self.round / 16).max(ends + first.unwrap_or(0));
    }

    /// Forgets a client's turns.
    pub fn forget(&mut self, client: Client) {
        self.last.retain(|(known, ..)| *known != client);
    }

    /// Excess of a client's time swapped out over the plan, ns: all turns of a round end late, and
    /// its own begins late. The maximum of recent values, falling by a sixteenth each turn.
    pub fn of_a_round(&self) -> Ns {
        self.round
    }
}

/// Turns by a [`TurnRule`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnPlan {
    /// Length of each turn by the clock, with its waits, ns.
    pub length: Ns,
    /// Longest that the bound in force allows, ns.
    pub longest: Ns,
    /// Time that a client is swapped out, ns.
    pub swapped_out: Ns,
    /// Time that a client would be swapped out in turns that are long enough for their migration,
    /// ns; 0: these turns are.
    pub needed: Ns,
    /// Whether the second bound is in force.
    pub lengthened: bool,
}

impl TurnPlan {
    /// These turns after ones of `before` ns (0: none): a turn grows at once, and shrinks by an
    /// eighth at most. One that ended early moved less.
    pub fn after(self, before: Ns) -> TurnPlan {
        TurnPlan {
            length: self.length.max(before - before / 8).min(self.longest),
            ..self
        }
    }
}

/// Time before the end of a turn from which on the end need not be reported
/// ([`super::Planner::ends_in`]), ns. A granule goes in a tenth of a millisecond, and they go in
/// batches.
pub const NEAREST_END_NS: Ns = 2_000_000;

/// Shortest turn, ns. Shorter ones are a switch and little else.
const MIN_TURN_NS: Ns = 1_000_000;

/// Part of the device's time from which on turns count as long enough. Past it a round grows by
/// more than it gains.
const BUSY: f64 = 0.97;

/// Part of a bound on being swapped out that is left for turns that end late, at most.
const LATE_PART: u64 = 4;

/// Factor on the link's time for hidden moves: orders come late.
const HIDDEN: f64 = 1.1;

/// Inverse step in which lengths are tried.
const STEP_PART: u64 = 64;

/// Turns by this rule. `whole`: a round of turns that hold whole sets, by all that is known of the
/// last one. `round`: the certain migrations of a round of turns of a length.
pub fn turns(link: &Link, overlap: Overlap, rule: &TurnRule, whole: &Round, round: impl Fn(Ns) -> Round) -> TurnPlan {
    let clients = whole.least.len() as u64;
    let limit = rule.swapped_out_limit.max(rule.max_swapped_out);
    if clients < 2 {
        let length = rule.max_swapped_out.max(rule.least);
        return TurnPlan {
            length,
            longest: length,
            ..TurnPlan::default()
        };
    }
    let others = clients - 1;
    let share = rule.link_share.clamp(0.05, 1.0);
    let least = time(&whole.least, link) as f64;
    let wanted = match overlap {
        Overlap::Ahead => {
            // By the clock: unavoidable waits count too.
            let asked = least / share;
            let length = (asked / clients as f64) as Ns;
            let waits = whole.time(length, link, overlap).saturating_sub(length * clients);
            (asked - waits as f64).max(whole.hides(link) as f64 * HIDDEN)
        }
        Overlap::AtSwitch | Overlap::Nothing => least * BUSY / (1.0 - BUSY),
    };
    let wanted = ((wanted / clients as f64) as Ns).max(rule.least).max(1);
    let shortest = MIN_TURN_NS.min(rule.least).min(rule.max_swapped_out / others).max(1);
    let at = |length: Ns| Tried {
        length,
        round: round(length).time(length, link, overlap),
        clients,
    };
    // Rounds grow unevenly with the length.
    let promised = |bound: Ns| bound - rule.late.min(bound / LATE_PART);
    let within = |bound: Ns, from: Ns| {
        let bound = promised(bound);
        let mut tried = at(from);
        while tried.length > shortest && tried.swapped_out() > bound {
            tried = at((tried.length - (tried.length / STEP_PART).max(1)).max(shortest));
        }
        tried
    };
    let kept = within(rule.max_swapped_out, wanted.min(rule.max_swapped_out / others).max(1));
    let pays = |longer: &Tried| {
        let cost = longer.swapped_out() as f64 / kept.swapped_out().max(1) as f64;
        longer.busy() > kept.busy() * cost
    };
    let mut enough = kept;
    while enough.length < wanted && enough.busy() < BUSY {
        enough = at((enough.length + (enough.length / STEP_PART).max(1)).min(wanted));
    }
    let mut chosen = kept;
    if enough.swapped_out() > rule.max_swapped_out && limit > rule.max_swapped_out {
        chosen = Some(within(limit, enough.length)).filter(pays).unwrap_or(kept);
    }
    let lengthened = chosen.swapped_out() > kept.swapped_out().max(rule.max_swapped_out);
    let needed = match pays(&enough) && enough.swapped_out() > chosen.swapped_out() {
        true => enough.swapped_out(),
        false => 0,
    };
    let bound = if lengthened { limit } else { rule.max_swapped_out };
    let longest = (promised(bound) / others).max(shortest);
    TurnPlan {
        length: (chosen.round / clients).clamp(1, longest),
        longest,
        swapped_out: chosen.swapped_out(),
        needed,
        lengthened,
    }
}

/// Length that was tried.
#[derive(Debug, Clone, Copy)]
struct Tried {
    /// Own time of a turn, ns.
    length: Ns,
    /// Time of a round, ns.
    round: Ns,
    clients: u64,
}

impl Tried {
    /// Time that a client is swapped out: all turns but its own, ns.
    fn swapped_out(&self) -> Ns {
        self.round - self.round / self.clients
    }

    /// Part of the device's time in which it works.
    fn busy(&self) -> f64 {
        (self.length * self.clients) as f64 / self.round.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;
    const FAR_NS: Ns = 100_000 * MS;

    fn link(duplex: bool) -> Link {
        // One granule a millisecond.
        let rate = super::super::GRANULE as f64 * 1e3;
        Link {
            inward: rate,
            outward: rate,
            both: 2.0 * rate,
            duplex,
        }
    }

    /// Three clients with the same migration in turns of every length.
    fn moves(inward: u64, outward: u64) -> Round {
        let each = vec![Migration { inward, outward }; 3];
        Round {
            least: each.clone(),
            ahead: each,
            ..Round::default()
        }
    }

    fn rule(max_swapped_out: Ns, swapped_out_limit: Ns) -> TurnRule {
        TurnRule {
            link_share: 0.5,
            least: MS,
            max_swapped_out,
            swapped_out_limit,
            late: 0,
        }
    }

    /// Round of the planner for clients with sets of `set` granules and a period of `period` ns, on
    /// a device of `capacity`, in turns of `length` ns.
    fn swept(clients: u64, set: u64, capacity: u64, period: Ns, length: Ns) -> Round {
        let used = (set * length.min(period) / period).min(set);
        let missing = |next: u64| {
            let others = (clients * set - used - next) as f64;
            let left = capacity as f64 - (used + next) as f64;
            let inward = (used as f64 * (1.0 - (left / others).min(1.0))) as u64;
            vec![Migration { inward, outward: 0 }; clients as usize]
        };
        Round {
            least: missing(0),
            ahead: missing(used),
            late: Vec::new(),
            last_uses: 0,
        }
    }

    fn turns_of(clients: u64, rule: &TurnRule) -> TurnPlan {
        // 187 granules take 187 ms; the device holds 2.2 sets; a period takes 11 ms.
        let round = |length| swept(clients, 187, 411, 11 * MS, length);
        turns(&link(true), Overlap::Ahead, rule, &round(Ns::MAX), round)
    }

    #[test]
    fn a_turn_follows_what_is_moved() {
        let at = |duplex, overlap, round: Round| {
            turns(&link(duplex), overlap, &rule(FAR_NS, FAR_NS), &round, |_| round.clone()).length
        };
        let close = |length: Ns, ms: Ns| assert!(length.abs_diff(ms * MS) < MS, "{length} is not {ms} ms");
        close(at(true, Overlap::Ahead, moves(100, 80)), 200);
        close(at(false, Overlap::Ahead, moves(100, 80)), 360);
        close(at(true, Overlap::Ahead, moves(0, 0)), 1);
        // Migration while no client runs is 3 % of a turn: 97/3 times 100 ms, and the migration
        // itself.
        close(at(true, Overlap::Nothing, moves(100, 80)), 3_333);
    }

    #[test]
    fn a_round_hides_what_is_held_ready_and_waits_for_the_rest() {
        let each = |inward| vec![Migration { inward, outward: 0 }; 4];
        let round = Round {
            least: each(60),
            ahead: each(100),
            late: each(6),
            last_uses: 4 * MS,
        };
        let time = |length: Ns| round.time(length * MS, &link(true), Overlap::Ahead) / MS;
        assert_eq!(time(0), 240, "nothing runs: the least is moved");
        assert_eq!(time(50), 200 + 120, "half of it is waited for");
        assert_eq!(time(100), 400 + 20, "only what finds no room");
        assert_eq!(time(1_000), 4_000 + 20);
        assert_eq!(round.time(100 * MS, &link(true), Overlap::AtSwitch) / MS, 400 + 240);
    }

    #[test]
    fn being_swapped_out_is_bounded() {
        for bound in [20 * MS, 100 * MS, 250 * MS] {
            for overlap in [Overlap::Ahead, Overlap::AtSwitch, Overlap::Nothing] {
                let round = moves(100, 80);
                let turns = turns(&link(true), overlap, &rule(bound, bound), &round, |_| round.clone());
                assert!(
                    turns.length >= 1 && turns.length * 2 <= bound && turns.longest * 2 <= bound,
                    "{overlap:?} {bound}: {turns:?}"
                );
                assert!(!turns.lengthened);
            }
        }
    }

    #[test]
    fn turns_get_longer_than_the_bound_only_where_they_must() {
        // At twice the device all is moved in time.
        let kept = turns_of(4, &rule(500 * MS, 2_000 * MS));
        assert!(!kept.lengthened && kept.swapped_out <= 500 * MS, "{kept:?}");
        assert!(kept.length >= 160 * MS, "{kept:?}");
        // At three times no whole set is moved in 500 ms. The shortest turns that do have 880 ms.
        let longer = turns_of(6, &rule(500 * MS, 2_000 * MS));
        assert!(longer.lengthened, "{longer:?}");
        assert!((860 * MS..900 * MS).contains(&longer.swapped_out), "{longer:?}");
        assert!(longer.longest * 5 <= 2_000 * MS);
        assert_eq!((kept.needed, longer.needed), (0, 0));
        // The second bound holds, too. Turns that gain nothing within it keep the first.
        let short = turns_of(6, &rule(500 * MS, 500 * MS));
        assert!(!short.lengthened && short.swapped_out <= 500 * MS, "{short:?}");
        assert_eq!(short.needed, longer.swapped_out, "what would do is said");
        assert_eq!(turns_of(6, &rule(500 * MS, 700 * MS)), short);
        let between = turns_of(6, &rule(500 * MS, 850 * MS));
        assert!(between.lengthened && between.swapped_out <= 850 * MS, "{between:?}");
    }

    #[test]
    fn turns_that_touch_less_keep_a_bound_that_whole_sets_break() {
        let bound = 100 * MS;
        let short = turns_of(6, &rule(bound, bound));
        assert!(short.swapped_out <= bound, "{short:?}");
        let none = turns_of(6, &rule(2 * MS, 2 * MS));
        assert!(
            none.length <= MS,
            "nothing keeps it: the shortest comes nearest: {none:?}"
        );
    }

    #[test]
    fn what_turns_end_late_by_comes_off_the_bound() {
        let bound = 500 * MS;
        let late = |late| TurnRule {
            late,
            ..rule(bound, bound)
        };
        let (none, some) = (turns_of(4, &late(0)), turns_of(4, &late(20 * MS)));
        assert!(none.swapped_out > bound - 20 * MS, "{none:?}");
        assert!(some.swapped_out <= bound - 20 * MS, "{some:?}");
        assert!(some.longest * 3 <= bound - 20 * MS, "{some:?}");
        let most = turns_of(4, &late(FAR_NS));
        assert!(
            most.longest * 3 > bound / 2,
            "a quarter of the bound is the most: {most:?}"
        );
    }

    #[test]
    fn lateness_is_of_a_round_and_is_forgotten_slowly() {
        let mut lateness = TurnLateness::default();
        for _ in 0..400 {
            lateness.note(Client(1), 100, 90, 0);
        }
        assert!(lateness.of_a_round() < 16, "early turns are not late");
        lateness.note(Client(1), 3_200, 3_300, 20);
        lateness.note(Client(2), 3_200, 3_400, 0);
        assert_eq!(lateness.of_a_round(), 100 + 200 + 20);
        lateness.note(Client(1), 3_200, 3_200, 0);
        assert_eq!(lateness.of_a_round(), 300, "less by a sixteenth");
        lateness.note(Client(2), 3_200, 1_000_000, 0);
        assert_eq!(lateness.of_a_round(), 1_600, "half a turn at most");
        lateness.forget(Client(2));
        lateness.note(Client(1), 3_200, 3_200, 0);
        assert_eq!(lateness.of_a_round(), 1_500);
    }

    #[test]
    fn a_turn_grows_at_once_and_shrinks_by_an_eighth() {
        let turns = TurnPlan {
            length: 40,
            longest: 100,
            ..TurnPlan::default()
        };
        assert_eq!(turns.after(0).length, 40);
        assert_eq!(turns.after(16).length, 40);
        assert_eq!(turns.after(80).length, 70);
        assert_eq!(turns.after(400).length, 100, "the bound wins");
    }

    #[test]
    fn both_ways_at_once_each_is_slower_until_one_is_through() {
        let both = Link {
            both: link(true).inward * 1.5,
            ..link(true)
        };
        let close = |time: Ns, ms: Ns| assert!(time.abs_diff(ms * MS) < MS / 100, "{time} is not {ms} ms");
        close(both.time(90, 0), 90);
        close(both.time(90, 90), 120);
        close(both.time(90, 60), 80 + 30);
        close(link(true).time(90, 60), 90);
        close(link(false).time(90, 60), 150);
    }

    #[test]
    fn alone_there_is_nothing_to_share() {
        let alone = turns(
            &link(true),
            Overlap::Ahead,
            &rule(50 * MS, FAR_NS),
            &Round::default(),
            |_| Round::default(),
        );
        assert_eq!((alone.length, alone.swapped_out, alone.lengthened), (50 * MS, 0, false));
    }
}
