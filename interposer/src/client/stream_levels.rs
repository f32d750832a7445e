// SPDX-License-Identifier: MIT OR Apache-2.0
//! Priority of a background job's stream, by the priority that the job asks for. Pure.
//!
//! CUDA counts down: 0 is the default and the least, lower numbers go first. So a stream that asks
//! for no priority cannot be lowered. A stream that asks for more ranks before the default stream
//! of every other client of its rank, a foreground job's too.
//!
//! Each level that the job asks for gets the place right above the level below it. The order among
//! its streams stays. A stream that asked for less never goes before one that asked for more, and
//! all of them go before its default streams. Streams keep the priority that they were made with,
//! so a level that is asked for late may find no place between two others. Then it shares the upper
//! one's place. One place above the default is kept free for such a level, until the job asks for
//! that very level. So two levels never share a place. Neither does any number of levels that are
//! asked for from the least on. PyTorch asks in this order: it makes streams of four levels at
//! once, and keeps them all.
#![forbid(unsafe_code)]

/// Priority of the default streams.
const DEFAULT: i32 = 0;

/// The place that is kept free for a level that is asked for late.
const SPARE: i32 = DEFAULT - 1;

/// Most distinct levels. Drivers have six; 32 is far above.
const MOST: usize = 32;

/// The levels that a process has asked for, and the priority that each got.
#[derive(Debug, Default)]
pub struct StreamLevels {
    /// Asked for and given. Ordered: the least important first.
    levels: Vec<(i32, i32)>,
}

impl StreamLevels {
    /// An empty set of levels.
    pub const fn new() -> StreamLevels {
        StreamLevels { levels: Vec::new() }
    }

    /// The priority for a stream that asks for `asked`, a value within the driver's range.
    pub fn lowered(&mut self, asked: i32) -> i32 {
        if asked >= DEFAULT {
            return asked;
        }
        let at = self.levels.partition_point(|(other, _)| *other > asked);
        let upper = self.levels.get(at).copied();
        if let Some((_, given)) = upper.filter(|(other, _)| *other == asked) {
            return given;
        }
        let below = at.checked_sub(1).and_then(|at| self.levels.get(at));
        let next = below.map_or(DEFAULT, |(_, given)| *given) - 1;
        let given = match upper {
            Some((_, upper)) => next.max(upper),
            None if next == SPARE => asked.max(SPARE - 1),
            None => next,
        };
        if self.levels.len() < MOST {
            self.levels.insert(at, (asked, given));
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREATEST: i32 = -5;

    fn given<const N: usize>(asked: [i32; N]) -> [i32; N] {
        let mut levels = StreamLevels::new();
        asked.map(|asked| levels.lowered(asked))
    }

    #[test]
    fn a_level_gets_the_place_right_above_the_one_below_it() {
        assert_eq!(given([-1, -3, -5, -3, -1, 0]), [-1, -2, -3, -2, -1, 0]);
        assert_eq!(given([-1, -2, -3, -4, -5]), [-1, -2, -3, -4, -5], "all that there are");
        assert_eq!(given([-5, 0, -5]), [-2, 0, -2], "one place is kept free");
        assert_eq!(given([-5, -1, -3]), [-2, -1, -2], "the third finds none");
        assert_eq!(given([-5, -4]), [-2, -1]);
        assert_eq!(given([3]), [3]);
    }

    /// All sequences of six requests in the range that drivers have.
    #[test]
    fn no_order_is_ever_turned_round_and_no_stream_is_raised() {
        let wide = (DEFAULT - GREATEST + 1) as u32;
        for code in 0..wide.pow(6) {
            let wishes = (0..6).map(|digit| DEFAULT - (code / wide.pow(digit) % wide) as i32);
            let mut levels = StreamLevels::new();
            let streams: Vec<(i32, i32)> = wishes.map(|asked| (asked, levels.lowered(asked))).collect();
            for (asked, given) in &streams {
                assert!((*asked..=DEFAULT).contains(given), "{streams:?}");
                assert_eq!(
                    *asked < DEFAULT,
                    *given < DEFAULT,
                    "towards the default streams: {streams:?}"
                );
                for (other, others) in &streams {
                    assert!(asked >= other || given <= others, "{streams:?}");
                    assert!(asked != other || given == others, "{streams:?}");
                }
            }
            let rising = streams.is_sorted_by(|(one, _), (next, _)| one >= next);
            let apart = |place: fn(&(i32, i32)) -> i32| {
                let mut all: Vec<i32> = streams.iter().map(place).filter(|level| *level < DEFAULT).collect();
                all.sort_unstable();
                all.dedup();
                all.len()
            };
            let (wanted, kept) = (apart(|(asked, _)| *asked), apart(|(_, given)| *given));
            assert!(
                kept == wanted || (wanted > 2 && !rising),
                "levels share a place: {streams:?}"
            );
            let most = streams.iter().map(|(_, given)| -given).max().unwrap_or(0);
            assert!(
                most <= wanted as i32 + 1,
                "more places than levels and the spare one: {streams:?}"
            );
        }
    }

    #[test]
    fn more_levels_than_are_told_apart_still_keep_their_order() {
        let mut levels = StreamLevels::new();
        let given: Vec<i32> = (1..100).map(|asked| levels.lowered(-asked)).collect();
        assert!(given.is_sorted_by(|one, next| one >= next));
        assert_eq!(given.last(), Some(&-33));
    }
}
