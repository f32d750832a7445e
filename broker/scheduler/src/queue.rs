// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that wait at gates, one for each client, in the orders in which policies look for them.
//!
//! Each class (priority) is ordered by long estimate and by turn. A third order through all classes
//! gives the client that is due. All are sorted vectors that keep their capacity. A change moves at
//! most one entry per waiting client (24 KB for 1000).

use weft_protocol::{Ns, PRIORITIES};

/// Index of a client in the core's table.
pub(super) type ClientSlot = usize;

/// A kernel at a gate, as queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueEntry {
    pub slot: ClientSlot,
    /// 0 to 9.
    pub class: usize,
    pub cost: Ns,
    /// Long estimate, ns: the time that must fit into a gap.
    pub long: Ns,
    pub since: Ns,
    /// Turns that the client had.
    pub round: u64,
    /// When the kernel is let through although it fits no gap.
    pub due: Ns,
}

#[derive(Debug, Default)]
pub(super) struct GateQueue {
    classes: [ClassQueue; PRIORITIES],
    due: Vec<(Ns, ClientSlot)>,
    /// Bit n: class n is not empty.
    busy: u16,
}

#[derive(Debug, Default)]
struct ClassQueue {
    /// (long estimate, since in reverse, slot): the last that fits is the longest, and among equals
    /// the one that waits longest.
    by_time: Vec<(Ns, std::cmp::Reverse<Ns>, ClientSlot)>,
    /// (round, since, slot).
    by_turn: Vec<(u64, Ns, ClientSlot)>,
}

impl GateQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.busy == 0
    }

    /// Number of waiting clients in a class.
    pub(super) fn len_of(&self, class: usize) -> usize {
        self.classes[class].by_turn.len()
    }

    pub(super) fn insert(&mut self, entry: &QueueEntry) {
        let class = &mut self.classes[entry.class];
        put(
            &mut class.by_time,
            (entry.long, std::cmp::Reverse(entry.since), entry.slot),
        );
        put(&mut class.by_turn, (entry.round, entry.since, entry.slot));
        put(&mut self.due, (entry.due, entry.slot));
        self.busy |= 1 << entry.class;
    }

    pub(super) fn remove(&mut self, entry: &QueueEntry) {
        let class = &mut self.classes[entry.class];
        take(
            &mut class.by_time,
            &(entry.long, std::cmp::Reverse(entry.since), entry.slot),
        );
        take(&mut class.by_turn, &(entry.round, entry.since, entry.slot));
        take(&mut self.due, &(entry.due, entry.slot));
        if class.by_turn.is_empty() {
            self.busy &= !(1 << entry.class);
        }
    }

    pub(super) fn first_class(&self) -> Option<usize> {
        (self.busy != 0).then(|| self.busy.trailing_zeros() as usize)
    }

    /// The client with the fewest turns, then the longest wait.
    pub(super) fn first_in_turn(&self, class: usize) -> Option<ClientSlot> {
        self.classes[class].by_turn.first().map(|(_, _, slot)| *slot)
    }

    /// BestPrioFit: the longest kernel shorter than `gap`, of the most important class that has
    /// one.
    pub(super) fn best_prio_fit(&self, gap: Ns) -> Option<ClientSlot> {
        let mut busy = self.busy;
        while busy != 0 {
            if let Some(slot) = self.best_fit(busy.trailing_zeros() as usize, gap) {
                return Some(slot);
            }
            busy &= busy - 1;
        }
        None
    }

    /// The longest kernel of a class that is shorter than `gap`.
    pub(super) fn best_fit(&self, class: usize, gap: Ns) -> Option<ClientSlot> {
        let by_time = &self.classes[class].by_time;
        let fitting = by_time.partition_point(|(time, _, _)| *time < gap);
        let (_, _, slot) = by_time.get(fitting.checked_sub(1)?)?;
        Some(*slot)
    }

    pub(super) fn first_due(&self) -> Option<(Ns, ClientSlot)> {
        self.due.first().copied()
    }
}

fn put<T: Ord>(list: &mut Vec<T>, entry: T) {
    let at = list.partition_point(|other| *other < entry);
    list.insert(at, entry);
}

fn take<T: Ord>(list: &mut Vec<T>, entry: &T) {
    if let Ok(at) = list.binary_search(entry) {
        list.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: ClientSlot, class: usize, cost: Ns, since: Ns) -> QueueEntry {
        QueueEntry {
            slot,
            class,
            cost,
            long: cost,
            since,
            round: 0,
            due: since + 50 * cost,
        }
    }

    #[test]
    fn the_most_important_class_that_fits_gives_its_longest() {
        let mut queue = GateQueue::default();
        for waiting in [
            entry(0, 2, 900, 0),
            entry(1, 5, 300, 0),
            entry(2, 5, 400, 0),
            entry(3, 5, 600, 0),
            entry(4, 7, 450, 0),
        ] {
            queue.insert(&waiting);
        }
        assert_eq!(queue.best_prio_fit(1_000), Some(0), "importance before length");
        assert_eq!(
            queue.best_prio_fit(500),
            Some(2),
            "the longest that fits, of the first class that has one"
        );
        assert_eq!(queue.best_prio_fit(400), Some(1), "shorter than the gap, not as long");
        assert_eq!(queue.best_prio_fit(300), None);
        assert_eq!(queue.first_class(), Some(2));
    }

    #[test]
    fn among_equals_who_waits_longest_goes_first() {
        let mut queue = GateQueue::default();
        queue.insert(&entry(0, 3, 100, 20));
        queue.insert(&entry(1, 3, 100, 10));
        assert_eq!(queue.best_prio_fit(200), Some(1));
        assert_eq!(queue.first_in_turn(3), Some(1));
        let mut had_a_turn = entry(2, 3, 100, 0);
        had_a_turn.round = 1;
        queue.insert(&had_a_turn);
        assert_eq!(queue.first_in_turn(3), Some(1));
        assert_eq!(queue.first_due(), Some((5_000, 2)));
    }

    #[test]
    fn of_those_that_fit_the_longest_and_of_equals_who_waits_longest() {
        let mut queue = GateQueue::default();
        for waiting in [
            entry(0, 4, 100, 0),
            entry(1, 4, 300, 0),
            entry(2, 4, 200, 0),
            entry(3, 4, 200, 9),
        ] {
            queue.insert(&waiting);
        }
        assert_eq!(queue.best_fit(4, 300), Some(2));
        assert_eq!(queue.best_fit(4, 200), Some(0));
        assert_eq!(queue.best_fit(4, 100), None);
        assert_eq!(queue.best_fit(5, 300), None);
        // A low cost with a high long estimate counts as long.
        queue.insert(&QueueEntry {
            long: 900,
            ..entry(4, 4, 50, 0)
        });
        assert_eq!(queue.best_fit(4, 300), Some(2));
    }

    #[test]
    fn what_is_taken_out_is_gone_from_every_order() {
        let mut queue = GateQueue::default();
        let (a, b) = (entry(0, 9, 5, 1), entry(1, 9, 7, 2));
        queue.insert(&a);
        queue.insert(&b);
        queue.remove(&a);
        assert_eq!(queue.len_of(9), 1);
        queue.remove(&a);
        assert_eq!(queue.len_of(9), 1, "taking out twice takes out once");
        assert_eq!(queue.best_prio_fit(100), Some(1));
        queue.remove(&b);
        assert!(queue.is_empty());
        assert_eq!((queue.first_class(), queue.first_due()), (None, None));
        assert_eq!(queue.best_prio_fit(100), None);
    }
}
