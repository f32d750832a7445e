// SPDX-License-Identifier: MIT OR Apache-2.0
//! Begins of steps: a request of a service, an iteration of a training.

use std::collections::HashMap;

use regex::Regex;
use weft_profiles::Ns;
use weft_trace_format::Direction;

use crate::{
    error::one_line,
    join::{Awaited, Joined, JoinedCall, launches, really_waited},
    recording::{CallClass, Note, WorkClass},
};

/// How a file is cut into steps.
#[derive(Debug, Clone)]
pub enum Cut {
    /// By what the file has: a thread that waits for another one's work, marks of the profiler,
    /// annotations that repeat, waits between equal sequences of kernels; else the whole file.
    Auto,
    /// The file is one step.
    Whole,
    /// A step begins with each annotation or operator of such a name.
    Name(Regex),
    /// A step ends with each wait for device work.
    Sync,
    /// A step ends with each wait of this thread.
    WaitBy(String),
}

impl std::fmt::Display for Cut {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Cut::Auto => out.write_str("auto"),
            Cut::Whole => out.write_str("whole"),
            Cut::Sync => out.write_str("sync"),
            Cut::Name(regex) => write!(out, "name:{}", one_line(regex.as_str())),
            Cut::WaitBy(thread) => write!(out, "wait-by:{}", one_line(thread)),
        }
    }
}

impl std::str::FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Cut, String> {
        match (text, text.split_once(':')) {
            ("auto", _) => Ok(Cut::Auto),
            ("whole", _) => Ok(Cut::Whole),
            ("sync", _) => Ok(Cut::Sync),
            (_, Some(("name", regex))) => match Regex::new(regex) {
                Ok(regex) => Ok(Cut::Name(regex)),
                Err(error) => Err(error
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or("not a regular expression")
                    .to_owned()),
            },
            (_, Some(("wait-by", thread))) if !thread.is_empty() => Ok(Cut::WaitBy(thread.to_owned())),
            _ => Err("give auto, whole, sync, name:REGEX or wait-by:THREAD".to_owned()),
        }
    }
}

/// Cuts of a file.
#[derive(Debug)]
pub struct Cuts {
    /// Begins of steps, in order.
    pub begins: Vec<Ns>,
    /// End of the last step.
    pub end: Ns,
    /// The kind of cut, for people.
    pub how: String,
    /// Whether waits end the steps. Then none is added, and host time before a step's first call is
    /// time without a request.
    pub by_waits: bool,
}

/// Least number of repetitions that make a mark one of steps.
const LEAST_REPEATS: usize = 3;

/// Least part of the launches that repeated marks must cover.
const LEAST_COVERED: f64 = 0.5;

/// Longest silence of a file's first half that separates its start from its work, ns.
const SILENCE_NS: Ns = 100_000_000;

/// Cuts a file; `None` if it has no step by this rule.
pub fn cut(joined: &Joined, how: &Cut) -> Option<Cuts> {
    let mut cuts = match how {
        Cut::Auto => auto(joined),
        Cut::Whole => Some(whole(joined)),
        Cut::Sync => by_waits(
            joined,
            |call| really_waited(joined, call),
            "each wait for device work ends one",
        ),
        Cut::WaitBy(thread) => {
            let ours = |call: &JoinedCall| {
                let name = joined.file.threads.get(call.host.thread as usize);
                name.is_some_and(|name| name == thread)
            };
            by_waits(joined, ours, &format!("each wait of thread {thread} ends one"))
        }
        Cut::Name(regex) => {
            let named = |note: &&Note| regex.is_match(joined.file.names.name(note.name));
            let notes: Vec<&Note> = joined.notes().filter(named).collect();
            by_notes(joined, notes, &format!("each {} begins one", regex.as_str()))
        }
    }?;
    drop_odd_ends(&launched(joined), &mut cuts);
    Some(cuts)
}

fn auto(joined: &Joined) -> Option<Cuts> {
    by_waiting_thread(joined)
        .or_else(|| by_profiler(joined))
        .or_else(|| by_annotation(joined))
        .or_else(|| by_equal_sequences(joined))
        .or_else(|| Some(whole(joined)))
}

fn whole(joined: &Joined) -> Cuts {
    let calls = &joined.calls;
    let mut begin = calls.first().map_or(0, |call| call.host.start);
    for pair in calls[..calls.len() / 2].windows(2) {
        if pair[1].host.start > pair[0].host.end + SILENCE_NS {
            begin = pair[1].host.start;
        }
    }
    Cuts {
        begins: vec![begin],
        end: Ns::MAX,
        how: "the whole file is one".to_owned(),
        by_waits: false,
    }
}

/// A thread that launches nothing and waits for the others' work ends the steps of a service.
fn by_waiting_thread(joined: &Joined) -> Option<Cuts> {
    let mut threads: HashMap<u32, (usize, usize, usize)> = HashMap::new();
    for call in &joined.calls {
        let (worked, waited, for_nothing) = threads.entry(call.host.thread).or_default();
        match call.host.class {
            CallClass::Wait(_) if call.awaited != Awaited::Nothing => *waited += 1,
            CallClass::Wait(_) => *for_nothing += 1,
            _ => *worked += 1,
        }
    }
    let waits = |(_, (worked, waited, for_nothing)): &(&u32, &(usize, usize, usize))| {
        *worked == 0 && *waited >= LEAST_REPEATS && waited > for_nothing
    };
    let (thread, _) = threads
        .iter()
        .filter(waits)
        .max_by_key(|(thread, (_, waited, _))| (*waited, u32::MAX - **thread))?;
    let name = joined.file.threads.get(*thread as usize)?;
    by_waits(
        joined,
        |call| call.host.thread == *thread,
        &format!(
            "each wait of thread {name}, which only waits, ends one: a pass of the server, for one request or many"
        ),
    )
}

/// `ProfilerStep#N` of PyTorch, of the thread with the most.
fn by_profiler(joined: &Joined) -> Option<Cuts> {
    let file = joined.file;
    let is_step = |note: &&Note| note.own && file.names.name(note.name).starts_with("ProfilerStep");
    let steps: Vec<&Note> = joined.notes().filter(is_step).collect();
    let mut threads: HashMap<u32, usize> = HashMap::new();
    for step in &steps {
        *threads.entry(step.thread).or_default() += 1;
    }
    let (thread, count) = threads
        .into_iter()
        .max_by_key(|(thread, count)| (*count, u32::MAX - thread))?;
    if count < 2 {
        return None;
    }
    let steps = steps.into_iter().filter(|step| step.thread == thread).collect();
    by_notes(joined, steps, "each ProfilerStep of PyTorch is one")
}

/// The outermost of the program's own annotations that repeat and cover most launches.
fn by_annotation(joined: &Joined) -> Option<Cuts> {
    let file = joined.file;
    let launched = launched(joined);
    // First the names as they are, then with each number as `#`.
    for numbered in [false, true] {
        let mut named: HashMap<String, Vec<&Note>> = HashMap::new();
        for note in joined.notes().filter(|note| note.own) {
            let name = file.names.name(note.name);
            // A collective's mark is part of a step.
            if name.starts_with("nccl:") {
                continue;
            }
            let name = if numbered {
                without_numbers(name)
            } else {
                name.to_owned()
            };
            named.entry(name).or_default().push(note);
        }
        let mut found: Vec<(usize, Ns, Cuts)> = named
            .into_iter()
            .filter(|(_, notes)| notes.len() >= LEAST_REPEATS)
            .filter_map(|(name, notes)| {
                let name = one_line(&name);
                let cuts = by_notes(joined, notes, &format!("each {name} begins one"))?;
                (cuts.begins.len() >= LEAST_REPEATS && covers(&launched, &cuts))
                    .then(|| (cuts.begins.len(), cuts.begins[0], cuts))
            })
            .collect();
        found.sort_by_key(|(count, begin, _)| (*count, *begin));
        if let Some((_, _, cuts)) = found.into_iter().next() {
            return Some(cuts);
        }
    }
    None
}

/// The name with each number as `#`.
fn without_numbers(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// Starts of calls with kernels, in order.
fn launched(joined: &Joined) -> Vec<Ns> {
    let calls = joined.calls.iter().filter(|call| launches(joined, call));
    calls.map(|call| call.host.start).collect()
}

/// Number of such calls in each step.
fn launches_of(launched: &[Ns], cuts: &Cuts) -> Vec<usize> {
    let before = |time: Ns| launched.partition_point(|start| *start < time);
    let ends = cuts.begins.iter().skip(1).chain([&cuts.end]);
    let steps = cuts.begins.iter().zip(ends);
    steps.map(|(begin, end)| before(*end) - before(*begin)).collect()
}

fn covers(launched: &[Ns], cuts: &Cuts) -> bool {
    let counts = launches_of(launched, cuts);
    let busy = counts.iter().filter(|count| **count > 0).count();
    counts.iter().sum::<usize>() as f64 >= LEAST_COVERED * launched.len() as f64 && busy * 5 >= counts.len() * 4
}

/// Waits between which the same kernels run again and again, with a copy of the request to the
/// device: a server without marks. Without that copy, it may be the layers of one request.
fn by_equal_sequences(joined: &Joined) -> Option<Cuts> {
    let how = "each wait for device work ends one, with the same kernels before it";
    let cuts = by_waits(joined, |call| really_waited(joined, call), how)?;
    // Number of a copy to the device in a sequence; kernels have larger ones.
    const INPUT: u64 = 1;
    let mut sequences: Vec<Vec<u64>> = vec![Vec::new(); cuts.begins.len()];
    for call in &joined.calls {
        let step = cuts.begins.partition_point(|begin| *begin <= call.host.start);
        if let (Some(step), true) = (step.checked_sub(1), call.host.start < cuts.end) {
            let class = |at: &usize| match joined.works[*at].work.class {
                WorkClass::Kernel(shape) => u64::from(shape) + INPUT + 1,
                WorkClass::Copy {
                    direction: Direction::HostToDevice,
                    ..
                } => INPUT,
                _ => 0,
            };
            sequences[step].extend(joined.works_of(call).iter().map(class));
        }
    }
    let steps = sequences.len();
    let launched: usize = sequences.iter().map(Vec::len).sum();
    let mut counts: HashMap<Vec<u64>, usize> = HashMap::new();
    for sequence in sequences {
        *counts.entry(sequence).or_default() += 1;
    }
    let is_request = |sequence: &[u64]| sequence.contains(&INPUT);
    let repeated = counts
        .iter()
        .filter(|(sequence, count)| **count >= LEAST_REPEATS && is_request(sequence));
    let covered: usize = repeated.map(|(sequence, count)| sequence.len() * count).sum();
    (steps > 2 * LEAST_REPEATS && covered as f64 > 0.8 * launched as f64).then_some(cuts)
}

/// Steps between waits.
fn by_waits(joined: &Joined, ours: impl Fn(&JoinedCall) -> bool, how: &str) -> Option<Cuts> {
    let mut begins = vec![joined.calls.first()?.host.start];
    let mut launched = false;
    for call in &joined.calls {
        launched |= launches(joined, call);
        let waits = matches!(call.host.class, CallClass::Wait(_)) && call.awaited != Awaited::Nothing;
        if waits && launched && ours(call) {
            begins.push(call.host.end);
            launched = false;
        }
    }
    // Calls are in the order of their starts, and waits of several threads return in another.
    begins.sort_unstable();
    begins.dedup();
    let end = begins.pop()?;
    (!begins.is_empty()).then(|| Cuts {
        begins,
        end,
        how: how.to_owned(),
        by_waits: true,
    })
}

/// Steps that begin with marks; marks within a mark do not count.
fn by_notes(joined: &Joined, mut notes: Vec<&Note>, how: &str) -> Option<Cuts> {
    notes.sort_by_key(|note| (note.start, note.end));
    let mut kept: Vec<&Note> = Vec::new();
    for note in notes {
        if kept.last().is_none_or(|last| note.start >= last.end) {
            kept.push(note);
        }
    }
    let (first, last) = (kept.first()?, kept.last()?);
    let within: Ns = kept.iter().map(|note| note.end - note.start).sum();
    // A short mark begins a step and ends the one before it; the last has no end.
    let spans_steps = kept.len() < 2 || within * 2 > last.end - first.start;
    let mut begins: Vec<Ns> = kept.iter().map(|note| note.start).collect();
    let end = match spans_steps {
        true => last.end,
        false => begins.pop()?,
    };
    let before = |time: Ns| joined.calls.partition_point(|call| call.host.start < time);
    (before(begins[0]) < before(end)).then(|| Cuts {
        begins,
        end,
        how: how.to_owned(),
        by_waits: false,
    })
}

/// Leaves out a first or last step that differs much from the others: start-up, or cut off.
fn drop_odd_ends(launched: &[Ns], cuts: &mut Cuts) {
    let is_odd = |cuts: &Cuts, at: usize| {
        let counts = launches_of(launched, cuts);
        let ends = cuts.begins.iter().skip(1).chain([&cuts.end]);
        let times: Vec<Ns> = ends.zip(&cuts.begins).map(|(end, begin)| end - begin).collect();
        let median = |mut all: Vec<u64>| {
            all.sort_unstable();
            all[all.len() / 2]
        };
        let usual = median(counts.iter().map(|count| *count as u64).collect());
        let usual_time = median(times.clone());
        let count = counts[at] as u64;
        count * 10 < usual * 7 || count * 2 > usual * 3 || times[at] > 2 * usual_time
    };
    if cuts.begins.len() > LEAST_REPEATS && is_odd(cuts, 0) {
        cuts.begins.remove(0);
    }
    let last = cuts.begins.len() - 1;
    if last >= LEAST_REPEATS && is_odd(cuts, last) {
        cuts.end = cuts.begins.pop().unwrap_or(cuts.end);
    }
}
