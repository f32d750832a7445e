// SPDX-License-Identifier: MIT OR Apache-2.0
//! The targets: the actions on the bytes, and their invariants.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weft_scheduler::{Client, Config};
use weft_daemon::fuzzed::admission::{self as admission, Room};
use weft_daemon::test_driver::{TestDriver, Ending, FakeClient, FakeClients};
use weft_protocol::lane::{Lane, RECORDS, Reader};
use weft_daemon::fuzzed::transport::{self as transport, Read};
use weft_protocol::transport::map::SharedLane;
use weft_profiles::codec;
use weft_trace_format as trace;

/// See the table of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A packet.
    Packet,
    /// Messages.
    Desk,
    /// A lane.
    Lane,
    /// Lanes under a scheduler.
    Turn,
    /// A profile.
    Profile,
    /// A trace.
    Trace,
    /// A ledger.
    Ledger,
    /// Facts of devices.
    Known,
}

impl Target {
    /// Their names.
    pub const NAMES: [&str; 8] = ["packet", "desk", "lane", "turn", "profile", "trace", "ledger", "known"];

    /// The target of this name.
    pub fn named(name: &str) -> Option<Target> {
        const ALL: [Target; 8] = [
            Target::Packet,
            Target::Desk,
            Target::Lane,
            Target::Turn,
            Target::Profile,
            Target::Trace,
            Target::Ledger,
            Target::Known,
        ];
        let at = Target::NAMES.iter().position(|known| *known == name)?;
        ALL.get(at).copied()
    }
}

/// Bytes of memory that an input may have taken for it.
pub fn most(target: Target) -> usize {
    match target {
        // The decoders' own limit, and the values made from it.
        Target::Profile | Target::Trace => 3 * codec::MAX_BYTES as usize,
        // A packet holds 60 KiB.
        Target::Packet | Target::Desk => 16 << 20,
        Target::Lane | Target::Turn | Target::Ledger | Target::Known => 64 << 20,
    }
}

/// Does the broker's work on the bytes.
pub fn run(target: Target, data: &[u8]) {
    match target {
        Target::Packet => drop(transport::read(data)),
        Target::Desk => desk(data),
        Target::Lane => lane(data),
        Target::Turn => turn(data),
        Target::Profile => profile(data),
        Target::Trace => launches(data),
        Target::Ledger => drop(admission::ledger(data)),
        Target::Known => drop(admission::known(data)),
    }
}

/// Pieces of the input: the number of bytes, then the bytes.
fn pieces(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[who, length], rest) = data.split_first_chunk::<2>()?;
        let (piece, rest) = rest.split_at_checked(usize::from(length)).unwrap_or((rest, &[]));
        data = rest;
        Some((who, piece))
    })
}

/// Each piece is a client's packet, without the header that all have.
fn desk(data: &[u8]) {
    thread_local!(static ROOM: RefCell<Option<Room>> = RefCell::new(Room::open()));
    ROOM.with_borrow_mut(|room| {
        let Some(room) = room else { return };
        let header = transport::message(weft_protocol::control::ToBroker::NoMore);
        for (who, piece) in pieces(data).take(24) {
            let packet = [&header[..17], piece].concat();
            if let Read::Message(message) = transport::read(&packet) {
                room.says(u64::from(who & 3), message);
            }
            if who & 0x40 != 0 {
                room.tick();
            }
        }
        room.tick();
        room.close();
    });
}

/// Writes of eight bytes, each with the number of its word; a word is one of the header's, the
/// ring's head, or one of the first slots'.
fn writes(data: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    data.chunks_exact(10).map(|chunk| {
        let (place, value) = chunk.split_at(2);
        let word = usize::from(u16::from_le_bytes([place[0], place[1]]));
        (word, u64::from_le_bytes(value.try_into().unwrap_or_default()))
    })
}

const WORDS: usize = size_of::<Lane>() / 8;

fn lane(data: &[u8]) {
    thread_local!(static LANE: Box<Lane> = Box::default());
    LANE.with(|lane| {
        let start = std::ptr::from_ref::<Lane>(lane).cast::<AtomicU64>();
        // SAFETY: a lane is made only of atomics, without padding that is ever read, is aligned to
        // more than eight bytes and is that large.
        let words: &[AtomicU64] = unsafe { std::slice::from_raw_parts(start, WORDS) };
        let mut reader = Reader::default();
        let mut touched = Vec::with_capacity(64);
        for (at, (word, value)) in writes(data).enumerate() {
            let Some(place) = words.get(word % WORDS) else { continue };
            touched.push((word % WORDS, place.swap(value, Ordering::Relaxed)));
            if at % 4 == 3 {
                read(&mut reader, lane);
            }
        }
        read(&mut reader, lane);
        // As it was, so that an input means the same each time.
        for (word, before) in touched.iter().rev() {
            words[*word].store(*before, Ordering::Relaxed);
        }
    });
}

/// Reads all that is new: never more than a ring and an idleness before each.
fn read(reader: &mut Reader, lane: &Lane) {
    let (lost, malformed) = (reader.lost(), reader.malformed());
    let found = std::iter::from_fn(|| reader.next(lane)).take(3 * RECORDS).count();
    assert!(found <= 2 * RECORDS + 1, "{found} records of a ring of {RECORDS}");
    assert!(reader.lost() >= lost && reader.malformed() >= malformed);
}

/// The scheduler's time, moved by the input.
static NOW: AtomicU64 = AtomicU64::new(1_000_000_000);

fn clock() -> u64 {
    NOW.fetch_add(100, Ordering::Relaxed)
}

struct World {
    scheduler: TestDriver,
    visitors: FakeClients,
    guests: u32,
}

impl World {
    fn open() -> Option<World> {
        let (scheduler, visitors) = TestDriver::new(Config::default(), false, clock, Box::new(|_| {})).ok()?;
        Some(World {
            scheduler,
            visitors,
            guests: 0,
        })
    }
}

/// Two clients come, write anything, and go. The scheduler must accept it, and keep nothing of them
/// in the end.
fn turn(data: &[u8]) {
    thread_local!(static WORLD: RefCell<Option<World>> = RefCell::new(World::open()));
    WORLD.with_borrow_mut(|place| {
        let Some(world) = place else { return };
        let Some((&how, data)) = data.split_first() else { return };
        let come = |priority| -> Option<(Client, Arc<SharedLane>)> {
            let guest = FakeClient {
                priority,
                profiling: how & 1 != 0,
                longest_wait: Duration::from_secs(1),
                ..FakeClient::default()
            };
            world.visitors.attach(guest).ok()
        };
        let (Some(first), Some(second)) = (come(how >> 4 & 7), come(how >> 1 & 7)) else {
            return;
        };
        world.scheduler.turn();
        for (who, piece) in pieces(data).take(32) {
            let (client, lane) = if who & 1 == 0 { &first } else { &second };
            for (word, value) in writes(piece) {
                // The second half of the words is nearly all ring.
                let at = (word % WORDS * 8) as u64;
                let _ = rustix::io::pwrite(lane.memory(), &value.to_le_bytes(), at);
            }
            if who & 2 != 0 {
                NOW.fetch_add(1 << (who >> 3 & 31), Ordering::Relaxed);
            }
            if who & 4 != 0 {
                world.visitors.set_priority(*client, who >> 4 & 7);
            }
            world.scheduler.turn();
        }
        for (client, _) in [first, second] {
            world.visitors.gone(client, Ending::Vanished);
        }
        world.scheduler.turn();
        world.guests += 1;
        // A world does not get old, so that an input means nearly the same each time.
        if world.guests == 64 {
            NOW.store(1_000_000_000, Ordering::Relaxed);
            *place = World::open();
        }
    });
}

/// The bytes as they are, or behind a header that fits them (by the first byte): a forger of a file
/// forges its checksum, too.
fn file(data: &[u8], magic: [u8; 8], version: u8) -> Vec<u8> {
    let Some((&how, body)) = data.split_first() else {
        return Vec::new();
    };
    if how == 0 {
        return body.to_vec();
    }
    sealed(body, magic, version - (how & 7) % version)
}

/// A body behind its header: the table in the codecs.
pub fn sealed(body: &[u8], magic: [u8; 8], version: u8) -> Vec<u8> {
    let mut file = magic.to_vec();
    file.push(version);
    file.extend_from_slice(&[0; 7]);
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&weft_kernel_id::image_hash(body).to_le_bytes());
    file.extend_from_slice(body);
    file
}

fn profile(data: &[u8]) {
    let path = Path::new("/p");
    let Ok(profile) = codec::decode(&file(data, codec::MAGIC, codec::VERSION), path) else {
        return;
    };
    // A profile that is accepted can be shown, asked and written, and is the same when it is read
    // again.
    drop(weft_profiles::json::to_json(&profile));
    let _ = profile.typical_cost();
    let again = codec::encode(&profile, path).expect("what was read can be written");
    assert_eq!(codec::decode(&again, path).expect("and read"), profile);
}

fn launches(data: &[u8]) {
    let path = Path::new("/t");
    let Ok(trace) = trace::codec::decode(&file(data, trace::codec::MAGIC, trace::codec::VERSION), path) else {
        return;
    };
    drop(trace.profile());
    drop(trace::show::to_json(&trace));
    let again = trace::codec::encode(&trace, path).expect("what was read can be written");
    drop(trace::codec::decode(&again, path).expect("and read"));
}
