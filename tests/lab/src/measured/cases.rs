// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases of each kind.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_engine::Mode;
use weft_player::job::{JobOp, NONE, Play};
use weft_player::{PlayedJob, Program};
use weft_trace_format::AwaitedWork;

use super::jobs::{LabJobs, MeasuredJob, service, training};
use crate::pairs::{self, Case};
use crate::rule::Rule;
use crate::{MS, Ns};

/// Milliseconds between requests, kind `think`. Recorded kernels take 3.2 ms at most, measured ones
/// up to 42.
pub const THINK_MS: [u64; 7] = [1, 2, 4, 8, 12, 20, 50];

/// Longest virtual time of a figure: long requests are fewer.
pub(super) const LONGEST_NS: Ns = 60_000 * MS;

/// Fewest requests of a figure, however long they are.
pub(super) const FEWEST: u64 = 24;

/// Load of services whose requests come at random.
pub(super) const LOAD: f64 = 0.4;

/// Hosts of kind `measured` and `distributed`: as in the file (a profiler slowed them by 1.3
/// to 2 times), and twice as fast.
pub(super) const HOST_TIMES: [f64; 2] = [1.0, 0.5];

/// Recorded services and trainings of kinds `think`, `no-wait`, `lag` and `differ`.
pub(super) const SERVICES: [&str; 6] = ["lstm", "vgg19", "resnet50", "bert_base", "unet", "inception_v3"];
pub(super) const TRAININGS: [&str; 3] = ["lstm", "resnet50", "densenet201"];

/// Makes cases for one device and one seed.
pub(super) struct Cases<'a> {
    pub jobs: &'a LabJobs,
    pub mode: Mode,
    pub seed: u64,
    pub requests: u64,
    pub rules: &'a [Rule],
    pub out: Vec<Case>,
}

impl Cases<'_> {
    fn push(&mut self, kind: &'static str, service: PlayedJob, training: PlayedJob, host_time: f64, load: Option<f64>) {
        let request = service.program.usual_time().max(1);
        let most = (LONGEST_NS / request).clamp(FEWEST, self.requests.max(FEWEST));
        self.out.push(Case {
            kind,
            mode: self.mode,
            seed: self.seed,
            host_time,
            jobs: vec![service, training],
            rules: self.rules.to_vec(),
            slo: None,
            load,
            most_requests: Some(most),
        });
    }

    pub fn measured(&mut self) {
        for one in &self.jobs.services {
            for other in &self.jobs.trainings {
                if one.generation != other.generation {
                    continue;
                }
                let kind = if other.distributed { "distributed" } else { "measured" };
                for host_time in HOST_TIMES {
                    let training = || training(&other.name, &other.program, host_time);
                    self.push(kind, service(one, host_time), training(), host_time, None);
                    if host_time == 1.0 {
                        self.push(kind, service(one, host_time), training(), host_time, Some(LOAD));
                    }
                }
            }
        }
    }

    pub fn crossed(&mut self) {
        /// Partners of each service.
        const PARTNERS: usize = 2;
        let jobs = self.jobs;
        let of_one_gpu: Vec<&MeasuredJob> = jobs.trainings.iter().filter(|job| !job.distributed).collect();
        for (at, one) in jobs.services.iter().enumerate() {
            for partner in 0..PARTNERS.min(of_one_gpu.len()) {
                let other = of_one_gpu[(PARTNERS * at + partner) % of_one_gpu.len()];
                let training = training(&other.name, &other.program, 1.0);
                self.push("crossed", service(one, 1.0), training, 1.0, None);
            }
        }
        if !jobs.recorded_trainings.is_empty() {
            for (at, one) in jobs.services.iter().enumerate() {
                for partner in 0..PARTNERS.min(jobs.recorded_trainings.len()) {
                    let (name, program) =
                        &jobs.recorded_trainings[(PARTNERS * at + partner) % jobs.recorded_trainings.len()];
                    self.push(
                        "measured+recorded",
                        service(one, 1.0),
                        training(name, program, 1.0),
                        1.0,
                        None,
                    );
                }
            }
        }
        for (kind, distributed) in [("recorded+measured", false), ("recorded+distributed", true)] {
            let partners: Vec<&MeasuredJob> = jobs
                .trainings
                .iter()
                .filter(|job| job.distributed == distributed)
                .collect();
            if partners.is_empty() {
                continue;
            }
            for (at, (name, program)) in jobs.recorded_services.iter().enumerate() {
                for partner in 0..PARTNERS.min(partners.len()) {
                    let other = partners[(PARTNERS * at + partner) % partners.len()];
                    let one = pairs::job(name, 0, program, Some(pairs::THINK_NS));
                    self.push(kind, one, training(&other.name, &other.program, 1.0), 1.0, None);
                }
            }
        }
    }

    /// Recordings that are changed because they flatter.
    pub fn changed(&mut self) {
        let jobs = self.jobs;
        let find = |of: &[(String, Arc<Program>)], name: &str| of.iter().find(|job| job.0 == name).cloned();
        for (at, name) in SERVICES.iter().enumerate() {
            let Some((_, program)) = find(&jobs.recorded_services, name) else {
                continue;
            };
            let partners = (0..TRAININGS.len()).map(|step| TRAININGS[(at + step) % TRAININGS.len()]);
            let Some((partner, batch)) = partners
                .filter(|partner| partner != name)
                .find_map(|partner| find(&jobs.recorded_trainings, partner))
            else {
                continue;
            };
            let batch = training(&partner, &batch, 1.0);
            for think in THINK_MS {
                let name = format!("{name} every {think} ms");
                let one = pairs::job(&name, 0, &program, Some(think * MS));
                self.push("think", one, batch.clone(), 1.0, None);
            }
            for (kind, program) in [
                ("no-wait", without_last_wait(&program)),
                ("lag", awaiting_the_one_before(&program)),
                ("differ", beginning_otherwise(&program)),
            ] {
                let name = format!("{name} {kind}");
                let one = pairs::job(&name, 0, &Arc::new(program), Some(pairs::THINK_NS));
                self.push(kind, one, batch.clone(), 1.0, None);
            }
        }
        for (name, program) in &jobs.varied {
            let one = pairs::job(&format!("{name} varied"), 0, program, Some(pairs::THINK_NS));
            for (partner, batch) in TRAININGS.iter().filter_map(|name| find(&jobs.recorded_trainings, name)) {
                self.push("varied", one.clone(), training(&partner, &batch, 1.0), 1.0, None);
            }
        }
    }
}

/// Number of requests in a changed recording that differ, or record events of their own.
pub(super) const VARIED: usize = 8;

/// The step without the waits behind its last work.
pub(super) fn cut(program: &Program, step: usize) -> Vec<JobOp> {
    let ops = &program.steps[step % program.steps.len()].ops;
    let end = ops
        .iter()
        .rposition(|op| !matches!(op.play, Play::Sync(_)))
        .map_or(0, |at| at + 1);
    let mut ops = ops[..end].to_vec();
    let within = |next: u32| if (next as usize) < end { next } else { NONE };
    for op in &mut ops {
        (op.next_same, op.next_handed) = (within(op.next_same), within(op.next_handed));
    }
    ops
}

/// Appends a call to a step: its host thread makes it when the last call has returned.
pub(super) fn append(ops: &mut Vec<JobOp>, play: Play) {
    let here = ops.len() as u32;
    if let Some(last) = ops.last_mut() {
        last.next_same = here;
    }
    ops.push(JobOp {
        host_before: 0,
        play,
        next_same: NONE,
        next_handed: NONE,
    });
}

/// The stream of a step's last work.
pub(super) fn last_stream(ops: &[JobOp]) -> u16 {
    let stream = |op: &JobOp| match op.play {
        Play::Compute { stream, .. } | Play::Copy { stream, .. } => Some(stream),
        _ => None,
    };
    ops.iter().rev().find_map(stream).unwrap_or(0)
}

/// The same program whose requests end without a wait.
pub(super) fn without_last_wait(program: &Program) -> Program {
    let mut made = program.clone();
    for step in 0..program.steps.len() {
        made.steps[step].ops = cut(program, step);
    }
    made
}

/// The same program whose requests end with a wait for the request before: double buffering.
pub(super) fn awaiting_the_one_before(program: &Program) -> Program {
    let mut made = program.clone();
    let first = made.events;
    made.steps = (0..VARIED)
        .map(|at| {
            let mut step = program.steps[at % program.steps.len()].clone();
            step.ops = cut(program, at);
            let stream = last_stream(&step.ops);
            let event = |at: usize| (first + at % VARIED) as u16;
            append(
                &mut step.ops,
                Play::Record {
                    event: event(at),
                    stream,
                },
            );
            append(&mut step.ops, Play::Sync(AwaitedWork::Event(event(at + VARIED - 1))));
            step
        })
        .collect();
    made.events += VARIED;
    made
}

/// The same program whose requests begin with a kernel of their own each, as with a grid that
/// follows the input's size. Its time stays.
pub(super) fn beginning_otherwise(program: &Program) -> Program {
    let mut made = program.clone();
    made.steps = (0..VARIED * VARIED * VARIED)
        .map(|at| {
            let mut step = program.steps[at % program.steps.len()].clone();
            let first = step.ops.iter_mut().find_map(|op| match &mut op.play {
                Play::Compute {
                    kernel, graph: NONE, ..
                } => Some(kernel),
                _ => None,
            });
            if let Some(kernel) = first {
                let shape = program.kernel_shape(*kernel);
                *kernel ^= (at as u64 + 1) << 16;
                made.shapes.insert(*kernel, shape);
            }
            step
        })
        .collect();
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::US;
    use crate::generate::Builder;

    /// A request of three kernels and a wait.
    fn program() -> Program {
        let mut builder = Builder::new("service");
        builder.step(0);
        builder
            .launch(0, 0, 10 * US)
            .launch(1, 0, 20 * US)
            .launch(2, 0, 30 * US)
            .sync();
        Program::of(&builder.done()).expect("a sound trace")
    }

    fn waits(ops: &[JobOp]) -> Vec<Play> {
        let waits = ops.iter().filter(|op| matches!(op.play, Play::Sync(_)));
        waits.map(|op| op.play).collect()
    }

    fn first_kernel(ops: &[JobOp]) -> u64 {
        let kernel = |op: &JobOp| match op.play {
            Play::Compute { kernel, .. } => Some(kernel),
            _ => None,
        };
        ops.iter().find_map(kernel).expect("a kernel")
    }

    #[test]
    fn a_request_without_its_last_wait_has_the_same_work() {
        let made = without_last_wait(&program());
        assert_eq!(waits(&program().steps[0].ops).len(), 1);
        assert_eq!(waits(&made.steps[0].ops), []);
        assert_eq!(made.kernel_times(), program().kernel_times());
        assert!(
            made.steps[0]
                .ops
                .iter()
                .all(|op| op.next_same == NONE || op.next_same < 3)
        );
    }

    #[test]
    fn each_request_awaits_the_one_before() {
        let made = awaiting_the_one_before(&program());
        assert_eq!(made.steps.len(), VARIED);
        for (at, step) in made.steps.iter().enumerate() {
            let before = &made.steps[(at + VARIED - 1) % VARIED];
            let recorded = before.ops.iter().find_map(|op| match op.play {
                Play::Record { event, .. } => Some(event),
                _ => None,
            });
            let awaited = AwaitedWork::Event(recorded.expect("an event"));
            assert_eq!(waits(&step.ops), [Play::Sync(awaited)]);
        }
    }

    #[test]
    fn requests_differ_in_their_first_kernel_only() {
        let made = beginning_otherwise(&program());
        let mut first: Vec<u64> = made.steps.iter().map(|step| first_kernel(&step.ops)).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), made.steps.len());
        assert!(
            made.steps
                .iter()
                .all(|step| step.ops.len() == program().steps[0].ops.len())
        );
        assert_eq!(made.kernel_times()[..3], program().kernel_times()[..]);
    }
}
