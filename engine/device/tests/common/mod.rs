// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small vocabulary for the engine's tests.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::HashMap;

use weft_engine::{Engine, Ns, OpId, Output, Segment, Settings, StreamId, Work};

/// Nothing costs anything but the work itself.
pub fn bare() -> Settings {
    Settings {
        switch: 0,
        launch_latency: 0,
        copy_latency: 0,
        memset_latency: 0,
        to_device: 1_000,
        to_host: 1_000,
        within_device: 1_000,
        memset: 1_000,
        trace: true,
        ..Settings::default()
    }
}

pub fn kernel(duration: Ns) -> Work {
    Work::Kernel { duration, held: false }
}

/// How an operation went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Went {
    pub start: Ns,
    pub end: Ns,
    pub segments: Vec<Segment>,
}

impl Went {
    /// The uninterrupted pieces, also of an operation that was never stopped.
    pub fn pieces(&self) -> Vec<Segment> {
        if self.segments.is_empty() {
            vec![(self.start, self.end)]
        } else {
            self.segments.clone()
        }
    }
}

/// All ended operations by tag.
pub fn drain(engine: &mut Engine) -> HashMap<u64, Went> {
    let mut went = HashMap::new();
    while let Some(output) = engine.next_output() {
        if let Output::Done {
            tag,
            start,
            end,
            segments,
            ..
        } = output
        {
            let before = went.insert(tag, Went { start, end, segments });
            assert!(before.is_none(), "{tag} ended twice");
        }
    }
    went
}

/// Submits kernels of these durations at a time, tags from `tag` on.
pub fn kernels(engine: &mut Engine, at: Ns, stream: StreamId, tag: u64, durations: &[Ns]) -> Vec<OpId> {
    (tag..)
        .zip(durations)
        .map(|(tag, &duration)| engine.submit(at, stream, kernel(duration), tag).unwrap())
        .collect()
}
