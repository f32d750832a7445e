// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tools of a probe: the device, its report, its time, and ways to measure.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::driver::{Event, Gpu, Kernel, Stream};
use crate::report::{Report, Samples};

/// Options of the command line.
#[derive(Debug, Clone, Default)]
pub struct ProbeOptions {
    /// Pipe directory of an MPS daemon.
    pub mps_pipe: Option<PathBuf>,
    /// CUPTI's library.
    pub cupti: Option<PathBuf>,
}

/// Means of one probe.
pub struct ProbeBench {
    /// The device.
    pub gpu: Gpu,
    /// Report of the results.
    pub report: Report,
    /// Time at which the probe should be done: loops end early then.
    pub until: Instant,
    /// Options of the command line.
    pub options: ProbeOptions,
}

/// Time for which a stream is held while a few calls are queued: some ten of them at 5 us each.
const HOLD_NS: u64 = 50_000;

/// Fewest measurements of [`ProbeBench::repeat`], even if time is over: fewer have no median.
const LEAST: usize = 3;

impl ProbeBench {
    /// Measures `rounds` times, or as often as time allows, at least three times.
    pub fn repeat(&self, rounds: usize, mut measure: impl FnMut(usize) -> Result<f64>) -> Result<Samples> {
        let mut samples = Vec::with_capacity(rounds);
        for round in 0..rounds {
            if round >= LEAST && Instant::now() > self.until {
                break;
            }
            samples.push(measure(round)?);
        }
        Ok(Samples::new(samples))
    }

    /// Host time of each call of `body`, nanoseconds.
    pub fn repeat_calls(&self, rounds: usize, mut body: impl FnMut(usize) -> Result<()>) -> Result<Samples> {
        self.repeat(rounds, |round| {
            let begin = Instant::now();
            body(round)?;
            Ok(nanoseconds(begin.elapsed()))
        })
    }

    /// An event pair.
    pub fn pair(&self) -> Result<EventPair<'_>> {
        Ok(EventPair {
            gpu: &self.gpu,
            spin: self.gpu.kernel("gpu_probe_spin")?,
            from: self.gpu.event()?,
            to: self.gpu.event()?,
        })
    }
}

/// Two events, used repeatedly.
pub struct EventPair<'g> {
    gpu: &'g Gpu,
    spin: Kernel,
    /// The first.
    pub from: Event,
    /// The second.
    pub to: Event,
}

impl EventPair<'_> {
    /// Device time of the work that `body` puts on the stream, ns. Waits for it. A spinning kernel
    /// holds the stream up until a few calls are queued, so the host's pace does not count.
    pub fn around(&self, stream: Stream, body: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.behind(HOLD_NS, stream, body)
    }

    /// [`EventPair::around`] with a hold of `hold_ns`, for many calls.
    pub fn behind(&self, hold_ns: u64, stream: Stream, body: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.gpu.launch(self.spin, 1, 1, &[hold_ns], stream)?;
        self.gpu.record(self.from, stream)?;
        body()?;
        self.gpu.record(self.to, stream)?;
        self.gpu.wait_for_event(self.to)?;
        Ok(self.gpu.between(self.from, self.to)?)
    }
}

impl Drop for EventPair<'_> {
    fn drop(&mut self) {
        // The process ends soon; an event that remains is no loss.
        let _ = self.gpu.end_event(self.from);
        let _ = self.gpu.end_event(self.to);
    }
}

/// Nanoseconds as a float.
pub fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// Bytes a microsecond, from bytes and nanoseconds.
pub fn rate(bytes: usize, ns: f64) -> f64 {
    if ns > 0.0 { bytes as f64 * 1000.0 / ns } else { f64::NAN }
}
