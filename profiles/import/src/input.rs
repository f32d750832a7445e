// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file's bytes: unpacked, counted, and JSON that programs wrote carelessly made readable.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::Path,
    rc::Rc,
};

use flate2::bufread::MultiGzDecoder;

/// Size of a read, bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Longest string of a JSON file, bytes: a call stack or a name, never data.
const MAX_STRING_BYTES: usize = 4 << 20;

/// Kind of a file by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// JSON.
    Json,
    /// A database of SQLite.
    Sqlite,
    /// Neither.
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
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut magic = [0; 2];
    let packed = file.read(&mut magic)? == 2 && magic == [0x1f, 0x8b];
    file.seek(SeekFrom::Start(0))?;
    let read = Rc::new(Cell::new(0));
    let counted = CountedFile {
        file,
        read: Rc::clone(&read),
    };
    let plain = BufReader::with_capacity(BUFFER_BYTES, counted);
    let mut source: Box<dyn BufRead> = match packed {
        true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(plain))),
        false => Box::new(plain),
    };
    let begin = source.fill_buf()?;
    let first = begin
        .iter()
        .find(|byte| !byte.is_ascii_whitespace() && !b"\xef\xbb\xbf".contains(byte));
    let kind = match first {
        _ if begin.starts_with(b"SQLite format 3\0") => FileKind::Sqlite,
        Some(b'{' | b'[') => FileKind::Json,
        _ => FileKind::Other,
    };
    Ok(Content {
        source,
        read,
        size,
        kind,
        packed,
    })
}

/// JSON with the faults of some writers taken out: control characters in strings, escapes that JSON
/// does not have, `NaN` and `Infinity`. Lengths do not change, so places in the file stay right.
#[derive(Debug)]
pub struct RepairedJson<R> {
    source: R,
    /// Bytes so far.
    pub bytes: Rc<Cell<u64>>,
    in_string: bool,
    escaped: bool,
    in_word: bool,
    string_bytes: usize,
}

impl<R: Read> RepairedJson<R> {
    /// Reads from `source`.
    pub fn new(source: R) -> RepairedJson<R> {
        RepairedJson {
            source,
            bytes: Rc::default(),
            in_string: false,
            escaped: false,
            in_word: false,
            string_bytes: 0,
        }
    }

    fn repaired(&mut self, byte: u8) -> u8 {
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
                self.in_word = false;
            }
            b'N' | b'I' | b'i' if !self.in_word => {
                self.in_word = true;
                return b'0';
            }
            b'a'..=b'z' | b'A'..=b'Z' if self.in_word => return b' ',
            // A byte order mark.
            0xef | 0xbb | 0xbf => return b' ',
            _ => self.in_word = false,
        }
        byte
    }
}

impl<R: Read> Read for RepairedJson<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        for byte in &mut buffer[..read] {
            *byte = self.repaired(*byte);
        }
        if self.string_bytes > MAX_STRING_BYTES {
            return Err(io::Error::other("a string is longer than 4 MiB"));
        }
        self.bytes.set(self.bytes.get() + read as u64);
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
        let bad = b"{\"a\": NaN, \"b\": -Infinity, \"c\": \"x\ny\\d\"}";
        let value: serde_json::Value = serde_json::from_str(&repaired(bad)).unwrap();
        assert_eq!(value, serde_json::json!({"a": 0, "b": -0.0, "c": "x y\\"}));
        assert_eq!(repaired(bad).len(), bad.len());
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
        assert_eq!(kind(b""), (FileKind::Other, false));
    }
}
