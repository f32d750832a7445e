// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effect of an entry point on the order of work on the device.
//!
//! A layer that holds launches must hold every other class for which `is_ordered` is true. A new
//! class must be put on one side: there is no default.

/// Class of an entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Launches kernels.
    Launch,
    /// Launches an executable graph.
    GraphLaunch,
    /// Prepares an executable graph on a stream.
    GraphUpload,
    /// Copies memory, on a stream or synchronously.
    Copy,
    /// Fills memory, on a stream or synchronously.
    Memset,
    /// Moves or discards managed pages on a stream.
    Prefetch,
    /// Records an event.
    Event,
    /// Makes a stream or a context wait for an event.
    Wait,
    /// Signals or awaits semaphores of another API.
    Semaphore,
    /// Calls the host from a stream.
    HostFunc,
    /// Allocates, frees or maps in stream order.
    MemAsync,
    /// Waits for or writes single words in stream order.
    MemOp,
    /// Hands resources of a graphics API to a stream and back.
    Interop,
    /// Blocks the caller until work has ended.
    Sync,
    /// Queries a stream or an event.
    Query,
    /// Begins, ends or changes a stream capture.
    Capture,
    /// Makes, ends or describes streams.
    Stream,
    /// Makes and ends events.
    EventAdmin,
    /// Builds, changes or reads graphs.
    Graph,
    /// Loads code, finds kernels in it and sets them up.
    Module,
    /// Allocates, maps or describes memory.
    Memory,
    /// Texture and surface references, tensor maps.
    Texture,
    /// Contexts and their limits.
    Context,
    /// Describes devices and the driver.
    Device,
    /// `cuInit`.
    Init,
    /// Finds entry points.
    Lookup,
    /// Registers resources of other APIs.
    InteropAdmin,
    /// Profilers, core dumps, logs, checkpoints, names of errors.
    Tools,
}

/// Every class with its name in the table.
const NAMES: [(Class, &str); 28] = [
    (Class::Launch, "launch"),
    (Class::GraphLaunch, "graph-launch"),
    (Class::GraphUpload, "graph-upload"),
    (Class::Copy, "copy"),
    (Class::Memset, "memset"),
    (Class::Prefetch, "prefetch"),
    (Class::Event, "event"),
    (Class::Wait, "wait"),
    (Class::Semaphore, "semaphore"),
    (Class::HostFunc, "host-func"),
    (Class::MemAsync, "mem-async"),
    (Class::MemOp, "mem-op"),
    (Class::Interop, "interop"),
    (Class::Sync, "sync"),
    (Class::Query, "query"),
    (Class::Capture, "capture"),
    (Class::Stream, "stream"),
    (Class::EventAdmin, "event-admin"),
    (Class::Graph, "graph"),
    (Class::Module, "module"),
    (Class::Memory, "memory"),
    (Class::Texture, "texture"),
    (Class::Context, "context"),
    (Class::Device, "device"),
    (Class::Init, "init"),
    (Class::Lookup, "lookup"),
    (Class::InteropAdmin, "interop-admin"),
    (Class::Tools, "tools"),
];

impl Class {
    /// The class of a name.
    pub fn parse(text: &str) -> Option<Self> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(class, _)| *class)
    }

    /// Name in the table.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(class, _)| *class == self)
            .map_or("", |(_, name)| name)
    }

    /// Whether it puts work on the device that must keep its place among launches.
    pub fn is_ordered(self) -> bool {
        match self {
            Class::Launch
            | Class::GraphLaunch
            | Class::GraphUpload
            | Class::Copy
            | Class::Memset
            | Class::Prefetch
            | Class::Event
            | Class::Wait
            | Class::Semaphore
            | Class::HostFunc
            | Class::MemAsync
            | Class::MemOp
            | Class::Interop => true,
            Class::Sync
            | Class::Query
            | Class::Capture
            | Class::Stream
            | Class::EventAdmin
            | Class::Graph
            | Class::Module
            | Class::Memory
            | Class::Texture
            | Class::Context
            | Class::Device
            | Class::Init
            | Class::Lookup
            | Class::InteropAdmin
            | Class::Tools => false,
        }
    }
}
