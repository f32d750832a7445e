//! Records to a file, some at a time.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use weft_profiles::trace::raw::{self, Record};

/// Bytes kept before they are written. A step of a large model's training takes some 100 kB.
const BUFFER: usize = 256 * 1024;

/// Where records go.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    /// None once the recording has ended.
    file: Option<File>,
    buffer: Vec<u8>,
}

impl Writer {
    /// A new file, in the place of an older one.
    pub fn create(path: PathBuf) -> Result<Writer, String> {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        // At once, so that a job that is killed soon leaves a file that is one.
        let begun = opened.and_then(|mut file| file.write_all(&raw::MAGIC).map(|()| file));
        let file = begun.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Writer {
            path,
            file: Some(file),
            buffer: Vec::new(),
        })
    }

    /// Whether records are still taken.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Takes a record.
    pub fn put(&mut self, record: &Record) {
        if self.file.is_none() {
            return;
        }
        // One that is too long is left out: a symbol or a graph beyond all bounds stays a number.
        raw::append(&mut self.buffer, record);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Writes what is kept.
    pub fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(&self.buffer) {
            log::warn!(
                "the recording ends here: cannot write {}: {error}; what was written before is kept",
                self.path.display()
            );
            self.file = None;
        }
        self.buffer.clear();
    }

    /// Nothing more is recorded, and the file says why.
    pub fn end(&mut self, why: &str) {
        log::warn!("the recording ends here: {why}; what was recorded before is kept");
        self.put(&Record::Ended(why.to_string()));
        self.flush();
        self.file = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in_and_none_after_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.1.raw");
        let mut writer = Writer::create(path.clone()).unwrap();
        for hash in 0..20_000 {
            writer.put(&Record::Graph {
                hash,
                kernels: vec![hash; 3],
            });
        }
        writer.end("enough");
        writer.put(&Record::Graph {
            hash: 7_000_000,
            kernels: vec![],
        });
        writer.flush();
        assert!(!writer.is_open());
        let read = raw::Recording::load(&path).unwrap();
        assert_eq!(read.graphs.len(), 20_000);
        assert_eq!(read.graphs.get(&19_999), Some(&vec![19_999; 3]));
        assert_eq!(read.ended.as_deref(), Some("enough"));
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_nothing_else() {
        // Linux has a device that is always full.
        let full = Writer::create(PathBuf::from("/dev/full")).unwrap_err();
        assert!(full.contains("/dev/full"), "{full}");
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path().join("raw")).unwrap();
        // The disk fills up while the job runs.
        writer.file = OpenOptions::new().write(true).open("/dev/full").ok();
        let record = Record::Graph {
            hash: 1,
            kernels: vec![1; 1000],
        };
        for _ in 0..1000 {
            writer.put(&record);
        }
        assert!(!writer.is_open());
        assert!(writer.buffer.len() < BUFFER);
        assert!(
            Writer::create(PathBuf::from("/no/such/place"))
                .unwrap_err()
                .contains("/no/such/place")
        );
    }
}
