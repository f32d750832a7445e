// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launch traces from the files of other profilers: PyTorch's (Kineto) and Nsight Systems'.
//!
//! 1. A reader ([`kineto`], [`nsight`]) streams a file into a [`recording::ProfilerFile`].
//! 2. [`join`] joins calls with the work of one device, and finds what waits were for.
//! 3. [`cut`] finds the steps.
//! 4. [`assemble`] makes operations with host times.
//! 5. [`compare`] plays the trace without other jobs, for a comparison with the file.
//!
//! [`import`] does it all. No input causes a panic, and no number in a file an allocation.
#![forbid(unsafe_code)]

mod assemble;
pub mod compare;
pub mod cut;
mod error;
mod input;
mod join;
mod kineto;
mod nsight;
mod recording;
pub mod report;

use std::{
    collections::{BTreeSet, HashMap},
    io::BufReader,
    path::Path,
};

use weft_profiles::Ns;
use weft_trace_format::{Call, MAX_OPERATIONS, Source, Trace};

pub use cut::Cut;
pub use error::ImportError;
pub use input::ReadProgress;
pub use report::{ImportReport, ProgramRole};

use input::{FileKind, Watch};
use join::{Joined, JoinedWork};
use kineto::JsonKind;
use recording::{ProfilerFile, WorkClass};

/// Wishes of an import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Name of the trace.
    pub name: String,
    /// How to cut the files into steps.
    pub cut: Cut,
    /// A service or a training; `None`: as the names of kernels and marks have it.
    pub role: Option<ProgramRole>,
    /// The device; `None`: the busiest.
    pub device: Option<u32>,
    /// Factor of host times. Profilers make hosts slower.
    pub host_time: f64,
}

/// Result of an import.
#[derive(Debug)]
pub enum Imported {
    /// A trace that weft exported.
    Ours(Box<Trace>),
    /// A trace of profilers' files, and its report.
    Foreign(Box<Trace>, Box<ImportReport>),
}

/// Imports files of one program, whose steps follow each other.
pub fn import(files: &[&Path], options: &ImportOptions, watch: Watch) -> Result<Imported, ImportError> {
    let mut merged: Option<(Trace, ImportReport)> = None;
    for path in files {
        let mut file = ProfilerFile::default();
        if let Some(trace) = read(path, &mut file, watch)? {
            return match files.len() {
                1 => Ok(Imported::Ours(Box::new(trace))),
                _ => Err(ImportError::OneTrace {
                    path: path.to_path_buf(),
                }),
            };
        }
        let (trace, report) = one(path, &file, options)?;
        drop(file);
        match &mut merged {
            None => merged = Some((trace, report)),
            Some((all, figures)) => {
                append(all, trace);
                figures.add(report);
            }
        }
        if merged
            .as_ref()
            .is_some_and(|(all, _)| all.operations() > MAX_OPERATIONS)
        {
            return Err(ImportError::TooMuch("the 4 million operations of a trace"));
        }
    }
    let Some((mut trace, mut report)) = merged else {
        return Err(ImportError::NoFile);
    };
    report.finish(&trace);
    scale_host(&mut trace, options.host_time);
    trace.note = report.note();
    Ok(Imported::Foreign(Box::new(trace), Box::new(report)))
}

/// Reads a file; returns weft's own trace, if it is one.
fn read(path: &Path, file: &mut ProfilerFile, watch: Watch) -> Result<Option<Trace>, ImportError> {
    let unreadable = |source| ImportError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let content = input::open(path).map_err(unreadable)?;
    let stays = content.stays;
    let no_pipe = || match stays {
        true => Ok(()),
        false => Err(unreadable(std::io::Error::other(
            "a trace of weft cannot come from a pipe: write it to a file",
        ))),
    };
    match content.kind {
        FileKind::Sqlite => nsight::read(content, path, file, watch)?,
        FileKind::Empty => return Err(ImportError::Empty { path: path.to_owned() }),
        FileKind::Ours => {
            no_pipe()?;
            return Ok(Some(Trace::load(path)?));
        }
        FileKind::Other => return Err(ImportError::UnknownKind { path: path.to_owned() }),
        FileKind::Json => {
            if kineto::read(content, path, file, watch)? == JsonKind::Ours {
                no_pipe()?;
                let content = input::open(path).map_err(unreadable)?;
                let trace: Result<Trace, _> = serde_json::from_reader(BufReader::new(content));
                return trace.map(Some).map_err(|error| ImportError::NotOurs {
                    path: path.to_owned(),
                    why: error::quoted(&error),
                });
            }
        }
    }
    Ok(None)
}

fn one(path: &Path, file: &ProfilerFile, options: &ImportOptions) -> Result<(Trace, ImportReport), ImportError> {
    let joined = Joined::new(file, options.device);
    if joined.works.is_empty() {
        let path = path.to_owned();
        let devices: BTreeSet<u32> = joined.busy.iter().map(|((device, _), _)| *device).collect();
        return Err(match options.device {
            Some(device) if !devices.is_empty() => ImportError::OtherDevices {
                path,
                device,
                others: devices.iter().take(12).map(u32::to_string).collect(),
            },
            _ if file.untimed.0 > 0 => no_kernel(&path, &joined, ""),
            _ if file.of_xla => ImportError::OfXla { path },
            _ => ImportError::NoWork {
                path,
                others: file.others(),
            },
        });
    }
    if joined.works.iter().all(|work| work.call.is_none()) {
        return Err(ImportError::NoLaunches { path: path.to_owned() });
    }
    let no_cut = || ImportError::NoCut {
        path: path.to_owned(),
        cut: options.cut.to_string(),
        threads: file.threads.iter().take(12).cloned().collect(),
    };
    let cuts = cut::cut(&joined, &options.cut).ok_or_else(no_cut)?;
    let role = options.role.unwrap_or_else(|| report::role(&joined));
    let gpu = file.gpus.get(&joined.device).or(file.gpus.values().next()).cloned();
    let mut trace = Trace {
        name: options.name.clone(),
        gpu: gpu.unwrap_or_default(),
        source: Source::Measured,
        ..Trace::default()
    };
    let (counts, ranges) = assemble::assemble(&joined, &cuts, role == ProgramRole::Service, &mut trace)?;
    let Some(first) = ranges.first() else {
        return Err(no_cut());
    };
    if trace.longest_kernel().is_none_or(|(_, time)| time == 0) {
        return Err(no_kernel(path, &joined, &cuts.how));
    }
    let begin = cuts
        .begins
        .iter()
        .rev()
        .find(|begin| **begin <= joined.calls[first.start].host.start);
    let begin = begin.copied().unwrap_or(joined.calls[first.start].host.start);
    let compared = compare::compare(&joined, &ranges, begin, &trace);
    let report = ImportReport::of(path, &joined, &cuts, role, &counts, &compared, &trace);
    Ok((trace, report))
}

/// Why a file has no kernel that takes time, by the rule of its steps.
fn no_kernel(path: &Path, joined: &Joined, cut: &str) -> ImportError {
    let (count, first) = &joined.file.untimed;
    let takes_time = |work: &JoinedWork| match work.work.class {
        WorkClass::Copy { .. } => false,
        _ => work.work.end > work.work.start,
    };
    let why = match (joined.works.iter().any(takes_time), count) {
        (true, _) => format!(" in its steps ({cut}): give another --cut"),
        (false, 0) => format!(" of device {}, only copies: record its kernels, too", joined.device),
        (false, count) => format!(" with a time: {count} have none or a wrong one, as {first}: export it again"),
    };
    let path = path.to_owned();
    ImportError::NoKernel { path, why }
}

/// Makes the host times of a trace fit another cost of launch calls.
fn fit_cost(trace: &mut Trace, cost: Ns) {
    let more = trace.launch_cost as i64 - cost as i64;
    // Time by which the model leaves a call too early; a negative one was not made up yet.
    let mut before = 0;
    let pay = |time: &mut Ns, due: i64| {
        let wanted = (*time as i64).saturating_add(due);
        *time = wanted.max(0) as Ns;
        wanted.min(0)
    };
    for step in &mut trace.steps {
        before = pay(&mut step.think, before);
        let begin = before;
        let mut dues: HashMap<u16, i64> = HashMap::new();
        for operation in &mut step.operations {
            let due = match operation.handed_over {
                true => before,
                false => dues.get(&operation.thread).copied().unwrap_or(begin),
            };
            let due = pay(&mut operation.host_before, due);
            before = match operation.call {
                Call::Launch { .. } | Call::Copy { waits: false, .. } => due + more,
                Call::Sync(_) | Call::Copy { waits: true, .. } => 0,
                Call::Record { .. } | Call::Wait { .. } => due,
            };
            dues.insert(operation.thread, before);
        }
    }
    trace.launch_cost = cost;
}

/// Appends another file's steps.
fn append(all: &mut Trace, mut more: Trace) {
    fit_cost(&mut more, all.launch_cost);
    let known: HashMap<u64, u32> = all
        .kernels
        .iter()
        .zip(0..)
        .map(|(kernel, index)| (kernel.hash, index))
        .collect();
    let mut next = all.kernels.len() as u32;
    let index: Vec<u32> = more
        .kernels
        .iter()
        .map(|kernel| {
            known.get(&kernel.hash).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        })
        .collect();
    for (mut kernel, at) in more.kernels.into_iter().zip(&index) {
        if *at as usize >= all.kernels.len() {
            for node in &mut kernel.nodes {
                node.kernel = index[node.kernel as usize];
            }
            all.kernels.push(kernel);
        }
    }
    for operation in more.steps.iter_mut().flat_map(|step| &mut step.operations) {
        if let Call::Launch { kernel, .. } = &mut operation.call {
            *kernel = index[*kernel as usize];
        }
    }
    all.steps.append(&mut more.steps);
}

fn scale_host(trace: &mut Trace, factor: f64) {
    if factor == 1.0 {
        return;
    }
    let scale = |time: &mut u64| *time = (*time as f64 * factor).round() as u64;
    scale(&mut trace.launch_cost);
    for step in &mut trace.steps {
        scale(&mut step.think);
        step.operations
            .iter_mut()
            .for_each(|operation| scale(&mut operation.host_before));
    }
}
