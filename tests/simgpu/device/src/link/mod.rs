//! The client's end: see [`Link`].
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use simgpu_engine::{ContextId, Engine, OpId, Output, StreamId, Work};

use crate::{Config, Ctx, Durations, Effects, Extra, NameId, Ns, Op, Seq, Status, Stream, Times};

/// How many operations a link may have submitted whose end it has not taken notice of, and for how many it remembers times.
pub const WINDOW: u64 = 65_536;

/// Operations a stream may have outstanding before [`Link::submit`] waits: about what a real channel's ring takes.
pub const STREAM_DEPTH: u64 = 1_024;

/// Why the device did not do what it was asked.
#[derive(Debug)]
pub enum LinkError {
    /// The configuration cannot be used.
    Config(crate::ConfigError),
    /// The device could not be started or reached: what was tried, and how it ended.
    Unreachable(String),
    /// The device died, or cut the link off. Everything on it is lost.
    Lost,
    /// The time was over first.
    TimedOut,
    /// A child of fork uses its parent's link.
    Forked,
    /// No device memory left.
    OutOfMemory,
    /// No such context, stream or operation.
    Unknown,
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Config(error) => error.fmt(f),
            LinkError::Unreachable(what) => write!(f, "the simulated device cannot be reached: {what}"),
            LinkError::Lost => f.write_str("the simulated device is gone"),
            LinkError::TimedOut => f.write_str("the operation did not end in time"),
            LinkError::Forked => f.write_str("a forked child cannot use its parent's device"),
            LinkError::OutOfMemory => f.write_str("out of device memory"),
            LinkError::Unknown => f.write_str("no such context, stream or operation"),
        }
    }
}

impl std::error::Error for LinkError {}

/// How to find the device.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The device's socket. `None`: `SIMGPU_SOCKET`, else `simgpu-$UID/device.sock` in `$XDG_RUNTIME_DIR` or `/tmp`.
    pub socket: Option<PathBuf>,
    /// The program `simgpu-device`. `None`: `SIMGPU_DEVICE_BIN`, else in `../bin` of or beside the library or program that holds this code.
    pub program: Option<PathBuf>,
    /// What the device calls this client in its log. `None`: the process's name.
    pub name: Option<String>,
}

/// A client's connection to the device. All methods may be called from any thread.
///
/// * [`Link::submit`] costs a fraction of a microsecond and does not wake the device: work carries the time of its submission and is timed exactly whenever the device looks.
/// * News of ended operations is taken by [`Link::poll`], [`Link::status`], [`Link::wait`] and [`Link::wait_for_news`]; these perform [`Effects`], one
///   at a time, in the order in which the operations ended. An operation counts as done once its effect has been performed.
/// * A child of fork gets [`LinkError::Forked`] from everything that can fail and does nothing in the rest ([`Link::usable`]).
pub struct Link {
    inner: Mutex<Inner>,
    changed: Condvar,
    effects: Arc<dyn Effects>,
    effecting: Mutex<()>,
    began: Instant,
    config: Config,
}

struct Inner {
    engine: Engine,
    durations: Durations,
    contexts: HashMap<u32, ContextId>,
    streams: HashMap<u32, StreamId>,
    names: HashMap<String, u32>,
    ops: Vec<(OpId, u64, Option<Times>)>,
    next: u32,
    used: u64,
}

impl Link {
    /// Connects to the device, starting it if there is none.
    pub fn open(options: &Options, effects: Arc<dyn Effects>) -> Result<Link, LinkError> {
        let _ = options;
        let config = Config::from_environment().map_err(LinkError::Config)?;
        Ok(Link {
            inner: Mutex::new(Inner {
                engine: Engine::new(config.engine(false)),
                durations: Durations::new(&config),
                contexts: HashMap::new(),
                streams: HashMap::new(),
                names: HashMap::new(),
                ops: vec![(OpId::DONE, 0, Some(Times::default()))],
                next: 1,
                used: 0,
            }),
            changed: Condvar::new(),
            effects,
            effecting: Mutex::new(()),
            began: Instant::now(),
            config,
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process may use the link: false in a child of fork.
    pub fn usable(&self) -> bool {
        true
    }

    /// Wall seconds a device second.
    pub fn dilation(&self) -> f64 {
        self.config.device.dilation
    }

    /// The device's time. It runs while nobody uses it.
    pub fn now(&self) -> Ns {
        (self.began.elapsed().as_nanos() as f64 / self.config.device.dilation) as Ns
    }

    /// A new context; it takes [`crate::config::DeviceConfig::context_memory`].
    pub fn context(&self) -> Result<Ctx, LinkError> {
        self.reserve(self.config.device.context_memory)?;
        let mut inner = self.inner();
        let id = inner.next;
        inner.next += 1;
        let context = inner.engine.add_context();
        inner.contexts.insert(id, context);
        Ok(Ctx(id))
    }

    /// Ends a context with all its streams and work, at once. Memory reserved for it is the caller's to release.
    pub fn close_context(&self, ctx: Ctx) -> Result<(), LinkError> {
        {
            let mut inner = self.inner();
            let context = inner.contexts.remove(&ctx.0).ok_or(LinkError::Unknown)?;
            let _ = inner.engine.remove_context(context);
        }
        self.release(self.config.device.context_memory);
        Ok(())
    }

    /// A new stream. A lower priority number goes first within the context, as CUDA counts.
    pub fn stream(&self, ctx: Ctx, priority: i32) -> Result<Stream, LinkError> {
        let mut inner = self.inner();
        let context = *inner.contexts.get(&ctx.0).ok_or(LinkError::Unknown)?;
        let stream = inner
            .engine
            .add_stream(context, priority)
            .map_err(|_| LinkError::Unknown)?;
        let id = inner.next;
        inner.next += 1;
        inner.streams.insert(id, stream);
        Ok(Stream(id))
    }

    /// Takes no more work for the stream; what it has still runs, then the stream is gone.
    pub fn close_stream(&self, stream: Stream) -> Result<(), LinkError> {
        let mut inner = self.inner();
        let stream = inner.streams.remove(&stream.0).ok_or(LinkError::Unknown)?;
        inner.engine.close_stream(stream).map_err(|_| LinkError::Unknown)
    }

    /// The id of a name; the same name has the same id. Ask once a kernel, not once a launch.
    pub fn name(&self, name: &str) -> NameId {
        let mut inner = self.inner();
        let next = inner.names.len() as u32 + 1;
        NameId(*inner.names.entry(name.to_owned()).or_insert(next))
    }

    /// Puts an operation at the end of a stream. Waits while the stream has [`STREAM_DEPTH`] operations outstanding.
    pub fn submit(&self, stream: Stream, op: Op, extra: Extra) -> Result<Seq, LinkError> {
        let now = self.now();
        let mut guard = self.inner();
        let inner = &mut *guard;
        let stream = *inner.streams.get(&stream.0).ok_or(LinkError::Unknown)?;
        let work = match op {
            Op::Kernel(launch) => Work::Kernel {
                duration: launch.duration.unwrap_or_else(|| {
                    inner
                        .durations
                        .of(u64::from(launch.name.0), "", launch.grid, launch.block)
                }),
                held: launch.held,
            },
            Op::Copy { direction, bytes } => Work::Copy { direction, bytes },
            Op::Memset { bytes } => Work::Memset { bytes },
            Op::Marker => Work::Marker,
            Op::WaitFor(seq) => Work::WaitFor(
                inner
                    .ops
                    .get(seq.0 as usize)
                    .map(|(op, _, _)| *op)
                    .ok_or(LinkError::Unknown)?,
            ),
            Op::Host => Work::Host,
        };
        let seq = inner.ops.len() as u64;
        let op = inner
            .engine
            .submit(now, stream, work, seq)
            .map_err(|_| LinkError::Unknown)?;
        inner.ops.push((op, extra.token, None));
        drop(guard);
        self.changed.notify_all();
        Ok(Seq(seq))
    }

    /// Takes what has ended and performs its effects.
    pub fn poll(&self) {
        let _one_at_a_time = self.effecting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        loop {
            let mut guard = self.inner();
            let inner = &mut *guard;
            inner.engine.advance_to(now);
            match inner.engine.next_output() {
                None => return,
                Some(Output::Done { tag, start, end, .. }) => {
                    let token = inner.ops.get(tag as usize).map_or(0, |op| op.1);
                    let times = Times { start, end };
                    drop(guard);
                    if token != 0 {
                        self.effects.ended(token, Seq(tag), times);
                    }
                    if let Some(op) = self.inner().ops.get_mut(tag as usize) {
                        op.2 = Some(times);
                    }
                    self.changed.notify_all();
                }
                Some(Output::Reached { tag, at, .. }) => {
                    let token = inner.ops.get(tag as usize).map_or(0, |op| op.1);
                    drop(guard);
                    self.effects.reached(token, Seq(tag), at);
                }
                Some(Output::Switch { .. }) => {}
            }
        }
    }

    /// What is known about an operation now.
    pub fn status(&self, seq: Seq) -> Status {
        self.poll();
        match self.inner().ops.get(seq.0 as usize) {
            Some((_, _, Some(times))) => Status::Done(*times),
            _ => Status::Pending,
        }
    }

    /// Waits until an operation has ended and its effect has been performed. `None` waits as long as the device lives.
    pub fn wait(&self, seq: Seq, timeout: Option<Duration>) -> Result<Status, LinkError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let status = self.status(seq);
            if status.is_done() {
                return Ok(status);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(LinkError::TimedOut);
            }
            self.wait_for_news(deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            }))?;
        }
    }

    /// For a client's helper thread: sleeps until an operation that is `prompt` has news (or `timeout` is over), takes what has ended and performs its effects.
    pub fn wait_for_news(&self, timeout: Duration) -> Result<(), LinkError> {
        let inner = self.inner();
        let next = inner
            .engine
            .next_event_time()
            .map_or(Duration::from_millis(10), |next| {
                Duration::from_nanos((next.saturating_sub(self.now()) as f64 * self.dilation()) as u64)
            });
        let sleep = next.min(timeout).min(Duration::from_millis(10));
        drop(self.changed.wait_timeout(inner, sleep));
        self.poll();
        Ok(())
    }

    /// The client has done its part of an [`Op::Host`], or a held kernel shall end.
    pub fn host_done(&self, seq: Seq) -> Result<(), LinkError> {
        let now = self.now();
        let mut inner = self.inner();
        let op = inner.ops.get(seq.0 as usize).map(|op| op.0).ok_or(LinkError::Unknown)?;
        inner.engine.release(now, op).map_err(|_| LinkError::Unknown)?;
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes device memory from what all processes share.
    pub fn reserve(&self, bytes: u64) -> Result<(), LinkError> {
        let mut inner = self.inner();
        let used = inner.used.checked_add(bytes).ok_or(LinkError::OutOfMemory)?;
        if used > self.config.device.memory {
            return Err(LinkError::OutOfMemory);
        }
        inner.used = used;
        Ok(())
    }

    /// Gives device memory back.
    pub fn release(&self, bytes: u64) {
        let mut inner = self.inner();
        inner.used = inner.used.saturating_sub(bytes);
    }

    /// Free and total device memory, over all processes.
    pub fn memory(&self) -> (u64, u64) {
        let total = self.config.device.memory;
        (total - self.inner().used, total)
    }
}
