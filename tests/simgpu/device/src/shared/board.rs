// SPDX-License-Identifier: MIT OR Apache-2.0
//! The board: memory that all clients of a device see.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_engine::Ns;

/// Clients a device takes at once.
pub(crate) const MAX_CLIENTS: usize = 1024;

/// The shared memory, see the module.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Board {
    /// The wall clock's reading (`CLOCK_MONOTONIC`, ns) at device time zero.
    epoch: AtomicU64,
    /// The dilation, as the bits of an f64.
    dilation: AtomicU64,
    /// Device memory, bytes.
    total: AtomicU64,
    /// Number of requests for the device to look.
    attention: AtomicU32,
    /// 1 while the device sleeps or is about to: requests then ring its bell.
    sleeping: AtomicU32,
    /// Device memory of each client, bytes. Used is the sum: there is no second number that a
    /// killed client could leave wrong.
    held: [AtomicU64; MAX_CLIENTS],
    /// Host memory for managed memory, bytes.
    host: AtomicU64,
    /// Managed memory of each client, bytes, all of which the host must be able to hold.
    managed: [AtomicU64; MAX_CLIENTS],
    /// The part of it on the device; the device writes it.
    resident: [AtomicU64; MAX_CLIENTS],
}

impl Board {
    /// Writes the constants. The device calls it once, before any client maps the board.
    pub(crate) fn initialise(&self, epoch: u64, dilation: f64, total: u64, host: u64) {
        self.host.store(host, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.dilation.store(dilation.to_bits(), Ordering::Relaxed);
        self.total.store(total, Ordering::Release);
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock {
            epoch: self.epoch.load(Ordering::Relaxed),
            dilation: f64::from_bits(self.dilation.load(Ordering::Relaxed)),
        }
    }

    /// Asks the device to look. True: it sleeps, ring its bell.
    pub(crate) fn ask(&self) -> bool {
        // SeqCst on both sides: either the device sees the new count before it sleeps, or this sees
        // that it sleeps.
        self.attention.fetch_add(1, Ordering::SeqCst);
        self.sleeping.load(Ordering::SeqCst) != 0
    }

    /// For the device: number of requests.
    pub(crate) fn asked(&self) -> u32 {
        self.attention.load(Ordering::SeqCst)
    }

    /// For the device: whether it is about to sleep.
    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping.into(), Ordering::SeqCst);
    }

    /// Takes device memory for a client, if there is enough.
    pub(crate) fn reserve(&self, client: usize, bytes: u64) -> bool {
        take(&self.held, client, bytes, self.total())
    }

    /// Takes managed memory for a client, if the host can hold it.
    pub(crate) fn manage(&self, client: usize, bytes: u64) -> bool {
        take(&self.managed, client, bytes, self.host.load(Ordering::Relaxed))
    }

    /// Returns managed memory, at most the client's amount.
    pub(crate) fn unmanage(&self, client: usize, bytes: u64) {
        give(&self.managed, client, bytes);
    }

    /// Managed memory of all clients.
    pub(crate) fn managed(&self) -> u128 {
        sum(&self.managed)
    }

    /// Managed memory on the device, of all clients.
    pub(crate) fn resident(&self) -> u128 {
        sum(&self.resident)
    }

    /// For the device: sets how much of a client's managed memory is on it.
    pub(crate) fn set_resident(&self, client: usize, bytes: u64) {
        if let Some(place) = self.resident.get(client) {
            place.store(bytes, Ordering::SeqCst);
        }
    }

    /// Returns a client's memory, at most the amount that it holds.
    pub(crate) fn release(&self, client: usize, bytes: u64) {
        give(&self.held, client, bytes);
    }

    /// For the device: returns all that a client holds.
    pub(crate) fn release_all(&self, client: usize) {
        for words in [&self.held, &self.managed, &self.resident] {
            if let Some(mine) = words.get(client) {
                mine.store(0, Ordering::SeqCst);
            }
        }
    }

    pub(crate) fn held(&self, client: usize) -> u64 {
        self.held.get(client).map_or(0, |held| held.load(Ordering::SeqCst))
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }

    /// Sum over all clients. Wider than 64 bits: a client may have written anything into its word.
    pub(crate) fn used(&self) -> u128 {
        sum(&self.held)
    }
}

fn sum(words: &[AtomicU64]) -> u128 {
    words.iter().map(|word| u128::from(word.load(Ordering::SeqCst))).sum()
}

fn give(words: &[AtomicU64], client: usize, bytes: u64) {
    if let Some(mine) = words.get(client) {
        let _ = mine.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
            Some(held.saturating_sub(bytes))
        });
    }
}

/// Takes bytes within the limit of all words together.
fn take(words: &[AtomicU64], client: usize, bytes: u64, total: u64) -> bool {
    let Some(mine) = words.get(client) else {
        return false;
    };
    if bytes > total {
        return false;
    }
    // Two reservations at one instant may both see too much and step back though one fits. So a
    // refusal is tried again, at once and then after letting others run: another may have been
    // stopped between its two steps.
    for attempt in 0..64u32 {
        mine.fetch_add(bytes, Ordering::SeqCst);
        if sum(words) <= u128::from(total) {
            return true;
        }
        mine.fetch_sub(bytes, Ordering::SeqCst);
        if attempt < 8 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
    false
}

/// Translation between wall time and device time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clock {
    epoch: u64,
    dilation: f64,
}

impl Clock {
    /// Device time at a reading of the wall clock. Rises with the reading.
    pub(crate) fn device(&self, wall: u64) -> Ns {
        // An f64 holds whole nanoseconds exactly for 104 days.
        (wall.saturating_sub(self.epoch) as f64 / self.dilation) as Ns
    }

    /// A reading of the wall clock at which the device time has reached `device`.
    pub(crate) fn wall(&self, device: Ns) -> u64 {
        self.epoch.saturating_add((device as f64 * self.dilation).ceil() as u64)
    }

    pub(crate) fn dilation(&self) -> f64 {
        self.dilation
    }
}

/// The wall clock: `CLOCK_MONOTONIC`, equal in every process of a machine.
pub(crate) fn wall_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(total: u64) -> Box<Board> {
        let board = Board {
            epoch: AtomicU64::new(0),
            dilation: AtomicU64::new(0),
            total: AtomicU64::new(0),
            attention: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            held: std::array::from_fn(|_| AtomicU64::new(0)),
            host: AtomicU64::new(0),
            managed: std::array::from_fn(|_| AtomicU64::new(0)),
            resident: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        board.initialise(1_000, 4.0, total, 10);
        Box::new(board)
    }

    #[test]
    fn memory_is_shared_and_comes_back() {
        let board = board(100);
        assert!(board.reserve(0, 60));
        assert!(!board.reserve(1, 41));
        assert!(board.reserve(1, 40));
        assert_eq!(board.used(), 100);
        board.release(0, 1_000);
        assert_eq!(board.used(), 40);
        board.release_all(1);
        assert_eq!(board.used(), 0);
        assert!(!board.reserve(MAX_CLIENTS, 1), "no such client");
        assert!(!board.reserve(0, u64::MAX));
    }

    #[test]
    fn managed_memory_ends_where_the_host_does() {
        let board = board(100);
        assert!(board.manage(0, 6) && !board.manage(1, 5) && board.manage(1, 4));
        board.unmanage(0, 100);
        assert_eq!((board.managed(), board.used()), (4, 0));
        board.release_all(1);
        assert_eq!(board.managed(), 0);
    }

    #[test]
    fn of_many_at_once_as_many_as_fit_get_memory() {
        let board = board(64);
        for _ in 0..200 {
            let got: u64 = std::thread::scope(|scope| {
                let takers: Vec<_> = (0..4)
                    .map(|client| {
                        scope.spawn({
                            let board = &board;
                            move || (0..20).filter(|_| board.reserve(client, 1)).count() as u64
                        })
                    })
                    .collect();
                takers.into_iter().filter_map(|taker| taker.join().ok()).sum()
            });
            assert_eq!(got, 64);
            assert_eq!(board.used(), 64);
            (0..4).for_each(|client| board.release_all(client));
        }
    }

    #[test]
    fn device_time_runs_slower_by_the_dilation() {
        let clock = board(0).clock();
        assert_eq!(clock.device(1_000), 0);
        assert_eq!(clock.device(5_000), 1_000);
        assert_eq!(clock.device(0), 0);
        for device in [0, 1, 999, 1_000_000_007] {
            assert!(clock.device(clock.wall(device)) >= device);
        }
    }
}
