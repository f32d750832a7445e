//! The bytes of a trace. Nobody else knows them.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 1 | [`VERSION`]: of the header and of what follows it |
//! | 9 | 7 | zero |
//! | 16 | 8 | length of the body, little-endian |
//! | 24 | 8 | [`weft_kernel_id::image_hash`] of the body, little-endian |
//! | 32 | | the body: the packed trace by bincode 2's standard configuration |
//!
//! The packed trace (`pack.rs`) rests on two facts: a job's steps repeat one sequence of calls exactly, so each sequence is kept once; and a
//! call's times vary little from step to step, so each is kept as its distance from that call's median on a grid of 32 places an
//! octave (`quantise.rs`), half a byte where it is small (`nibbles.rs`). A ResNet-50 request of 160 launches takes some 200 bytes.
//!
//! The checksum is looked at before the body is decoded, the decoder is given a limit on what it may allocate, and what it yields is
//! checked for sense. Every operation of every step takes at least half a byte, so a small file cannot unfold into a large memory.

use std::path::Path;

use super::{Error, Trace, pack::Packed};
use crate::envelope::{self, Broken, HEADER};

/// Tells a trace from other files.
pub const MAGIC: [u8; 8] = *b"weftTRAC";

/// The format that this build writes and the only one that it reads.
pub const VERSION: u8 = 1;

/// The largest trace that is read: [`super::MAX_OPERATIONS`] with two times of a byte each, and room for the names.
pub const MAX_BYTES: u64 = 16 << 20;

fn bincode_config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<{ MAX_BYTES as usize }>()
}

/// The bytes of a trace. `path` is for the message.
pub fn encode(trace: &Trace, path: &Path) -> Result<Vec<u8>, Error> {
    if let Some(why) = trace.unsound() {
        return Err(Error::Unsound {
            path: path.to_owned(),
            why,
        });
    }
    let body = bincode::serde::encode_to_vec(Packed::of(trace), bincode_config()).map_err(|error| Error::Corrupt {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    let bytes = (HEADER + body.len()) as u64;
    if bytes > MAX_BYTES {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            bytes,
            limit: MAX_BYTES,
        });
    }
    Ok(envelope::seal(MAGIC, VERSION, &body))
}

/// The trace of these bytes. `path` is for the message.
pub fn decode(file: &[u8], path: &Path) -> Result<Trace, Error> {
    let corrupt = |why: &str| Error::Corrupt {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    let body = envelope::open(MAGIC, VERSION, file).map_err(|broken| match broken {
        Broken::NotOurs => Error::NotATrace(path.to_owned()),
        Broken::Version(found) => Error::Version {
            path: path.to_owned(),
            found,
            known: VERSION,
        },
        Broken::Truncated { expected } => Error::Truncated {
            path: path.to_owned(),
            found: file.len() as u64,
            expected,
        },
        Broken::Corrupt(why) => corrupt(why),
    })?;
    let (packed, used): (Packed, usize) =
        bincode::serde::decode_from_slice(body, bincode_config()).map_err(|error| corrupt(&error.to_string()))?;
    if used != body.len() {
        return Err(corrupt("bytes left over"));
    }
    let trace = packed.unpack().map_err(corrupt)?;
    match trace.unsound() {
        Some(why) => Err(corrupt(why)),
        None => Ok(trace),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{Call, Direction, Kernel, Operation, Source, Step, Until, tests::sample},
        *,
    };

    fn path() -> &'static Path {
        Path::new("/t/resnet.trace")
    }

    #[test]
    fn what_is_written_is_read() {
        for trace in [sample(), Trace::default()] {
            let file = encode(&trace, path()).unwrap();
            let read = decode(&file, path()).unwrap();
            assert_eq!(read, trace.quantised());
            // Once on the grid, times stay where they are.
            assert_eq!(encode(&read, path()).unwrap(), file);
        }
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_told() {
        let file = encode(&sample(), path()).unwrap();
        for length in 0..file.len() {
            let error = decode(&file[..length], path()).unwrap_err().to_string();
            let expected = if length < 9 { "not a launch trace" } else { "truncated" };
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
            "/t/resnet.trace has trace format 0, this weft reads 1: record it again with this weft"
        );
    }

    #[test]
    fn a_profile_is_no_trace() {
        let profile = crate::codec::encode(&crate::Profile::default(), path()).unwrap();
        assert!(matches!(decode(&profile, path()), Err(Error::NotATrace(_))));
    }

    #[test]
    fn what_makes_no_sense_is_neither_written_nor_read() {
        let mut trace = sample();
        trace.kernels.pop();
        let error = encode(&trace, path()).unwrap_err().to_string();
        assert!(error.contains("not sound"), "{error}");
        let body = bincode::serde::encode_to_vec(Packed::of(&trace), bincode_config()).unwrap();
        let error = decode(&envelope::seal(MAGIC, VERSION, &body), path())
            .unwrap_err()
            .to_string();
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
        // At most a byte and a half for each further operation, and two for each further step.
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
                Just(Until::All),
                any::<u16>().prop_map(Until::Stream),
                any::<u16>().prop_map(Until::Event)
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
                trace.kernels.push(Kernel::of(weft_kernel_id::KernelId::new(7, name, [1; 3], [32, 1, 1], 0)));
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
            let _ = decode(&envelope::seal(MAGIC, VERSION, &body), path());
        }

        #[test]
        fn no_forged_change_is_a_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut body = encode(&sample(), path()).unwrap().split_off(HEADER);
            let at = at.index(body.len());
            body[at] = byte;
            if let Ok(trace) = decode(&envelope::seal(MAGIC, VERSION, &body), path()) {
                prop_assert!(trace.unsound().is_none());
            }
        }
    }
}
