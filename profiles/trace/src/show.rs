// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace for people and for programs: its steps in figures, its kernels as a profile.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{
    Call, Trace,
    timeline::{self, CallCosts, Timeline},
};
use weft_profiles::{Aggregator, Ns, Profile, Sketch, json as profile_json, show};

/// Figures of a trace, times in ns.
#[derive(Debug, Default)]
struct TraceFigures {
    launches: Sketch,
    copies: Sketch,
    waits: Sketch,
    /// Host time between calls.
    host: Sketch,
    /// Device time of the kernels.
    device: Sketch,
    /// From the mark to the last call's return, without other jobs on an ideal device.
    step: Sketch,
    think: Sketch,
}

impl Trace {
    /// Profile as from stage 1, with the gaps of the trace played without other jobs.
    pub fn profile(&self) -> Profile {
        let mut aggregator = Aggregator::new();
        aggregator.device(self.gpu.clone());
        for kernel in &self.kernels {
            aggregator.named(kernel.hash, kernel.id.clone());
        }
        for span in timeline::alone(self, CallCosts::default()).spans {
            let operation = self
                .steps
                .get(span.step)
                .and_then(|step| step.operations.get(span.operation));
            if let Some(Call::Launch { kernel, duration, .. }) = operation.map(|operation| operation.call)
                && let Some(kernel) = self.kernels.get(kernel as usize)
            {
                aggregator.launched(kernel.hash, 1);
                aggregator.sampled(kernel.hash, duration, span.gap);
            }
        }
        aggregator.finish(&self.name, self.taken)
    }

    fn figures(&self, timeline: &Timeline) -> TraceFigures {
        let mut figures = TraceFigures::default();
        for (step, span) in self.steps.iter().zip(&timeline.steps) {
            let count = |wanted: fn(&Call) -> bool| {
                let calls = step.operations.iter().map(|operation| &operation.call);
                calls.filter(|call| wanted(call)).count() as Ns
            };
            figures.launches.add(count(|call| matches!(call, Call::Launch { .. })));
            figures.copies.add(count(|call| matches!(call, Call::Copy { .. })));
            figures.waits.add(count(Call::waits));
            figures
                .host
                .add(step.operations.iter().map(|operation| operation.host_before).sum());
            figures.device.add(step.device_time());
            figures.step.add(span.end - span.begin);
            figures.think.add(step.think);
        }
        figures
    }
}

/// Text: heading, steps, the top `limit` kernels by total time, histogram of gaps.
pub fn table(trace: &Trace, limit: usize) -> String {
    let mut out = String::new();
    let figures = trace.figures(&timeline::alone(trace, CallCosts::default()));
    // Writing to a string cannot fail.
    let _ = steps(&mut out, trace, &figures);
    out.push('\n');
    out.push_str(&show::table(&trace.profile(), limit));
    out
}

fn steps(out: &mut String, trace: &Trace, figures: &TraceFigures) -> std::fmt::Result {
    writeln!(
        out,
        "trace {}: {} steps, {} operations of {} kernels, times {}",
        trace.name,
        trace.steps.len(),
        trace.operations(),
        trace.kernels.len(),
        trace.source.name()
    )?;
    if !trace.note.is_empty() {
        writeln!(out, "{}", trace.note)?;
    }
    let graphs = trace.kernels.iter().filter(|kernel| !kernel.nodes.is_empty()).count();
    if graphs > 0 {
        writeln!(out, "{graphs} of the kernels are graphs")?;
    }
    writeln!(
        out,
        "a launch call takes the host {}",
        show::duration(trace.launch_cost)
    )?;
    writeln!(out)?;
    writeln!(out, "{:<28}  {:>9} {:>9} {:>9}", "of a step", "p10", "p50", "p90")?;
    let number = |value: Ns| value.to_string();
    row(out, "launches", &figures.launches, number)?;
    row(out, "copies and fills", &figures.copies, number)?;
    row(out, "waits", &figures.waits, number)?;
    row(out, "device time", &figures.device, show::duration)?;
    row(out, "host time between calls", &figures.host, show::duration)?;
    row(out, "alone on an ideal device", &figures.step, show::duration)?;
    row(out, "think time before it", &figures.think, show::duration)
}

fn row(out: &mut String, name: &str, sketch: &Sketch, text: impl Fn(Ns) -> String) -> std::fmt::Result {
    let value = |part| sketch.quantile(part).map_or_else(|| "-".to_owned(), &text);
    writeln!(out, "{name:<28}  {:>9} {:>9} {:>9}", value(0.1), value(0.5), value(0.9))
}

/// JSON of `table`'s content. Times are ns. Field names stay; new fields may come.
pub fn to_json(trace: &Trace) -> Value {
    let figures = trace.figures(&timeline::alone(trace, CallCosts::default()));
    let sketch = |sketch: &Sketch| {
        json!({
            "mean": sketch.mean(),
            "p10": sketch.quantile(0.1),
            "p50": sketch.quantile(0.5),
            "p90": sketch.quantile(0.9),
            "p99": sketch.quantile(0.99),
        })
    };
    json!({
        "name": trace.name,
        "taken": trace.taken,
        "source": trace.source.name(),
        "note": trace.note,
        "launch_cost": trace.launch_cost,
        "steps": trace.steps.len(),
        "operations": trace.operations(),
        "step": {
            "launches": sketch(&figures.launches),
            "copies": sketch(&figures.copies),
            "waits": sketch(&figures.waits),
            "device": sketch(&figures.device),
            "host": sketch(&figures.host),
            "alone": sketch(&figures.step),
            "think": sketch(&figures.think),
        },
        "profile": profile_json::to_json(&trace.profile()),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::sample, *};

    #[test]
    fn people_see_steps_and_kernels() {
        let text = table(&sample(), 10);
        assert!(
            text.starts_with("trace resnet: 3 steps, 30 operations of 4 kernels, times estimated\n"),
            "{text}"
        );
        for expected in [
            "estimates for an A100",
            "1 of the kernels are graphs",
            "graph of 2 kernels",
            "gemm",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn programs_find_what_they_look_for() {
        let value = to_json(&sample());
        assert_eq!(value["steps"], 3);
        assert_eq!(value["step"]["launches"]["p50"], 5);
        assert_eq!(value["profile"]["launches"], 18);
        // Every launch but the last has a gap after it.
        let kernels = value["profile"]["kernels"].as_array().unwrap();
        let gaps: u64 = kernels
            .iter()
            .map(|kernel| kernel["gap"]["count"].as_u64().unwrap())
            .sum();
        assert_eq!(gaps, 17);
    }

    #[test]
    fn an_empty_trace_has_a_text_too() {
        assert!(table(&Trace::default(), 5).contains("0 steps"));
    }
}
