// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file's bytes: unpacked, counted, and JSON that programs wrote carelessly made readable.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    rc::Rc,
};

use flate2::bufread::GzDecoder;
use weft_trace_format::codec::MAGIC;

/// Size of a read, bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Longest string of a JSON file, bytes: a call stack or a name, never data.
const MAX_STRING_BYTES: usize = 4 << 20;

/// Longest event, or other value beside the events, bytes: an event is in memory as a whole.
const MAX_VALUE_BYTES: u64 = 256 << 20;

/// Kind of a file by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// JSON.
    Json,
    /// A database of SQLite.
    Sqlite,
    /// A trace of weft.
    Ours,
    /// Nothing.
    Empty,
    /// None of them.
    Other,
}

/// How far a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadProgress {
    /// Bytes read of the file.
    pub read: u64,
    /// Size of the file, bytes.
    pub size: u64,
}

/// Receives progress.
pub type Watch<'a> = &'a mut dyn FnMut(ReadProgress);

/// Counts the bytes of a file as it is read.
#[derive(Debug)]
struct CountedFile {
    file: File,
    read: Rc<Cell<u64>>,
}

impl Read for CountedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

/// The members of a gzip file, unpacked. Bytes behind them that begin no member are left out, as
/// gzip does: padding, or a broken copy's rest.
struct GzMembers<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for GzMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let mut rest = self.0.take().map(GzDecoder::into_inner);
            if let Some(rest) = rest.take_if(|rest| rest.fill_buf().is_ok_and(|rest| rest.starts_with(&[0x1f]))) {
                self.0 = Some(GzDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

/// A file's content, unpacked if it is gzip.
pub struct Content {
    source: Box<dyn BufRead>,
    /// Bytes read of the file.
    pub read: Rc<Cell<u64>>,
    /// Size of the file, bytes.
    pub size: u64,
    /// Kind of the content.
    pub kind: FileKind,
    /// Whether the file is gzip.
    pub packed: bool,
    /// Whether it can be read again: a pipe cannot.
    pub stays: bool,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.debug_struct("Content").field("kind", &self.kind).finish()
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.read(buffer)
    }
}

/// Opens a file; its name does not matter.
pub fn open(path: &Path) -> io::Result<Content> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let read = Rc::new(Cell::new(0));
    let counted = CountedFile {
        file,
        read: Rc::clone(&read),
    };
    let mut plain = BufReader::with_capacity(BUFFER_BYTES, counted);
    let packed = plain.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let mut source: Box<dyn BufRead> = match packed {
        true => Box::new(BufReader::with_capacity(
            BUFFER_BYTES,
            GzMembers(Some(GzDecoder::new(plain))),
        )),
        false => Box::new(plain),
    };
    let begin = source.fill_buf()?;
    let first = begin
        .iter()
        .find(|byte| !byte.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(byte));
    let kind = match first {
        _ if begin.starts_with(b"SQLite format 3\0") => FileKind::Sqlite,
        _ if begin.starts_with(&MAGIC) => FileKind::Ours,
        _ if begin.is_empty() => FileKind::Empty,
        Some(b'{' | b'[') => FileKind::Json,
        _ => FileKind::Other,
    };
    Ok(Content {
        source,
        read,
        size: metadata.len(),
        kind,
        packed,
        stays: metadata.is_file(),
    })
}

/// JSON with the faults of some writers taken out: control characters and parts of UTF-8 sequences
/// in strings, escapes that JSON does not have, `NaN` and `Infinity`, which become `""` or `-0`.
/// Lengths do not change, so places in the file stay right.
#[derive(Debug)]
pub struct RepairedJson<R> {
    source: R,
    /// Bytes so far.
    pub bytes: Rc<Cell<u64>>,
    /// Where the reader's last value ended, bytes.
    pub taken: Rc<Cell<u64>>,
    /// Bytes whose repair depends on the next ones.
    held: Vec<u8>,
    in_string: bool,
    escaped: bool,
    /// Bytes so far of a word that is no JSON.
    word: usize,
    negative: bool,
    string_bytes: usize,
}

impl<R: Read> RepairedJson<R> {
    /// Reads from `source`.
    pub fn new(source: R) -> RepairedJson<R> {
        RepairedJson {
            source,
            bytes: Rc::default(),
            taken: Rc::default(),
            held: Vec::new(),
            in_string: false,
            escaped: false,
            word: 0,
            negative: false,
            string_bytes: 0,
        }
    }

    fn repaired(&mut self, byte: u8, next: Option<u8>) -> u8 {
        if self.in_string {
            self.string_bytes += 1;
            if std::mem::take(&mut self.escaped) {
                return if b"\"\\/bfnrtu".contains(&byte) { byte } else { b'\\' };
            }
            match byte {
                b'"' => self.in_string = false,
                b'\\' => self.escaped = true,
                0..0x20 => return b' ',
                _ => {}
            }
            return byte;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.string_bytes = 0;
            }
            b'a'..=b'z' | b'A'..=b'Z' if self.word > 0 => {
                self.word += 1;
                return if self.word == 2 && !self.negative { b'"' } else { b' ' };
            }
            b'N' | b'I' | b'i' | b'n' if byte != b'n' || matches!(next, Some(b'a' | b'A')) => {
                self.word = 1;
                return if self.negative { b'0' } else { b'"' };
            }
            // A byte order mark.
            0xef | 0xbb | 0xbf => return b' ',
            _ => {}
        }
        self.word = 0;
        self.negative = byte == b'-';
        byte
    }

    /// Fills a buffer whose end may be a part of a sequence or of a word; returns its length.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let held = self.held.len();
        buffer[..held].copy_from_slice(&self.held);
        let read = self.source.read(&mut buffer[held..])?;
        let (mut length, mut good) = (held + read, 0);
        self.held.clear();
        while let Err(error) = std::str::from_utf8(&buffer[good..length]) {
            good += error.valid_up_to();
            match error.error_len() {
                None if read > 0 => {
                    self.held.extend_from_slice(&buffer[good..length]);
                    length = good;
                }
                bad => buffer[good..length]
                    .iter_mut()
                    .take(bad.unwrap_or(3))
                    .for_each(|byte| *byte = b'?'),
            }
        }
        if read > 0 && self.held.is_empty() && length > 0 && buffer[length - 1] == b'n' {
            length -= 1;
            self.held.push(b'n');
        }
        // Only an end has no bytes.
        match length == 0 && read > 0 {
            true => self.fill(buffer),
            false => Ok(length),
        }
    }
}

impl<R: Read> Read for RepairedJson<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill(buffer)?;
        for at in 0..read {
            let next = buffer[..read].get(at + 1).or(self.held.first()).copied();
            buffer[at] = self.repaired(buffer[at], next);
        }
        if self.string_bytes > MAX_STRING_BYTES {
            return Err(io::Error::other("a string is longer than 4 MiB"));
        }
        self.bytes.set(self.bytes.get() + read as u64);
        if self.bytes.get() - self.taken.get() > MAX_VALUE_BYTES {
            return Err(io::Error::other("an event is longer than 256 MiB"));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn repaired(text: &[u8]) -> String {
        let mut out = String::new();
        RepairedJson::new(text).read_to_string(&mut out).unwrap();
        out
    }

    #[test]
    fn careless_json_is_read_and_good_json_does_not_change() {
        let good = r#"{"a\"b": [true, null, -1.5e3, "NaN \\ é"], "c": false}"#;
        assert_eq!(repaired(good.as_bytes()), good);
        let bad = b"{\"a\": [NaN, nan, -nan, inf, null], \"b\": -Infinity, \"c\": \"x\ny\\d\xc3\"}";
        let value: serde_json::Value = serde_json::from_str(&repaired(bad)).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"a": ["", "", -0.0, "", null], "b": -0.0, "c": "x y\\?"})
        );
        assert_eq!(repaired(bad).len(), bad.len());
        // Whatever the sizes of the reads are.
        let mut out = String::new();
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let one = buffer.len().min(1);
                self.0.read(&mut buffer[..one])
            }
        }
        RepairedJson::new(Slow(bad)).read_to_string(&mut out).unwrap();
        assert_eq!(out, repaired(bad));
    }

    #[test]
    fn a_string_without_an_end_is_an_error() {
        let mut text = vec![b'x'; MAX_STRING_BYTES + BUFFER_BYTES];
        text[0] = b'"';
        let mut out = Vec::new();
        assert!(RepairedJson::new(text.as_slice()).read_to_end(&mut out).is_err());
    }

    #[test]
    fn the_first_bytes_count_and_the_name_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |bytes: &[u8]| {
            let path = folder.path().join("x.dat");
            std::fs::write(&path, bytes).unwrap();
            let content = open(&path).unwrap();
            (content.kind, content.packed)
        };
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(b" {}").unwrap();
        assert_eq!(kind(&packed.finish().unwrap()), (FileKind::Json, true));
        assert_eq!(kind(b"[]"), (FileKind::Json, false));
        assert_eq!(kind(b"SQLite format 3\0..."), (FileKind::Sqlite, false));
        assert_eq!(kind(b"PK\x03\x04"), (FileKind::Other, false));
        assert_eq!(kind(b""), (FileKind::Empty, false));
    }
}
