// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics that loom watches, under the standard library's names.
//!
//! A word is made at its first use, as loom's constructors are not constant. `{:?}` uses a word: a
//! model prints its shared words before it starts threads.
#![forbid(unsafe_code)]

use std::cell::{Cell, OnceCell};
use std::fmt;

use loom::sync::atomic as watched;
pub use loom::sync::atomic::{Ordering, fence};

/// Memory model of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Machine {
    /// C11, with sequentially consistent accesses weakened to acquire-release.
    #[default]
    C11,
    /// x86: locked instructions are full barriers.
    X86,
}

thread_local! {
    // loom runs all threads of a model on the checking thread.
    static MACHINE: Cell<Machine> = const { Cell::new(Machine::C11) };
}

/// Sets the machine of the models that run next.
pub fn run_on(machine: Machine) {
    MACHINE.set(machine);
}

/// Runs a locked instruction, with its barriers.
fn locked<T>(instruction: impl FnOnce() -> T) -> T {
    let barrier = || {
        if MACHINE.get() == Machine::X86 {
            fence(Ordering::SeqCst);
        }
    };
    barrier();
    let result = instruction();
    barrier();
    result
}

macro_rules! word {
    ($name:ident, $of:ty, $watched:ty) => {
        /// See `std`.
        #[derive(Default)]
        pub struct $name {
            first: $of,
            word: OnceCell<$watched>,
        }

        impl $name {
            /// A word with this first value.
            pub const fn new(first: $of) -> $name {
                $name {
                    first,
                    word: OnceCell::new(),
                }
            }

            fn word(&self) -> &$watched {
                self.word.get_or_init(|| <$watched>::new(self.first))
            }

            /// See `std`.
            pub fn load(&self, order: Ordering) -> $of {
                self.word().load(order)
            }

            /// See `std`. On x86 a sequentially consistent store is an exchange.
            pub fn store(&self, value: $of, order: Ordering) {
                match order {
                    Ordering::SeqCst => locked(|| self.word().store(value, order)),
                    _ => self.word().store(value, order),
                }
            }

            /// See `std`.
            pub fn swap(&self, value: $of, order: Ordering) -> $of {
                locked(|| self.word().swap(value, order))
            }

            /// See `std`.
            pub fn fetch_add(&self, value: $of, order: Ordering) -> $of {
                locked(|| self.word().fetch_add(value, order))
            }

            /// See `std`.
            pub fn fetch_max(&self, value: $of, order: Ordering) -> $of {
                locked(|| self.word().fetch_max(value, order))
            }

            /// See `std`.
            pub fn compare_exchange(&self, old: $of, new: $of, won: Ordering, lost: Ordering) -> Result<$of, $of> {
                locked(|| self.word().compare_exchange(old, new, won, lost))
            }

            /// See `std`. Never fails spuriously.
            pub fn compare_exchange_weak(&self, old: $of, new: $of, won: Ordering, lost: Ordering) -> Result<$of, $of> {
                self.compare_exchange(old, new, won, lost)
            }

            /// See `std`.
            pub fn fetch_update(
                &self,
                won: Ordering,
                lost: Ordering,
                mut change: impl FnMut($of) -> Option<$of>,
            ) -> Result<$of, $of> {
                let mut value = self.load(lost);
                while let Some(new) = change(value) {
                    match self.compare_exchange(value, new, won, lost) {
                        Ok(old) => return Ok(old),
                        Err(now) => value = now,
                    }
                }
                Err(value)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.word();
                f.write_str(stringify!($name))
            }
        }
    };
}

word!(AtomicU32, u32, watched::AtomicU32);
word!(AtomicU64, u64, watched::AtomicU64);
word!(AtomicI64, i64, watched::AtomicI64);
word!(AtomicUsize, usize, watched::AtomicUsize);
