//! Copies and fills, and their charges. Large ones of a background job go through the gate.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_gate::charge;
use weft_protocol::lane::{DEVICE_COPY, HOST_COPY, Kind, Mode};

use super::autotune;
use super::post_launch::Want;
use super::state::Session;
use crate::client::clock;
use crate::driver::stream::own_stream;
use crate::driver::stream::{Event, Stream};
use crate::driver::symbols::StreamOp;
use crate::internal_error::{failpoint, guarded};
use crate::process;

impl Session {
    /// Implements [`super::before_stream_op`].
    #[inline]
    pub fn before_stream_op(&self, op: StreamOp, bytes: u64, stream: Stream) {
        let mode = self.mode();
        if mode == Mode::Free || matches!(op, StreamOp::Other | StreamOp::EventWait) {
            return;
        }
        if op == StreamOp::EventRecord {
            self.tuning.event_recorded();
            return;
        }
        self.link.lane.counters.transfers.fetch_add(1, Ordering::Relaxed);
        if mode == Mode::Alone || self.captures.load(Ordering::Acquire) != 0 {
            return;
        }
        guarded(|| self.transfer(mode, op, bytes, stream));
    }

    /// Implements [`super::before_event_op`].
    pub fn before_event_op(&self, op: StreamOp, event: Event, stream: Stream) {
        if matches!(self.mode(), Mode::Free | Mode::Alone) {
            return;
        }
        match op {
            StreamOp::EventRecord => {
                if autotune::is_timed(event) {
                    guarded(|| self.times(stream));
                }
                self.active_streams.recorded(event, own_stream(stream));
            }
            StreamOp::EventWait => self.active_streams.awaited(own_stream(stream), event),
            _ => {}
        }
    }

    fn transfer(&self, mode: Mode, op: StreamOp, bytes: u64, stream: Stream) {
        failpoint("transfer");
        let (kernel, time) = match op {
            StreamOp::CopyToDevice | StreamOp::CopyToHost => (HOST_COPY, charge::host_copy_time(bytes)),
            StreamOp::CopyOnDevice
            | StreamOp::Memset
            | StreamOp::EventRecord
            | StreamOp::EventWait
            | StreamOp::Other => (DEVICE_COPY, charge::device_copy_time(bytes)),
        };
        let cost = self.link.slowed(time);
        let own = own_stream(stream);
        let hints = self.active_streams.is_idle();
        if mode == Mode::Background && charge::is_gated(bytes) {
            let want = Want {
                kernel,
                cost,
                stream,
                place: self.accounts.place(own),
            };
            let now = clock::now();
            if !self.pass_at_once(kernel, cost, now) && !self.pass_with_pair(&want, now) {
                if process::is_copy() {
                    return;
                }
                self.pass_in_turn(&want);
            }
            self.issue(&want, clock::now());
        }
        let now = clock::now();
        if hints {
            self.link.write(Kind::WakeUpHint, now, 0, 0, stream as u64);
        }
        self.link.write(Kind::Transfer, now, kernel, cost, bytes);
        if self.active_streams.mark(own) {
            self.link.fence_and_ring();
        }
    }
}
