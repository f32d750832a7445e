// SPDX-License-Identifier: MIT OR Apache-2.0
//! File of launches and the memory that they touched, to test templates on launches outside their
//! evidence.
//!
//! After [`MAGIC`], each record begins with a byte for its kind: the allocations from that point
//! on, a symbol, or a launch. Numbers are little-endian. If the job was killed, the file is
//! truncated, and valid up to that point. Any other defect is an error, never a panic.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::{Access, Allocations, Certainty, LaunchArguments, Touched, launch::MAX_PARAMETER_BYTES};

/// First bytes of a file; the last digit is its version.
pub const MAGIC: &[u8; 8] = b"WEFTEV02";

const ALLOCATIONS: u8 = 1;
const LAUNCH: u8 = 2;
const NAME: u8 = 3;
const GRANULE: u8 = 4;

/// Longest symbol, bytes; C++ templates have some thousands. Longer ones are cut.
const MAX_NAME_BYTES: usize = 1 << 14;

/// Most allocations or pieces of a record; a file with more is broken.
const MAX_ITEMS: u32 = 1_048_576;

/// Reason for which a file cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingError {
    /// Another kind of file, or another version.
    #[error("not a recording of launches that this weft can read")]
    Foreign,
    /// Broken at this byte.
    #[error("broken at byte {0}")]
    Broken(usize),
}

/// Appends the job's allocations.
pub fn write_allocations(into: &mut Vec<u8>, live: &Allocations) {
    into.push(ALLOCATIONS);
    into.extend((live.all().len() as u32).to_le_bytes());
    for (begin, end) in live.all() {
        into.extend(begin.to_le_bytes());
        into.extend(end.to_le_bytes());
    }
}

/// Appends the granule to which all evidence of the file is rounded, bytes
/// ([`super::Evidence::granule`]). Such evidence has no access. Without this record evidence is
/// exact.
pub fn write_granule(into: &mut Vec<u8>, granule: u64) {
    into.push(GRANULE);
    into.extend(granule.to_le_bytes());
}

/// Appends a kernel's symbol.
pub fn write_name(into: &mut Vec<u8>, kernel: u64, symbol: &str) {
    let symbol = symbol.as_bytes();
    let symbol = symbol.get(..MAX_NAME_BYTES).unwrap_or(symbol);
    into.push(NAME);
    into.extend(kernel.to_le_bytes());
    into.extend((symbol.len() as u32).to_le_bytes());
    into.extend(symbol);
}

/// Appends a launch. `number` is the evidence's number of the launch.
pub fn write_launch(
    into: &mut Vec<u8>,
    number: u64,
    launch: &LaunchArguments,
    certainty: Certainty,
    touched: &[Touched],
) {
    into.push(LAUNCH);
    into.extend(number.to_le_bytes());
    into.push(u8::from(certainty == Certainty::Exact));
    into.extend(launch.kernel.to_le_bytes());
    for number in launch.grid.iter().chain(&launch.block) {
        into.extend(number.to_le_bytes());
    }
    into.extend((launch.parameters.len() as u32).to_le_bytes());
    into.extend(launch.parameters);
    into.extend((touched.len() as u32).to_le_bytes());
    for one in touched {
        into.extend(one.address.to_le_bytes());
        into.extend(one.bytes.to_le_bytes());
        into.push(match one.access {
            Access::Read => 0,
            Access::Write => 1,
            Access::ReadWrite => 2,
        });
    }
}

/// A launch of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The evidence's number of the launch; numbers ascend.
    pub number: u64,
    /// Certainty of [`Recorded::touched`].
    pub certainty: Certainty,
    /// As [`LaunchArguments::kernel`].
    pub kernel: u64,
    /// As [`LaunchArguments::parameters`].
    pub parameters: Vec<u8>,
    /// Grid, in blocks.
    pub grid: [u32; 3],
    /// Block, in threads.
    pub block: [u32; 3],
    /// Ranges that the launch touched.
    pub touched: Vec<Touched>,
    /// Index of the job's state in [`Recording::allocations`].
    pub allocations: usize,
}

impl Recorded {
    /// The launch as predictors take it.
    pub fn launch(&self) -> LaunchArguments<'_> {
        LaunchArguments {
            kernel: self.kernel,
            parameters: &self.parameters,
            grid: self.grid,
            block: self.block,
        }
    }
}

/// Content of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// States of the job's allocations, in order.
    pub allocations: Vec<Allocations>,
    /// Launches, in order.
    pub launches: Vec<Recorded>,
    /// Granule of the evidence, bytes; `None` if exact.
    pub granule: Option<u64>,
    /// Symbols of kernels, as far as known.
    pub names: HashMap<u64, String>,
}

struct RecordingReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> RecordingReader<'a> {
    /// Takes `count` bytes; `None` at the end.
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let found = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn word(&mut self) -> Option<u32> {
        self.number().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.number().map(u64::from_le_bytes)
    }

    fn three(&mut self) -> Option<[u32; 3]> {
        Some([self.word()?, self.word()?, self.word()?])
    }
}

impl Recording {
    /// Parses a file's bytes.
    pub fn read(bytes: &[u8]) -> Result<Recording, RecordingError> {
        let records = bytes.strip_prefix(MAGIC).ok_or(RecordingError::Foreign)?;
        let mut reader = RecordingReader { bytes: records, at: 0 };
        let mut recording = Recording::default();
        loop {
            let at = reader.at;
            match recording.record(&mut reader) {
                Some(true) => {}
                Some(false) => return Err(RecordingError::Broken(MAGIC.len() + at)),
                None => return Ok(recording),
            }
        }
    }

    /// Reads one record. `None` at a truncated record, `false` at an invalid one.
    fn record(&mut self, reader: &mut RecordingReader) -> Option<bool> {
        let [what] = reader.number()?;
        match what {
            ALLOCATIONS => {
                let count = reader.word()?;
                let mut live = Allocations::new();
                if count > MAX_ITEMS {
                    return Some(false);
                }
                for _ in 0..count {
                    let (begin, end) = (reader.long()?, reader.long()?);
                    if begin >= end {
                        return Some(false);
                    }
                    live.add(begin, end - begin);
                }
                self.allocations.push(live);
            }
            GRANULE => self.granule = Some(reader.long()?),
            NAME => {
                let (kernel, size) = (reader.long()?, reader.word()? as usize);
                if size > MAX_NAME_BYTES {
                    return Some(false);
                }
                let symbol = String::from_utf8_lossy(reader.take(size)?).into_owned();
                self.names.insert(kernel, symbol);
            }
            LAUNCH => {
                let number = reader.long()?;
                let certainty = match reader.number()? {
                    [0] => Certainty::Guessed,
                    [1] => Certainty::Exact,
                    _ => return Some(false),
                };
                let (kernel, grid, block) = (reader.long()?, reader.three()?, reader.three()?);
                let size = reader.word()? as usize;
                if size > MAX_PARAMETER_BYTES || self.allocations.is_empty() {
                    return Some(false);
                }
                let parameters = reader.take(size)?.to_vec();
                let count = reader.word()?;
                if count > MAX_ITEMS {
                    return Some(false);
                }
                let mut touched = Vec::new();
                for _ in 0..count {
                    let (address, bytes, [access]) = (reader.long()?, reader.long()?, reader.number()?);
                    let access = match access {
                        0 => Access::Read,
                        1 => Access::Write,
                        2 => Access::ReadWrite,
                        _ => return Some(false),
                    };
                    touched.push(Touched { address, bytes, access });
                }
                let allocations = self.allocations.len() - 1;
                self.launches.push(Recorded {
                    number,
                    certainty,
                    kernel,
                    parameters,
                    grid,
                    block,
                    touched,
                    allocations,
                });
            }
            _ => return Some(false),
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (Vec<u8>, Recording) {
        let mut live = Allocations::new();
        live.add(0x1000, 0x100);
        live.add(0x9000, 0x10);
        let touched = vec![
            Touched {
                address: 0x1000,
                bytes: 16,
                access: Access::Read,
            },
            Touched {
                address: 0x9000,
                bytes: 8,
                access: Access::ReadWrite,
            },
        ];
        let parameters = vec![1, 2, 3];
        let launch = LaunchArguments {
            kernel: 77,
            parameters: &parameters,
            grid: [1, 2, 3],
            block: [4, 5, 6],
        };
        let mut bytes = MAGIC.to_vec();
        write_granule(&mut bytes, 65_536);
        write_allocations(&mut bytes, &live);
        write_name(&mut bytes, 77, "saxpy");
        write_launch(&mut bytes, 5, &launch, Certainty::Exact, &touched);
        let recorded = Recorded {
            number: 5,
            certainty: Certainty::Exact,
            kernel: 77,
            parameters: parameters.clone(),
            grid: [1, 2, 3],
            block: [4, 5, 6],
            touched,
            allocations: 0,
        };
        (
            bytes,
            Recording {
                granule: Some(65_536),
                allocations: vec![live],
                launches: vec![recorded],
                names: HashMap::from([(77, "saxpy".to_string())]),
            },
        )
    }

    #[test]
    fn what_is_written_is_read() {
        let (bytes, recording) = file();
        assert_eq!(Recording::read(&bytes), Ok(recording.clone()));
        assert_eq!(recording.launches[0].launch().kernel, 77);
    }

    #[test]
    fn what_is_torn_is_good_up_to_there_and_what_is_broken_is_said() {
        let (bytes, recording) = file();
        for end in MAGIC.len()..bytes.len() {
            let found = Recording::read(&bytes[..end]).expect("torn, not broken");
            assert!(found.launches.is_empty() && found.allocations.len() <= recording.allocations.len());
        }
        assert_eq!(Recording::read(&bytes[..7]), Err(RecordingError::Foreign));
        let mut broken = bytes.clone();
        broken[MAGIC.len()] = 9;
        assert_eq!(Recording::read(&broken), Err(RecordingError::Broken(MAGIC.len())));
        // No changed byte causes a panic.
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0xff;
            let _ = Recording::read(&other);
        }
    }
}
