//! The words that processes share, in every order in which a machine may let them happen.
//!
//! loom runs a model again and again, once for each interleaving and for each value that a load may
//! return under the C11 memory model. What is checked is not a copy: `protocol` and `names` compile
//! the files of the broker and of the interposer once more, on loom's atomics (they take theirs
//! from `super::atomic`). The rings are of [`protocol::RECORDS`] = 2 slots, the handle table of 64,
//! threads two to four, and the scheduler switches between threads against their will at most so
//! often as [`check`] says; within these bounds the search is complete.
//!
//! Two things loom does not do. **A sequentially consistent access counts as acquire-release** (its
//! fences are right): where the code relies on the one order of such accesses, loom raises false
//! alarms. So each model can be checked on one of two [`Machine`]s: C11 as loom has it, or x86, the
//! only one that weft runs on, where every locked instruction is a full barrier (said to loom as a
//! fence on both sides of it); loads and stores are no stronger there than the source says, since a
//! compiler may move them. **Load buffering** (a load that sees a store which comes later in its
//! own thread's past) is not explored; x86 does not do it, nor do compilers across the acquire
//! loads here.
//!
//! | model | what is shown |
//! |---|---|
//! | [`ring`] | records come whole and in each thread's order, what is overwritten is counted; who sees a sign sees its record |
//! | [`credit`] | nothing is taken twice or lost between taking, granting and taking back; what is void stays void |
//! | [`sleep`] | of a client that reports and a broker that falls asleep one sees the other |
//! | [`handles`] | a handle once published is found, with its meaning |

pub mod atomic;
pub mod credit;
pub mod handles;
#[allow(missing_docs, dead_code)]
mod names;
#[allow(missing_docs, dead_code, unused_imports)]
mod protocol;
pub mod ring;
pub mod sleep;

/// What the code runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Machine {
    /// C11, with sequentially consistent accesses taken for acquire-release.
    #[default]
    C11,
    /// Locked instructions are full barriers.
    X86,
}

/// What threads share. Every word of it is made now, before there are threads.
fn shared<T: std::fmt::Debug>(value: T) -> loom::sync::Arc<T> {
    let _ = format!("{value:?}");
    loom::sync::Arc::new(value)
}

/// Checks a model in every interleaving with at most so many switches against a thread's will.
pub fn check(machine: Machine, switches: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(move || {
        atomic::run_on(machine);
        // A lane does not fit on the stack that loom gives a model; this one is asked for, in
        // words.
        let thread = loom::thread::Builder::new().stack_size(1 << 16).spawn(model);
        thread.expect("a thread of loom's").join().expect("the model holds");
    });
}
