// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a trace, which only this module knows.
//!
//! [`weft_profiles::format`] has the header; the body is the packed trace in bincode 2's standard
//! configuration.
//!
//! Steps repeat sequences of calls, so `pack.rs` keeps each sequence once. A call's times vary
//! little. So each time is stored as its distance from the call's median, on a grid of 32 places
//! per octave (`quantise.rs`). A small distance takes half a byte (`nibbles.rs`). A ResNet-50
//! request of 160 launches takes some 200 bytes.
//!
//! An operation of a step takes at least half a byte, so a small file cannot expand to a large
//! amount of memory. A decoded body is checked for soundness.
//!
//! Version 2 has the kernels' registers behind all that version 1 has.

use std::{io::Write, path::Path};

use weft_profiles::format::{FileError, Format, Wording};

use crate::{MAX_FILE_BYTES, Trace, pack::PackedTrace};

/// First bytes of a trace file.
pub const MAGIC: [u8; 8] = *b"weftTRAC";

/// Format version that this build writes if a kernel's registers are known.
pub const VERSION: u8 = 2;

/// Format version that this build writes if none are known, and the oldest that it reads.
const WITHOUT_REGISTERS: u8 = 1;

pub(crate) const FORMAT: Format<{ MAX_FILE_BYTES as usize }> = Format {
    magic: MAGIC,
    version: VERSION,
    oldest: WITHOUT_REGISTERS,
    wording: &Wording {
        name: "trace",
        not_ours: "is not a weft launch trace: give a file that `weft profile --trace FILE` wrote",
        again: "record it again",
        smaller: "record fewer steps",
        full: " (a file that was there before is unchanged: make room and record it again)",
        denied: "",
    },
};

/// Errors of a trace. Each message is one line with the fault, its place and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The trace to be written is unsound.
    #[error("the trace for {path} is invalid ({why}): it was not written")]
    Unsound {
        /// Path of the file to be written.
        path: String,
        /// The trace's fault.
        why: &'static str,
    },
    /// The trace to be written could not be read again.
    #[error(
        "the trace for {path} has too many different calls, with {operations} operations: it was not written, record fewer steps"
    )]
    TooLarge {
        /// Path of the file to be written.
        path: String,
        /// Number of the trace's operations.
        operations: usize,
    },
    /// The trace's file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Encodes a trace. `path` is for the message.
pub fn encode(trace: &Trace, path: &Path) -> Result<Vec<u8>, TraceError> {
    if let Some(why) = trace.unsound() {
        return Err(TraceError::Unsound {
            path: path.display().to_string(),
            why,
        });
    }
    let registers: Vec<u32> = trace.kernels.iter().map(|kernel| kernel.registers).collect();
    let packed = PackedTrace::of(trace);
    let file = match registers.iter().all(|known| *known == 0) {
        true => {
            let version = WITHOUT_REGISTERS;
            Format { version, ..FORMAT }.encode(&packed, path)?
        }
        false => FORMAT.encode(&(packed, registers), path)?,
    };
    // A reader's limit counts memory. A writer's counts bytes, of which a call takes fewer.
    match unpacked(&file, path) {
        Ok(_) => Ok(file),
        Err(_) => Err(TraceError::TooLarge {
            path: path.display().to_string(),
            operations: trace.operations(),
        }),
    }
}

/// The packed trace of a file, and the registers of its kernels.
fn unpacked(file: &[u8], path: &Path) -> Result<(PackedTrace, Vec<u32>), FileError> {
    match FORMAT.open(file, path)? {
        (WITHOUT_REGISTERS, body) => Ok((FORMAT.decode(body, path)?, Vec::new())),
        (_, body) => FORMAT.decode(body, path),
    }
}

/// Decodes a trace. `path` is for the message.
pub fn decode(file: &[u8], path: &Path) -> Result<Trace, TraceError> {
    let (packed, registers) = unpacked(file, path)?;
    let mut trace = packed.unpack().map_err(|why| FORMAT.corrupt(path, why))?;
    for (kernel, registers) in trace.kernels.iter_mut().zip(registers) {
        kernel.registers = registers;
    }
    match trace.unsound() {
        Some(why) => Err(FORMAT.corrupt(path, why).into()),
        None => Ok(trace),
    }
}

impl Trace {
    /// Reads a trace from a file of any name.
    pub fn load(path: &Path) -> Result<Trace, TraceError> {
        decode(&FORMAT.read(path)?, path)
    }

    /// Writes the trace, replacing an older file atomically.
    pub fn save(&self, path: &Path) -> Result<(), TraceError> {
        let bytes = encode(self, path)?;
        Ok(FORMAT.replace(path, 0o666, |file| file.write_all(&bytes))?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use weft_profiles::format::HEADER_BYTES;

    use super::{
        super::{AwaitedWork, Call, Direction, Operation, Source, Step, TracedKernel, tests::sample},
        *,
    };

    fn path() -> &'static Path {
        Path::new("/t/resnet.trace")
    }

    #[test]
    fn what_is_written_is_read() {
        let mut without = sample();
        without.kernels.iter_mut().for_each(|kernel| kernel.registers = 0);
        for (trace, version) in [(sample(), 2), (without, 1), (Trace::default(), 1)] {
            let file = encode(&trace, path()).unwrap();
            assert_eq!(file[8], version);
            let read = decode(&file, path()).unwrap();
            assert_eq!(read, trace.quantised());
            // Times on the grid do not change.
            assert_eq!(encode(&read, path()).unwrap(), file);
        }
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_told() {
        let file = encode(&sample(), path()).unwrap();
        for length in 0..file.len() {
            let error = decode(&file[..length], path()).unwrap_err().to_string();
            let expected = if length < 9 {
                "not a weft launch trace"
            } else {
                "truncated"
            };
            assert!(error.contains(expected), "{length}: {error}");
        }
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 0x20;
            let message = decode(&changed, path()).unwrap_err().to_string();
            assert!(
                message.contains("/t/resnet.trace") && !message.contains('\n'),
                "{message}"
            );
        }
    }

    #[test]
    fn another_version_is_told() {
        let mut file = encode(&sample(), path()).unwrap();
        file[8] = 0;
        assert_eq!(
            decode(&file, path()).unwrap_err().to_string(),
            "/t/resnet.trace has trace format 0, this weft reads 2: record it again with this weft"
        );
    }

    #[test]
    fn a_profile_is_no_trace() {
        let profile = weft_profiles::codec::encode(&weft_profiles::Profile::default(), path()).unwrap();
        let error = decode(&profile, path()).unwrap_err().to_string();
        assert!(error.contains("is not a weft launch trace"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_neither_written_nor_read() {
        let mut trace = sample();
        trace.kernels.pop();
        let error = encode(&trace, path()).unwrap_err().to_string();
        assert!(error.contains("is invalid"), "{error}");
        let file = FORMAT
            .encode(&(PackedTrace::of(&trace), Vec::<u32>::new()), path())
            .unwrap();
        let error = decode(&file, path()).unwrap_err().to_string();
        assert!(error.contains("corrupt (a "), "{error}");
    }

    #[test]
    fn repeated_steps_are_kept_once() {
        let one = sample();
        let mut many = one.clone();
        many.steps = one.steps.iter().cycle().take(one.steps.len() * 100).cloned().collect();
        let (one_size, many_size) = (
            encode(&one, path()).unwrap().len(),
            encode(&many, path()).unwrap().len(),
        );
        // At most one and a half bytes for a further operation, two for a further step.
        let room = (many.operations() - one.operations()) * 3 / 2 + 2 * (many.steps.len() - one.steps.len());
        assert!(many_size <= one_size + room, "{one_size} {many_size}");
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let time = || prop_oneof![0u64..100, 1_000u64..100_000, any::<u64>()];
        let call = prop_oneof![
            (0u32..3, 0u16..3, time()).prop_map(|(kernel, stream, duration)| Call::Launch {
                kernel,
                stream,
                duration
            }),
            (any::<u64>(), any::<bool>(), time()).prop_map(|(bytes, waits, duration)| Call::Copy {
                direction: Direction::DeviceToHost,
                bytes,
                stream: 1,
                waits,
                duration
            }),
            prop_oneof![
                Just(AwaitedWork::All),
                any::<u16>().prop_map(AwaitedWork::Stream),
                any::<u16>().prop_map(AwaitedWork::Event)
            ]
            .prop_map(Call::Sync),
            any::<u16>().prop_map(|event| Call::Record { event, stream: 0 }),
            any::<u16>().prop_map(|event| Call::Wait { event, stream: 2 }),
        ];
        (0u16..2, any::<bool>(), time(), call).prop_map(|(thread, handed_over, host_before, call)| Operation {
            thread,
            handed_over,
            host_before,
            call,
        })
    }

    proptest! {
        #[test]
        fn any_sound_trace_goes_out_and_comes_back(
            steps in prop::collection::vec((any::<u64>(), prop::collection::vec(operation(), 0..12)), 0..8),
        ) {
            let mut trace = Trace { source: Source::Generated, ..Trace::default() };
            for name in ["a", "ab", "b"] {
                trace.kernels.push(TracedKernel::of(weft_kernel_id::KernelId::new(7, name, [1; 3], [32, 1, 1], 0)));
            }
            for (think, mut operations) in steps {
                for at in 0..operations.len() {
                    let before = at.checked_sub(1).map(|before| operations[before].thread);
                    operations[at].handed_over &= before.is_some_and(|before| before != operations[at].thread);
                }
                trace.steps.push(Step { think, operations });
            }
            let file = encode(&trace, path()).unwrap();
            prop_assert_eq!(decode(&file, path()).unwrap(), trace.quantised());
        }

        #[test]
        fn no_bytes_are_a_panic(body in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&body, path());
            let _ = decode(&FORMAT.seal(VERSION, &body), path());
            let _ = decode(&FORMAT.seal(WITHOUT_REGISTERS, &body), path());
        }

        #[test]
        fn no_forged_change_is_a_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut body = encode(&sample(), path()).unwrap().split_off(HEADER_BYTES);
            let at = at.index(body.len());
            body[at] = byte;
            if let Ok(trace) = decode(&FORMAT.seal(VERSION, &body), path()) {
                prop_assert!(trace.unsound().is_none());
            }
        }
    }
}
