// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calendar: days since 1970-01-01 and dates, UTC. Pure arithmetic on eras of 400 years.
#![forbid(unsafe_code)]

/// Seconds of a day.
pub const DAY_S: u64 = 86_400;

/// Days since 1970-01-01 as year, month, day (Hinnant's algorithm, which counts from March).
pub fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days since 1970-01-01 of a date; `None`: there is no such day.
pub fn days_of(year: i64, month: i64, day: i64) -> Option<u64> {
    let shifted_year = year - i64::from(month <= 2);
    let era = shifted_year.div_euclid(400);
    let of_era = shifted_year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let same = (1..=12).contains(&month) && civil(days) == (year, month, day);
    same.then(|| u64::try_from(days).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_each_others_inverse() {
        for days in (0..60_000).step_by(17) {
            let (year, month, day) = civil(days);
            assert_eq!(days_of(year, month, day), Some(days as u64));
        }
        assert_eq!(days_of(2025, 2, 29), None);
        assert_eq!(days_of(2025, 13, 1), None);
    }
}
