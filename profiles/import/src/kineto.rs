// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of PyTorch's profiler (Kineto), and others of the Chrome trace format with its events.
//!
//! The document is never in memory: each event is parsed, sorted into [`ProfilerFile`], and
//! forgotten. Categories changed over the years (`Kernel`, `kernel`; `Runtime`, `cuda_runtime`), so
//! case does not matter. Fields may be numbers or texts.

use std::{borrow::Cow, fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use weft_profiles::{Gpu, Ns};
use weft_trace_format::Direction;

use crate::{
    ImportError,
    error::quoted,
    input::{Content, ReadProgress, RepairedJson, Watch},
    recording::{CallClass, DeviceWork, LaunchShape, Note, ProfiledCall, ProfilerFile, SyncFact, WorkClass},
};

/// Shift of all times, ns: a file may have times before 0.
const SHIFT_NS: i64 = 1 << 61;

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 4_096;

/// Most GPUs of a file.
const MAX_GPUS: usize = 64;

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
    let bytes = source.bytes.clone();
    let mut report = move || watch(ReadProgress { read: read.get(), size });
    let mut state = JsonDocument {
        file,
        report: &mut report,
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
        Ok(()) => Ok(JsonKind::Events),
    }
}

/// The document's visitor.
struct JsonDocument<'a> {
    file: &'a mut ProfilerFile,
    report: &'a mut dyn FnMut(),
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
                "deviceProperties" => map.next_value_seed(Gpus(&mut *self.file))?,
                "launch_cost" | "steps" if !self.listed => {
                    self.ours = true;
                    return Err(A::Error::custom("a trace of weft"));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
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
        while let Some(event) = seq.next_element::<RawEvent>()? {
            let taken = state.file.room().and_then(|()| take(state.file, &event));
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

/// The list of GPUs.
struct Gpus<'a>(&'a mut ProfilerFile);

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct RawGpu {
    id: Scalar,
    name: Scalar,
    #[serde(rename = "totalGlobalMem")]
    memory: Scalar,
}

impl<'de> DeserializeSeed<'de> for Gpus<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Gpus<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a list of GPUs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(raw) = seq.next_element::<RawGpu>()? {
            let gpu = Gpu {
                name: raw.name.text(),
                memory: raw.memory.whole().unwrap_or(0),
                ..Gpu::default()
            };
            if self.0.gpus.len() < MAX_GPUS {
                self.0.gpus.insert(raw.id.whole().unwrap_or(0) as u32, gpu);
            }
        }
        Ok(())
    }
}

/// A number or a text; any other value counts as none.
#[derive(Debug, Default, Clone, PartialEq)]
enum Scalar {
    #[default]
    None,
    Number(f64),
    Text(String),
}

impl Scalar {
    fn number(&self) -> Option<f64> {
        match self {
            Scalar::None => None,
            Scalar::Number(number) => Some(*number),
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

/// Up to three numbers; more are ignored.
#[derive(Debug, Default)]
struct LaunchExtent([u32; 3]);

impl<'de> Deserialize<'de> for LaunchExtent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<LaunchExtent, D::Error> {
        struct Three;
        impl<'de> Visitor<'de> for Three {
            type Value = LaunchExtent;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a list of three numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LaunchExtent, A::Error> {
                let mut extent = LaunchExtent::default();
                let mut places = extent.0.iter_mut();
                while let Some(number) = seq.next_element::<Scalar>()? {
                    if let Some(place) = places.next() {
                        *place = bounded(&number);
                    }
                }
                Ok(extent)
            }
        }
        from.deserialize_seq(Three)
    }
}

fn bounded(number: &Scalar) -> u32 {
    number.whole().unwrap_or(0).try_into().unwrap_or(u32::MAX)
}

/// Text of any bytes: writers put parts of UTF-8 sequences into cut names.
#[derive(Debug, Default)]
struct JsonText(String);

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JsonText, D::Error> {
        struct TextBytes;
        impl Visitor<'_> for TextBytes {
            type Value = JsonText;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a text")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<JsonText, E> {
                Ok(JsonText(String::from_utf8_lossy(bytes).into_owned()))
            }
            fn visit_str<E>(self, text: &str) -> Result<JsonText, E> {
                Ok(JsonText(text.to_owned()))
            }
        }
        from.deserialize_bytes(TextBytes)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawEvent {
    ph: JsonText,
    cat: JsonText,
    name: JsonText,
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
    grid: LaunchExtent,
    block: LaunchExtent,
    #[serde(rename = "shared memory")]
    shared: Scalar,
    bytes: Scalar,
    wait_on_stream: Scalar,
    wait_on_cuda_event_record_corr_id: Scalar,
}

/// Takes an event into the file.
fn take(file: &mut ProfilerFile, event: &RawEvent) -> Result<(), ImportError> {
    let name = event.name.0.as_str();
    if event.ph.0 != "X" {
        if !matches!(event.ph.0.as_str(), "M") {
            file.skip(if event.cat.0.is_empty() { "event" } else { &event.cat.0 });
        }
        return Ok(());
    }
    let kind = event.cat.0.to_ascii_lowercase();
    let (Some(start), Some(length)) = (event.ts.ns(), event.dur.ns().or(Some(0)).filter(|ns| *ns >= 0)) else {
        file.malformed += 1;
        return Ok(());
    };
    let start = (start + SHIFT_NS) as Ns;
    let end = start + length as Ns;
    let args = &event.args;
    let correlation = args.correlation.whole().or_else(|| args.external.whole());
    match kind.as_str() {
        "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => {
            let class = match kind.as_str() {
                "kernel" => {
                    let shape = LaunchShape {
                        name: file.names.number(name)?,
                        grid: args.grid.0,
                        block: args.block.0,
                        shared: bounded(&args.shared),
                    };
                    WorkClass::Kernel(file.shape(shape))
                }
                _ => copy(name, args.bytes.whole().unwrap_or(0)),
            };
            let stream = args.stream.whole().or_else(|| stream_of(&event.tid)).unwrap_or(0);
            let device = args.device.whole().or_else(|| event.pid.whole()).unwrap_or(0);
            file.works.push(DeviceWork {
                start,
                end,
                // Without a number no call is known: such work is left out with a count.
                key: (0, correlation.unwrap_or(u64::MAX)),
                stream: stream as u32,
                device: device as u32,
                class,
            });
        }
        "runtime" | "cuda_runtime" | "cuda_driver" | "driver" | "hip_runtime" => match CallClass::of(name) {
            Some(class) => {
                let thread = thread(file, event);
                file.calls.push(ProfiledCall {
                    start,
                    end,
                    key: (0, correlation.unwrap_or(u64::MAX)),
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
