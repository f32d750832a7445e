//! The words that processes share, in every order in which a machine may let them happen.
//!
//! loom runs a model again and again, once for each interleaving and for each value that a load may
//! return under the C11 memory model. What is checked is not a copy: with `--cfg loom`
//! weft-protocol itself is built on loom's atomics, and `names` compiles the interposer's file once
//! more on the same. Without that this crate is empty: `RUSTFLAGS="--cfg loom" cargo test -p
//! weft-memory-model --target-dir target/loom`. The rings are of `RECORDS` = 2 slots, the handle
//! table of 64, threads two to four, and the scheduler switches between threads against their will
//! at most so often as `check` says; within these bounds the search is complete.
//!
//! Two things loom does not do. **A sequentially consistent access counts as acquire-release** (its
//! fences are right): where the code relies on the one order of such accesses, loom raises false
//! alarms. So each model can be checked on one of two `Machine`s: C11 as loom has it, or x86, the
//! only one that weft runs on, where every locked instruction is a full barrier (said to loom as a
//! fence on both sides of it); loads and stores are no stronger there than the source says, since a
//! compiler may move them. **Load buffering** (a load that sees a store which comes later in its
//! own thread's past) is not explored; x86 does not do it, nor do compilers across the acquire
//! loads here.
//!
//! | model | what is shown |
//! |---|---|
//! | `ring` | records come whole and in each thread's order, what is overwritten is counted; who sees a launch epoch sees its record |
//! | `credit` | nothing is taken twice or lost between taking, granting and taking back; what is void stays void |
//! | `sleep` | of a client that reports and a broker that falls asleep one sees the other |
//! | `handles` | a handle once published is found, with its meaning |
#![forbid(unsafe_code)]

#[cfg(loom)]
pub mod credit;
#[cfg(loom)]
pub mod handles;
#[cfg(loom)]
#[allow(missing_docs, dead_code)]
mod names;
#[cfg(loom)]
pub mod ring;
#[cfg(loom)]
pub mod sleep;

#[cfg(loom)]
pub use weft_protocol::atomic::Machine;

/// What threads share. Every word of it is made now, before there are threads.
#[cfg(loom)]
fn shared<T: std::fmt::Debug>(value: T) -> loom::sync::Arc<T> {
    let _ = format!("{value:?}");
    loom::sync::Arc::new(value)
}

/// Checks a model in every interleaving with at most so many switches against a thread's will.
#[cfg(loom)]
pub fn check(machine: Machine, switches: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(move || {
        weft_protocol::atomic::run_on(machine);
        // A lane does not fit on the stack that loom gives a model; this one is asked for, in
        // words.
        let thread = loom::thread::Builder::new().stack_size(1 << 16).spawn(model);
        thread.expect("a thread of loom's").join().expect("the model holds");
    });
}
