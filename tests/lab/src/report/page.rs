//! One page, with everything in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;

use super::svg::{Plot, Series, escape};
use super::{Summary, or_none, packers};
use crate::aims::Aim;
use crate::calibrated::PlayedDevice;
use crate::foresight::GapForesight;
use crate::lost;
use crate::pairs::{CaseRow, DEVICES};
use crate::rule::Rule;
use crate::speed::Speed;

/// What made the page.
#[derive(Debug)]
pub struct PageOrigin<'a> {
    /// The command.
    pub command: &'a str,
    /// The commit.
    pub commit: &'a str,
    /// The seeds.
    pub seeds: &'a [u64],
    /// Requests a figure.
    pub requests: u64,
    /// Cases that were run, of how many.
    pub cases: (usize, usize),
    /// How long it took.
    pub seconds: f64,
    /// Events of engine, host and broker.
    pub events: u64,
}

/// All of one device.
#[derive(Debug)]
pub struct PageBlock<'a> {
    /// The device.
    pub device: &'a PlayedDevice,
    /// Its figures.
    pub rows: &'a [CaseRow],
    /// Its aims.
    pub aims: &'a [Aim],
}

/// Requests that a figure is to rest on.
pub const ENOUGH: u64 = 1_000;

const STYLE: &str = "body{font:14px/1.45 sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.6em 0 1.4em}th,td{border:1px solid #ccc;padding:2px 7px;text-align:right;font-size:12.5px}.n{white-space:nowrap}\
th{background:#f1f1f1}td:first-child,th:first-child{text-align:left}.l{text-align:left}.good{background:#e3f3dd}.bad{background:#fbe0d9}\
code{background:#f3f3f3;padding:0 3px}small{color:#555}svg{display:block;margin:1em 0}";

/// The page.
pub fn page(made: &PageOrigin<'_>, blocks: &[PageBlock<'_>], foresight: &[GapForesight], speed: &[Speed]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>weft: the lab</title><style>{STYLE}</style>\n<h1>weft: the lab</h1>\n\
         <p>Jobs on one GPU in virtual time: launch traces of PyTorch models replayed on the simulated GPU's engine, the broker's core between them as \
         the daemon drives it. Latencies are those of the service, as a multiple of what it has alone; batch is the other jobs' throughput against alone. \
         Device times of the traces are estimates for an A100, not measurements.</p>\n\
         <p><small>Made by <code>{}</code> at commit <code>{}</code>; seeds {:?}, {} requests a figure after 20 that do not count, {} of {} cases, {} runs, \
         {:.0} million events in {:.0} s.</small></p>\n",
        escape(made.command),
        escape(made.commit),
        made.seeds,
        made.requests,
        made.cases.0,
        made.cases.1,
        blocks.iter().map(|block| block.rows.len()).sum::<usize>(),
        made.events as f64 / 1e6,
        made.seconds
    );
    if made.requests < ENOUGH {
        let _ = writeln!(
            out,
            "<p class=bad><b>{} requests a figure</b>: the aims ask for {ENOUGH} at least, so p99 and p99.9 here rest on few of them.</p>",
            made.requests
        );
    }
    for PageBlock { device, rows, aims } in blocks {
        let _ = writeln!(out, "<h1>{}</h1>", escape(&device.to_string()));
        let summaries = Summary::of(rows);
        super::headline::section(&mut out, &summaries);
        section_aims(&mut out, aims);
        super::promised::section(&mut out, rows);
        super::headline::hosts(&mut out, &summaries);
        section_rules(&mut out, &summaries);
        super::causes::section(&mut out, rows);
        section_not_best(&mut out, rows);
        section_frontier(&mut out, rows);
        section_cases(&mut out, rows);
        section_gaps(&mut out, rows);
    }
    section_foresight(&mut out, foresight);
    section_speed(&mut out, speed);
    out.push_str(METHOD);
    out.push_str("</html>\n");
    out
}

const METHOD: &str = "<h2>How to read it</h2><ul>\
<li><b>Direct delay</b>: time in which a kernel of the service could have run and the device ran others or switched; per filled gap. \
<b>Floor</b>: the mean rest of a background job's kernel that an unforeseen arrival finds, E[S&sup2;]/(2E[S]), plus one switch where the device slices time. A graph counts by its kernels there, although all of it runs once it is launched.</li>\
<li><b>Added</b>: what a request's latency gained over the same request alone.</li>\
<li><b>Bound</b>: the batch work that the device's time allows beside a service that is not delayed at all: the part of the time in which the service's kernels do not run, over the part that the batch job's \
run when it is alone, and no more than its host can launch. It holds for every rule that adds no latency, and is the same for all rules of a case. In a closed loop a rule that delays requests has fewer of them beside its batch work, \
so it may have more than the bound.</li>\
<li><b>Packer</b>: it knows everything in advance, keeps each background job's launch order and host, and never lets a kernel outlast a gap. That is no bound on batch work: a kernel that outlasts a gap \
delays nobody if the service's host is behind the device, and whatever waits behind it in its job's order can go. <b>Efficiency</b>: background job work in the service's idle time over the packer's. The packer is given the gaps of the same run, so each policy has a denominator of its own (one that delays the service leaves other gaps): efficiencies of two policies \
say how much of what each left was used, and who did more in all is told by <b>batch</b>, whose denominator is the same for all. <b>Filled</b>: over the idle time itself. <b>Gated packer</b>: what of the packer's work is left if background jobs launch in gaps only, since their hosts stand at a gate while the service works: \
a job whose host is slower than its kernels then has nothing queued when a gap begins.</li>\
<li><b>Gate</b>: time in gaps in which the device was idle while a background job stood at the gate, per background job kernel. <b>Its own</b>: of that, the time in which the background job might go and the word for it was not \
given yet or on its way; the rest was held back for the service's sake, rightly or by a wrong forecast. The aim is judged by its own.</li>\
<li><b>A launch</b> takes of its host what the rule adds to it: what weft's was measured to add in its job's mode, what nvshare's and XSched's own libraries were measured to take. Nothing is known of Orion, REEF and Tally; \
they, the device's own and rules that are no program add nothing (tests/lab/src/cost.rs).</li>\
<li><b>&plusmn;</b>: half-width of the 95 % interval of the mean over seeds, by Student's t; each seed's figure is the geometric mean over its cases. It tells chance from a difference, and nothing of how right the times are.</li>\
<li><b>Gaps foreseen</b>: the part of the service's gaps in this run that were no shorter than the forecast's low value (0.90 is right), and the mean error of the forecast as a part of the mean gap.</li>\
<li><b>default</b>: the device without weft: slices and switches of the calibration, or (MPS) turns among clients kernel by kernel. <b>xsched</b>, <b>nvshare</b>, <b>orion</b>, <b>reef</b>, \
<b>tally</b>: those projects' rules; <b>count</b> and <b>one</b>: four background kernels, or one, while the service has none there; <b>mps-priority</b>: nobody is gated, and the service's kernels go \
first. The files of tests/lab/src/policy say what each rule's source says, and what is not modelled. On mps and time-sliced kernels never share the device side by side; on a GPU small ones do under MPS.</li>\
<li><b>mps-shared</b>: kernels share SMs block by block. A kernel's blocks take what its grid, block and dynamic shared memory say; 64 registers a thread and no static shared memory are assumed, and of fills and copies \
blocks of 256 threads that move 16 KiB each. Generated jobs' kernels fill the device. Blocks take up to 30 % longer (or what --contention said) beside others', all kernels alike. The packer runs one kernel at a time and bounds nothing there (-).</li></ul>\n";

fn section_aims(out: &mut String, aims: &[Aim]) {
    out.push_str(
        "<h2>Aims</h2><table><tr><th>aim</th><th>held in</th><th class=l>figures; where missed, the worst</th></tr>\n",
    );
    for aim in aims {
        if !aim.is_judged() {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td colspan=2 class=l>not judged</td></tr>",
                escape(&aim.aim)
            );
            continue;
        }
        let class = if aim.met { "good" } else { "bad" };
        let said: Vec<String> = aim.said.iter().map(|said| escape(said)).collect();
        let _ = writeln!(
            out,
            "<tr class={class}><td>{}</td><td>{} of {}</td><td class=l>{}</td></tr>",
            escape(&aim.aim),
            aim.held.0,
            aim.held.1,
            said.join("<br>")
        );
    }
    out.push_str("</table>\n");
}

fn section_rules(out: &mut String, summaries: &[Summary]) {
    out.push_str("<h2>Policies, kind by kind</h2><p>Means over cases (geometric for ratios). <b>batch</b>: the batch jobs' work, of alone; <b>bound</b>: what the device's time allows of it at no added latency; <b>of it</b>: \
         the rule's share of that bound. <b>efficiency</b>: what was filled, over what a packer fills that knows all gaps and kernels in advance, keeps to the order and the host \
         times of each job, is given what the run did outside of gaps, and may never let a kernel outlast a gap. <b>gated packer</b> and <b>own packer</b>: of that, what is left where hosts launch in gaps \
         only, and where nothing that was done outside of gaps is given.</p>");
    let mut kinds: Vec<(&str, &str, String)> = Vec::new();
    for summary in summaries {
        let key = (summary.device, summary.kind, summary.name());
        if summary.kind != "frontier" && !kinds.contains(&key) {
            kinds.push(key);
        }
    }
    for (device, kind, name) in kinds {
        let _ = writeln!(
            out,
            "<h3>{device}: {name}</h3><p>{}</p><table><tr><th>policy</th><th>cases</th><th>mean</th><th>worst mean</th><th>p99</th><th>p99.9</th>\
             <th>added us</th><th>direct us a gap</th><th>batch</th><th>bound</th><th>of it</th><th>filled</th><th>efficiency</th><th>gated packer</th><th>own packer</th></tr>",
            crate::pairs::describe(kind)
        );
        for summary in summaries
            .iter()
            .filter(|summary| summary.device == device && summary.name() == name)
        {
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{:.1}</td><td>{:.1}</td><td>{:.3}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                summary.rule,
                summary.cases,
                summary.slowdown,
                summary.worst,
                summary.p99,
                summary.p999,
                summary.added_us,
                summary.direct_us,
                summary.batch,
                or_none(summary.bound),
                or_none(summary.share),
                summary.filled,
                packers(summary.efficiency),
                packers(summary.gated),
                packers(summary.own)
            );
        }
        out.push_str("</table>\n");
    }
}

/// Cases in which another rule is better in both, or in one at no cost in the other.
fn section_not_best(out: &mut String, rows: &[CaseRow]) {
    out.push_str(
        "<h2>Where weft is not best</h2><p>Cases in which another policy had a lower mean latency <i>and</i> at least weft's batch throughput (both by more than 0.5 %), or was better in one \
         by more than 0.5 % and equal in the other.</p><table><tr><th>case</th><th class=l>policy</th><th>latency of weft's</th><th>batch of weft's</th><th>batch</th><th>weft's</th></tr>\n",
    );
    let mut cases: BTreeMap<String, Vec<&CaseRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_apart()) {
        let key = format!(
            "{} {}: {} beside {}, seed {}",
            row.device,
            row.kind,
            row.service,
            row.batch.join(" + "),
            row.figures.seed
        );
        cases.entry(key).or_default().push(row);
    }
    let (mut found, mut looked) = (0, 0);
    for (name, rows) in &cases {
        let Some(weft) = rows.iter().find(|row| row.figures.rule == "weft") else {
            continue;
        };
        looked += 1;
        for row in rows.iter().filter(|row| row.figures.rule != "weft") {
            let latency = row.figures.latency.mean / weft.figures.latency.mean.max(1.0);
            let batch = row.figures.batch_sum / weft.figures.batch_sum.max(1e-9);
            let better = latency < 0.995 || batch > 1.005;
            if better && latency < 1.005 && batch > 0.995 {
                found += 1;
                let _ = writeln!(
                    out,
                    "<tr><td>{}</td><td class=l>{}</td><td>{latency:.3}</td><td>{batch:.3}</td><td>{:.3}</td><td>{:.3}</td></tr>",
                    escape(name),
                    row.figures.rule,
                    row.figures.batch_sum,
                    weft.figures.batch_sum
                );
            }
        }
    }
    let _ = writeln!(out, "</table><p>{found} in {looked} cases.</p>");
}

fn section_frontier(out: &mut String, rows: &[CaseRow]) {
    let mut plots: BTreeMap<(String, &str, bool), Vec<&CaseRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| ["frontier", "pair"].contains(&row.kind)) {
        let name = format!(
            "{} beside {}, seed {}",
            row.service,
            row.batch.join(" + "),
            row.figures.seed
        );
        plots.entry((name, row.device, row.closed)).or_default().push(row);
    }
    // A pair under its usual few rules is no frontier.
    plots.retain(|_, rows| rows.len() > Rule::ALL.len());
    if plots.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Frontier</h2><p>Each policy with its one parameter swept (weft: --slowdown, 0 to 20 %, and the delay bound, 50 us to 4 ms; fikit: the bound; xsched and count: the window, 1 to 32; nvshare: turns of 0.1 to 5 s). \
         Up and left is better. What adds less than 0.01 % stands at the left end, and so does the batch work that the device's time allows at no added latency.</p>\n",
    );
    for ((name, device, closed), rows) in plots {
        let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let mut bound = None;
        for row in rows {
            let rule = series_of(&row.figures.rule);
            let per_cent = 100.0 * (row.figures.slowdown() - 1.0);
            let point = (per_cent.max(LEAST_PER_CENT), row.figures.batch_sum);
            series.entry(rule).or_default().push(point);
            bound = bound.or(row.figures.bound);
        }
        let plot = Plot {
            title: format!(
                "{device}: {name}, {}",
                if closed { "closed loop" } else { "Poisson arrivals" }
            ),
            x: "mean latency over alone, %".into(),
            y: "batch work of alone".into(),
            log_x: true,
            series: series
                .into_iter()
                .chain(bound.map(|bound| ("bound at none".to_string(), vec![(LEAST_PER_CENT, bound)])))
                .map(|(name, points)| Series {
                    name,
                    points,
                    line: true,
                })
                .collect(),
        };
        out.push_str(&plot.draw());
    }
}

/// Per cent of added latency at the left end of a frontier.
const LEAST_PER_CENT: f64 = 0.01;

/// The line of a frontier that a rule lies on.
fn series_of(rule: &str) -> String {
    let name = rule.split(' ').next().unwrap_or_default();
    match rule.ends_with('%') {
        true => format!("{name} --slowdown"),
        false => name.to_string(),
    }
}

fn section_cases(out: &mut String, rows: &[CaseRow]) {
    out.push_str("<h2>weft, case by case</h2>");
    for device in DEVICES.map(|(device, _)| device) {
        let mine: Vec<&CaseRow> = rows
            .iter()
            .filter(|row| row.device == device && row.figures.rule == "weft" && !row.is_apart())
            .collect();
        if mine.is_empty() {
            continue;
        }
        let open = |closed: bool| {
            let mine = mine.iter().filter(|row| row.closed == closed);
            mine.map(|row| (100.0 * (row.figures.slowdown() - 1.0), row.figures.batch_sum))
                .collect()
        };
        let plot = Plot {
            title: format!("{device}: batch work over what it cost the service"),
            x: "mean latency over alone, %".into(),
            y: "batch work of alone".into(),
            log_x: false,
            series: [("on their own", false), ("closed loop", true)]
                .map(|(name, closed)| Series {
                    name: name.into(),
                    points: open(closed),
                    line: false,
                })
                .into(),
        };
        out.push_str(&plot.draw());
        let _ = writeln!(
            out,
            "<details><summary>{} cases under {device}</summary><table><tr><th>kind: service beside batch</th><th>seed</th><th>alone ms</th><th>mean</th><th>p50</th><th>p99</th><th>p99.9</th>\
             <th>added us</th><th>worst us</th><th>direct us a gap</th><th>worst us</th><th>floor us</th><th>batch</th><th>bound</th><th>of it</th><th>gap ms</th><th>filled</th><th>wasted ms</th><th>efficiency</th><th>gate us</th><th>its own</th><th>kernel us</th><th>gaps foreseen</th><th class=l>mostly lost to</th><th class=l>of what the packer fills</th></tr>",
            mine.len()
        );
        for row in mine {
            let figures = &row.figures;
            let (with, alone) = (&figures.latency, &figures.alone);
            let class = |good: bool| if good { "good" } else { "bad" };
            let floor = figures.floor.mean / 1e3;
            let _ = writeln!(
                out,
                "<tr><td>{}: {} beside {}</td><td>{}</td><td>{:.2}</td><td class={}>{:.3}</td><td>{:.3}</td><td class={}>{:.3}</td><td>{:.3}</td><td>{:.0}</td><td>{:.0}</td>\
                 <td>{:.0}</td><td>{:.0}</td><td>{floor:.0}</td><td>{:.3}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.2}</td><td>{:.0}</td><td>{}</td><td>{:.1}</td><td class={}>{:.1}</td><td>{:.0}</td><td>{}</td><td class=l>{}</td><td class=l>{}</td></tr>",
                row.kind,
                escape(&row.service),
                escape(&row.batch.join(" + ")),
                figures.seed,
                alone.mean / 1e6,
                class(figures.slowdown() <= 1.02),
                figures.slowdown(),
                with.p50 / alone.p50,
                class(figures.slowdown_p99() <= 1.05),
                figures.slowdown_p99(),
                with.p999 / alone.p999,
                figures.added_mean_us,
                figures.added_worst_us,
                figures.direct_per_gap_us,
                figures.direct_worst_us,
                figures.batch_sum,
                or_none(figures.bound),
                or_none(figures.share_of_bound()),
                figures.gap_ms,
                figures.filled_share(),
                figures.gap_ms - figures.filled_ms,
                packers(figures.efficiency),
                figures.gate_us,
                class(figures.gate_own_us <= 0.1 * figures.floor.kernel / 1e3),
                figures.gate_own_us,
                figures.floor.kernel / 1e3,
                figures.foreseen,
                lost::mostly(row),
                lost::split(row)
            );
        }
        out.push_str("</table></details>\n");
    }
}

/// Why filling falls short: where the time of gaps went.
fn section_gaps(out: &mut String, rows: &[CaseRow]) {
    out.push_str(
        "<h2>Where the gaps' time went</h2><p>Parts of the gap time of each length, over all cases. <b>Head</b>: before the first background job (the gap was not foreseen, or the order was on its way); \
         <b>between</b>: between two background jobs (one order a kernel, or hosts that were not ready); <b>tail</b>: after the last (nothing that fits, or the foreground job was expected); <b>unused</b>: gaps with no background job at all; \
         <b>packer</b>: what could be filled with everything known, if no kernel may outlast a gap.</p>",
    );
    for device in DEVICES.map(|(device, _)| device) {
        for (_, rule, spent) in super::gaps_by_rule(rows)
            .iter()
            .filter(|(name, rule, _)| *name == device && (rule == "weft" || rule == "fikit"))
        {
            let _ = writeln!(
                out,
                "<h3>{device}: {rule}, batch work {:.3} of alone</h3><table><tr><th>gap</th><th>number</th><th>ms</th><th>filled</th><th>head</th><th>between</th><th>tail</th><th>unused</th><th>packer</th></tr>",
                super::batch_over(rows, device, rule)
            );
            for (at, spent) in spent.iter().enumerate().filter(|(_, spent)| spent.there > 0) {
                let part = |time: u64| time as f64 / spent.there as f64;
                let _ = writeln!(
                    out,
                    "<tr><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{}</td></tr>",
                    escape(&super::length_name(at)),
                    spent.gaps,
                    spent.there as f64 / 1e6,
                    part(spent.filled),
                    part(spent.head),
                    part(spent.between),
                    part(spent.tail),
                    part(spent.unused),
                    packers(super::packed(device, part(spent.packer)))
                );
            }
            out.push_str("</table>\n");
        }
    }
}

fn section_foresight(out: &mut String, foresight: &[GapForesight]) {
    if foresight.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Gap predictor</h2><p>Trained on the first half of each trace's steps, judged by the second, in which it goes on learning as it does while it serves; the means by kernel do not, so the last columns show it without that. Coverage counts gaps forecast as {} us or more; errors are over all gaps.</p>\
         <table><tr><th>trace</th><th>steps</th><th>gaps</th><th>of them worth filling</th><th>at or above the low value</th><th>mean error us</th><th>FIKIT's mean by kernel us</th><th>times below</th>\
         <th>learning nothing of the second half: us</th><th>times below</th></tr>",
        crate::foresight::LEAST_US
    );
    for one in foresight {
        let class = if (one.covered - 0.9).abs() <= 0.03 {
            "good"
        } else {
            "bad"
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{} + {}</td><td>{}</td><td>{}</td><td class={class}>{:.1} %</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td><td>{:.2}</td></tr>",
            escape(&one.trace),
            one.steps.0,
            one.steps.1,
            one.gaps,
            one.material,
            100.0 * one.covered,
            one.error_us,
            one.means_us,
            one.means_us / one.error_us.max(1e-9),
            one.frozen_us,
            one.means_us / one.frozen_us.max(1e-9)
        );
    }
    out.push_str("</table>\n");
}

fn section_speed(out: &mut String, speed: &[Speed]) {
    out.push_str("<h2>The core</h2><table><tr><th>policy</th><th>clients</th><th>million events a second, one core</th><th>growth KiB</th></tr>\n");
    for one in speed {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{:.2}</td><td>{}</td></tr>",
            one.policy, one.clients, one.million_events_a_second, one.growth_kib
        );
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aims;
    use crate::calibrated::LabSetting;

    fn made(requests: u64, cases: (usize, usize)) -> PageOrigin<'static> {
        PageOrigin {
            command: "weft-lab --model <none>",
            commit: "0123",
            seeds: &[1, 2],
            requests,
            cases,
            seconds: 1.0,
            events: 0,
        }
    }

    #[test]
    fn aims_stand_there_as_met_missed_or_not_judged() {
        let mut aims = aims::judge(&[], &[], &[]);
        (aims[0].held, aims[0].met) = ((3, 3), true);
        (aims[1].held, aims[1].met, aims[1].said) = ((2, 3), false, vec!["a & b".into()]);
        let setting = LabSetting {
            calibration: "h100-like".into(),
            queue: Some(0),
        };
        let device = PlayedDevice {
            setting,
            gpu: "a <GPU>".into(),
            slice_ns: 1_024_000,
            switch_ns: 92_000,
            launch_latency_ns: 5_000,
            kernel_gap_ns: 1_200,
            sync_return_ns: 7_800,
        };
        let block = PageBlock {
            device: &device,
            rows: &[],
            aims: &aims,
        };
        let page = page(&made(1_000, (3, 3)), &[block], &[], &[]);
        assert!(page.contains("<h1>h100-like, queue off: a &lt;GPU&gt;; slice 1024 us, switch 92 us"));
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        let row = |aim: &Aim| {
            let begin = page.find(&format!("<td>{}</td>", escape(&aim.aim))).expect("its row");
            let row = page[..begin].rfind("<tr").expect("begins");
            page[row..].split("</tr>").next().unwrap_or_default().to_string()
        };
        assert!(row(&aims[0]).contains("class=good") && row(&aims[0]).contains("3 of 3"));
        assert!(row(&aims[1]).contains("class=bad") && row(&aims[1]).contains("a &amp; b"));
        assert!(row(&aims[2]).contains("not judged") && !row(&aims[2]).contains("class=good"));
        assert!(page.contains("--model &lt;none&gt;"));
    }

    #[test]
    fn a_page_of_few_requests_says_so() {
        let says = |requests| page(&made(requests, (1, 1)), &[], &[], &[]).contains("requests a figure</b>");
        assert!(says(999));
        assert!(!says(1_000));
    }
}
