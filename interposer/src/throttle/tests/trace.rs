// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of trace mode's recorder, with a driver of events that the test moves on.

use std::path::Path;

use weft_trace_format::raw::{CallKind, Record, RecorderFile};

use super::fake;
use crate::client::clock;
use crate::trace::recorder::{RecordTicket, RecordedCall, Recorder};
use crate::trace::writer::Writer;

const STREAM: usize = 0x7f00_7ace_0000;

fn recorder(path: &Path) -> Recorder {
    Recorder::new(fake::driver(), Writer::create(path.to_path_buf()).unwrap())
}

fn launch(hash: u64) -> RecordedCall {
    RecordedCall::Operation {
        what: CallKind::Launch {
            hash,
            stream: STREAM as u64,
        },
        timed: Some(STREAM),
    }
}

fn wait() -> RecordedCall {
    RecordedCall::Operation {
        what: CallKind::SyncStream(STREAM as u64),
        timed: None,
    }
}

fn begin(recorder: &Recorder, call: RecordedCall) -> Option<RecordTicket> {
    recorder
        .wants(&call)
        .then(|| recorder.before(call, clock::now(), 0))
        .flatten()
}

/// A whole call; the device works for `work` ns.
fn make(recorder: &Recorder, call: RecordedCall, work: u64, ok: bool) {
    let ticket = begin(recorder, call);
    let called = clock::now();
    fake::work(work);
    if let Some(ticket) = ticket {
        recorder.after(ticket, called, clock::now(), ok);
    }
}

fn hashes(recording: &RecorderFile) -> Vec<(u64, bool)> {
    let launch = |record: &Record| match record {
        Record::Operation(operation) => match operation.what {
            CallKind::Launch { hash, .. } => Some((hash, operation.device.is_some())),
            _ => None,
        },
        _ => None,
    };
    recording.events.iter().filter_map(launch).collect()
}

#[test]
fn calls_come_out_in_order_with_their_times_from_the_first_mark_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw");
    let recorder = recorder(&path);
    make(&recorder, launch(1), 1_000, true);
    make(&recorder, RecordedCall::Mark, 0, true);
    for hash in 2..5 {
        make(&recorder, launch(hash), hash * 10_000, true);
    }
    // The driver refused this call, so it is not recorded.
    make(&recorder, launch(5), 0, false);
    fake::reach(STREAM);
    make(&recorder, wait(), 0, true);
    make(&recorder, RecordedCall::Stop, 0, true);
    // Still with the driver when the process ends.
    let _ = begin(&recorder, launch(6));
    recorder.farewell();

    let recording = RecorderFile::load(&path).unwrap();
    assert_eq!(hashes(&recording), [(2, true), (3, true), (4, true)]);
    assert!(matches!(recording.events.first(), Some(Record::Mark(_))));
    assert!(matches!(recording.events.last(), Some(Record::Stop(_))));
    let mut axis = f64::NEG_INFINITY;
    for record in &recording.events {
        let Record::Operation(operation) = record else { continue };
        assert!(operation.entered <= operation.called && operation.called <= operation.returned);
        assert!(operation.returned <= operation.left);
        let (CallKind::Launch { hash, .. }, Some((start, end))) = (operation.what, operation.device) else {
            continue;
        };
        // Single-precision ms; the device's clock continues while the host is busy.
        let host = (operation.left - operation.entered) as f64;
        let work = hash as f64 * 10_000.0;
        assert!(
            end - start > work - 1.0 && end - start < work + host + 1.0,
            "{start} {end}"
        );
        assert!(start >= axis);
        axis = end;
    }
}

#[test]
fn what_the_device_has_not_passed_is_read_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw");
    let recorder = recorder(&path);
    let stream = STREAM + 0x40;
    let on_other = RecordedCall::Operation {
        what: CallKind::Launch { hash: 7, stream: 1 },
        timed: Some(stream),
    };
    make(&recorder, RecordedCall::Mark, 0, true);
    make(&recorder, on_other, 5_000, true);
    // No event was reached: only the mark is written.
    make(&recorder, wait(), 0, true);
    make(&recorder, RecordedCall::Mark, 0, true);
    assert_eq!(fake::reach(stream), 2);
    make(&recorder, wait(), 0, true);
    recorder.farewell();
    assert_eq!(hashes(&RecorderFile::load(&path).unwrap()), [(7, true)]);
}

#[test]
fn a_context_that_ends_takes_times_but_no_calls() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw");
    let recorder = recorder(&path);
    make(&recorder, RecordedCall::Mark, 0, true);
    let stream = STREAM + 0x80;
    let call = |hash| RecordedCall::Operation {
        what: CallKind::Launch { hash, stream: 2 },
        timed: Some(stream),
    };
    make(&recorder, call(8), 5_000, true);
    recorder.read_on();
    recorder.forget(0);
    make(&recorder, call(9), 5_000, true);
    fake::reach(stream);
    make(&recorder, wait(), 0, true);
    recorder.farewell();
    assert_eq!(hashes(&RecorderFile::load(&path).unwrap()), [(8, false), (9, true)]);
}

#[test]
fn nothing_is_recorded_after_the_recording_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raw");
    let mut writer = Writer::create(path.clone()).unwrap();
    writer.end("the disk is full");
    let recorder = Recorder::new(fake::driver(), writer);
    assert!(begin(&recorder, RecordedCall::Mark).is_none());
    assert!(begin(&recorder, launch(1)).is_none());
    recorder.farewell();
    let recording = RecorderFile::load(&path).unwrap();
    assert_eq!(
        (recording.operations(), recording.ended.as_deref()),
        (0, Some("the disk is full"))
    );
}
