// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generated jobs of the important shapes, as traces: shapes that cannot be recorded at will, and
//! small ones for tests.
#![forbid(unsafe_code)]

pub mod shapes;

use weft_kernel_id::KernelId;
use weft_trace_format::{AwaitedWork, Call, Direction, GraphNode, Operation, Source, Step, Trace, TracedKernel};

use crate::{Ns, US};

/// Host time of a launch call: 4-6 us a submit on recent cards.
const LAUNCH_NS: Ns = 5 * US;

/// Builds a trace.
#[derive(Debug)]
pub struct Builder(Trace);

impl Builder {
    /// An empty trace.
    pub fn new(name: &str) -> Builder {
        Builder(Trace {
            name: name.to_string(),
            source: Source::Generated,
            launch_cost: LAUNCH_NS,
            ..Trace::default()
        })
    }

    fn kernel(&mut self, number: u32) -> u32 {
        while self.0.kernels.len() <= number as usize {
            let at = self.0.kernels.len() as u32;
            let id = KernelId::new(1, &format!("{}_{at}", self.0.name), [at + 1, 1, 1], [128, 1, 1], 0);
            self.0.kernels.push(TracedKernel::of(id));
        }
        number
    }

    /// A graph of kernels with these times; returns its number.
    pub fn graph(&mut self, times: &[Ns]) -> u32 {
        let nodes = (0..times.len() as u32)
            .map(|at| GraphNode {
                kernel: self.kernel(at),
                duration: times[at as usize],
            })
            .collect();
        let id = KernelId::graph(0x6ea9_0000 + self.0.kernels.len() as u64, times.len());
        self.0.kernels.push(TracedKernel {
            nodes,
            ..TracedKernel::of(id)
        });
        self.0.kernels.len() as u32 - 1
    }

    /// Begins a step.
    pub fn step(&mut self, think: Ns) -> &mut Builder {
        self.0.steps.push(Step {
            think,
            operations: Vec::new(),
        });
        self
    }

    fn call(&mut self, host_before: Ns, call: Call) -> &mut Builder {
        if let Some(step) = self.0.steps.last_mut() {
            step.operations.push(Operation {
                thread: 0,
                handed_over: false,
                host_before,
                call,
            });
        }
        self
    }

    /// Launches a kernel on the default stream.
    pub fn launch(&mut self, kernel: u32, host_before: Ns, duration: Ns) -> &mut Builder {
        let kernel = self.kernel(kernel);
        self.call(
            host_before,
            Call::Launch {
                kernel,
                stream: 0,
                duration,
            },
        )
    }

    /// Copies the input to the device.
    pub fn input(&mut self, bytes: u64, duration: Ns) -> &mut Builder {
        self.call(
            2 * US,
            Call::Copy {
                direction: Direction::HostToDevice,
                bytes,
                stream: 0,
                waits: false,
                duration,
            },
        )
    }

    /// Waits for all work.
    pub fn sync(&mut self) -> &mut Builder {
        self.call(US, Call::Sync(AwaitedWork::All))
    }

    /// Returns the trace.
    pub fn done(self) -> Trace {
        self.0
    }
}

/// Requests of `kernels` kernels of one time, launched ahead, and host work between requests.
pub fn service(kernels: u32, time: Ns, think: Ns) -> Trace {
    let mut builder = Builder::new("service");
    for _ in 0..4 {
        builder.step(think).input(600_000, 30 * US);
        for kernel in 0..kernels {
            builder.launch(kernel, 0, time);
        }
        builder.sync();
    }
    builder.done()
}

/// Requests that synchronise after every kernel, with host work of `between` between two kernels.
pub fn chatty(kernels: u32, time: Ns, between: Ns, think: Ns) -> Trace {
    let mut builder = Builder::new("chatty");
    for _ in 0..4 {
        builder.step(think);
        for kernel in 0..kernels {
            builder.launch(kernel, between, time).sync();
        }
    }
    builder.done()
}

/// Iterations of kernels with these times, launched ahead; the loss is read at the end of each.
pub fn training(times: &[Ns], host: Ns, think: Ns) -> Trace {
    let mut builder = Builder::new("training");
    for _ in 0..4 {
        builder.step(think);
        for (kernel, time) in times.iter().enumerate() {
            builder.launch(kernel as u32, host, *time);
        }
        builder.sync();
    }
    builder.done()
}

/// Tokens of a language model: each is one graph, with host sampling between two; a prompt every
/// `tokens` tokens.
pub fn decode(kernels: usize, time: Ns, sampling: Ns, tokens: u32, think: Ns) -> Trace {
    let mut builder = Builder::new("decode");
    let graph = builder.graph(&vec![time; kernels]);
    for _ in 0..4 {
        builder.step(think);
        for token in 0..tokens {
            let host = if token == 0 { 0 } else { sampling };
            builder.launch(graph, host, time * kernels as Ns).sync();
        }
    }
    builder.done()
}

/// Iterations whose data sometimes comes late: every `period`-th waits for `stall`.
pub fn stalling(times: &[Ns], think: Ns, period: usize, stall: Ns) -> Trace {
    let mut builder = Builder::new("stalling");
    for iteration in 0..period.max(1) {
        let late = iteration + 1 == period;
        builder.step(if late { stall } else { think });
        for (kernel, time) in times.iter().enumerate() {
            builder.launch(kernel as u32, 0, *time);
        }
        builder.sync();
    }
    builder.done()
}
