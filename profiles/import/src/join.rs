// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file's calls and the work of one device, joined: which call launched what, what each wait was
//! for, and which stream waited for another.
//!
//! Nsight's files have the target of a wait. PyTorch's have it in some versions. Else it is the
//! work that ended last before the wait returned. And a stream waited for another one if its work
//! began when the other's ended, although it was launched long before.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use weft_profiles::Ns;

use crate::recording::{Awaits, CallClass, CallKey, DeviceWork, Note, ProfiledCall, ProfilerFile, WorkClass};

/// Time after another stream's end within which work begins that waited for it, ns.
const NEAR_NS: Ns = 12_000;

/// Time that work was late although it could have begun, if it waited for another stream, ns.
const LATE_NS: Ns = 15_000;

/// Least time from a launch call to its work, ns: earlier work could not have begun.
const LEAST_LATENCY_NS: Ns = 6_000;

/// Accuracy of a profiler's device times against its host times, ns.
const CLOCK_NS: Ns = 2_000;

/// Accuracy of a profiler's device times among themselves, ns.
const ORDER_NS: Ns = 500;

/// Shortest wait that really waited, ns: a call that finds ended work takes less.
pub const REAL_WAIT_NS: Ns = 6_000;

/// A call with its work.
#[derive(Debug, Clone)]
pub struct JoinedCall {
    /// The call.
    pub host: ProfiledCall,
    /// Its work: a range of [`Joined::works`]' indices in [`Joined::of_calls`].
    works: Range<usize>,
    /// For a wait, its target.
    pub awaited: Awaited,
    /// For a launch: the work of another stream for which its stream waited.
    pub after: Option<usize>,
}

/// Work with its call.
#[derive(Debug, Clone, Copy)]
pub struct JoinedWork {
    /// The work.
    pub work: DeviceWork,
    /// Its call; `None`: it was launched before the file begins, or the file lost the call.
    pub call: Option<usize>,
    /// Its part of the time in which it ran, ns: pieces that run at one moment have equal parts of
    /// it. For a copy, all of it.
    pub share: Ns,
    /// End of all work on the kernel engine that began earlier.
    pub engine_free: Ns,
}

/// Work for which a call waited, and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Nothing that the file has: the call's time is host time.
    Nothing,
    /// All work.
    All(Ns),
    /// The work of a stream.
    Stream(u32, Ns),
    /// An event after this work.
    Work(usize),
}

/// Calls and work of one device.
#[derive(Debug)]
pub struct Joined<'a> {
    /// The file.
    pub file: &'a ProfilerFile,
    /// The device.
    pub device: u32,
    process: u64,
    /// Calls in the order of their starts.
    pub calls: Vec<JoinedCall>,
    /// Work in the order of its starts.
    pub works: Vec<JoinedWork>,
    of_calls: Vec<usize>,
    /// Devices and processes with work, each with its busy time.
    pub busy: Vec<((u32, u64), Ns)>,
    /// Waits of which the file has what they were for, and waits for which it was inferred.
    pub exact_waits: u64,
    /// Such waits for which it was inferred.
    pub inferred_waits: u64,
    /// Dependencies between streams.
    pub dependencies: u64,
    lanes: HashMap<u32, StreamHistory>,
    all: StreamHistory,
    by_end: Vec<usize>,
}

/// Work in the order of its launches.
#[derive(Debug, Default)]
struct StreamHistory {
    launched: Vec<Ns>,
    /// End of all work so far.
    ended: Vec<Ns>,
    works: Vec<usize>,
}

impl StreamHistory {
    fn push(&mut self, launched: Ns, end: Ns, work: usize) {
        self.launched.push(launched);
        self.ended.push(end.max(self.ended.last().copied().unwrap_or(0)));
        self.works.push(work);
    }

    /// End of the work that was launched before, and the last piece of it.
    fn before(&self, time: Ns) -> Option<(Ns, usize)> {
        let at = self
            .launched
            .partition_point(|launched| *launched < time)
            .checked_sub(1)?;
        Some((self.ended[at], self.works[at]))
    }
}

impl<'a> Joined<'a> {
    /// Joins the calls and work of a device, the busiest if none is given.
    pub fn new(file: &'a ProfilerFile, device: Option<u32>) -> Joined<'a> {
        let mut busy: BTreeMap<(u32, u64), Ns> = BTreeMap::new();
        for work in &file.works {
            let time = busy.entry((work.device, work.key.0)).or_default();
            *time = time.saturating_add(work.end - work.start);
        }
        let mut busy: Vec<((u32, u64), Ns)> = busy.into_iter().collect();
        busy.sort_by_key(|(key, time)| (Reverse(*time), *key));
        let wanted = |((number, _), _): &&((u32, u64), Ns)| device.is_none_or(|device| device == *number);
        let (device, process) = busy
            .iter()
            .find(wanted)
            .map_or((device.unwrap_or(0), 0), |(key, _)| *key);
        let mut joined = Joined {
            file,
            device,
            process,
            calls: Vec::new(),
            works: Vec::new(),
            of_calls: Vec::new(),
            busy,
            exact_waits: 0,
            inferred_waits: 0,
            dependencies: 0,
            lanes: HashMap::new(),
            all: StreamHistory::default(),
            by_end: Vec::new(),
        };
        joined.take_works();
        joined.take_calls();
        joined.fill_lanes();
        joined.resolve_waits();
        joined.find_dependencies();
        joined
    }

    /// Work of a call, in the order of its starts.
    pub fn works_of(&self, call: &JoinedCall) -> &[usize] {
        &self.of_calls[call.works.clone()]
    }

    /// Marks of the process.
    pub fn notes(&self) -> impl Iterator<Item = &'a Note> {
        let process = self.process;
        self.file.notes.iter().filter(move |note| note.process == process)
    }

    fn take_works(&mut self) {
        let ours = |work: &&DeviceWork| work.device == self.device && work.key.0 == self.process;
        let mut works: Vec<DeviceWork> = self.file.works.iter().filter(ours).copied().collect();
        works.sort_by_key(|work| (work.start, work.end));
        let shares = shares(&works);
        let mut engine_free = 0;
        for (work, share) in works.into_iter().zip(shares) {
            self.works.push(JoinedWork {
                work,
                call: None,
                share,
                engine_free,
            });
            if work.class.on_kernel_engine() {
                engine_free = engine_free.max(work.end);
            }
        }
    }

    fn take_calls(&mut self) {
        let mut by_key: HashMap<CallKey, Vec<usize>> = HashMap::new();
        for (at, work) in self.works.iter().enumerate() {
            by_key.entry(work.work.key).or_default().push(at);
        }
        // Threads that use other devices, and those that use this one.
        let mut uses: HashMap<u32, (bool, bool)> = HashMap::new();
        let elsewhere: HashMap<CallKey, ()> = match self.busy.len() {
            0 | 1 => HashMap::new(),
            _ => {
                let theirs = self.file.works.iter().filter(|work| work.device != self.device);
                theirs.map(|work| (work.key, ())).collect()
            }
        };
        let mut calls: Vec<ProfiledCall> = self
            .file
            .calls
            .iter()
            .filter(|call| call.key.0 == self.process)
            .copied()
            .collect();
        calls.sort_by_key(|call| (call.start, Reverse(call.end)));
        for call in &calls {
            let used = uses.entry(call.thread).or_default();
            used.0 |= elsewhere.contains_key(&call.key);
            used.1 |= by_key.contains_key(&call.key);
        }
        let mut until: HashMap<u32, Ns> = HashMap::new();
        for host in calls {
            let works = match host.class {
                CallClass::Launch | CallClass::Graph | CallClass::Copy { .. } => by_key.remove(&host.key),
                CallClass::Wait(_) if !matches!(uses.get(&host.thread), Some((true, false))) => Some(Vec::new()),
                _ => None,
            };
            let Some(works) = works else { continue };
            // A call inside a call that is kept: the runtime's around the driver's.
            let until = until.entry(host.thread).or_default();
            if works.is_empty() && host.end <= *until {
                continue;
            }
            *until = host.end.max(*until);
            for work in &works {
                self.works[*work].call = Some(self.calls.len());
            }
            let begin = self.of_calls.len();
            self.of_calls.extend(works);
            self.calls.push(JoinedCall {
                host,
                works: begin..self.of_calls.len(),
                awaited: Awaited::Nothing,
                after: None,
            });
        }
    }

    fn fill_lanes(&mut self) {
        for call in &self.calls {
            for at in &self.of_calls[call.works.clone()] {
                let work = &self.works[*at].work;
                let lane = self.lanes.entry(work.stream).or_default();
                lane.push(call.host.start, work.end, *at);
                self.all.push(call.host.start, work.end, *at);
            }
        }
        self.by_end = (0..self.works.len())
            .filter(|at| self.works[*at].call.is_some())
            .collect();
        self.by_end.sort_by_key(|at| self.works[*at].work.end);
    }

    /// Start of a work's call.
    fn launched(&self, work: usize) -> Option<Ns> {
        Some(self.calls[self.works[work].call?].host.start)
    }

    /// Work that ended last within a wait, of that launched before.
    fn ended_in(&self, host: &ProfiledCall) -> Option<usize> {
        let end = host.end + ORDER_NS;
        let upto = self.by_end.partition_point(|at| self.works[*at].work.end <= end);
        let ended = self.by_end[..upto].iter().rev();
        let inside = ended.take_while(|at| self.works[**at].work.end >= host.start);
        // Work that others launched meanwhile is no hint: the search is bounded.
        inside
            .take(1_000)
            .copied()
            .find(|at| self.launched(*at).is_some_and(|launched| launched < host.start))
    }

    fn resolve_waits(&mut self) {
        let starts: HashMap<CallKey, Ns> = match self.file.syncs.is_empty() {
            true => HashMap::new(),
            false => {
                let records = self.file.calls.iter().filter(|call| call.class == CallClass::Record);
                records.map(|call| (call.key, call.start)).collect()
            }
        };
        let mut last_stream: HashMap<u32, u32> = HashMap::new();
        for at in 0..self.calls.len() {
            let host = self.calls[at].host;
            let CallClass::Wait(kind) = host.class else {
                if let Some(work) = self.works_of(&self.calls[at]).first() {
                    last_stream.insert(host.thread, self.works[*work].work.stream);
                }
                continue;
            };
            let fact = self.file.syncs.get(&host.key).copied().unwrap_or_default();
            let recorded = fact.recorded_by.and_then(|call| starts.get(&call)).zip(fact.stream);
            let exact = recorded.is_some() || (kind == Awaits::Stream && fact.stream.is_some());
            let late = host.end + CLOCK_NS;
            let ended = self.ended_in(&host);
            let ended_at = ended.map(|work| self.works[work].work.end);
            let awaited = match (kind, recorded) {
                (Awaits::Device, _) => {
                    let all = self.all.before(host.start).map(|(end, _)| end);
                    all.filter(|end| *end <= late).or(ended_at).map(Awaited::All)
                }
                (Awaits::Event, Some((recorded, stream))) => {
                    let lane = self.lanes.get(&stream);
                    lane.and_then(|lane| lane.before(*recorded))
                        .map(|(_, work)| Awaited::Work(work))
                }
                (Awaits::Event, None) if host.end - host.start < REAL_WAIT_NS => None,
                (Awaits::Event, None) => ended.map(Awaited::Work),
                (Awaits::Stream, _) => {
                    let on = |stream: u32| {
                        let (end, _) = self.lanes.get(&stream)?.before(host.start)?;
                        Some((stream, end))
                    };
                    let own = last_stream.get(&host.thread).copied().and_then(on);
                    let other = ended.and_then(|work| on(self.works[work].work.stream));
                    let found = fact.stream.and_then(on);
                    let found = found.or(own.filter(|(_, end)| *end <= late)).or(other).or(own);
                    found.map(|(stream, end)| Awaited::Stream(stream, end.min(late)))
                }
            };
            let awaited = awaited.unwrap_or(Awaited::Nothing);
            match awaited {
                Awaited::Nothing => {}
                _ if exact || kind == Awaits::Device => self.exact_waits += 1,
                _ => self.inferred_waits += 1,
            }
            self.calls[at].awaited = awaited;
        }
    }

    fn find_dependencies(&mut self) {
        if self.lanes.len() < 2 {
            return;
        }
        let records = self.file.calls.iter().filter(|call| call.class == CallClass::Record);
        let recorded: HashMap<CallKey, Ns> = records.map(|call| (call.key, call.start)).collect();
        let mut exact = false;
        let waits = self
            .file
            .calls
            .iter()
            .filter(|call| call.class == CallClass::StreamWait);
        for wait in waits {
            let Some(fact) = self.file.syncs.get(&wait.key) else {
                continue;
            };
            let (Some(stream), Some(waiting)) = (fact.stream, fact.waiting) else {
                continue;
            };
            let Some(time) = fact.recorded_by.and_then(|call| recorded.get(&call)) else {
                continue;
            };
            let (Some(lane), Some(theirs)) = (self.lanes.get(&stream), self.lanes.get(&waiting)) else {
                continue;
            };
            exact = true;
            // The stream's next work waits.
            let next = theirs.launched.partition_point(|launched| *launched < wait.start);
            let (Some((_, before)), Some(next)) = (lane.before(*time), theirs.works.get(next)) else {
                continue;
            };
            if let (true, Some(call)) = (stream != waiting, self.works[*next].call) {
                self.calls[call].after = Some(before);
            }
        }
        if !exact {
            self.infer_dependencies();
        }
        self.dependencies = self.calls.iter().filter(|call| call.after.is_some()).count() as u64;
    }

    fn infer_dependencies(&mut self) {
        let mut ended: HashMap<u32, Ns> = HashMap::new();
        let mut found = Vec::new();
        for joined in &self.works {
            let work = &joined.work;
            let before = ended.insert(work.stream, work.end).unwrap_or(0);
            let Some(call) = joined.call else { continue };
            let launched = self.calls[call].host.start;
            let ready = before.max(launched + LEAST_LATENCY_NS);
            if work.start < ready + LATE_NS {
                continue;
            }
            let upto = self
                .by_end
                .partition_point(|at| self.works[*at].work.end <= work.start + ORDER_NS);
            let near = self.by_end[..upto].iter().rev();
            let cause = near
                .take_while(|at| self.works[**at].work.end + NEAR_NS >= work.start)
                .take(1_000)
                .find(|at| {
                    self.works[**at].work.stream != work.stream && self.launched(**at).is_some_and(|at| at < launched)
                });
            if let Some(cause) = cause {
                found.push((call, *cause));
            }
        }
        for (call, cause) in found {
            self.calls[call].after.get_or_insert(cause);
        }
    }
}

/// Part of each piece of its device's time: pieces that run at one moment have equal parts of it.
fn shares(works: &[DeviceWork]) -> Vec<Ns> {
    let on_engine = |work: &&DeviceWork| work.class.on_kernel_engine();
    let mut ends: Vec<Ns> = works.iter().filter(on_engine).map(|work| work.end).collect();
    ends.sort_unstable();
    let starts = works.iter().filter(on_engine).map(|work| (work.start, 1i64));
    let mut changes: Vec<(Ns, i64)> = starts.chain(ends.into_iter().map(|end| (end, -1))).collect();
    changes.sort_unstable();
    // The share of one piece that runs from the begin to each moment.
    let mut moments: Vec<(Ns, f64)> = Vec::with_capacity(changes.len());
    let (mut before, mut running, mut sum) = (0, 0i64, 0.0);
    for (time, change) in changes {
        if running > 0 {
            sum += (time - before) as f64 / running as f64;
        }
        running += change;
        before = time;
        match moments.last_mut() {
            Some(last) if last.0 == time => last.1 = sum,
            _ => moments.push((time, sum)),
        }
    }
    let at = |time: Ns| {
        let place = moments.binary_search_by_key(&time, |(moment, _)| *moment);
        place.map_or(0.0, |place| moments[place].1)
    };
    works
        .iter()
        .map(|work| match work.class.on_kernel_engine() {
            true => (at(work.end) - at(work.start)).round() as Ns,
            false => work.end - work.start,
        })
        .collect()
}

/// Whether a call waited for device work, and for how long it did.
pub fn really_waited(joined: &Joined, call: &JoinedCall) -> bool {
    let done = match call.awaited {
        Awaited::Nothing => return false,
        Awaited::All(end) | Awaited::Stream(_, end) => end,
        Awaited::Work(work) => joined.works[work].work.end,
    };
    done > call.host.start && call.host.end - call.host.start >= REAL_WAIT_NS
}

/// Whether the call gives the device kernels to run.
pub fn launches(joined: &Joined, call: &JoinedCall) -> bool {
    let kernel = |at: &usize| matches!(joined.works[*at].work.class, WorkClass::Kernel(_) | WorkClass::Graph(_));
    joined.works_of(call).iter().any(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(start: Ns, end: Ns) -> DeviceWork {
        DeviceWork {
            start,
            end,
            key: (0, start),
            stream: 0,
            device: 0,
            class: WorkClass::Kernel(0),
        }
    }

    #[test]
    fn work_beside_work_has_its_part_of_the_time() {
        let works = [kernel(0, 100), kernel(50, 150), kernel(200, 220), kernel(200, 200)];
        assert_eq!(shares(&works), [75, 75, 20, 0]);
    }
}
