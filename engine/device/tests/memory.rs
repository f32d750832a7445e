// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page ledger under any sequence of calls, and its costs in cases that can be added up by
//! hand.

#[path = "../../../tests/bounded.rs"]
mod bounded;

use bounded::Bounded;
use proptest::prelude::*;
use weft_engine::memory::{BLOCK_BYTES, MemoryError, MemorySettings, PAGE_BYTES, PagePlace, Pager, Range};

/// The owners, and the number of blocks of each.
const OWNERS: u32 = 2;
const BLOCKS: u64 = 12;

fn settings(duplex: bool) -> MemorySettings {
    MemorySettings {
        capacity: 8 * BLOCK_BYTES,
        host_limit: 20 * BLOCK_BYTES,
        duplex,
        ..MemorySettings::default()
    }
}

#[derive(Debug, Clone)]
enum Call {
    Allocate(u32, Range),
    Free(u32, Range),
    Touch(u32, Range, bool),
    Prefetch(u32, Range, bool),
    Discard(u32, Range),
    Advise(u32, Range, bool),
    Prefer(u32, Range, bool),
    Leave(u32, Range),
    TakePlain(u64),
    GivePlain(u64),
    Remove(u32),
    Wait(u64),
}

fn range() -> impl Strategy<Value = Range> {
    let page = 0..BLOCKS * BLOCK_BYTES / PAGE_BYTES;
    (
        page,
        prop_oneof![1..200_u64, 1..4 * BLOCK_BYTES, PAGE_BYTES..8 * BLOCK_BYTES],
    )
        .prop_map(|(page, len)| {
            let start = page * PAGE_BYTES;
            Range::new(start, len.min(BLOCKS * BLOCK_BYTES - start))
        })
}

fn call() -> impl Strategy<Value = Call> {
    let owner = 0..OWNERS;
    prop_oneof![
        3 => (owner.clone(), range()).prop_map(|(o, r)| Call::Allocate(o, r)),
        1 => (owner.clone(), range()).prop_map(|(o, r)| Call::Free(o, r)),
        6 => (owner.clone(), range(), any::<bool>()).prop_map(|(o, r, w)| Call::Touch(o, r, w)),
        6 => (owner.clone(), range(), any::<bool>()).prop_map(|(o, r, h)| Call::Prefetch(o, r, h)),
        1 => (owner.clone(), range()).prop_map(|(o, r)| Call::Discard(o, r)),
        2 => (owner.clone(), range(), any::<bool>()).prop_map(|(o, r, on)| Call::Advise(o, r, on)),
        1 => (owner.clone(), range(), any::<bool>()).prop_map(|(o, r, on)| Call::Prefer(o, r, on)),
        2 => (owner.clone(), range()).prop_map(|(o, r)| Call::Leave(o, r)),
        1 => (1..4_u64).prop_map(|n| Call::TakePlain(n * BLOCK_BYTES)),
        1 => (1..4_u64).prop_map(|n| Call::GivePlain(n * BLOCK_BYTES)),
        1 => owner.prop_map(Call::Remove),
        4 => (0..400_000_u64).prop_map(Call::Wait),
    ]
}

/// Every page of an owner.
fn places(pager: &Pager, owner: u32) -> impl Iterator<Item = (u64, PagePlace)> + '_ {
    (0..BLOCKS * BLOCK_BYTES / PAGE_BYTES)
        .filter_map(move |page| Some((page, pager.ledger().place(owner, page * PAGE_BYTES)?)))
}

fn check(pager: &Pager, written: &[std::collections::BTreeSet<u64>]) {
    let ledger = pager.ledger();
    assert!(ledger.used() <= ledger.room(), "{} of {}", ledger.used(), ledger.room());
    assert!(ledger.allocated() <= ledger.settings().host_limit);
    let (peaks, settings) = (ledger.peaks(), ledger.settings());
    assert!(
        peaks.device <= settings.capacity && peaks.device >= ledger.used(),
        "{peaks:?}"
    );
    assert!(
        peaks.host <= peaks.allocated && peaks.allocated <= settings.host_limit,
        "{peaks:?}"
    );
    let (mut resident, mut allocated) = (0, 0);
    for owner in 0..OWNERS {
        let usage = pager.usage(owner);
        let count = |wanted: &[PagePlace]| {
            places(pager, owner).filter(|(_, place)| wanted.contains(place)).count() as u64 * PAGE_BYTES
        };
        assert_eq!(usage.allocated, places(pager, owner).count() as u64 * PAGE_BYTES);
        assert_eq!(usage.on_host, count(&[PagePlace::Host, PagePlace::Both]));
        // Pages on their way to the device count as resident.
        assert!(usage.resident >= count(&[PagePlace::Device, PagePlace::Both]));
        if !pager.is_moving() {
            assert_eq!(usage.resident, count(&[PagePlace::Device, PagePlace::Both]));
        }
        for page in &written[owner as usize] {
            let place = ledger.place(owner, page * PAGE_BYTES);
            assert_ne!(place, Some(PagePlace::Nowhere), "page {page} of {owner} is lost");
        }
        resident += usage.resident;
        allocated += usage.allocated;
    }
    assert!(resident <= ledger.used());
    assert_eq!(allocated, ledger.allocated());
    if !pager.is_moving() {
        assert_eq!(resident, ledger.used());
    }
}

fn pages(range: Range) -> std::ops::Range<u64> {
    range.start / PAGE_BYTES..range.end().div_ceil(PAGE_BYTES)
}

fn play(calls: &[Call], duplex: bool, waits: bool) {
    let _bounded = Bounded::new();
    let mut pager = Pager::new(settings(duplex), waits);
    let mut now = 0;
    let mut written = vec![std::collections::BTreeSet::new(); OWNERS as usize];
    let (mut asked, mut ended) = (std::collections::BTreeSet::new(), 0);
    for call in calls {
        match *call {
            Call::Allocate(owner, range) => {
                let _ = pager.allocate(owner, range);
            }
            Call::Free(owner, range) => {
                pager.free(now, owner, range);
                written[owner as usize].retain(|page| !pages(range).contains(page));
            }
            Call::Touch(owner, range, write) => {
                let quiet = !pager.is_moving();
                let end = pager.touch(now, owner, range, write);
                assert!(end >= now);
                now = end;
                // A touch of one block is found. If a touch covers several blocks, one that was
                // there already may have been evicted for another; prefetches under way take room
                // too.
                let one = range.start / BLOCK_BYTES == (range.end() - 1) / BLOCK_BYTES;
                if quiet && one && pager.ledger().room() >= 2 * BLOCK_BYTES {
                    assert!(pager.ledger().is_ready(owner, range, write));
                }
                if write {
                    let ledger = pager.ledger();
                    let there = pages(range).filter(|page| ledger.place(owner, page * PAGE_BYTES).is_some());
                    written[owner as usize].extend(there);
                }
            }
            Call::Prefetch(owner, range, to_host) => {
                assert!(asked.insert(pager.prefetch(now, owner, range, to_host)));
            }
            Call::Discard(owner, range) => {
                pager.discard(now, owner, range);
                written[owner as usize].retain(|page| !pages(range).contains(page));
            }
            Call::Advise(owner, range, on) => pager.advise_read_mostly(now, owner, range, on),
            Call::Prefer(owner, range, on) => pager.prefer_device(now, owner, range, on),
            Call::Leave(owner, range) => assert!(asked.insert(pager.leave(now, owner, range))),
            Call::TakePlain(size) => match pager.take_plain(now, size) {
                Ok(end) => now = now.max(end),
                Err(error) => assert_eq!(error, MemoryError::DeviceFull),
            },
            Call::GivePlain(size) => pager.give_plain(now, size),
            Call::Remove(owner) => {
                pager.remove(now, owner);
                written[owner as usize].clear();
            }
            Call::Wait(time) => {
                now += time;
                pager.advance_to(now);
            }
        }
        check(&pager, &written);
    }
    // Everything ends, each prefetch once, and in no time that goes back.
    while let Some(next) = pager.next_event() {
        pager.advance_to(next);
        check(&pager, &written);
    }
    assert!(!pager.is_moving());
    let mut last = 0;
    while let Some((ticket, at)) = pager.next_ended() {
        assert!(asked.remove(&ticket) && at >= last);
        last = at;
        ended += 1;
    }
    assert!(asked.is_empty(), "{} of {ended} never ended", asked.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_is_lost_and_nothing_overflows(
        calls in prop::collection::vec(call(), 1..60), duplex: bool, waits: bool,
    ) {
        play(&calls, duplex, waits);
    }
}

/// Faults and a prefetch that take hardly any room from each other come to an end.
#[test]
fn a_kernel_and_a_prefetch_without_room_end() {
    let calls = [
        Call::TakePlain(14 << 20),
        Call::Allocate(1, Range::new(512 << 10, 16_121_857)),
        Call::Prefetch(1, Range::new(11 << 20, 3_014_657), false),
        Call::Touch(1, Range::new(3_276_800, 2_027_521), false),
    ];
    for (duplex, waits) in [(false, false), (false, true), (true, false), (true, true)] {
        play(&calls, duplex, waits);
    }
}

/// An owner with some blocks, all on the host.
fn on_the_host(settings: MemorySettings, blocks: u64) -> Pager {
    let mut pager = Pager::new(
        MemorySettings {
            capacity: 1 << 40,
            ..settings
        },
        false,
    );
    let all = Range::new(0, blocks * BLOCK_BYTES);
    pager.allocate(0, all).unwrap();
    pager.touch(0, 0, all, true);
    pager.prefetch(pager.now(), 0, all, true);
    while let Some(next) = pager.next_event() {
        pager.advance_to(next);
    }
    while pager.next_ended().is_some() {}
    assert_eq!(pager.usage(0).resident, 0);
    // The same state on a device of the size asked for.
    pager.take_plain(pager.now(), (1 << 40) - settings.capacity).unwrap();
    pager
}

/// Transfer time of a block with nothing else on the link.
const BLOCK_NS: u64 = (BLOCK_BYTES * 1_000).div_ceil(41_700);
const HALF_NS: u64 = (BLOCK_BYTES * 500).div_ceil(41_700);

#[test]
fn a_dense_block_costs_two_batches_and_its_data() {
    let mut pager = on_the_host(settings(true), 4);
    let start = pager.now();
    let end = pager.touch(start, 0, Range::new(0, 2 * BLOCK_BYTES), false);
    // 256 faults of 4 KiB are half a block; half a block is not denser than 51 %.
    assert_eq!(end - start, 4 * (30_219 + HALF_NS));
    assert_eq!(pager.usage(0).faulted, 2 * BLOCK_BYTES);
    assert_eq!(
        pager.touch(end, 0, Range::new(0, 2 * BLOCK_BYTES), false),
        end,
        "what is there costs nothing"
    );
}

#[test]
fn a_low_threshold_brings_a_block_with_its_first_batch() {
    let settings = MemorySettings {
        threshold: 1,
        ..settings(true)
    };
    let mut pager = on_the_host(settings, 4);
    let start = pager.now();
    let end = pager.touch(start, 0, Range::new(0, 2 * BLOCK_BYTES), false);
    assert_eq!(end - start, 2 * (30_219 + BLOCK_NS));
}

#[test]
fn a_full_device_pays_for_the_block_that_came_first() {
    let mut pager = on_the_host(settings(true), 12);
    let now = pager.touch(pager.now(), 0, Range::new(0, 8 * BLOCK_BYTES), false);
    // A hit is not seen by the driver: block 0 still goes first.
    let now = pager.touch(now, 0, Range::new(0, 1), false);
    let end = pager.touch(now, 0, Range::new(8 * BLOCK_BYTES, BLOCK_BYTES / 2), false);
    assert_eq!(end - now, 30_219 + 77_000 + BLOCK_NS + HALF_NS);
    assert_eq!(pager.ledger().place(0, 0), Some(PagePlace::Host));
    assert_eq!(pager.ledger().place(0, BLOCK_BYTES), Some(PagePlace::Device));
    assert_eq!(pager.usage(0).evicted, BLOCK_BYTES);
}

#[test]
fn what_is_mostly_read_leaves_for_nothing_until_it_is_written() {
    let mut pager = on_the_host(settings(true), 2);
    let all = Range::new(0, 2 * BLOCK_BYTES);
    pager.advise_read_mostly(pager.now(), 0, all, true);
    pager.prefetch(pager.now(), 0, all, false);
    pager.advance_to(pager.now() + 1_000_000);
    assert_eq!(pager.ledger().place(0, 0), Some(PagePlace::Both));
    let now = pager.touch(pager.now(), 0, Range::new(BLOCK_BYTES, BLOCK_BYTES), true);
    assert_eq!(pager.ledger().place(0, BLOCK_BYTES), Some(PagePlace::Device));
    pager.leave(now, 0, all);
    pager.advance_to(now + 1_000_000);
    let usage = pager.usage(0);
    assert_eq!(
        (usage.resident, usage.returned - 2 * BLOCK_BYTES, usage.dropped),
        (0, BLOCK_BYTES, BLOCK_BYTES)
    );
}

/// By the driver's documentation and its kernel module, a prefetch of read-mostly memory creates a
/// copy.
#[test]
fn a_prefetch_to_the_host_of_what_is_mostly_read_copies_once_and_frees_nothing() {
    let mut pager = on_the_host(settings(true), 2);
    let all = Range::new(0, 2 * BLOCK_BYTES);
    let now = pager.touch(pager.now(), 0, all, true);
    pager.advise_read_mostly(now, 0, all, true);
    assert_eq!(pager.ledger().place(0, 0), Some(PagePlace::Device));
    let before = pager.usage(0);
    pager.prefetch(now, 0, all, true);
    pager.advance_to(now + 1_000_000);
    assert_eq!(pager.ledger().place(0, 0), Some(PagePlace::Both));
    assert_eq!(pager.usage(0).returned - before.returned, 2 * BLOCK_BYTES);
    // There is a copy already.
    let again = pager.now();
    let ticket = pager.prefetch(again, 0, all, true);
    assert_eq!(pager.next_ended().map(|(_, at)| at <= again), Some(true));
    assert_eq!(pager.next_ended(), Some((ticket, again)), "nothing to move");
    let usage = pager.usage(0);
    assert_eq!(
        (usage.resident, pager.ledger().used()),
        (2 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    );
    assert_eq!(usage.on_host, 2 * BLOCK_BYTES);
}

/// The ways out: the copies collapse at the preferred location.
#[test]
fn copies_collapse_to_the_preferred_location_and_else_to_the_host() {
    for device in [false, true] {
        let mut pager = on_the_host(settings(true), 2);
        let all = Range::new(0, 2 * BLOCK_BYTES);
        pager.prefer_device(pager.now(), 0, all, device);
        pager.advise_read_mostly(pager.now(), 0, all, true);
        pager.prefetch(pager.now(), 0, all, false);
        pager.advance_to(pager.now() + 1_000_000);
        let now = pager.touch(pager.now(), 0, Range::new(BLOCK_BYTES, BLOCK_BYTES), true);
        let before = pager.usage(0);
        pager.advise_read_mostly(now, 0, all, false);
        // The written block has no copy to collapse with.
        assert_eq!(pager.ledger().place(0, BLOCK_BYTES), Some(PagePlace::Device));
        let (place, resident, dropped) = match device {
            false => (PagePlace::Host, BLOCK_BYTES, BLOCK_BYTES),
            true => (PagePlace::Device, 2 * BLOCK_BYTES, 0),
        };
        assert_eq!(pager.ledger().place(0, 0), Some(place));
        let usage = pager.usage(0);
        assert_eq!((usage.resident, usage.dropped - before.dropped), (resident, dropped));
        assert_eq!(
            (usage.returned, usage.evicted),
            (before.returned, before.evicted),
            "nothing is copied"
        );
        assert_eq!(pager.now(), now);
    }
}

/// Room that a collapse leaves goes to the prefetch that waits for it.
#[test]
fn a_collapse_makes_room() {
    let mut pager = on_the_host(settings(true), 12);
    let (first, later) = (
        Range::new(0, 8 * BLOCK_BYTES),
        Range::new(8 * BLOCK_BYTES, 4 * BLOCK_BYTES),
    );
    pager.advise_read_mostly(pager.now(), 0, first, true);
    pager.prefetch(pager.now(), 0, first, false);
    pager.advance_to(pager.now() + 1_000_000);
    pager.advise_read_mostly(pager.now(), 0, first, false);
    assert_eq!(pager.ledger().used(), 0);
    let before = pager.usage(0).evicted;
    pager.prefetch(pager.now(), 0, later, false);
    pager.advance_to(pager.now() + 1_000_000);
    assert!(pager.ledger().is_ready(0, later, true));
    assert_eq!(pager.usage(0).evicted, before);
}

#[test]
fn what_is_discarded_moves_nothing_either_way() {
    let mut pager = on_the_host(settings(true), 2);
    let all = Range::new(0, 2 * BLOCK_BYTES);
    let now = pager.touch(pager.now(), 0, all, true);
    pager.discard(now, 0, all);
    assert_eq!(pager.ledger().used(), 0);
    let before = pager.usage(0);
    pager.prefetch(now, 0, all, false);
    let usage = pager.usage(0);
    assert_eq!((usage.resident, usage.prefetched), (2 * BLOCK_BYTES, before.prefetched));
    assert_eq!(pager.touch(now, 0, all, true), now);
}

/// Swaps four blocks against four and answers how long that took.
fn swap(duplex: bool) -> u64 {
    let mut pager = on_the_host(settings(duplex), 12);
    let now = pager.touch(pager.now(), 0, Range::new(0, 8 * BLOCK_BYTES), true);
    pager.prefetch(now, 0, Range::new(0, 4 * BLOCK_BYTES), true);
    pager.prefetch(now, 0, Range::new(8 * BLOCK_BYTES, 4 * BLOCK_BYTES), false);
    let mut end = now;
    while let Some(next) = pager.next_event() {
        pager.advance_to(next);
        end = next;
    }
    assert!(
        pager
            .ledger()
            .is_ready(0, Range::new(8 * BLOCK_BYTES, 4 * BLOCK_BYTES), true)
    );
    end - now
}

#[test]
fn a_duplex_link_swaps_as_much_faster_as_calibrated() {
    assert_eq!(swap(false), 8 * BLOCK_NS);
    // One way at the beginning and the end: 41.7, both ways between: 63.5.
    let fast = swap(true);
    assert!(
        fast < 8 * BLOCK_NS * 80 / 100 && fast > 8 * BLOCK_NS * 417 / 635,
        "{fast}"
    );
}

#[test]
fn a_kernel_starts_before_the_last_page_is_in() {
    for waits in [false, true] {
        let mut pager = on_the_host(settings(true), 8);
        pager.waits(waits);
        let now = pager.now();
        pager.prefetch(now, 0, Range::new(0, 8 * BLOCK_BYTES), false);
        let first = pager.touch(now, 0, Range::new(0, BLOCK_BYTES), false);
        // The piece on the link is waited for; with faults also their handling, which takes less.
        assert_eq!(first - now, BLOCK_NS);
        let last = pager.touch(first, 0, Range::new(7 * BLOCK_BYTES, BLOCK_BYTES), false);
        if waits {
            assert_eq!(last - now, 8 * BLOCK_NS);
        } else {
            // The fault goes ahead of the queue.
            assert!(last - first < 4 * BLOCK_NS, "{}", last - first);
        }
    }
}

#[test]
fn managed_memory_ends_where_the_host_does() {
    let mut pager = Pager::new(settings(true), false);
    assert_eq!(pager.allocate(0, Range::new(0, 20 * BLOCK_BYTES)), Ok(()));
    assert_eq!(pager.allocate(1, Range::new(0, 1)), Err(MemoryError::HostFull));
    assert_eq!(pager.allocate(0, Range::new(0, 1)), Err(MemoryError::Taken));
    pager.free(0, 0, Range::new(0, PAGE_BYTES));
    assert_eq!(pager.allocate(1, Range::new(0, 1)), Ok(()));
}

#[test]
fn with_no_room_at_all_kernels_read_over_the_link() {
    let mut pager = on_the_host(settings(true), 2);
    let now = pager.take_plain(pager.now(), pager.ledger().room()).unwrap();
    let end = pager.touch(now, 0, Range::new(0, BLOCK_BYTES), true);
    assert_eq!(end - now, 30_219 + BLOCK_NS);
    assert_eq!(
        (pager.ledger().used(), pager.ledger().place(0, 0)),
        (0, Some(PagePlace::Host))
    );
}
