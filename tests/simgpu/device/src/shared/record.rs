// SPDX-License-Identifier: MIT OR Apache-2.0
//! Submissions as words, written by a client into its lane and read by the device.
//!
//! A record is ten words, of which a kind uses some. Words without sense are [`Malformed`].
#![forbid(unsafe_code)]

use crate::op::{Advice, Ctx, Direction, Extra, KernelLaunch, LinkStream, NameId, Op, Seq, TouchedAddresses};

/// Words of a record.
pub(crate) const WORDS: usize = 10;

/// A record as words.
pub(crate) type Words = [u64; WORDS];

/// Words that no honest client writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// An operation.
    Submit {
        stream: LinkStream,
        seq: Seq,
        op: Op,
        extra: Extra,
    },
    /// A host operation is done, or a held kernel shall end.
    HostDone(Seq),
    OpenContext {
        ctx: Ctx,
        /// Under MPS, among contexts.
        priority: i32,
    },
    CloseContext(Ctx),
    OpenStream {
        ctx: Ctx,
        stream: LinkStream,
        priority: i32,
    },
    CloseStream(LinkStream),
    /// Managed memory begins or ends.
    Manage {
        start: u64,
        bytes: u64,
        ends: bool,
    },
    /// Advice about managed memory is given or taken back.
    Advise {
        start: u64,
        bytes: u64,
        advice: Advice,
        on: bool,
    },
    /// Memory that the next operation uses.
    Touch(TouchedAddresses),
}

const KERNEL: u64 = 1;
const COPY: u64 = 2;
const MEMSET: u64 = 3;
const MARKER: u64 = 4;
const WAIT_FOR: u64 = 5;
const HOST: u64 = 6;
const HOST_DONE: u64 = 7;
const OPEN_CONTEXT: u64 = 8;
const CLOSE_CONTEXT: u64 = 9;
const OPEN_STREAM: u64 = 10;
const CLOSE_STREAM: u64 = 11;
const PREFETCH: u64 = 12;
const DISCARD: u64 = 13;
const MANAGE: u64 = 14;
const READ_MOSTLY: u64 = 15;
const TOUCH: u64 = 16;
const PREFER_DEVICE: u64 = 17;
const EVENT_RECORD: u64 = 18;

// Flags in word 0, next to the kind.
const PROMPT: u64 = 0x100;
const HELD: u64 = 0x200;
const TIMED: u64 = 0x400;
const DEPENDENT: u64 = 0x800;
const DIRECTION: u32 = 16;

// Words: 0 kind, flags, stream; 1 seq; 2 wall time (written by the ring); 3 the kind's number; 4
// name, shared; 5-7 grid and block; 8 graph.
const STAMP: usize = 2;

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | (u64::from(high) << 32)
}

fn low(word: u64) -> u32 {
    word as u32
}

/// A record of a range of managed memory and one bit.
fn range(words: &mut Words, kind: u64, start: u64, bytes: u64, flag: bool) {
    words[0] = kind | u64::from(flag) << DIRECTION;
    words[3] = bytes;
    words[5] = start;
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

impl Record {
    /// The record as words, stamped with a wall time.
    pub(crate) fn words(&self, stamp: u64) -> Words {
        let mut words = [0; WORDS];
        words[STAMP] = stamp;
        match *self {
            Record::Submit { stream, seq, op, extra } => {
                words[1] = seq.0;
                words[4] = pair(extra.label.0, 0);
                words[8] = extra.graph;
                let kind = match op {
                    Op::Kernel(launch) => {
                        words[3] = launch.duration.unwrap_or(0);
                        words[4] = pair(launch.name.0, launch.shared);
                        words[5] = pair(launch.grid[0], launch.grid[1]);
                        words[6] = pair(launch.grid[2], launch.block[0]);
                        words[7] = pair(launch.block[1], launch.block[2]);
                        let timed = if launch.duration.is_some() { TIMED } else { 0 };
                        let dependent = if launch.dependent { DEPENDENT } else { 0 };
                        KERNEL | timed | dependent | if launch.held { HELD } else { 0 }
                    }
                    Op::Copy { direction, bytes } => {
                        words[3] = bytes;
                        let direction = match direction {
                            Direction::HostToDevice => 0u64,
                            Direction::DeviceToHost => 1,
                            Direction::DeviceToDevice => 2,
                        };
                        COPY | direction << DIRECTION
                    }
                    Op::Prefetch { to_host, start, bytes } => {
                        words[3] = bytes;
                        words[5] = start;
                        PREFETCH | u64::from(to_host) << DIRECTION
                    }
                    Op::Discard { start, bytes } => {
                        words[3] = bytes;
                        words[5] = start;
                        DISCARD
                    }
                    Op::Memset { bytes } => {
                        words[3] = bytes;
                        MEMSET
                    }
                    Op::Marker => MARKER,
                    Op::Record { timed } => EVENT_RECORD | if timed { TIMED } else { 0 },
                    Op::WaitFor(other) => {
                        words[3] = other.0;
                        WAIT_FOR
                    }
                    Op::Host => HOST,
                };
                words[0] = kind | if extra.prompt { PROMPT } else { 0 } | pair(0, stream.0);
            }
            Record::HostDone(seq) => {
                words[0] = HOST_DONE;
                words[1] = seq.0;
            }
            Record::OpenContext { ctx, priority } => {
                words[0] = OPEN_CONTEXT | pair(0, ctx.0);
                words[3] = pair(0, priority as u32);
            }
            Record::CloseContext(ctx) => words[0] = CLOSE_CONTEXT | pair(0, ctx.0),
            Record::OpenStream { ctx, stream, priority } => {
                words[0] = OPEN_STREAM | pair(0, stream.0);
                words[3] = pair(ctx.0, priority as u32);
            }
            Record::CloseStream(stream) => words[0] = CLOSE_STREAM | pair(0, stream.0),
            Record::Manage { start, bytes, ends } => range(&mut words, MANAGE, start, bytes, ends),
            Record::Advise {
                start,
                bytes,
                advice,
                on,
            } => {
                let kind = match advice {
                    Advice::ReadMostly => READ_MOSTLY,
                    Advice::PreferDevice => PREFER_DEVICE,
                };
                range(&mut words, kind, start, bytes, on);
            }
            Record::Touch(TouchedAddresses { start, bytes, write }) => range(&mut words, TOUCH, start, bytes, write),
        }
        words
    }

    /// The record of these words, and its wall time. The token stays with the client.
    pub(crate) fn read(words: &Words) -> Result<(Record, u64), Malformed> {
        let first = words[0];
        let seq = Seq(words[1]);
        let stream = LinkStream(high(first));
        let ctx = Ctx(high(first));
        let op = match first & 0xff {
            KERNEL => Op::Kernel(KernelLaunch {
                name: NameId(low(words[4])),
                grid: [low(words[5]), high(words[5]), low(words[6])],
                block: [high(words[6]), low(words[7]), high(words[7])],
                shared: high(words[4]),
                duration: (first & TIMED != 0).then_some(words[3]),
                held: first & HELD != 0,
                dependent: first & DEPENDENT != 0,
            }),
            COPY => Op::Copy {
                direction: match (first >> DIRECTION) & 0xff {
                    0 => Direction::HostToDevice,
                    1 => Direction::DeviceToHost,
                    2 => Direction::DeviceToDevice,
                    _ => return Err(Malformed),
                },
                bytes: words[3],
            },
            PREFETCH => Op::Prefetch {
                to_host: match (first >> DIRECTION) & 0xff {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed),
                },
                start: words[5],
                bytes: words[3],
            },
            DISCARD => Op::Discard {
                start: words[5],
                bytes: words[3],
            },
            MEMSET => Op::Memset { bytes: words[3] },
            MARKER => Op::Marker,
            EVENT_RECORD => Op::Record {
                timed: first & TIMED != 0,
            },
            WAIT_FOR => Op::WaitFor(Seq(words[3])),
            HOST => Op::Host,
            HOST_DONE => return Ok((Record::HostDone(seq), words[STAMP])),
            OPEN_CONTEXT => {
                let priority = high(words[3]) as i32;
                return Ok((Record::OpenContext { ctx, priority }, words[STAMP]));
            }
            CLOSE_CONTEXT => return Ok((Record::CloseContext(ctx), words[STAMP])),
            OPEN_STREAM => {
                let record = Record::OpenStream {
                    ctx: Ctx(low(words[3])),
                    stream,
                    priority: high(words[3]) as i32,
                };
                return Ok((record, words[STAMP]));
            }
            CLOSE_STREAM => return Ok((Record::CloseStream(stream), words[STAMP])),
            MANAGE | READ_MOSTLY | PREFER_DEVICE | TOUCH => {
                let (start, bytes) = (words[5], words[3]);
                let flag = match (first >> DIRECTION) & 0xff {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed),
                };
                let record = match first & 0xff {
                    MANAGE => Record::Manage {
                        start,
                        bytes,
                        ends: flag,
                    },
                    kind @ (READ_MOSTLY | PREFER_DEVICE) => Record::Advise {
                        start,
                        bytes,
                        advice: if kind == READ_MOSTLY {
                            Advice::ReadMostly
                        } else {
                            Advice::PreferDevice
                        },
                        on: flag,
                    },
                    _ => Record::Touch(TouchedAddresses {
                        start,
                        bytes,
                        write: flag,
                    }),
                };
                return Ok((record, words[STAMP]));
            }
            _ => return Err(Malformed),
        };
        let extra = Extra {
            token: 0,
            prompt: first & PROMPT != 0,
            graph: words[8],
            label: NameId(if matches!(op, Op::Kernel(_)) { 0 } else { low(words[4]) }),
        };
        Ok((Record::Submit { stream, seq, op, extra }, words[STAMP]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_op() -> impl Strategy<Value = Op> {
        let direction = prop_oneof![
            Just(Direction::HostToDevice),
            Just(Direction::DeviceToHost),
            Just(Direction::DeviceToDevice)
        ];
        let launch = (
            any::<(u32, [u32; 3], [u32; 3], u32)>(),
            any::<Option<u64>>(),
            any::<(bool, bool)>(),
        )
            .prop_map(
                |((name, grid, block, shared), duration, (held, dependent))| KernelLaunch {
                    name: NameId(name),
                    grid,
                    block,
                    shared,
                    duration,
                    held,
                    dependent,
                },
            );
        prop_oneof![
            launch.prop_map(Op::Kernel),
            (direction, any::<u64>()).prop_map(|(direction, bytes)| Op::Copy { direction, bytes }),
            any::<(bool, u64, u64)>().prop_map(|(to_host, start, bytes)| Op::Prefetch { to_host, start, bytes }),
            any::<(u64, u64)>().prop_map(|(start, bytes)| Op::Discard { start, bytes }),
            any::<u64>().prop_map(|bytes| Op::Memset { bytes }),
            Just(Op::Marker),
            any::<bool>().prop_map(|timed| Op::Record { timed }),
            any::<u64>().prop_map(|seq| Op::WaitFor(Seq(seq))),
            Just(Op::Host),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(op in any_op(), stream: u32, seq: u64, stamp: u64, prompt: bool, graph: u64, label: u32) {
            let label = NameId(if matches!(op, Op::Kernel(_)) { 0 } else { label });
            let extra = Extra { token: 0, prompt, graph, label };
            let record = Record::Submit { stream: LinkStream(stream), seq: Seq(seq), op, extra };
            prop_assert_eq!(Record::read(&record.words(stamp)), Ok((record, stamp)));
        }

        #[test]
        fn the_other_records_too(a: u32, b: u32, seq: u64, priority: i32, stamp: u64) {
            for record in [
                Record::HostDone(Seq(seq)),
                Record::OpenContext { ctx: Ctx(a), priority },
                Record::CloseContext(Ctx(a)),
                Record::OpenStream { ctx: Ctx(a), stream: LinkStream(b), priority },
                Record::CloseStream(LinkStream(b)),
                Record::Manage { start: seq, bytes: a.into(), ends: b % 2 == 0 },
                Record::Advise { start: seq, bytes: a.into(), advice: Advice::ReadMostly, on: b % 2 == 0 },
                Record::Advise { start: seq, bytes: a.into(), advice: Advice::PreferDevice, on: b % 2 == 0 },
                Record::Touch(TouchedAddresses { start: seq, bytes: a.into(), write: b % 2 == 0 }),
            ] {
                prop_assert_eq!(Record::read(&record.words(stamp)), Ok((record, stamp)));
            }
        }

        #[test]
        fn any_words_can_be_read(words: [u64; WORDS]) {
            let _ = Record::read(&words);
        }
    }
}
