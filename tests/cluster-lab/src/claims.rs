// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claims of papers, next to this lab's results: directions and sizes, each on the setting that is
//! nearest to the paper's. No result is forced: a claim that is not reproduced is reported so.

use serde::Serialize;

use crate::serving::ServingFigure;
use crate::world::PolicyFigure;

/// Claim with its verdict.
#[derive(Debug, Clone, Serialize)]
pub struct ClaimFigure {
    /// The paper and its claim.
    pub claim: String,
    /// As published.
    pub published: String,
    /// Result of the lab; none if it was not tried.
    pub found: Option<f64>,
    /// Reproduced, in direction only, not reproduced, not tried.
    pub verdict: &'static str,
}

/// Verdict on a factor with this claimed size.
fn verdict(found: f64, claimed: f64, level: f64) -> &'static str {
    if (found - level) >= 0.9 * (claimed - level) - 1e-9 {
        "reproduced"
    } else if found > level {
        "direction only"
    } else {
        "not reproduced"
    }
}

fn claim(what: &str, published: &str, found: Option<f64>, claimed: f64) -> ClaimFigure {
    ClaimFigure {
        claim: what.to_string(),
        published: published.to_string(),
        found,
        verdict: found.map_or("not tried", |found| verdict(found, claimed, 1.0)),
    }
}

fn of<'a>(figures: &'a [PolicyFigure], trial: &str, policy: &str) -> Option<&'a PolicyFigure> {
    figures
        .iter()
        .find(|figure| figure.trial == trial && figure.policy == policy)
}

/// Policies that share no GPU beyond the requests and know no run in advance.
pub const EXCLUSIVE: [&str; 9] = [
    "fifo",
    "fifo-backfill",
    "exclusive",
    "tiresias",
    "gittins",
    "elas",
    "astraea",
    "sched2",
    "sched2-net",
];

/// The claims, from these figures.
pub fn judge(policies: &[PolicyFigure], serving: &[ServingFigure]) -> Vec<ClaimFigure> {
    let mean = |trial, policy| of(policies, trial, policy).map(|figure| figure.mean_s);
    let times = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b.max(1e-9));
    let makespan = |policy| of(policies, "spread", policy).map(|figure| figure.makespan_s);
    let uneven = |policy| of(policies, "gangs", policy).map(|figure| (1.0 - figure.gpu_time).max(1e-4));
    let held = |policy| of(policies, "links", policy).map(|figure| figure.held);
    let rate = |rule: &str| {
        serving
            .iter()
            .find(|figure| figure.rule == rule)
            .map(|figure| figure.rate)
    };
    let mut claims = vec![
        claim(
            "E-LAS: mean completion, times shorter than Tiresias (gangs)",
            "1.5x",
            times(mean("gangs", "tiresias"), mean("gangs", "elas")),
            1.5,
        ),
        claim(
            "ASTRAEA: tenants' GPU time, times more equal than Tiresias (gangs)",
            "up to 9.42x",
            times(uneven("tiresias"), uneven("astraea")),
            9.42,
        ),
        claim(
            "ASTRAEA: mean completion of Tiresias, times its own (gangs)",
            "equal",
            times(mean("gangs", "tiresias"), mean("gangs", "astraea")),
            // Equal is within a twentieth.
            0.95,
        ),
        claim(
            "SCHED2, stand-in: mean completion, times shorter than FIFO (spread)",
            "4.6x",
            times(mean("spread", "fifo"), mean("spread", "sched2")),
            4.6,
        ),
        claim(
            "SCHED2, stand-in: ... than FIFO with backfill (spread)",
            "4.6x",
            times(mean("spread", "fifo-backfill"), mean("spread", "sched2")),
            4.6,
        ),
        claim(
            "SCHED2, network: mean completion, times shorter than FIFO (spread)",
            "4.6x",
            times(mean("spread", "fifo"), mean("spread", "sched2-net")),
            4.6,
        ),
        claim(
            "SCHED2, network: ... than FIFO with backfill (spread)",
            "4.6x",
            times(mean("spread", "fifo-backfill"), mean("spread", "sched2-net")),
            4.6,
        ),
        claim(
            "SCHED2, network that is told runs: ... than FIFO (spread)",
            "4.6x",
            times(mean("spread", "fifo"), mean("spread", "sched2-net-told")),
            4.6,
        ),
        claim(
            "SCHED2, network: makespan, times shorter than FIFO (spread)",
            "2.1x",
            times(makespan("fifo"), makespan("sched2-net")),
            2.1,
        ),
        claim(
            "Crux: GPU utilisation, times that of hashed paths (links)",
            "up to 1.23x",
            times(held("crux"), held("fifo-backfill")),
            1.23,
        ),
        claim(
            "InSS, greedy: requests within SLO, times those of shares alone",
            "1.86x",
            times(rate("inss, greedy"), rate("shares")),
            1.86,
        ),
        claim(
            "InSS, greedy: ... of shares with a third spare",
            "1.86x",
            times(rate("inss, greedy"), rate("shares, a third spare")),
            1.86,
        ),
    ];
    claims.extend(inss_learnt(serving));
    claims.extend(meta_rl(policies));
    claims.extend(aim(policies));
    claims.extend(beside_each(policies));
    claims
}

/// The aim of filling gaps, judged on `shared`; and at other loads.
fn aim(policies: &[PolicyFigure]) -> Vec<ClaimFigure> {
    let best = |trial: &str| {
        let means = EXCLUSIVE.iter().filter_map(|policy| of(policies, trial, policy));
        means.map(|figure| figure.mean_s).min_by(f64::total_cmp)
    };
    let row = |what: &str, trial: &str, [met, missed]: [&'static str; 2]| {
        let own = of(policies, trial, "weft");
        let found = best(trial).zip(own).map(|(best, own)| best / own.mean_s.max(1e-9));
        let mut aim = claim(what, "aim 1.3x at p99 1.05x", found, 1.3);
        aim.verdict = match (found, own.map_or(f64::MAX, |own| own.service_p99)) {
            (None, _) => "not tried",
            (Some(found), p99) if found >= 1.3 && p99 <= 1.05 => met,
            _ => missed,
        };
        aim
    };
    // A job that gets its GPUs at once, alone, is as fast as possible.
    let alone = of(policies, "shared", "weft").map(|figure| figure.alone_s);
    let most = best("shared").zip(alone).map(|(best, alone)| best / alone.max(1e-9));
    let mut bound = claim("weft: ... the most that any policy can come to there", "-", most, 1.3);
    bound.verdict = match most {
        None => "not tried",
        Some(most) if most < 1.3 => "the aim is out of reach",
        Some(_) => "the aim is within reach",
    };
    let beyond = ["beyond it", "short of it"];
    vec![
        row(
            "weft: mean completion, times shorter than the best on exclusive GPUs (shared)",
            "shared",
            ["met", "MISSED"],
        ),
        bound,
        row(
            "weft: ... at a load of 0.7 in place of 0.9 (share70)",
            "share70",
            beyond,
        ),
        row("weft: ... at a load of 1.1 (share110)", "share110", beyond),
        row("weft: ... at a load of 1.3 (share130)", "share130", beyond),
    ]
}

/// The two-stage learner of InSS, compared with the baseline of its greedy stand-in and with plain
/// rules.
fn inss_learnt(serving: &[ServingFigure]) -> Vec<ClaimFigure> {
    let rate = |rule: &str| {
        let found = serving.iter().find(|figure| figure.rule == rule);
        found.map(|figure| figure.rate)
    };
    let times = |rule: &str| rate("inss, learnt").zip(rate(rule)).map(|(own, other)| own / other);
    let beside = |what: &str, rule: &str| {
        let found = times(rule);
        let mut claim = claim(what, "1x", found, 1.0);
        claim.verdict = match found {
            None => "not tried",
            Some(found) if found >= 1.0 => "first",
            Some(_) => "second",
        };
        claim
    };
    let mut most = claim(
        "InSS, learnt: ... of a bound that no plan reaches",
        "below 1x",
        times("no plan answers more"),
        1.0,
    );
    most.verdict = most.found.map_or("not tried", |_| "a bound");
    vec![
        claim(
            "InSS, learnt: requests within SLO, times those of shares alone",
            "1.86x",
            times("shares"),
            1.86,
        ),
        claim(
            "InSS, learnt: ... of shares with a third spare",
            "1.86x",
            times("shares, a third spare"),
            1.86,
        ),
        beside("InSS, learnt: ... of the greedy stand-in", "inss, greedy"),
        beside(
            "InSS, learnt: ... of the greedy in the learner's order",
            "inss, greedy, densest first",
        ),
        beside(
            "InSS, learnt: ... of the rule that it was taught",
            "... shares given once",
        ),
        most,
    ]
}

/// Published placements among those with which the learnt one is compared.
const PUBLISHED_PLACEMENTS: [&str; 5] = ["random", "dot-product", "packing", "best-fit", "most-free"];

/// The learnt placement, on loads of its training and on a higher one.
fn meta_rl(policies: &[PolicyFigure]) -> Vec<ClaimFigure> {
    let sum = |trials: &[&str], placement: &str| -> Option<f64> {
        let means = trials
            .iter()
            .map(|trial| of(policies, trial, placement).map(|figure| figure.mean_s));
        means.sum()
    };
    // Shorter by a part p is 1 / (1 - p) times shorter.
    let row = |what: &str, published: &str, part: f64, trials: &[&str], others: &[&str]| {
        let best = others
            .iter()
            .filter_map(|other| sum(trials, other))
            .min_by(f64::total_cmp);
        let found = best.zip(sum(trials, "meta-rl")).map(|(best, own)| best / own.max(1e-9));
        claim(what, published, found, 1.0 / (1.0 - part))
    };
    let beside_near = |what: &str, trials: &[&str]| {
        let mut claim = row(what, "1x", 0.0, trials, &["near"]);
        claim.verdict = match claim.found {
            None => "not tried",
            Some(found) if found >= 1.0 => "first",
            Some(_) => "second",
        };
        claim
    };
    let (trained, above) = (["place30", "place50", "place70"], ["place90"]);
    vec![
        row(
            "Meta-RL: mean completion, times shorter than published placements (place)",
            "12.3 to 16.2 %: 1.14x",
            0.1229,
            &trained,
            &PUBLISHED_PLACEMENTS,
        ),
        row(
            "Meta-RL: ... under a load above all that it was trained for",
            "15.8 to 22.1 %: 1.19x",
            0.1576,
            &above,
            &PUBLISHED_PLACEMENTS,
        ),
        beside_near(
            "Meta-RL: mean completion, beside weft's plain rule for few leaves",
            &trained,
        ),
        beside_near("Meta-RL: ... under a load above all that it was trained for", &above),
    ]
}

/// weft's own policy compared with each of the others, on its metric in its setting: times as good.
fn beside_each(policies: &[PolicyFigure]) -> Vec<ClaimFigure> {
    let sooner: fn(&PolicyFigure) -> f64 = |figure| 1.0 / figure.mean_s;
    let even: fn(&PolicyFigure) -> f64 = |figure| figure.gpu_time;
    let held: fn(&PolicyFigure) -> f64 = |figure| figure.held;
    let cases = [
        ("tiresias", "gangs", "mean completion", sooner),
        ("gittins", "gangs", "mean completion", sooner),
        ("elas", "gangs", "mean completion", sooner),
        ("astraea", "gangs", "equal GPU time", even),
        ("gandiva", "shared", "mean completion", sooner),
        ("crux", "links", "work of held GPU time", held),
        ("sched2", "spread", "mean completion", sooner),
        ("sched2-net", "spread", "mean completion", sooner),
    ];
    let case = |(policy, trial, metric, value): (&str, &str, &str, fn(&PolicyFigure) -> f64)| {
        let (own, other) = (of(policies, trial, "weft")?, of(policies, trial, policy)?);
        let found = value(own) / value(other);
        Some(ClaimFigure {
            claim: format!("weft beside {policy}: {metric} ({trial}), times as good"),
            published: String::from("1x"),
            found: Some(found),
            verdict: if found >= 1.0 { "first" } else { "second" },
        })
    };
    cases.into_iter().filter_map(case).collect()
}

/// Table for people.
pub fn table(claims: &[ClaimFigure]) -> String {
    let mut text = String::from("What is claimed, and what this lab shows\n");
    for row in claims {
        let found = row
            .found
            .map_or_else(|| String::from("-"), |found| format!("{found:.3}x"));
        text += &format!("{:<80}{:>22}{:>9}  {}\n", row.claim, row.published, found, row.verdict);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_tenths_of_a_claimed_gain_reproduce_it() {
        assert_eq!(verdict(1.45, 1.5, 1.0), "reproduced");
        assert_eq!(verdict(1.44, 1.5, 1.0), "direction only");
        assert_eq!(verdict(1.0, 1.5, 1.0), "not reproduced");
        assert!(judge(&[], &[]).iter().all(|claim| claim.verdict == "not tried"));
    }

    fn figure(policy: &str, mean_s: f64, service_p99: f64) -> PolicyFigure {
        PolicyFigure {
            trial: String::from("shared"),
            policy: policy.to_string(),
            mean_s,
            alone_s: 90.0,
            p95_s: 0.0,
            wait_s: 0.0,
            makespan_s: 0.0,
            utilisation: 0.0,
            held: 1.0,
            service_p99,
            tenants: 1.0,
            gpu_time: 1.0,
            pauses: 0.0,
            decision_p99_us: 0.0,
        }
    }

    #[test]
    fn the_aim_is_held_against_the_best_and_against_what_can_be() {
        // It knows runs in advance, so it does not count for the aim.
        let told = figure("shortest-remaining", 95.0, 1.0);
        let verdicts = |best: f64, p99: f64| {
            let figures = [told.clone(), figure("gittins", best, 1.0), figure("weft", 100.0, p99)];
            let rows = aim(&figures);
            (rows[0].found, rows[0].verdict, rows[1].verdict)
        };
        assert_eq!(verdicts(135.0, 1.05), (Some(1.35), "met", "the aim is within reach"));
        assert_eq!(verdicts(135.0, 1.06), (Some(1.35), "MISSED", "the aim is within reach"));
        assert_eq!(verdicts(110.0, 1.0), (Some(1.1), "MISSED", "the aim is out of reach"));
    }
}
