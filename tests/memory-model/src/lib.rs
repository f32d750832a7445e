// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words that processes share, in every order in which a machine may execute their accesses.
//!
//! loom runs a model again and again, once for each interleaving and for each value that a load may
//! return under the C11 memory model. The checked code is not a copy: with `--cfg loom`
//! weft-protocol itself is built on loom's atomics, and `names` compiles the interposer's file a
//! second time on them. Without that option this crate is empty: `RUSTFLAGS="--cfg loom" cargo test
//! -p weft-memory-model --target-dir target/loom`. The rings have `RECORDS` = 2 slots, the handle
//! table 64, and a model two to four threads. The scheduler preempts threads at most as often as
//! `check` allows. Within these bounds the search is complete.
//!
//! loom has two limits. **A sequentially consistent access counts as acquire-release** (its fences
//! are right). If the code relies on the single order of such accesses, loom raises false alarms.
//! So each model can be checked on one of two `Machine`s: C11 in loom's version, or x86. weft runs
//! only on x86, on which every locked instruction is a full barrier. The model expresses this with
//! a fence on both sides of the instruction. Loads and stores are no stronger on x86 than in the
//! source, since a compiler may move them. **Load buffering** (a load that sees a store which comes
//! later in its own thread's past) is not explored; x86 does not do it, nor do compilers across the
//! acquire loads here.
//!
//! | model | shows |
//! |---|---|
//! | `ring` | records come whole and in each thread's order, overwritten ones are counted; a thread that sees a launch epoch sees its record |
//! | `credit` | no credit is taken twice or lost between taking, granting and taking back; void credit stays void |
//! | `sleep` | if a client reports while a broker falls asleep, one of them sees the other |
//! | `handles` | a published handle is found, with its meaning |
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

/// A value that threads share. All its words are made now, before any thread exists.
#[cfg(loom)]
fn shared<T: std::fmt::Debug>(value: T) -> loom::sync::Arc<T> {
    let _ = format!("{value:?}");
    loom::sync::Arc::new(value)
}

/// Checks a model in every interleaving with at most `switches` preemptions.
#[cfg(loom)]
pub fn check(machine: Machine, switches: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(move || {
        weft_protocol::atomic::run_on(machine);
        // A lane does not fit on the stack that loom gives a model. This stack's size is in words.
        let thread = loom::thread::Builder::new().stack_size(1 << 16).spawn(model);
        thread.expect("a thread of loom's").join().expect("the model holds");
    });
}
