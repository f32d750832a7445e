// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine: a GPU's treatment of the work of several processes, in virtual time.
//!
//! The engine is a plain value without clock, thread, file or random number. The caller submits
//! work with its time, calls [`Engine::advance_to`], and takes the events from
//! [`Engine::next_output`]. Equal calls give equal outputs. The simulated GPU (`tests/simgpu`)
//! drives it with real time, weft's player of traces with none.
//!
//! # The model
//!
//! * A **context** belongs to one process. In [`Mode::TimeSlice`] one context at a time has the
//!   compute engine. After a slice it goes to the back of the line, and its running kernel is
//!   frozen until its next slice. Changing contexts costs [`Settings::switch`]. A context with
//!   nothing ready yields at once. A context without competitors keeps the engine at no cost.
//! * In [`Mode::Mps`] there is no switch: after every kernel the next context in line has its turn,
//!   among those in line with the lowest priority number ([`Engine::set_context_priority`]). Among
//!   equal contexts, the one whose next operation is of the stream with the lowest number goes
//!   first.
//! * In [`Mode::MpsShared`] kernels share SMs: each takes the part that its blocks need
//!   ([`KernelShape`]), and others' blocks run in the rest. A kernel that runs without others takes
//!   its duration.
//! * A **stream** is first in, first out. Within a context the ready operation with the lowest
//!   priority number runs first, among equals the one ready first. A running kernel is not stopped
//!   for a stream of its own context.
//! * In the other two modes the compute engine runs one kernel or memset at a time. (Real GPUs
//!   overlap small kernels; durations here are those of a kernel that has the GPU.)
//! * Two **copy engines**, one towards the device (and within it) and one towards the host, run in
//!   parallel with the compute engine. Each runs one copy at a time, contexts in turn.
//! * An operation starts [`Settings::launch_latency`] after its submission at the earliest.
//! * A kernel or memset that waited behind another one of its stream begins
//!   [`Settings::kernel_gap`] after its end. An event's record takes its stream
//!   [`Settings::timed_record`] or [`Settings::untimed_record`] more. In such a pause the context
//!   keeps the compute engine; under MPS others' kernels run.
//! * A **dependent kernel** ([`Work::Dependent`]) that waited behind a kernel of its stream, and
//!   gets the compute engine at its end, has begun [`Settings::dependent_early`] before that end:
//!   this part of its time is over. The rest waits for the end, as `griddepcontrol.wait` does, and
//!   no gap comes first. After a wait for a kernel of another stream that kernel is the one before.
//! * [`Work::WaitFor`] is the only dependency across streams: events, the legacy default stream and
//!   graphs are made of it.
//! * With [`Engine::with_memory`] operations name the managed memory that they touch, and stand
//!   still for pages that are not on the device ([`memory`] has the model). Plain copies and
//!   prefetches do not share the link.
//! * [`Work::Host`] stops its stream until [`Engine::release`].
//!
//! Order at one instant: first all ends, then all that becomes ready, then the engines choose.
#![forbid(unsafe_code)]

mod compute;
mod copies;
mod engine;
mod error;
pub mod memory;
mod paging;
mod ready;
mod settings;
mod shared;
mod slab;
mod sms;
mod state;
mod time;
mod usage;
mod work;

pub use engine::Engine;
pub use error::EngineError;
pub use paging::Touch;
pub use settings::{Mode, Settings};
pub use sms::{KernelShape, SmLimits};
pub use time::Ns;
pub use usage::{ContextUsage, Usage};
pub use work::{ContextId, Direction, OpId, Output, Segment, StreamId, Work};
