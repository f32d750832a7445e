// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of PyTorch's profiler (Kineto), and others of the Chrome trace format with its events.
//!
//! The document is never in memory: each event is parsed, sorted into [`ProfilerFile`], and
//! forgotten. Categories changed over the years (`Kernel`, `kernel`; `Runtime`, `cuda_runtime`), so
//! case does not matter. Fields may be numbers or texts.

use std::{
    borrow::Cow,
    cell::Cell,
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt,
    path::Path,
    rc::Rc,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use weft_profiles::Ns;
use weft_trace_format::Direction;

use crate::{
    ImportError,
    error::quoted,
    input::{Content, ReadProgress, RepairedJson, Watch},
    recording::{
        CallClass, DeviceWork, LaunchShape, MAX_LENGTH_NS, NO_CALL, NO_WORK, Note, ProfiledCall, ProfilerFile,
        SyncFact, WorkClass,
    },
};

/// Shift of all times, ns: a file may have times before 0.
const SHIFT_NS: i64 = 1 << 61;

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 4_096;

/// A JSON document as far as it is known.
#[derive(Debug, PartialEq, Eq)]
pub enum JsonKind {
    /// A profiler's trace, which was read.
    Events,
    /// A trace that weft exported; it is not read.
    Ours,
}

/// Reads a JSON document into `file`.
pub fn read(content: Content, path: &Path, file: &mut ProfilerFile, watch: Watch) -> Result<JsonKind, ImportError> {
    let (read, size) = (content.read.clone(), content.size);
    let source = RepairedJson::new(content);
    let (bytes, taken) = (source.bytes.clone(), source.taken.clone());
    let mut report = move || watch(ReadProgress { read: read.get(), size });
    let mut state = JsonDocument {
        file,
        owners: EventOwners::default(),
        report: &mut report,
        bytes: bytes.clone(),
        taken,
        events: 0,
        listed: false,
        ours: false,
        refused: None,
    };
    let mut json = serde_json::Deserializer::from_reader(std::io::BufReader::with_capacity(64 << 10, source));
    let parsed = (&mut state).deserialize(&mut json).and_then(|()| json.end());
    if state.ours {
        return Ok(JsonKind::Ours);
    }
    if let Some(error) = state.refused {
        return Err(error);
    }
    match parsed {
        Err(error) if error.is_eof() => Err(ImportError::Truncated {
            path: path.to_owned(),
            bytes: bytes.get(),
        }),
        Err(error) if error.is_io() => Err(ImportError::Unreadable {
            path: path.to_owned(),
            source: error.into(),
        }),
        Err(error) => Err(ImportError::Json {
            path: path.to_owned(),
            why: quoted(&error),
        }),
        Ok(()) if !state.listed => Err(ImportError::NoEvents { path: path.to_owned() }),
        Ok(()) => {
            state.owners.settle(state.file);
            Ok(JsonKind::Events)
        }
    }
}

/// Processes of calls, and lanes of work, in the order of the file's calls and works. A file that
/// several ranks' files were merged into has calls of one number in several processes.
#[derive(Debug, Default)]
struct EventOwners {
    calls: Vec<u64>,
    works: Vec<u64>,
    numbers: HashMap<String, u64>,
}

/// Most processes and lanes of a file. Further ones share the last number.
const MAX_PROCESSES: usize = 65_536;

impl EventOwners {
    fn number(&mut self, event: &RawEvent) -> u64 {
        let next = self.numbers.len() as u64;
        match self.numbers.len() < MAX_PROCESSES {
            true => *self.numbers.entry(event.pid.text()).or_insert(next),
            false => self.numbers.get(&event.pid.text()).copied().unwrap_or(next),
        }
    }

    /// Gives calls and work their processes, if the calls are of several. The work of a lane is of
    /// the process most of whose calls have its numbers and begin before it.
    fn settle(self, file: &mut ProfilerFile) {
        if self.calls.iter().all(|owner| Some(owner) == self.calls.first()) {
            file.notes.iter_mut().for_each(|note| note.process = 0);
            return;
        }
        let mut launched: HashMap<u64, Vec<(u64, Ns)>> = HashMap::new();
        for (call, owner) in file.calls.iter_mut().zip(&self.calls) {
            call.key.0 = *owner;
            if !matches!(call.class, CallClass::Wait(_)) {
                launched.entry(call.key.1).or_default().push((*owner, call.start));
            }
        }
        let mut votes: BTreeMap<(u64, u32), BTreeMap<u64, u64>> = BTreeMap::new();
        for (work, lane) in file.works.iter().zip(&self.works) {
            let votes = votes.entry((*lane, work.device)).or_default();
            let calls = launched.get(&work.key.1).into_iter().flatten();
            for (owner, _) in calls.filter(|(_, start)| *start <= work.start) {
                *votes.entry(*owner).or_default() += 1;
            }
        }
        // Ranks that run in step have the same votes: then each has a lane of its own.
        let mut owned: HashMap<u64, u64> = HashMap::new();
        let mut owners: HashMap<(u64, u32), u64> = HashMap::new();
        for (lane, votes) in votes {
            let best = votes
                .into_iter()
                .max_by_key(|(owner, count)| (*count, Reverse(owned.get(owner).copied()), Reverse(*owner)));
            if let Some((owner, _)) = best {
                *owned.entry(owner).or_default() += 1;
                owners.insert(lane, owner);
            }
        }
        for (work, lane) in file.works.iter_mut().zip(&self.works) {
            work.key.0 = owners.get(&(*lane, work.device)).copied().unwrap_or(*lane);
        }
    }
}

/// The document's visitor.
struct JsonDocument<'a> {
    file: &'a mut ProfilerFile,
    owners: EventOwners,
    report: &'a mut dyn FnMut(),
    /// Bytes read, and those up to the last value.
    bytes: Rc<Cell<u64>>,
    taken: Rc<Cell<u64>>,
    events: u64,
    listed: bool,
    ours: bool,
    refused: Option<ImportError>,
}

impl<'de> DeserializeSeed<'de> for &mut JsonDocument<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut JsonDocument<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a profiler's trace: an object with traceEvents, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<str>>()? {
            match key.as_ref() {
                "traceEvents" => map.next_value_seed(Events(&mut *self))?,
                "deviceProperties" => {
                    let text = map.next_value::<Box<RawValue>>()?;
                    for gpu in serde_json::from_str::<Vec<RawGpu>>(text.get()).unwrap_or_default() {
                        let memory = gpu.memory.whole().unwrap_or(0);
                        self.file.gpu(bounded(&gpu.id), &gpu.name.text(), memory);
                    }
                }
                "launch_cost" | "steps" if !self.listed => {
                    self.ours = true;
                    return Err(A::Error::custom("a trace of weft"));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
            self.taken.set(self.bytes.get());
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self).visit_seq(seq)
    }
}

/// The list of events.
struct Events<'a, 'b>(&'a mut JsonDocument<'b>);

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let state = self.0;
        state.listed = true;
        while let Some(text) = seq.next_element::<Box<RawValue>>()? {
            state.taken.set(state.bytes.get());
            // One odd field makes an event malformed, not the file.
            let taken = match serde_json::from_str::<RawEvent>(text.get()) {
                Ok(event) => state
                    .file
                    .room()
                    .and_then(|()| take(state.file, &mut state.owners, &event)),
                Err(_) => {
                    state.file.malformed += 1;
                    Ok(())
                }
            };
            if let Err(error) = taken {
                state.refused = Some(error);
                return Err(A::Error::custom("refused"));
            }
            state.events += 1;
            if state.events.is_multiple_of(PROGRESS_EVENTS) {
                (state.report)();
            }
        }
        Ok(())
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawGpu {
    id: Scalar,
    name: Scalar,
    #[serde(rename = "totalGlobalMem")]
    memory: Scalar,
}

/// A number or a text; any other value counts as none.
#[derive(Debug, Default, Clone, PartialEq)]
enum Scalar {
    #[default]
    None,
    Number(f64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Scalar::Number(number) => number.fmt(out),
            Scalar::Text(text) if !text.trim().is_empty() => write!(out, "{text:?}"),
            _ => out.write_str("no number"),
        }
    }
}

impl Scalar {
    fn number(&self) -> Option<f64> {
        match self {
            Scalar::None => None,
            // `-NaN` became `-0`.
            Scalar::Number(number) => Some(*number).filter(|number| *number != 0.0 || number.is_sign_positive()),
            Scalar::Text(text) => text.trim().parse().ok(),
        }
    }

    fn whole(&self) -> Option<u64> {
        let number = self.number()?;
        // Beyond 2^53 a JSON number is not exact; no field of an event is that large.
        (0.0..9.1e15).contains(&number).then_some(number as u64)
    }

    fn text(&self) -> String {
        match self {
            Scalar::None => String::new(),
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text.clone(),
        }
    }

    /// A time or duration in us, as ns.
    fn ns(&self) -> Option<i64> {
        let us = self.number()?;
        let ns = us.trunc() * 1e3 + (us.fract() * 1e3).round();
        (ns.abs() < SHIFT_NS as f64).then_some(ns as i64)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Scalar, D::Error> {
        struct AnyScalar;
        impl<'de> Visitor<'de> for AnyScalar {
            type Value = Scalar;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a value")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar::Number(value as f64))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Number(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
                Ok(Scalar::None)
            }
            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::None)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::None)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::None)
            }
        }
        from.deserialize_any(AnyScalar)
    }
}

/// Up to three numbers.
fn extent(numbers: &[Scalar]) -> [u32; 3] {
    [0, 1, 2].map(|at| numbers.get(at).map_or(0, bounded))
}

fn bounded(number: &Scalar) -> u32 {
    number.whole().unwrap_or(0).try_into().unwrap_or(u32::MAX)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawEvent<'a> {
    ph: Cow<'a, str>,
    cat: Cow<'a, str>,
    name: Cow<'a, str>,
    pid: Scalar,
    tid: Scalar,
    ts: Scalar,
    dur: Scalar,
    args: EventArguments,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventArguments {
    correlation: Scalar,
    /// Old files have the correlation number only here.
    #[serde(rename = "external id")]
    external: Scalar,
    device: Scalar,
    stream: Scalar,
    grid: Vec<Scalar>,
    block: Vec<Scalar>,
    #[serde(rename = "shared memory")]
    shared: Scalar,
    #[serde(rename = "registers per thread")]
    registers: Scalar,
    bytes: Scalar,
    /// A lane's name, in metadata.
    name: Scalar,
    wait_on_stream: Scalar,
    wait_on_cuda_event_record_corr_id: Scalar,
}

/// Takes an event into the file.
fn take(file: &mut ProfilerFile, owners: &mut EventOwners, event: &RawEvent<'_>) -> Result<(), ImportError> {
    let name = event.name.as_ref();
    if event.ph != "X" {
        file.of_xla |= name == "process_name" && event.args.name.text().starts_with("/device:");
        if event.ph != "M" {
            file.skip(if event.cat.is_empty() { "event" } else { &event.cat });
        }
        return Ok(());
    }
    let kind = event.cat.to_ascii_lowercase();
    let length = match event.dur {
        Scalar::None => Some(0),
        _ => event.dur.ns(),
    };
    let length = length
        .and_then(|ns| Ns::try_from(ns).ok())
        .filter(|ns| *ns <= MAX_LENGTH_NS);
    if kind == "kernel" && (event.ts.ns().is_none() || length.is_none_or(|length| length == 0)) {
        file.untimed_kernel(name, format_args!("ts {} and dur {}", event.ts, event.dur));
    }
    let (Some(start), Some(length)) = (event.ts.ns(), length) else {
        file.malformed += 1;
        return Ok(());
    };
    let start = (start + SHIFT_NS) as Ns;
    let end = start + length;
    let args = &event.args;
    let correlation = args.correlation.whole().or_else(|| args.external.whole());
    match kind.as_str() {
        "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => {
            let class = match kind.as_str() {
                "kernel" => {
                    let shape = LaunchShape {
                        name: file.names.number(name)?,
                        grid: extent(&args.grid),
                        block: extent(&args.block),
                        shared: bounded(&args.shared),
                    };
                    WorkClass::Kernel(file.shape(shape, bounded(&args.registers)))
                }
                _ => copy(name, args.bytes.whole().unwrap_or(0)),
            };
            let stream = args.stream.whole().or_else(|| stream_of(&event.tid)).unwrap_or(0);
            let device = args.device.whole().or_else(|| event.pid.whole()).unwrap_or(0);
            let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            let lane = owners.number(event);
            owners.works.push(lane);
            file.works.push(DeviceWork {
                start,
                end,
                // Such work is left out with a count.
                key: (0, correlation.unwrap_or(NO_CALL)),
                stream: small(stream),
                device: small(device),
                class,
            });
        }
        "runtime" | "cuda_runtime" | "cuda_driver" | "driver" | "hip_runtime" => match CallClass::of(name) {
            Some(class) => {
                let thread = thread(file, event);
                let owner = owners.number(event);
                owners.calls.push(owner);
                file.calls.push(ProfiledCall {
                    start,
                    end,
                    key: (0, correlation.unwrap_or(NO_WORK)),
                    thread,
                    class,
                });
            }
            None => file.skip("calls that ask for no work"),
        },
        "cuda_sync" => {
            let known = |value: &Scalar| value.whole().filter(|number| *number < u64::from(u32::MAX));
            let Some(correlation) = args.correlation.whole() else {
                file.malformed += 1;
                return Ok(());
            };
            let stream = known(&args.stream).map(|stream| stream as u32);
            let waits = name.contains("Wait");
            let on = known(&args.wait_on_stream).map(|stream| stream as u32);
            file.syncs.insert(
                (0, correlation),
                SyncFact {
                    stream: on.or(stream.filter(|_| !waits && !name.contains("Event"))),
                    recorded_by: known(&args.wait_on_cuda_event_record_corr_id).map(|call| (0, call)),
                    waiting: stream.filter(|_| waits),
                },
            );
        }
        "user_annotation" | "cpu_op" | "operator" | "python_function" => {
            // Once PyTorch's own annotations were operators.
            let annotations = ["ProfilerStep", "Optimizer.", "enumerate(DataLoader)"];
            let own = kind == "user_annotation" || annotations.iter().any(|begin| name.starts_with(begin));
            let thread = thread(file, event);
            let name = file.names.number(name)?;
            file.notes.push(Note {
                start,
                end,
                name,
                process: owners.number(event),
                thread,
                own,
            });
        }
        _ => file.skip(if kind.is_empty() { "event" } else { &kind }),
    }
    Ok(())
}

fn thread(file: &mut ProfilerFile, event: &RawEvent) -> u32 {
    match &event.tid {
        Scalar::Text(text) => file.thread(text),
        Scalar::None => file.thread("0"),
        Scalar::Number(number) => file.thread(&format!("{number:.0}")),
    }
}

/// Number of `stream 7`.
fn stream_of(tid: &Scalar) -> Option<u64> {
    match tid {
        Scalar::Text(text) => text.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok(),
        _ => tid.whole(),
    }
}

/// Class of `Memcpy DtoH (Device -> Pinned)` and the like.
fn copy(name: &str, bytes: u64) -> WorkClass {
    let name = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let direction = if has(&["memset"]) {
        Direction::Fill
    } else if has(&["htod", "hosttodevice"]) {
        Direction::HostToDevice
    } else if has(&["dtoh", "devicetohost"]) {
        Direction::DeviceToHost
    } else {
        Direction::DeviceToDevice
    };
    let pinned = match (has(&["pinned"]), has(&["pageable"])) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    };
    WorkClass::Copy {
        direction,
        bytes,
        pinned,
    }
}
