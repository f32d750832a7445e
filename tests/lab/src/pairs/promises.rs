// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cases that judge promises to users: `--slowdown`, `--slo`, and a language model while finetuning
//! runs.
#![forbid(unsafe_code)]

use weft_engine::{Mode, SmLimits};
use weft_player::PlayedJob;

use super::{Case, CaseParts, THINK_NS, generated, job};
use crate::generate::shapes;
use crate::rule::Rule;

/// The kinds of cases that are made here.
pub(super) const KINDS: [&str; 3] = ["dial", "slo", "llm"];

/// Values of `--slowdown`, per cent.
pub(crate) const SLOWDOWNS: [u32; 3] = [2, 5, 10];

/// Loads, per cent of the rate at which the service answers in a solo run.
pub(crate) const LOADS: [u32; 3] = [40, 55, 70];

/// The SLO, over the service's p99 in a solo run with the same arrivals.
pub(crate) const SLO_OF_P99: f64 = 1.2;

/// Models whose training is called finetuning.
const FINETUNED: [&str; 3] = ["gpt2", "llama", "bert_base"];

/// Requests of a language model: they have some 3,000 tokens, and each token is a figure.
const LLM_REQUESTS: u64 = 200;

/// An A100 whose SMs kernels share.
const SHARED: Mode = Mode::MpsShared(SmLimits::A100_LIKE);

/// A sentence that describes a kind.
pub(super) fn describe(kind: &str) -> &'static str {
    match kind {
        "dial" => {
            "Each model's inference beside other models' training, where kernels share SMs. The service is run with --slowdown of 2, 5 and 10 %, and without, which is 1 %."
        }
        "slo" => {
            "Requests come on their own, at 40, 55 and 70 % of the rate at which the service answers alone, one after the other, with --slo of 1.2 times its p99 alone."
        }
        "llm" => {
            "A language model that decodes by graphs, drawn and recorded, beside finetuning. <b>TPOT</b>: from the return of the wait for one token to that for the next of the same request; its mean over all tokens."
        }
        _ => "",
    }
}

/// All cases of a seed.
pub(super) fn cases_of(parts: &CaseParts<'_>, out: &mut Vec<Case>) {
    let CaseParts {
        services,
        batches,
        plan,
        seed,
        ..
    } = *parts;
    if batches.is_empty() {
        return;
    }
    let base = |kind, mode, jobs, rules: &[Rule]| parts.case(kind, mode, jobs, rules);
    let batch = |at: usize| parts.batch(at, 5);
    let mut dial = vec![Rule::WEFT];
    dial.extend(SLOWDOWNS.map(Rule::Slowdown));
    for mode in plan.modes(&[SHARED]) {
        for (at, (name, program)) in services.iter().enumerate() {
            let service = job(name, 0, program, Some(THINK_NS));
            let partners = if plan.is_short("dial") { 1 } else { plan.partners };
            for partner in (1..).take(batches.len().min(partners)) {
                let jobs = vec![service.clone(), batch(at + partner)];
                out.push(base("dial", mode, jobs, &dial));
            }
        }
    }
    for mode in plan.modes(&[Mode::Mps, SHARED]) {
        for (at, (name, program)) in services.iter().enumerate() {
            for load in LOADS {
                let service = job(&format!("{name} at {load} %"), 0, program, None);
                let case = base("slo", mode, vec![service, batch(at + 1)], &[Rule::WEFT, Rule::Default]);
                out.push(Case {
                    slo: Some(SLO_OF_P99),
                    load: Some(f64::from(load) / 100.0),
                    ..case
                });
            }
        }
    }
    let mut decoders = vec![generated("decode with graphs", 0, shapes::decode_with_graphs, seed)];
    let recorded = services.iter().filter(|(name, _)| name == "llama_graph");
    decoders.extend(recorded.map(|(name, program)| job(name, 0, program, Some(THINK_NS))));
    // Finetuning is judged against its work under time slicing.
    let mut modes = plan.modes(&[Mode::Mps, SHARED, Mode::TimeSlice]);
    if !modes.contains(&Mode::TimeSlice) {
        modes.push(Mode::TimeSlice);
    }
    for mode in modes {
        for decoder in &decoders {
            for (name, program) in batches.iter().filter(|(name, _)| is_finetuned(name)) {
                let decoder = PlayedJob {
                    tokens: true,
                    ..decoder.clone()
                };
                let rules = [Rule::WEFT, Rule::Slowdown(2), Rule::Default];
                let jobs = vec![decoder, job(name, 5, program, None)];
                out.push(Case {
                    most_requests: Some(LLM_REQUESTS),
                    ..base("llm", mode, jobs, &rules)
                });
            }
        }
    }
}

fn is_finetuned(job: &str) -> bool {
    FINETUNED.iter().any(|model| job.split(' ').next() == Some(model))
}
