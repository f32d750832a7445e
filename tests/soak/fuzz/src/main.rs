// SPDX-License-Identifier: MIT OR Apache-2.0
//! The readers of bytes from outside, under libFuzzer, which is led by coverage. `WEFT_FUZZ` names
//! the target; with `WEFT_FUZZ_SEEDS=FOLDER` its first inputs are written there and nothing is run.
//! All targets are one program, since linking one costs seconds.
//!
//! | target | bytes | what reads them |
//! |---|---|---|
//! | packet | a packet of the rendezvous socket | the transport |
//! | desk | control messages of four clients | the transport, then admission |
//! | lane | writes to a client's shared memory | the lane's reader |
//! | turn | writes to two clients' shared memory | the whole scheduler, a turn at a time |
//! | profile | a profile, or a body behind a header that fits it | the profiles' codec |
//! | trace | a launch trace | the traces' codec |
//! | ledger | the broker's book on the disk | admission |
//! | known | what brokers know of devices | admission |
//!
//! A panic, an overflow or a broken promise ends the run, and so does an input for which more
//! memory is taken than [`targets::most`] allows.
#![no_main]

mod memory;
mod seeds;
mod targets;

use std::sync::OnceLock;

use targets::Target;

#[global_allocator]
static MEMORY: memory::Counted = memory::Counted;

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("WEFT_FUZZ").unwrap_or_default();
        let Some(target) = Target::named(&name) else {
            eprintln!("WEFT_FUZZ={name}: one of {}", Target::NAMES.join(", "));
            std::process::exit(2);
        };
        if let Some(folder) = std::env::var_os("WEFT_FUZZ_SEEDS") {
            seeds::write(target, folder.as_ref());
            std::process::exit(0);
        }
        let _ = TARGET.set(target);
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            memory::within(targets::most(*target), || targets::run(*target, data));
        }
    }
);
