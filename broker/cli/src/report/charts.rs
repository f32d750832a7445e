// SPDX-License-Identifier: MIT OR Apache-2.0
//! Charts of a run. Pure: the same run gives the same chart.
#![forbid(unsafe_code)]

use weft_api::recording::{JobInterval, StretchLatency, StretchLengths};
use weft_scheduler::StretchHistogram;

use super::super::text;
use super::selection::{ReportJob, Run};
use super::svg::{AxisScale, Svg};

const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 220.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const AXIS: f64 = 24.0;

/// Height of a job's row, and of the strip in it that shows roles.
const ROW: f64 = 36.0;
const STRIP: f64 = 6.0;
const BETWEEN: f64 = 12.0;

/// Height of a chart.
const CHART: f64 = 150.0;

/// Columns of a stacked chart, and points of a line.
const COLUMNS: usize = 200;
const POINTS: usize = 100;

/// Number of colours for jobs in the page's style.
pub(super) const COLOURS: usize = 8;

/// CSS class of a job's colour.
pub(super) fn colour(number: usize) -> String {
    format!("c{}", number % COLOURS)
}

/// CSS class of a role's colour.
fn role_class(role: &str) -> &'static str {
    match role {
        "foreground" => "r-foreground",
        "background" => "r-background",
        "waits for memory" => "r-memory",
        _ => "r-alone",
    }
}

/// A piece of a job's time, ms since the start of the run.
struct TimePiece {
    begin: f64,
    end: f64,
    figures: JobInterval,
}

fn pieces(run: &Run, job: &ReportJob) -> Vec<TimePiece> {
    let Some(recording) = &job.of.recording else {
        return Vec::new();
    };
    let mut begin = job.begin_ms.saturating_sub(run.begin_ms) as f64;
    let pieces = recording.intervals.iter().map(|figures| {
        let end = begin + figures.length_ns as f64 / 1e6;
        let piece = TimePiece {
            begin,
            end,
            figures: *figures,
        };
        begin = end;
        piece
    });
    pieces.collect()
}

fn length_ms(run: &Run) -> f64 {
    run.end_ms.saturating_sub(run.begin_ms).max(1) as f64
}

fn time_scale(run: &Run) -> AxisScale {
    AxisScale::new((0.0, length_ms(run)), (LEFT, WIDTH - RIGHT))
}

/// The time axis below `bottom`, with lines up to `top`.
fn time_axis(picture: &mut Svg, run: &Run, top: f64, bottom: f64) {
    /// Steps between labels, seconds.
    const STEPS: [u64; 20] = [
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 172_800,
        604_800,
    ];
    const LABELS: f64 = 8.0;
    let scale = time_scale(run);
    let seconds = length_ms(run) / 1e3;
    let step = STEPS.into_iter().find(|step| *step as f64 * LABELS >= seconds);
    let step = step.unwrap_or(30 * 86_400) as f64;
    // A run of one or two seconds contains no round clock times.
    let step = if seconds < 2.0 { seconds / 4.0 } else { step };
    for tick in AxisScale::new((0.0, seconds), (0.0, 1.0)).steps(step) {
        let x = scale.at(tick * 1e3);
        picture.line("grid", (x, top), (x, bottom));
        let label = match step {
            step if step < 1.0 => format!("{tick:.2} s"),
            step if step < 60.0 => format!("{}:{:02}", tick as u64 / 60, tick as u64 % 60),
            step if step < 86_400.0 => format!("{}:{:02} h", tick as u64 / 3_600, tick as u64 / 60 % 60),
            _ => format!("day {}", tick as u64 / 86_400),
        };
        picture.text("tick", (x, bottom + 16.0), "middle", &label);
    }
}

/// One row per job: its role as a strip, its part of the GPU as an area, its warnings as marks.
pub(super) fn timeline(run: &Run) -> String {
    let height = TOP + run.jobs.len() as f64 * (ROW + BETWEEN) + AXIS;
    let mut picture = Svg::new(WIDTH, height);
    let scale = time_scale(run);
    time_axis(&mut picture, run, TOP, height - AXIS);
    for (number, job) in run.jobs.iter().enumerate() {
        let top = TOP + number as f64 * (ROW + BETWEEN);
        let (floor, strip) = (top + ROW - STRIP, top + ROW - STRIP);
        let begin = scale.at(job.begin_ms.saturating_sub(run.begin_ms) as f64);
        let end = scale.at(job.end_ms.saturating_sub(run.begin_ms) as f64);
        picture.text("label", (LEFT - 12.0, top + 15.0), "end", &job.name);
        let under = format!("process {}, priority {}", job.of.job.pid, job.of.job.priority);
        picture.text("under", (LEFT - 12.0, top + 30.0), "end", &under);
        picture.rect("row", (begin, top), (end - begin, ROW - STRIP), "");
        let pieces = pieces(run, job);
        let share = AxisScale::new((0.0, 1.0), (floor, top));
        let mut area = Vec::new();
        for piece in &pieces {
            let y = share.at(piece.figures.share());
            area.extend([(scale.at(piece.begin), y), (scale.at(piece.end), y)]);
        }
        if let (Some(first), Some(last)) = (area.first().copied(), area.last().copied()) {
            area.insert(0, (first.0, floor));
            area.push((last.0, floor));
            picture.path(&format!("area {}", colour(number)), &area, true, "");
        }
        // Adjacent pieces of one role are one box.
        let mut boxes: Vec<(&str, f64, f64, JobInterval)> = Vec::new();
        for piece in &pieces {
            match boxes.last_mut() {
                Some((same, _, end, sum)) if *same == piece.figures.role() => {
                    *end = piece.end;
                    sum.add(&piece.figures);
                }
                _ => boxes.push((piece.figures.role(), piece.begin, piece.end, piece.figures)),
            }
        }
        for (role, from, to, sum) in boxes {
            let (x, width) = (scale.at(from), scale.at(to) - scale.at(from));
            // The GPU time of a job without others is not measured.
            let gpu = match sum.gpu_ns {
                ns @ 1.. => format!(", {} of GPU time", job.of.job.outcome.gpu_part_text(ns as u64)),
                _ => String::new(),
            };
            let length = text::duration(sum.length_ns.max(0) as u64);
            let title = format!("{}: {role} for {length}{gpu}", job.name);
            picture.rect(role_class(role), (x, strip), (width.max(0.5), STRIP), &title);
        }
        if pieces.is_empty() {
            picture.rect(
                "r-unknown",
                (begin, strip),
                (end - begin, STRIP),
                "nothing was recorded",
            );
        }
        for warned in job.of.recording.iter().flat_map(|recording| &recording.warned) {
            let first = job.begin_ms.saturating_sub(run.begin_ms) as f64 + warned.first_ns as f64 / 1e6;
            picture.mark("warn", (scale.at(first), top + 8.0), &warned.warning.text);
        }
    }
    picture.into_element("Timeline: one row per job, with its role and its part of the GPU")
}

/// Sums of a figure in columns of equal length.
fn columns(run: &Run, job: &ReportJob, figure: impl Fn(&JobInterval) -> f64) -> Vec<f64> {
    let width = length_ms(run) / COLUMNS as f64;
    let mut sums = vec![0.0; COLUMNS];
    for piece in pieces(run, job) {
        let length = (piece.end - piece.begin).max(1e-6);
        let value = figure(&piece.figures);
        let first = (piece.begin / width).floor().max(0.0) as usize;
        for (column, sum) in sums.iter_mut().enumerate().skip(first) {
            let (begin, end) = (column as f64 * width, (column + 1) as f64 * width);
            if begin >= piece.end {
                break;
            }
            *sum += value * (end.min(piece.end) - begin.max(piece.begin)).max(0.0) / length;
        }
    }
    sums
}

/// Stacked areas, one per job. `top_value` is the top of the axis, `label` formats a value.
fn stacked(run: &Run, sums: &[Vec<f64>], top_value: f64, label: impl Fn(f64) -> String, about: &str) -> String {
    let mut picture = Svg::new(WIDTH, TOP + CHART + AXIS);
    let (top, bottom) = (TOP, TOP + CHART);
    let (x, y) = (time_scale(run), AxisScale::new((0.0, top_value), (bottom, top)));
    let width = length_ms(run) / COLUMNS as f64;
    for tick in y.ticks(4) {
        picture.line("grid", (LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)));
        picture.text("tick", (LEFT - 8.0, y.at(tick) + 4.0), "end", &label(tick));
    }
    time_axis(&mut picture, run, top, bottom);
    let mut below = vec![0.0; COLUMNS];
    for (number, sums) in sums.iter().enumerate() {
        if sums.iter().all(|sum| *sum <= 0.0) {
            continue;
        }
        let above: Vec<f64> = below.iter().zip(sums).map(|(low, sum)| low + sum.max(0.0)).collect();
        let step = |values: &[f64]| -> Vec<(f64, f64)> {
            let both = values.iter().enumerate().flat_map(|(column, value)| {
                let at = column as f64 * width;
                [(x.at(at), y.at(*value)), (x.at(at + width), y.at(*value))]
            });
            both.collect()
        };
        let mut area = step(&above);
        area.extend(step(&below).into_iter().rev());
        let name = run.jobs.get(number).map_or("", |job| job.name.as_str());
        picture.path(&format!("solid {}", colour(number)), &area, true, name);
        below = above;
    }
    picture.into_element(about)
}

/// Stacked parts of the GPU by job. In the rest the GPU was idle, or a job had role `alone`.
pub(super) fn shares(run: &Run) -> Option<String> {
    let width = length_ms(run) / COLUMNS as f64 * 1e6;
    let of = |job: &ReportJob| columns(run, job, |figures| figures.gpu_ns as f64 / width);
    let sums: Vec<Vec<f64>> = run.jobs.iter().map(of).collect();
    let any = sums.iter().flatten().any(|sum| *sum > 0.0);
    any.then(|| {
        let about = "GPU time of each job, as a part of the time";
        stacked(run, &sums, 1.0, text::percent, about)
    })
}

/// Managed memory moved for each job.
pub(super) fn moved(run: &Run) -> Option<String> {
    let of = |job: &ReportJob| columns(run, job, |figures| figures.moved_bytes as f64);
    let sums: Vec<Vec<f64>> = run.jobs.iter().map(of).collect();
    let tops = (0..COLUMNS).map(|column| sums.iter().map(|sums| sums[column].max(0.0)).sum::<f64>());
    let top = tops.fold(0.0, f64::max);
    let seconds = length_ms(run) / 1e3 / COLUMNS as f64;
    (top > 0.0).then(|| {
        let label = |bytes: f64| format!("{}/s", text::size((bytes / seconds) as u64));
        stacked(run, &sums, top * 1.05, label, "Managed memory moved for each job")
    })
}

/// Lateness of one foreground job in parts of its time.
struct Late {
    number: usize,
    /// Time, ms, and the part lost in each interval.
    dots: Vec<(f64, f64)>,
    /// Time, ms, and the part lost since the job's start.
    so_far: Vec<(f64, f64)>,
    allowed: Option<f64>,
}

fn late(run: &Run, number: usize, job: &ReportJob) -> Option<Late> {
    let recording = job.of.recording.as_ref()?;
    let shortest = length_ms(run) / POINTS as f64;
    let (mut dots, mut so_far) = (Vec::new(), Vec::new());
    let (mut part, mut all) = (JobInterval::default(), JobInterval::default());
    let mut begin = None;
    let pieces = pieces(run, job);
    for (at, piece) in pieces.iter().enumerate() {
        let from = *begin.get_or_insert(piece.begin);
        part.add(&piece.figures);
        if piece.end - from < shortest && at + 1 < pieces.len() {
            continue;
        }
        all.add(&part);
        if let (Some(now), Some(since)) = (part.lateness(), all.lateness()) {
            dots.push(((from + piece.end) / 2.0, now));
            so_far.push((piece.end, since));
        }
        (begin, part) = (None, JobInterval::default());
    }
    (!dots.is_empty()).then_some(Late {
        number,
        dots,
        so_far,
        allowed: recording.slowdown_allowed,
    })
}

/// Lateness of the foreground jobs over time, and the allowed slowdown.
pub(super) fn lateness(run: &Run) -> Option<String> {
    let jobs = run.jobs.iter().enumerate();
    let all: Vec<Late> = jobs.filter_map(|(number, job)| late(run, number, job)).collect();
    if all.is_empty() {
        return None;
    }
    // A few outliers must not press all other dots onto the axis.
    let mut dots: Vec<f64> = all.iter().flat_map(|late| &late.dots).map(|(_, part)| *part).collect();
    dots.sort_by(f64::total_cmp);
    let usual = dots.get(dots.len() * 9 / 10).copied().unwrap_or(0.0);
    let lines = all
        .iter()
        .flat_map(|late| late.so_far.iter().map(|(_, part)| *part).chain(late.allowed));
    let highest = lines.fold(usual, f64::max).max(0.001) * 1.25;
    let lowest = dots.first().copied().unwrap_or(0.0).max(-highest / 2.0).min(0.0);
    let mut picture = Svg::new(WIDTH, TOP + CHART + AXIS);
    let (top, bottom) = (TOP, TOP + CHART);
    let (x, y) = (time_scale(run), AxisScale::new((lowest, highest), (bottom, top)));
    for tick in y.ticks(4) {
        picture.line("grid", (LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)));
        picture.text("tick", (LEFT - 8.0, y.at(tick) + 4.0), "end", &text::percent(tick));
    }
    time_axis(&mut picture, run, top, bottom);
    for late in &all {
        let colour = colour(late.number);
        let name = run.jobs.get(late.number).map_or("", |job| job.name.as_str());
        for (at, part) in &late.dots {
            let title = format!("{name}: {}", text::percent(*part));
            let (x, y) = (x.at(*at) - 1.5, y.at(*part) - 1.5);
            picture.rect(&format!("dot {colour}"), (x, y), (3.0, 3.0), &title);
        }
        let points: Vec<(f64, f64)> = late.so_far.iter().map(|(at, part)| (x.at(*at), y.at(*part))).collect();
        picture.path(&format!("line {colour}"), &points, false, name);
        if let Some(allowed) = late.allowed {
            picture.line("allowed", (LEFT, y.at(allowed)), (WIDTH - RIGHT, y.at(allowed)));
            let label = format!("allowed: {}", text::percent(allowed));
            picture.text("tick", (WIDTH - RIGHT, y.at(allowed) - 4.0), "end", &label);
        }
    }
    Some(picture.into_element("Lateness of the foreground jobs over time, and the allowed slowdown"))
}

/// Smallest number of stretches that give a useful chart.
const STRETCHES: u64 = 20;

/// Factor by which a chart extends beyond the range of nine in ten stretches. With a larger range
/// a single outlier would press all other stretches into one bar.
const BEYOND: u64 = 3;

/// Lengths of a job's stretches, without and with background work.
pub(super) fn latency(latency: &StretchLatency) -> Option<String> {
    const HEIGHT: f64 = 130.0;
    if latency.alone.count + latency.beside.count < STRETCHES {
        return None;
    }
    let both = [(&latency.alone, "l-alone"), (&latency.beside, "l-beside")];
    let quantiles = |part| both.iter().filter_map(move |(lengths, _)| lengths.quantile_ns(part));
    let least = StretchHistogram::class(quantiles(0.05).min()? / BEYOND);
    let most = StretchHistogram::class(quantiles(0.95).max()?.saturating_mul(BEYOND));
    let is_inside = |class: u16| (least..=most).contains(&usize::from(class));
    let classes = || both.iter().flat_map(|(lengths, _)| &lengths.classes);
    let inside = || classes().filter(|(class, _)| is_inside(*class));
    let first = inside().map(|(class, _)| usize::from(*class)).min()?;
    let last = inside().map(|(class, _)| usize::from(*class)).max()?;
    // One more class on either side, so that the areas end on the axis.
    let log = |ns: u64| (ns.max(512) as f64).log10();
    let (from, _) = StretchHistogram::bounds(first.saturating_sub(6));
    let (_, to) = StretchHistogram::bounds(last + 6);
    let mut picture = Svg::new(WIDTH, TOP + HEIGHT + AXIS);
    let (top, bottom) = (TOP, TOP + HEIGHT);
    let x = AxisScale::new((log(from), log(to)), (LEFT, WIDTH - RIGHT));
    let part = |lengths: &StretchLengths, count: u32| f64::from(count) / lengths.count.max(1) as f64;
    let highest = both
        .iter()
        .flat_map(|(lengths, _)| lengths.classes.iter().map(|(_, count)| part(lengths, *count)));
    let highest = highest.fold(0.0, f64::max);
    let y = AxisScale::new((0.0, highest * 1.1), (bottom, top));
    for tick in y.ticks(3) {
        picture.line("grid", (LEFT, y.at(tick)), (WIDTH - RIGHT, y.at(tick)));
        picture.text("tick", (LEFT - 8.0, y.at(tick) + 4.0), "end", &text::percent(tick));
    }
    let decades = (2..=11).flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)));
    // Labels are further apart if there are many decades, and closer within one decade.
    let few = log(to) - log(from) < 2.5;
    let within_one = AxisScale::new((from as f64, to as f64), (0.0, 1.0)).ticks(6);
    let labels: Vec<f64> = match log(to) - log(from) < 0.8 {
        true => within_one,
        false => decades.filter(|ns| few || ns.log10().fract() < 1e-9).collect(),
    };
    for ns in labels {
        if ns.log10() > log(from) && ns.log10() < log(to) {
            let at = x.at(ns.log10());
            picture.line("grid", (at, top), (at, bottom));
            picture.text("tick", (at, bottom + 16.0), "middle", &text::duration(ns as u64));
        }
    }
    for (lengths, class) in both {
        let mut area = Vec::new();
        let mut end = None;
        for (number, count) in lengths.classes.iter().filter(|(number, _)| is_inside(*number)) {
            let (begin, after) = StretchHistogram::bounds(usize::from(*number));
            let (left, right, height) = (x.at(log(begin)), x.at(log(after)), y.at(part(lengths, *count)));
            if end != Some(begin) {
                area.extend(end.map(|end| (x.at(log(end)), bottom)));
                area.push((left, bottom));
            }
            area.extend([(left, height), (right, height)]);
            end = Some(after);
        }
        area.extend(end.map(|end| (x.at(log(end)), bottom)));
        picture.path(class, &area, true, "");
    }
    for (side, class, anchor, at) in [
        ("shorter", 0..least, "start", LEFT + 4.0),
        ("longer", most + 1..usize::MAX, "end", WIDTH - RIGHT - 4.0),
    ] {
        let beyond = classes().filter(|(number, _)| class.contains(&usize::from(*number)));
        let count: u64 = beyond.map(|(_, count)| u64::from(*count)).sum();
        if count > 0 {
            picture.text("tick", (at, top + 12.0), anchor, &format!("{count} {side}"));
        }
    }
    Some(picture.into_element("Lengths of stretches without and with background work"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page::tests::report;

    #[test]
    fn a_picture_is_the_same_for_the_same_run_and_has_all_jobs() {
        let report = report();
        let run = &report.runs[0];
        let picture = timeline(run);
        assert_eq!(picture, timeline(run));
        assert!(
            picture.contains("python serve.py") && picture.contains("&lt;b&gt;train"),
            "{picture}"
        );
        assert_eq!(picture.matches("r-foreground").count(), 1, "neighbours are one box");
        assert_eq!(picture.matches("class=\"warn\"").count(), 1);
        assert!(shares(run).is_some_and(|picture| picture.matches("solid").count() == 2));
        assert!(lateness(run).is_some_and(|picture| picture.contains("allowed: 1 %")));
        assert!(moved(run).is_some_and(|picture| picture.matches("solid").count() == 1));
    }

    #[test]
    fn columns_keep_the_sum() {
        let report = report();
        let run = &report.runs[0];
        for job in &run.jobs {
            let sum: f64 = columns(run, job, |figures| figures.gpu_ns as f64).iter().sum();
            let recorded = job.of.recording.as_ref().expect("recorded").sum().gpu_ns as f64;
            assert!((sum - recorded).abs() < 1.0, "{sum} of {recorded}");
        }
    }

    #[test]
    fn one_long_stretch_does_not_take_the_whole_axis() {
        let class = |ns| StretchHistogram::class(ns) as u16;
        let lengths = |classes: Vec<(u16, u32)>| StretchLengths {
            count: classes.iter().map(|(_, count)| u64::from(*count)).sum(),
            sum_ns: 0,
            classes,
        };
        let mut both = StretchLatency {
            alone: lengths(vec![(class(3_000_000), 60), (class(3_500_000), 40)]),
            beside: lengths(vec![
                (class(3_200_000), 80),
                (class(8_000_000), 2),
                (class(900_000_000), 1),
            ]),
        };
        let picture = latency(&both).expect("a picture");
        assert!(
            picture.contains(">1 longer<") && !picture.contains(" shorter<"),
            "{picture}"
        );
        assert!(
            picture.contains(">6.00 ms<") && !picture.contains(">100 ms<"),
            "{picture}"
        );
        both.beside = lengths(vec![(class(8_000_000), 1)]);
        both.alone = lengths(vec![(class(3_000_000), 12)]);
        assert_eq!(latency(&both), None);
    }

    #[test]
    fn a_run_without_recordings_or_length_has_a_picture() {
        let mut report = report();
        let run = &mut report.runs[0];
        for job in &mut run.jobs {
            job.of.recording = None;
        }
        run.end_ms = run.begin_ms;
        assert!(timeline(run).contains("nothing was recorded"));
        assert_eq!((shares(run), lateness(run), moved(run)), (None, None, None));
        assert_eq!(latency(&StretchLatency::default()), None);
    }
}
