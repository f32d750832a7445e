// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interposer's table from handles to words.
#![forbid(unsafe_code)]

use loom::sync::Arc;
use loom::thread;

use super::names::index::Index;
use super::shared;
use weft_protocol::atomic::{AtomicU32, Ordering};

type Table = Index<64>;

/// Two handles whose first place is the same.
fn colliding() -> (usize, usize) {
    let place = |key: usize| ((key as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) & 63;
    let first = 0x1000;
    let second = (1..)
        .map(|step| first + step * 8)
        .find(|key| place(*key) == place(first));
    (first, second.unwrap_or(first))
}

fn table() -> Arc<Table> {
    shared(Table::new())
}

fn meaning(table: &Table, key: usize) -> Option<u64> {
    table.find(key).map(|slot| slot.value.load(Ordering::Relaxed))
}

/// A thread publishes a handle and passes it to another thread, while a third thread publishes a
/// handle for the same place. The handle is found, with its meaning.
pub fn published_is_found() {
    let (ours, theirs) = colliding();
    let table = table();
    let told = shared(AtomicU32::new(0));
    let publisher = {
        let (table, told) = (Arc::clone(&table), Arc::clone(&told));
        thread::spawn(move || {
            assert!(table.set(ours, 77));
            told.store(1, Ordering::Release);
        })
    };
    let other = {
        let table = Arc::clone(&table);
        thread::spawn(move || assert!(table.set(theirs, 88)))
    };
    if told.load(Ordering::Acquire) == 1 {
        assert_eq!(meaning(&table, ours), Some(77));
    }
    publisher.join().expect("it ends");
    other.join().expect("it ends");
    assert_eq!((meaning(&table, ours), meaning(&table, theirs)), (Some(77), Some(88)));
}

/// Two threads look up the same kernel: one slot, one meaning.
pub fn one_slot_a_key() {
    let (ours, theirs) = colliding();
    let table = table();
    let threads = [(ours, 77), (theirs, 88)].map(|(key, value)| {
        let table = Arc::clone(&table);
        thread::spawn(move || {
            assert!(table.set(key, value));
            assert!(table.set(ours, 77));
            meaning(&table, ours)
        })
    });
    for thread in threads {
        assert_eq!(thread.join().expect("it ends"), Some(77));
    }
    assert_eq!(meaning(&table, theirs), Some(88));
}

/// Code is unloaded and its address is reused: no thread that got the new handle finds the old
/// meaning.
pub fn reused() {
    let (ours, _) = colliding();
    let table = table();
    table.set(ours, 77);
    let told = shared(AtomicU32::new(0));
    let loader = {
        let (table, told) = (Arc::clone(&table), Arc::clone(&told));
        thread::spawn(move || {
            table.forget(ours);
            assert!(table.set(ours, 99));
            told.store(1, Ordering::Release);
        })
    };
    let knows = told.load(Ordering::Acquire) == 1;
    let found = meaning(&table, ours);
    assert!(!knows || found == Some(99), "{found:?}");
    assert!(found.is_some(), "a key stays in its slot");
    loader.join().expect("it ends");
}
