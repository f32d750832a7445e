// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packed form of a trace in a file: names once, sequences once, times as small numbers.
//!
//! Private to [`super::codec`]; a change here is a new version there.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;

use super::{
    AwaitedWork, Call, Direction, EventIndex, GraphNode, KernelIndex, MAX_OPERATIONS, Operation, Source, Step,
    StreamIndex, ThreadIndex, Trace, TracedKernel,
    nibbles::{NibbleReader, NibbleWriter},
    quantise,
};
use weft_profiles::{GpuIdentity, Ns};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PackedTrace {
    name: String,
    taken: u64,
    gpu: GpuIdentity,
    source: Source,
    note: String,
    launch_cost: Ns,
    /// Symbols, sorted, each with the number of bytes it shares with its predecessor.
    symbols: Vec<(u32, String)>,
    kernels: Vec<PackedKernel>,
    shapes: Vec<StepShape>,
    /// Index of each step's shape.
    steps: Vec<u32>,
    /// Per step `think`, then per call `host_before` and, for work, `duration`: code minus the
    /// shape's code.
    times: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PackedKernel {
    hash: u64,
    module: u64,
    symbol: u32,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    nodes: Vec<GraphNode>,
}

/// A sequence of calls that steps repeat.
#[derive(Debug, Serialize, Deserialize)]
struct StepShape {
    /// Code of the median think time.
    think: u32,
    calls: Vec<ShapeCall>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ShapeCall {
    /// `2 * thread + handed_over`.
    thread: u32,
    what: PackedCall,
    /// Codes of the median times.
    host_before: u32,
    duration: u32,
}

/// A call without its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum PackedCall {
    Launch(KernelIndex, StreamIndex),
    Copy(Direction, u64, StreamIndex, bool),
    Sync(AwaitedWork),
    Record(EventIndex, StreamIndex),
    Wait(EventIndex, StreamIndex),
}

impl PackedCall {
    fn of(call: &Call) -> PackedCall {
        match *call {
            Call::Launch { kernel, stream, .. } => PackedCall::Launch(kernel, stream),
            Call::Copy {
                direction,
                bytes,
                stream,
                waits,
                ..
            } => PackedCall::Copy(direction, bytes, stream, waits),
            Call::Sync(until) => PackedCall::Sync(until),
            Call::Record { event, stream } => PackedCall::Record(event, stream),
            Call::Wait { event, stream } => PackedCall::Wait(event, stream),
        }
    }

    fn is_work(self) -> bool {
        matches!(self, PackedCall::Launch(..) | PackedCall::Copy(..))
    }

    fn call(self, duration: Ns) -> Call {
        match self {
            PackedCall::Launch(kernel, stream) => Call::Launch {
                kernel,
                stream,
                duration,
            },
            PackedCall::Copy(direction, bytes, stream, waits) => Call::Copy {
                direction,
                bytes,
                stream,
                waits,
                duration,
            },
            PackedCall::Sync(until) => Call::Sync(until),
            PackedCall::Record(event, stream) => Call::Record { event, stream },
            PackedCall::Wait(event, stream) => Call::Wait { event, stream },
        }
    }
}

/// Two steps of equal keys have one sequence.
type Key = Vec<(ThreadIndex, bool, PackedCall)>;

fn key(step: &Step) -> Key {
    let part = |operation: &Operation| (operation.thread, operation.handed_over, PackedCall::of(&operation.call));
    step.operations.iter().map(part).collect()
}

impl PackedTrace {
    pub(super) fn of(trace: &Trace) -> PackedTrace {
        let mut by_key: HashMap<Key, usize> = HashMap::new();
        // Steps of each shape.
        let mut members: Vec<Vec<&Step>> = Vec::new();
        let mut steps = Vec::with_capacity(trace.steps.len());
        for step in &trace.steps {
            let shape = *by_key.entry(key(step)).or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            members[shape].push(step);
            steps.push(shape as u32);
        }
        let shapes: Vec<StepShape> = members.iter().map(|members| StepShape::of(members)).collect();
        let mut times = NibbleWriter::default();
        for (step, shape) in trace.steps.iter().zip(&steps) {
            shapes[*shape as usize].push_times(step, &mut times);
        }
        let (symbols, kernels) = pack_kernels(&trace.kernels);
        PackedTrace {
            name: trace.name.clone(),
            taken: trace.taken,
            gpu: trace.gpu.clone(),
            source: trace.source,
            note: trace.note.clone(),
            launch_cost: trace.launch_cost,
            symbols,
            kernels,
            shapes,
            steps,
            times: times.finish(),
        }
    }

    /// Unpacks the trace; the error names the fault.
    pub(super) fn unpack(self) -> Result<Trace, &'static str> {
        let kernels = unpack_kernels(&self.symbols, self.kernels)?;
        let mut operations = 0usize;
        for shape in &self.steps {
            let shape = self.shapes.get(*shape as usize).ok_or("a step without a shape")?;
            operations = operations.saturating_add(shape.calls.len());
        }
        if operations > MAX_OPERATIONS || operations > self.times.len().saturating_mul(2) {
            return Err("more operations than times");
        }
        let mut times = NibbleReader::new(&self.times);
        let mut steps = Vec::new();
        for shape in &self.steps {
            let shape = self.shapes.get(*shape as usize).ok_or("a step without a shape")?;
            steps.push(shape.step(&mut times).ok_or("times end early")?);
        }
        if !times.finished() {
            return Err("times left over");
        }
        Ok(Trace {
            name: self.name,
            taken: self.taken,
            gpu: self.gpu,
            source: self.source,
            note: self.note,
            launch_cost: self.launch_cost,
            kernels,
            steps,
        })
    }
}

impl StepShape {
    /// Shape of steps with one sequence: the calls, with their median times.
    fn of(members: &[&Step]) -> StepShape {
        let median = |time: &dyn Fn(&Step) -> Ns| {
            let mut codes: Vec<u32> = members.iter().map(|step| quantise::code(time(step))).collect();
            codes.sort_unstable();
            codes.get(codes.len() / 2).copied().unwrap_or(0)
        };
        let calls = members.first().map_or(&[][..], |step| &step.operations);
        StepShape {
            think: median(&|step| step.think),
            calls: calls
                .iter()
                .enumerate()
                .map(|(at, operation)| ShapeCall {
                    thread: u32::from(operation.thread) * 2 + u32::from(operation.handed_over),
                    what: PackedCall::of(&operation.call),
                    host_before: median(&|step| step.operations[at].host_before),
                    duration: median(&|step| step.operations[at].call.duration().unwrap_or(0)),
                })
                .collect(),
        }
    }

    fn push_times(&self, step: &Step, times: &mut NibbleWriter) {
        // Codes are below 2^11, so any difference is small.
        let mut push = |time: Ns, reference: u32| times.push(quantise::code(time) as i32 - reference as i32);
        push(step.think, self.think);
        for (operation, call) in step.operations.iter().zip(&self.calls) {
            push(operation.host_before, call.host_before);
            if let Some(duration) = operation.call.duration() {
                push(duration, call.duration);
            }
        }
    }

    fn step(&self, times: &mut NibbleReader) -> Option<Step> {
        let mut time = |reference: u32| {
            let code = i64::from(reference) + i64::from(times.next()?);
            let code = u32::try_from(code).ok().filter(|code| *code <= quantise::MAX_CODE)?;
            Some(quantise::value(code))
        };
        let think = time(self.think)?;
        let mut operations = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let host_before = time(call.host_before)?;
            let duration = if call.what.is_work() { time(call.duration)? } else { 0 };
            operations.push(Operation {
                thread: ThreadIndex::try_from(call.thread / 2).ok()?,
                handed_over: call.thread % 2 == 1,
                host_before,
                call: call.what.call(duration),
            });
        }
        Some(Step { think, operations })
    }
}

fn pack_kernels(kernels: &[TracedKernel]) -> (Vec<(u32, String)>, Vec<PackedKernel>) {
    let mut sorted: Vec<&str> = kernels.iter().map(|kernel| kernel.id.symbol.as_str()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut before = "";
    let mut symbols = Vec::with_capacity(sorted.len());
    for symbol in &sorted {
        let mut shared = before.bytes().zip(symbol.bytes()).take_while(|(a, b)| a == b).count();
        while !symbol.is_char_boundary(shared) {
            shared -= 1;
        }
        symbols.push((shared as u32, symbol[shared..].to_owned()));
        before = symbol;
    }
    let pack = |kernel: &TracedKernel| PackedKernel {
        hash: kernel.hash,
        module: kernel.id.module,
        symbol: sorted.binary_search(&kernel.id.symbol.as_str()).unwrap_or(0) as u32,
        grid: kernel.id.grid,
        block: kernel.id.block,
        shared: kernel.id.shared,
        nodes: kernel.nodes.clone(),
    };
    (symbols, kernels.iter().map(pack).collect())
}

fn unpack_kernels(symbols: &[(u32, String)], kernels: Vec<PackedKernel>) -> Result<Vec<TracedKernel>, &'static str> {
    let mut names: Vec<String> = Vec::new();
    let mut total = 0usize;
    for (shared, rest) in symbols {
        let before = names.last().map_or("", String::as_str);
        let name = before
            .get(..*shared as usize)
            .ok_or("a symbol without a beginning")?
            .to_owned()
            + rest;
        // Shared prefixes could expand a small file to a large amount of memory.
        total += name.len();
        if total > crate::MAX_FILE_BYTES as usize {
            return Err("symbols too long");
        }
        names.push(name);
    }
    kernels
        .into_iter()
        .map(|kernel| {
            let symbol = names.get(kernel.symbol as usize).ok_or("a kernel without a symbol")?;
            Ok(TracedKernel {
                hash: kernel.hash,
                id: KernelId::new(kernel.module, symbol, kernel.grid, kernel.block, kernel.shared),
                registers: 0,
                nodes: kernel.nodes,
            })
        })
        .collect()
}
