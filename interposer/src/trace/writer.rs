// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes records to a file, with a thread of its own: a hanging file system blocks only that
//! thread.
//!
//! Unwritten bytes are bounded ([`MOST_BYTES`]). If more wait, the recording ends, with a reason in
//! the file and in the log. Only the process's end waits for the file, for [`PATIENCE`].
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use weft_trace_format::raw::{self, Record};

use crate::thread::spawn;

/// Bytes in one hand-over. A step of a large model's training takes some 100 kB.
const BUFFER_BYTES: usize = 256 * 1024;

/// Most unwritten bytes: a disk of 100 MB/s may pause for half a second.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// Longest wait of the process's end for the file.
const PATIENCE: Duration = Duration::from_secs(2);

/// Order to the thread.
#[derive(Debug)]
enum WriteOrder {
    Write(Vec<u8>),
    /// Answer when all earlier records are written.
    Answer(Sender<()>),
}

/// State that both sides share.
#[derive(Debug, Default)]
struct WriterState {
    /// Bytes handed over and not yet written.
    waiting: AtomicUsize,
    /// Set if the file accepts no more bytes.
    failed: AtomicBool,
}

/// Writer of a recording.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    orders: Sender<WriteOrder>,
    shared: Arc<WriterState>,
    /// Whether the recording has ended.
    ended: bool,
    /// Bytes dropped because too many waited.
    dropped: usize,
    buffer: Vec<u8>,
}

impl Writer {
    /// Makes the file, or replaces an older one.
    pub fn create(path: PathBuf) -> Result<Writer, String> {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        // At once, so that a job killed early leaves a valid file.
        let begun = opened.and_then(|mut file| file.write_all(&raw::MAGIC).map(|()| file));
        let file = begun.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Writer::to(file, path)
    }

    fn to(file: File, path: PathBuf) -> Result<Writer, String> {
        let (orders, incoming) = channel();
        let shared = Arc::new(WriterState::default());
        let (known, named) = (Arc::clone(&shared), path.clone());
        // The thread blocks the job's signals.
        let thread = Builder::new().name("weft-trace".into());
        spawn(thread, move || write_all(file, &named, &incoming, &known))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Writer {
            path,
            orders,
            shared,
            ended: false,
            dropped: 0,
            buffer: Vec::new(),
        })
    }

    /// Whether records are still taken.
    pub fn is_open(&self) -> bool {
        !self.ended && !self.shared.failed.load(Ordering::Relaxed)
    }

    /// Takes a record. Never waits for the file.
    pub fn put(&mut self, record: &Record) {
        if !self.is_open() {
            return;
        }
        // A record beyond the format's bounds is left out.
        raw::append(&mut self.buffer, record);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Hands the buffer over.
    pub fn flush(&mut self) {
        let bytes = std::mem::take(&mut self.buffer);
        if bytes.is_empty() || self.ended {
            return;
        }
        let waiting = self.shared.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        if waiting.saturating_add(bytes.len()) > MOST_BYTES {
            self.shared.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
            self.dropped = self.dropped.saturating_add(bytes.len());
            // The record with this reason is short, and still fits.
            self.end(&format!(
                "{} is slower than the job, {} bytes were dropped",
                self.path.display(),
                self.dropped
            ));
            return;
        }
        // Fails if the thread is gone, which has logged the reason.
        let _ = self.orders.send(WriteOrder::Write(bytes));
    }

    /// Ends the recording; the file gets the reason.
    pub fn end(&mut self, why: &str) {
        log::warn!("the recording ends here: {why}; the earlier part is kept");
        raw::append(&mut self.buffer, &Record::Ended(why.to_string()));
        let last = std::mem::take(&mut self.buffer);
        self.shared.waiting.fetch_add(last.len(), Ordering::AcqRel);
        let _ = self.orders.send(WriteOrder::Write(last));
        self.ended = true;
    }

    /// Waits, as the process ends, until all records are written, for at most [`PATIENCE`].
    pub fn finish(&mut self) {
        self.finish_within(PATIENCE);
    }

    fn finish_within(&mut self, patience: Duration) {
        self.flush();
        let (answer, answered) = channel();
        let asked = self.orders.send(WriteOrder::Answer(answer)).is_ok();
        if asked && answered.recv_timeout(patience).is_err() && !self.shared.failed.load(Ordering::Relaxed) {
            log::warn!(
                "{} bytes of the recording are lost: writing {} takes too long",
                self.shared.waiting.load(Ordering::Relaxed),
                self.path.display()
            );
        }
    }
}

/// Body of the thread.
fn write_all(mut file: File, path: &Path, incoming: &Receiver<WriteOrder>, shared: &WriterState) {
    while let Ok(order) = incoming.recv() {
        match order {
            WriteOrder::Write(bytes) => {
                if let Err(error) = file.write_all(&bytes) {
                    shared.failed.store(true, Ordering::Relaxed);
                    log::warn!(
                        "the recording ends here: cannot write {}: {error}; the earlier part is kept",
                        path.display()
                    );
                    return;
                }
                shared.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
            }
            WriteOrder::Answer(answer) => {
                let _ = answer.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

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
        writer.finish_within(Duration::from_secs(60));
        assert!(!writer.is_open());
        let read = raw::RecorderFile::load(&path).unwrap();
        assert_eq!(read.graphs.len(), 20_000);
        assert_eq!(read.graphs.get(&19_999), Some(&vec![19_999; 3]));
        assert_eq!(read.ended.as_deref(), Some("enough"));
    }

    fn big() -> Record {
        Record::Graph {
            hash: 1,
            kernels: vec![1; 1000],
        }
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_nothing_else() {
        // A Linux device that is always full.
        let full = Writer::create(PathBuf::from("/dev/full")).unwrap_err();
        assert!(full.contains("/dev/full"), "{full}");
        // The disk fills up while the job runs.
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer = Writer::to(file, PathBuf::from("/dev/full")).unwrap();
        while writer.is_open() {
            writer.put(&big());
        }
        assert!(writer.buffer.len() < BUFFER_BYTES);
        assert_eq!(writer.dropped, 0);
        writer.finish();
        assert!(
            Writer::create(PathBuf::from("/no/such/place"))
                .unwrap_err()
                .contains("/no/such/place")
        );
    }

    #[test]
    fn a_file_that_hangs_holds_nobody_up() {
        // A pipe without a reader takes some bytes, then blocks.
        let (reader, pipe) = std::io::pipe().unwrap();
        let mut writer = Writer::to(File::from(OwnedFd::from(pipe)), PathBuf::from("a pipe")).unwrap();
        while writer.is_open() {
            writer.put(&big());
        }
        // The writer accepted the bytes that may wait, dropped the next buffer, reported it, and
        // did not block.
        assert!(
            (BUFFER_BYTES..2 * BUFFER_BYTES).contains(&writer.dropped),
            "{}",
            writer.dropped
        );
        let waiting = writer.shared.waiting.load(Ordering::Relaxed);
        assert!(
            (MOST_BYTES - 2 * BUFFER_BYTES..MOST_BYTES + 1_000).contains(&waiting),
            "{waiting}"
        );
        writer.put(&big());
        writer.finish_within(Duration::from_millis(10));
        drop(reader);
    }
}
