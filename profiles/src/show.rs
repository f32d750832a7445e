// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text of a profile, for `weft profile show`.

use std::fmt::Write;

use crate::calendar::{DAY_S, civil};
use crate::{KernelProfile, Ns, Profile, Sketch};

/// Widest kernel name, in columns.
const NAME: usize = 60;

/// Widest bar of the histogram, in columns.
const BAR: u64 = 40;

/// Inverse of the part of the device time from which on its error is shown.
const UNSURE: u64 = 8;

/// Text: heading, the top `limit` kernels by total time, totals, histogram of gaps.
pub fn table(profile: &Profile, limit: usize) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_table(&mut out, profile, limit);
    out
}

fn write_table(out: &mut String, profile: &Profile, limit: usize) -> std::fmt::Result {
    heading(out, profile)?;
    let mut kernels: Vec<&KernelProfile> = profile.kernels.iter().collect();
    kernels.sort_by_key(|kernel| (std::cmp::Reverse(kernel.total_time()), kernel.hash));
    let total: u128 = kernels.iter().map(|kernel| kernel.total_time()).sum();
    let shown = &kernels[..limit.min(kernels.len())];
    let name_width = shown
        .iter()
        .map(|kernel| kernel.id.short_name().chars().count().min(NAME))
        .max()
        .unwrap_or(0)
        .max("kernel".len());
    let shape_width = shown
        .iter()
        .map(|kernel| kernel.id.shape().chars().count())
        .max()
        .unwrap_or(0)
        .max("grid x block".len());
    writeln!(
        out,
        "{:name_width$}  {:shape_width$}  {:>9}  {:>8} {:>8} {:>8}  {:>8} {:>8}  {:>6}",
        "kernel", "grid x block", "launches", "p50", "p90", "p99", "gap p10", "gap p50", "share"
    )?;
    for kernel in shown {
        let name: String = kernel.id.short_name().chars().take(NAME).collect();
        writeln!(
            out,
            "{:name_width$}  {:shape_width$}  {:>9}  {:>8} {:>8} {:>8}  {:>8} {:>8}  {:>6}",
            name,
            kernel.id.shape(),
            kernel.launches,
            quantile(&kernel.time, 0.5),
            quantile(&kernel.time, 0.9),
            quantile(&kernel.time, 0.99),
            quantile(&kernel.gap, 0.1),
            quantile(&kernel.gap, 0.5),
            percent(kernel.total_time(), total),
        )?;
    }
    if shown.len() < kernels.len() {
        let rest: u128 = kernels[shown.len()..].iter().map(|kernel| kernel.total_time()).sum();
        let count = kernels.len() - shown.len();
        writeln!(out, "and {count} more with {} of the time", percent(rest, total))?;
    }
    totals(out, profile, total)?;
    gaps(out, &profile.gaps())
}

fn heading(out: &mut String, profile: &Profile) -> std::fmt::Result {
    writeln!(out, "profile {}, taken {}", profile.name, date(profile.taken))?;
    let driver = profile.gpu.driver;
    let version = match driver {
        0 => "of unknown version".to_owned(),
        _ => format!("{}.{}", driver / 1000, driver % 1000 / 10),
    };
    writeln!(out, "on {}, driver for CUDA {version}", profile.gpu)?;
    let runs = if profile.runs == 1 { "run" } else { "runs" };
    writeln!(
        out,
        "{} {runs}, {} launches, {} of them timed, memory peak {} MiB{}",
        profile.runs,
        profile.launches(),
        profile.samples(),
        profile.memory_peak >> 20,
        match profile.ran {
            0 => String::new(),
            ran => format!(", {} at the longest", duration(ran)),
        },
    )?;
    writeln!(out)
}

fn totals(out: &mut String, profile: &Profile, total: u128) -> std::fmt::Result {
    writeln!(out)?;
    let total = u64::try_from(total).unwrap_or(u64::MAX);
    let (over, short) = (profile.over.min(total), profile.short);
    writeln!(
        out,
        "{} kernels, {} on the device in total{}",
        profile.kernels.len(),
        duration(total),
        match over.max(short) > total / UNSURE {
            true => format!(
                " ({} to {}: the host launches more slowly than kernels run)",
                duration(total - over),
                duration(total.saturating_add(short))
            ),
            false => String::new(),
        }
    )?;
    if profile.unlisted > 0 {
        writeln!(
            out,
            "{} launches of kernels beyond the limit are not listed",
            profile.unlisted
        )?;
    }
    working_sets(out, profile)?;
    match profile.idle_share() {
        Some(idle) => writeln!(
            out,
            "the job leaves the device idle for {:.1} % of the time",
            idle * 100.0
        ),
        None => writeln!(out, "no gap was seen"),
    }
}

fn working_sets(out: &mut String, profile: &Profile) -> std::fmt::Result {
    let sets = &profile.working_sets;
    if sets.kernels.is_empty() {
        return Ok(());
    }
    let [fixed, linear, strided, recalled] = sets.counts();
    writeln!(
        out,
        "the memory that {} kernels touch is known: {fixed} regions of fixed size, {linear} by arguments, {strided} strided, {recalled} recalled",
        sets.kernels.len()
    )
}

fn gaps(out: &mut String, gaps: &Sketch) -> std::fmt::Result {
    const US: Ns = 1_000;
    const MS: Ns = 1_000_000;
    const EDGES: [Ns; 7] = [US, 10 * US, 100 * US, MS, 10 * MS, 100 * MS, 1_000 * MS];
    const LABELS: [&str; 8] = [
        "< 1us", "< 10us", "< 100us", "< 1ms", "< 10ms", "< 100ms", "< 1s", ">= 1s",
    ];
    if gaps.count() == 0 {
        return Ok(());
    }
    let bars = gaps.histogram(&EDGES);
    let tallest = bars.iter().copied().max().unwrap_or(1).max(1);
    writeln!(out)?;
    writeln!(out, "gaps")?;
    for (label, count) in LABELS.iter().zip(bars) {
        // A bar for any value is never empty.
        let length = (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(tallest)) as usize;
        let line = format!("{label:>8}  {count:>9}  {}", "#".repeat(length));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn quantile(sketch: &Sketch, part: f64) -> String {
    sketch.quantile(part).map_or_else(|| "-".to_owned(), duration)
}

fn percent(part: u128, whole: u128) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1}%", part as f64 * 100.0 / whole as f64)
}

/// Formats a duration in the unit that leaves one to three digits before the point.
pub fn duration(ns: Ns) -> String {
    let scaled = |unit: f64, name: &str| {
        let value = ns as f64 / unit;
        let digits = if value < 10.0 { 2 } else { 1 };
        format!("{value:.digits$}{name}")
    };
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => scaled(1e3, "us"),
        1_000_000..1_000_000_000 => scaled(1e6, "ms"),
        _ => scaled(1e9, "s"),
    }
}

/// Formats seconds since 1970 as `2026-11-21 11:30 UTC`.
fn date(seconds: u64) -> String {
    let (year, month, day) = civil((seconds / DAY_S) as i64);
    let (hour, minute) = (seconds % DAY_S / 3_600, seconds % 3_600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::sample;

    #[test]
    fn the_whole_text() {
        let text = table(&sample(), 10);
        let expected = "\
profile resnet, taken 2026-11-18 11:06 UTC
on NVIDIA A100-SXM4-80GB (81920 MiB), driver for CUDA 13.2
1 run, 80 launches, 20 of them timed, memory peak 3072 MiB, 90.0s at the longest

kernel  grid x block   launches       p50      p90      p99   gap p10  gap p50   share
gemm    (8) x (128)          40   100.0us  100.0us  100.0us    2.00ms   2.00ms   90.9%
axpy    (8) x (128)          40    10.0us   10.0us   10.0us    1.00us   1.00us    9.1%

2 kernels, 4.40ms on the device in total
the job leaves the device idle for 94.8 % of the time

gaps
   < 1us          0
  < 10us         10  ########################################
 < 100us          0
   < 1ms          0
  < 10ms         10  ########################################
 < 100ms          0
    < 1s          0
   >= 1s          0
";
        assert_eq!(text, expected);
    }

    #[test]
    fn working_sets_have_a_line() {
        let mut profile = sample();
        profile.working_sets = crate::working_set::example();
        let text = table(&profile, 10);
        assert!(
            text.contains(
                "the memory that 7 kernels touch is known: 3 regions of fixed size, 12 by arguments, 1 strided, 0 recalled"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_limit_leaves_the_rest_in_one_line() {
        let text = table(&sample(), 1);
        assert!(text.contains("and 1 more with 9.1% of the time"), "{text}");
        assert!(!text.contains("axpy"));
    }

    #[test]
    fn an_empty_profile_has_a_text_too() {
        let text = table(&Profile::default(), 5);
        assert!(text.contains("no gap was seen"), "{text}");
        assert!(text.contains("on an unknown GPU"));
    }

    #[test]
    fn durations_fit_a_column() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00us"),
            (123_456, "123.5us"),
            (1_500_000, "1.50ms"),
            (61_000_000_000, "61.0s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_709_251_199), "2024-02-29 23:59 UTC");
        assert_eq!(date(1_709_251_200), "2024-03-01 00:00 UTC");
    }
}
