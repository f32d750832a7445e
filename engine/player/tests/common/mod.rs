// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs of one kernel.
use std::sync::Arc;

use weft_kernel_id::KernelId;
use weft_player::{Ns, PlayedJob, Program};
use weft_trace_format::{AwaitedWork, Call, Operation, Step, Trace, TracedKernel};

pub const US: Ns = 1_000;
pub const MS: Ns = 1_000 * US;

/// A request of some launches of one kernel of this shape and time, and a wait for the last.
pub fn trace(name: &str, (blocks, threads): (u32, u32), launches: usize, duration: Ns, think: Ns) -> Trace {
    let call = |call| Operation {
        thread: 0,
        handed_over: false,
        host_before: US,
        call,
    };
    let launch = call(Call::Launch {
        kernel: 0,
        stream: 0,
        duration,
    });
    let mut operations = vec![launch; launches];
    operations.push(call(Call::Sync(AwaitedWork::All)));
    Trace {
        name: name.to_string(),
        launch_cost: 5 * US,
        kernels: vec![TracedKernel::of(KernelId::new(
            1,
            name,
            [blocks, 1, 1],
            [threads, 1, 1],
            0,
        ))],
        steps: vec![Step { think, operations }],
        ..Trace::default()
    }
}

/// The job of a trace.
pub fn job(trace: &Trace, priority: u8) -> PlayedJob {
    let program = Program::of(trace).expect("a sound trace");
    PlayedJob::new(&trace.name, priority, Arc::new(program))
}
