// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contents of memory that weft's mover takes off its addresses and brings back (`SIMGPU_MOVES`).
//!
//! Each range is hashed when that thread unmaps it, and again right before another thread's next
//! work or free.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use simgpu_device::lock::lock;

use super::raw;
use super::table::find;

/// The thread whose moves are hashed.
const MOVER: &str = "weft-mover";

pub(crate) struct Moved {
    size: u64,
    hash: u64,
    /// The first thread that used memory while it was away. No error if its addresses are given up.
    away: Option<String>,
}

/// Ranges that left, and whose return was not seen yet.
static MOVED: Mutex<BTreeMap<u64, Moved>> = Mutex::new(BTreeMap::new());

/// Whether there are any.
static ANY: AtomicBool = AtomicBool::new(false);

fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os("SIMGPU_MOVES").filter(|path| !path.is_empty())?;
        let file = File::options().append(true).create(true).open(path);
        file.map(Mutex::new).ok()
    };
    FILE.get_or_init(open).as_ref()
}

/// The calling thread's name.
fn thread() -> String {
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
    name.trim_end().to_string()
}

fn moves() -> bool {
    thread() == MOVER
}

/// FNV-1a over words.
fn hash_of(at: u64, size: u64) -> u64 {
    let mut piece = vec![0; 1 << 16];
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for offset in (0..size).step_by(piece.len()) {
        let length = (size - offset).min(piece.len() as u64) as usize;
        let Some(piece) = piece.get_mut(..length) else { break };
        raw::read(at + offset, piece);
        for word in piece.chunks_exact(8) {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            sum = (sum ^ word).wrapping_mul(0x100_0000_01b3);
        }
    }
    sum
}

/// A line with a range's hashes before and after (`-`: it was away), and the thread that uses it.
fn tell(at: u64, moved: &Moved) {
    let after = match (find(at), &moved.away) {
        (Some(_), None) => format!("{:x}", hash_of(at, moved.size)),
        _ => "-".to_string(),
    };
    let (own, Moved { size, hash, away }) = (std::process::id(), moved);
    let by = away.clone().unwrap_or_else(thread);
    let line = format!("{own} {at:x} {size} {hash:x} {after} {by}\n");
    if let Some(file) = file() {
        // In one write, so that lines of several processes do not mix.
        let _ = lock(file).write_all(line.as_bytes());
    }
}

/// Notes that a mapped range is about to be unmapped. No range is hashed until the answer is
/// dropped.
pub(crate) fn leaves(at: u64, size: u64) -> Option<MutexGuard<'static, BTreeMap<u64, Moved>>> {
    file()?;
    let mut all = lock(&MOVED);
    if !moves() {
        if let Some(before) = all.remove(&at) {
            tell(at, &before);
        }
        return Some(all);
    }
    let hash = hash_of(at, size);
    match all.get(&at) {
        // Nothing used it since it left. It came back without its contents: there was no room for
        // the rest.
        Some(before) if before.hash != hash => tell(at, before),
        Some(_) => {}
        None => drop(all.insert(at, Moved { size, hash, away: None })),
    }
    ANY.store(true, Ordering::Release);
    Some(all)
}

/// Notes that addresses are given up.
pub(crate) fn forget(at: u64) {
    lock(&MOVED).remove(&at);
}

/// Notes that the calling thread puts work on a stream that uses device memory. The mover issues
/// launches that were queued, and copies between host and device.
pub(crate) fn used(is_host_copy: bool) {
    if !ANY.load(Ordering::Acquire) || is_host_copy && moves() {
        return;
    }
    let mut all = lock(&MOVED);
    for (at, mut moved) in std::mem::take(&mut *all) {
        if find(at).is_some() {
            tell(at, &moved);
        } else {
            moved.away.get_or_insert_with(thread);
            all.insert(at, moved);
        }
    }
    ANY.store(!all.is_empty(), Ordering::Release);
}
