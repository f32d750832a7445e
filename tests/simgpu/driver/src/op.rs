//! Puts work on streams: the one door for every stream-ordered entry point.
//!
//! For whoever writes graphs: a client's call ends in [`enqueue`], which gives the work to
//! `graph::capture_work` while the stream is being captured; a replay calls [`submit`] for each
//! node, on streams of its own (`Stream::internal`) or the client's, with `Stream::wait_for` for
//! the edges and the graph launch's number for the log. Nothing else is needed.
#![forbid(unsafe_code)]

use simgpu_device::{Op, Seq};

use crate::abi::R;
use crate::effect::Effect;
use crate::graph;
use crate::state::Driver;
use crate::stream::Stream;
use crate::work::Work;

/// A client's call: onto the device, or into the capture that the stream is in.
pub(crate) fn enqueue(driver: &Driver, stream: &std::sync::Arc<Stream>, work: Work) -> R {
    if stream.is_capturing() {
        return graph::capture_work(driver, stream, work);
    }
    submit(driver, stream, &work, 0).map(drop)
}

/// Onto the device. `graph` numbers the graph launch it belongs to; 0: none. Answers the last
/// operation it became.
pub(crate) fn submit(driver: &Driver, stream: &Stream, work: &Work, graph: u64) -> R<Seq> {
    match work {
        Work::Kernel(launch) => launch.submit(driver, stream, graph),
        Work::Copy(copy) => copy.submit(driver, stream, graph),
        Work::Set(set) => set.submit(driver, stream, graph),
        Work::Host(call) => stream.submit(
            driver,
            Op::Host,
            Some(Effect::of_call(*call, stream.context.clone())),
            graph,
        ),
        Work::MemOps(ops) => {
            let mut last = Seq::NONE;
            for op in ops.iter() {
                last = op.submit(driver, stream, graph)?;
            }
            Ok(last)
        }
        Work::Empty => stream.submit(driver, Op::Marker, None, graph),
    }
}
