// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times on a grid: exact below 64 ns, six significant bits above.
//!
//! A measured duration is never more accurate than some percent; the grid is within 1.6 %. In
//! return, a step's times differ from the last step's times by small integers. The grid is
//! absolute: a time on the grid does not change.

use weft_profiles::Ns;

/// Bits after the leading one: 32 places per octave.
const BITS: u32 = 5;

/// Largest code, of the largest time.
pub(super) const MAX_CODE: u32 = ((63 - BITS) << BITS) + (2 << BITS) - 1;

/// Grid place of a time in ns.
pub(super) fn code(time: Ns) -> u32 {
    let Some(shift) = time.checked_ilog2().map(|log| log.saturating_sub(BITS)) else {
        return 0;
    };
    // The mantissa keeps its leading one, which adds 1 to the octave: codes have no holes.
    let mantissa = (time >> shift) as u32;
    (shift << BITS) + mantissa
}

/// Time in the middle of a grid place, ns. A code above `MAX_CODE` counts as `MAX_CODE`.
pub(super) fn value(code: u32) -> Ns {
    let code = code.min(MAX_CODE);
    let shift = (code >> BITS).saturating_sub(1);
    let mantissa = u64::from(code - (shift << BITS));
    let low = mantissa << shift;
    low + ((1u64 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_times_are_exact_and_codes_have_no_hole() {
        for time in 0..64 {
            assert_eq!(value(code(time)), time);
        }
        for place in 0..=MAX_CODE {
            assert_eq!(code(value(place)), place, "{place}: {}", value(place));
        }
        assert_eq!(code(Ns::MAX), MAX_CODE);
        assert_eq!(value(u32::MAX), value(MAX_CODE));
    }

    #[test]
    fn no_time_moves_by_more_than_two_percent() {
        let mut time = 1u64;
        while time < 1 << 60 {
            for near in [time - 1, time, time + time / 3] {
                let off = value(code(near)).abs_diff(near) as f64;
                assert!(off <= near as f64 * 0.0160, "{near} -> {}", value(code(near)));
            }
            time = time * 5 / 4 + 1;
        }
    }
}
