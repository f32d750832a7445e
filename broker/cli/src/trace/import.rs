// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft trace import`: a trace from the files of other profilers.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::json;
use weft_trace_format::{Trace, codec::MAGIC};
use weft_trace_import::{Cut, ImportOptions, ImportReport, Imported, ProgramRole, import};

use super::super::terminal::ProgressLine;
use super::super::text;
use super::{stem, writable};

/// Time of a kernel from which a line names it, ns. The longest one of 34 files of real GPUs takes
/// 42 ms, and a driver ends a display's after some seconds.
const LONG_KERNEL_NS: u64 = 1_000_000_000;

/// Files to import, and how to read them.
#[derive(Debug, clap::Parser)]
pub struct ImportArgs {
    /// Files of one program, each with further steps. The last of several is written if it ends in
    /// .trace, is a trace, or does not exist
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Rule of the steps: auto, whole (the file), sync (up to a wait), name:REGEX (from a mark of
    /// that name), wait-by:THREAD (up to a wait of that thread)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    cut: Cut,
    /// It answers requests: each step ends with a wait for its work
    #[arg(long, conflicts_with = "training")]
    service: bool,
    /// It trains: steps need not wait
    #[arg(long)]
    training: bool,
    /// Number of the device; the busiest by default
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Factor of host times: a host without a profiler is 1.3 to 2 times faster (0.5 to 0.8)
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    host_time: f64,
    /// The report as JSON
    #[arg(long)]
    json: bool,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (0.01..=100.0).contains(&factor) => Ok(factor),
        _ => Err("give a number from 0.01 to 100".to_owned()),
    }
}

/// Whether the last of several files is to be written: no trace of weft's, folder or device is a
/// source.
fn is_written(path: &Path) -> bool {
    let is_source = |there: std::fs::Metadata| !there.is_dir() && !there.file_type().is_char_device();
    path.extension().is_some_and(|extension| extension == "trace")
        || !path.metadata().is_ok_and(is_source)
        || is_trace(path)
}

/// Whether the file is a trace of weft's, by its first bytes.
fn is_trace(path: &Path) -> bool {
    let mut begin = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == MAGIC
}

/// Imports with progress.
fn watched(files: &[&Path], options: &ImportOptions) -> Result<Imported> {
    let mut progress = ProgressLine::new("reading");
    let imported = import(files, options, &mut |now| progress.show(now.read, now.size));
    progress.clear();
    let imported = imported?;
    let (Imported::Ours(trace) | Imported::Foreign(trace, _)) = &imported;
    if let Some((kernel, time)) = trace.longest_kernel()
        && time >= LONG_KERNEL_NS
    {
        text::warn(format_args!(
            "{}: kernel {} takes {}: nothing stops a kernel, so other jobs wait that long; if the time is wrong, export \
             the file again",
            files[0].display(),
            text::cut(kernel, text::LONG_COMMAND),
            text::duration(time)
        ));
    }
    Ok(imported)
}

/// Reads a trace of weft's, or imports a profiler's file as it is.
pub fn read(path: &Path) -> Result<(Trace, Option<Box<ImportReport>>)> {
    let options = ImportOptions {
        name: stem(Path::new(&stem(path))),
        cut: Cut::Auto,
        role: None,
        device: None,
        host_time: 1.0,
    };
    Ok(match watched(&[path], &options)? {
        Imported::Ours(trace) => (*trace, None),
        Imported::Foreign(trace, report) => (*trace, Some(report)),
    })
}

/// Runs the command.
pub fn main(args: &ImportArgs) -> Result<()> {
    let mut sources: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let out = match sources.len() {
        2.. => sources.pop_if(|path| is_written(path)),
        _ => None,
    };
    let name = stem(Path::new(&stem(sources[0])));
    let file = match out {
        Some(out) => out.to_owned(),
        None => {
            let file = PathBuf::from(format!("{name}.trace"));
            if file.exists() {
                bail!("{} exists: name the file to write, it may be this one", file.display());
            }
            file
        }
    };
    let role = match (args.service, args.training) {
        (true, _) => Some(ProgramRole::Service),
        (_, true) => Some(ProgramRole::Training),
        _ => None,
    };
    let options = ImportOptions {
        name: out.map_or(name, stem),
        cut: args.cut.clone(),
        role,
        device: args.device,
        host_time: args.host_time,
    };
    writable(&file).map_err(|error| text::not_written(&file, &error))?;
    match watched(&sources, &options)? {
        Imported::Ours(trace) => {
            let (auto, same) = (matches!(args.cut, Cut::Auto), args.host_time == 1.0);
            if !auto || !same || role.is_some() || args.device.is_some() {
                bail!(
                    "{} is a trace of weft: --cut, --service, --training, --device and --host-time do not apply",
                    sources[0].display()
                );
            }
            write(args, &file, &trace, None)
        }
        Imported::Foreign(trace, report) => write(args, &file, &trace, Some(&report)),
    }
}

fn write(args: &ImportArgs, file: &Path, trace: &Trace, report: Option<&ImportReport>) -> Result<()> {
    trace.save(file)?;
    let answer = json!({"file": file.display().to_string(), "name": trace.name, "report": report});
    text::show(&answer, args.json, |_| {
        let report = report.map(ImportReport::text).unwrap_or_default();
        format!("{report}wrote     {}", file.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_file_is_written_unless_it_is_a_source() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
            folder.path().join(name)
        };
        assert!(is_written(&folder.path().join("missing")));
        assert!(is_written(&file("x.trace", b"")));
        assert!(is_written(&file("old", b"weftTRAC...")));
        assert!(!is_written(&file("part1.json", b"{}")));
    }
}
