//! The simulated GPU's engine: what a GPU does with the work of several processes, in virtual time.
//!
//! The engine is a plain value. It has no clock, thread, file or random number: the caller says
//! what was submitted when, asks it to [`Engine::advance_to`] a time, and takes what happened from
//! [`Engine::next_output`]. The same calls give the same outputs, always. The device process drives
//! it with real time, the lab with none.
//!
//! # The model
//!
//! * A **context** belongs to one process. In [`Mode::TimeSlice`] one context at a time has the
//!   compute engine; after a slice it goes to the back of the line, its running kernel frozen and
//!   later resumed. Taking the engine over from another context costs [`Settings::switch`]. A
//!   context with nothing ready yields at once. A context that is alone keeps the engine; its
//!   slices are then counted but cost nothing.
//! * In [`Mode::Mps`] there is no switch: after every kernel the next context in line has its turn.
//! * A **stream** is first in, first out. Within a context the ready operation of the stream with
//!   the lowest priority number runs first, among equals the one that was ready first. A running
//!   kernel is not stopped for a stream of its own context.
//! * The compute engine runs one kernel or memset at a time: kernels never share it side by side.
//!   (Real GPUs overlap small kernels; durations here are those of a kernel that has the GPU.)
//! * Two **copy engines**, one towards the device (and within it) and one towards the host, run
//!   beside the compute engine and beside each other, one copy at a time, contexts in turn.
//! * Every operation can start [`Settings::launch_latency`] after its submission at the earliest.
//! * Dependencies across streams are [`Work::WaitFor`]; everything else (events, the legacy default
//!   stream, graphs) is made of it.
//! * With [`Engine::with_memory`] operations say which managed memory they touch and stand still
//!   for what is not on the device; prefetches and discards are operations ([`memory`] has the
//!   model). Plain copies and prefetches do not share the link.
//! * [`Work::Host`] stops its stream until [`Engine::release`].
//!
//! Order at one instant: what ends, ends first; then what becomes ready; then the engines choose.
#![forbid(unsafe_code)]

mod compute;
mod copies;
mod engine;
mod error;
pub mod memory;
mod paging;
mod ready;
mod settings;
mod slab;
mod state;
mod time;
mod usage;
mod work;

pub use engine::Engine;
pub use error::EngineError;
pub use paging::Touch;
pub use settings::{Mode, Settings};
pub use time::Ns;
pub use usage::{ContextUsage, Usage};
pub use work::{ContextId, Direction, OpId, Output, Segment, StreamId, Work};
