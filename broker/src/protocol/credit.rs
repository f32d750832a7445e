//! The credit word: every change of it, of both sides, in one place.
//!
//! Credit given = credit taken + credit taken back + credit in the word, at every instruction, because the word is changed by one atomic step at a time and
//! nobody stores into it. A word below zero is a debt: what went through without credit is taken from it all the same.
//!
//! The orderings are those that `tests/simulation` checks in every interleaving (`cargo test -p weft-simulation --test memory_model`): it compiles this very file.
#![forbid(unsafe_code)]

use super::atomic::Ordering;
use super::board::Board;
use super::lane::{Orders, flags};

impl Orders {
    /// Client: takes `cost` if there is so much credit and it holds.
    #[inline]
    pub fn take(&self, board: &Board, cost: i64) -> bool {
        let mut credit = self.credit.load(Ordering::Acquire);
        loop {
            if credit < cost {
                return false;
            }
            if self.flags.load(Ordering::Acquire) & flags::CREDIT_BOUND_TO_SIGNS != 0 {
                let above = board.above(self.priority.load(Ordering::Relaxed) as usize);
                if above != self.signs.load(Ordering::Acquire) {
                    return false;
                }
            }
            match self
                .credit
                .compare_exchange_weak(credit, credit - cost, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => credit = now,
            }
        }
    }

    /// Client: takes credit that is not there.
    pub fn overdraw(&self, cost: i64) {
        // Saturating: a word near its end would otherwise turn into a fortune.
        let _ = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            Some(credit.saturating_sub(cost))
        });
    }

    /// Broker: gives credit, bound to these signs or to none. Where what is left was given under other signs, that is taken back first and returned: it
    /// must not come back to life. A debt stays: the credit that is given pays it.
    pub fn grant(&self, credit: i64, bound_to: Option<u64>) -> i64 {
        let flags = self.flags.load(Ordering::Relaxed);
        let was_bound = flags & flags::CREDIT_BOUND_TO_SIGNS != 0;
        let same = match bound_to {
            Some(signs) => was_bound && self.signs.load(Ordering::Relaxed) == signs,
            None => !was_bound,
        };
        let mut left = 0;
        if !same {
            left = self.take_back();
            if left < 0 {
                self.credit.fetch_add(left, Ordering::AcqRel);
                left = 0;
            }
            match bound_to {
                Some(signs) => {
                    self.signs.store(signs, Ordering::Release);
                    self.flags
                        .store(flags | flags::CREDIT_BOUND_TO_SIGNS, Ordering::Release);
                }
                None => self
                    .flags
                    .store(flags & !flags::CREDIT_BOUND_TO_SIGNS, Ordering::Release),
            }
        }
        self.credit.fetch_add(credit, Ordering::AcqRel);
        left
    }

    /// Broker: takes back what is left; below zero: a debt is forgiven.
    pub fn take_back(&self) -> i64 {
        self.credit.swap(0, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::lane::Lane;

    #[test]
    fn a_grant_pays_a_debt_once() {
        let lane = Box::<Lane>::default();
        let orders = &lane.orders;
        assert_eq!(orders.grant(100, Some(1)), 0);
        orders.overdraw(130);
        // The core knows of the debt and grants that much more; under other signs it must not be forgiven as well.
        assert_eq!(orders.grant(530, Some(2)), 0);
        assert_eq!(orders.take_back(), 500);
    }
}
