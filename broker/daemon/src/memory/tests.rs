// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory thread without its loop, with clients that carry out page operations or refuse them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::client::{IDLE, RECENT_ROUNDS};
use super::granules::granules;
use super::thread::{MemoryThread, SURVEY};
use super::turns::Turns;
use super::*;
use crate::clients::registry::NewEntry;
use weft_paging::{RESERVE_PART, TurnRule};
use weft_protocol::page_ops::{self, PageOp, PageOpConsumer};
use weft_protocol::transport::map::SharedLane;

const MB: u64 = 1 << 20;

fn entry(client: u64) -> Arc<Entry> {
    let entry = Entry::new(NewEntry {
        client,
        pid: 1,
        command: String::new(),
        profile: None,
        loaded: None,
        trouble: None,
        profiling: false,
        priority: 5,
        lane: Arc::new(SharedLane::lane().expect("a lane")),
    });
    entry.lane.page_ops.served.store(1, Ordering::Relaxed);
    Arc::new(entry)
}

/// A memory thread, and clients that carry out page operations or refuse them.
struct Scene {
    thread: MemoryThread,
    clients: Vec<(Arc<Entry>, PageOpConsumer)>,
}

impl Scene {
    /// A scene with a device of this size. On a device this small each context takes a quarter.
    fn new(device: u64, clients: u64) -> Scene {
        let settings = MemorySettings {
            turn: 100_000_000,
            max_swapped_out: 500_000_000,
            swapped_out_limit: 2_000_000_000,
            longest_wait: 1_000_000_000,
            link_mb_per_s: 22_200,
        };
        let mut thread = MemoryThread::new(settings, Trace::none());
        let clients: Vec<_> = (1..=clients)
            .map(|client| (entry(client), PageOpConsumer::default()))
            .collect();
        for (entry, _) in &clients {
            thread.take(MemoryMessage::Joined(Arc::clone(entry)));
            thread.take(MemoryMessage::Device(entry.client, "gpu".into(), device));
        }
        Scene { thread, clients }
    }

    /// Iterates until no page operations are sent any more. Returns clients' page operations in
    /// order.
    fn settle(&mut self, outcome: page_ops::PageOpStatus) -> Vec<(u64, PageOp)> {
        let mut seen = Vec::new();
        loop {
            self.thread.learn();
            self.thread.hear();
            self.thread.order();
            self.thread.show();
            let before = seen.len();
            for (entry, consumer) in &mut self.clients {
                while let Some((number, page_op)) = consumer.next(&entry.lane.page_ops) {
                    seen.push((entry.client, page_op));
                    entry.lane.page_ops.end(number, outcome);
                }
            }
            if seen.len() == before {
                return seen;
            }
        }
    }

    fn resident(&self, client: u64) -> u64 {
        self.clients[client as usize - 1]
            .0
            .figures
            .resident
            .load(Ordering::Relaxed)
    }
}

fn sum(seen: &[(u64, PageOp)], client: u64, inward: bool) -> u64 {
    let of = |(whose, page_op): &&(u64, PageOp)| *whose == client && page_op.kind.is_inward() == inward;
    seen.iter().filter(of).map(|(_, page_op)| page_op.bytes).sum()
}

#[test]
fn who_runs_has_his_memory_on_the_device_and_the_others_make_room() {
    let mut scene = Scene::new(256 * MB, 2);
    let base = 1 << 40;
    scene.thread.take(MemoryMessage::Backed(1, base, 100 * MB));
    scene.thread.take(MemoryMessage::Backed(2, base, 100 * MB));
    scene.settle(page_ops::PageOpStatus::Done);
    assert_eq!(scene.resident(1), 100 * MB);
    let there = scene.resident(2);
    assert!(there <= 24 * MB, "{there}");
    scene.thread.take(MemoryMessage::Runs(2));
    let seen = scene.settle(page_ops::PageOpStatus::Done);
    assert_eq!(scene.resident(2), 100 * MB);
    assert_eq!(sum(&seen, 2, true), 100 * MB - there);
    assert!(sum(&seen, 1, false) >= 76 * MB);
    assert!(scene.resident(1) + scene.resident(2) <= 128 * MB - 256 * MB / RESERVE_PART);
    // Each page operation is within its client's ranges.
    for (_, page_op) in &seen {
        assert!(page_op.start >= base && page_op.start + page_op.bytes <= base + 100 * MB);
    }
}

#[test]
fn clients_that_fit_together_are_left_where_they_are() {
    let mut scene = Scene::new(512 * MB, 2);
    for client in [1, 2] {
        scene.thread.take(MemoryMessage::Backed(client, 1 << 40, 100 * MB));
    }
    scene.settle(page_ops::PageOpStatus::Done);
    for turn in 0..6 {
        scene.thread.take(MemoryMessage::Runs(1 + turn % 2));
        assert_eq!(scene.settle(page_ops::PageOpStatus::Done), []);
    }
    assert_eq!((scene.resident(1), scene.resident(2)), (100 * MB, 100 * MB));
}

#[test]
fn a_client_that_refuses_or_has_no_helper_holds_up_nobody() {
    let mut scene = Scene::new(256 * MB, 2);
    scene.clients[0].0.lane.page_ops.served.store(0, Ordering::Relaxed);
    scene.thread.take(MemoryMessage::Backed(1, 1 << 40, 100 * MB));
    scene.thread.take(MemoryMessage::Backed(2, 1 << 40, 100 * MB));
    scene.thread.take(MemoryMessage::Runs(2));
    let seen = scene.settle(page_ops::PageOpStatus::Done);
    assert_eq!(sum(&seen, 1, true) + sum(&seen, 1, false), 0);
    assert_eq!(scene.resident(2), 100 * MB);
    scene.thread.take(MemoryMessage::Runs(1));
    scene.settle(page_ops::PageOpStatus::Refused);
    assert_eq!(scene.resident(1), 0);
}

#[test]
fn shared_granules_go_with_the_last_of_them() {
    let mut scene = Scene::new(128 * MB, 1);
    let base = 1 << 40;
    for part in 0..4 {
        scene.thread.take(MemoryMessage::Backed(1, base + part * MB, MB));
    }
    scene.settle(page_ops::PageOpStatus::Done);
    assert_eq!(scene.resident(1), 4 * MB);
    scene.thread.take(MemoryMessage::Unbacked(1, base));
    scene.settle(page_ops::PageOpStatus::Done);
    assert_eq!(scene.resident(1), 4 * MB);
    scene.thread.take(MemoryMessage::Unbacked(1, base + MB));
    scene.settle(page_ops::PageOpStatus::Done);
    assert_eq!(scene.resident(1), 2 * MB);
    scene.thread.take(MemoryMessage::Left(1));
    assert!(scene.thread.planner.is_none());
}

#[test]
fn what_is_not_named_any_more_does_not_come_in() {
    let mut scene = Scene::new(256 * MB, 2);
    let base = 1 << 40;
    scene.thread.take(MemoryMessage::Backed(1, base, 60 * MB));
    scene.thread.take(MemoryMessage::Backed(1, base + 64 * MB, 60 * MB));
    scene.thread.take(MemoryMessage::Backed(2, base, 100 * MB));
    scene.settle(page_ops::PageOpStatus::Done);
    for _ in 0..=RECENT_ROUNDS {
        scene.thread.take(MemoryMessage::Touched(1, Some(vec![base, 77])));
        scene.thread.take(MemoryMessage::Touched(1, Some(Vec::new())));
    }
    scene.thread.take(MemoryMessage::Runs(2));
    scene.settle(page_ops::PageOpStatus::Done);
    scene.thread.take(MemoryMessage::Runs(1));
    let seen = scene.settle(page_ops::PageOpStatus::Done);
    assert!(sum(&seen, 1, true) > 0);
    let inward = |(client, page_op): &&(u64, PageOp)| *client == 1 && page_op.kind.is_inward();
    assert!(
        seen.iter()
            .filter(inward)
            .all(|(_, page_op)| page_op.start < base + 60 * MB),
        "{seen:?}"
    );
    // A graph may touch all ranges.
    scene.thread.take(MemoryMessage::Touched(1, None));
    let seen = scene.settle(page_ops::PageOpStatus::Done);
    assert!(
        seen.iter()
            .filter(inward)
            .any(|(_, page_op)| page_op.start > base + 60 * MB),
        "{seen:?}"
    );
}

#[test]
fn nonsense_about_memory_is_not_believed() {
    let mut scene = Scene::new(128 * MB, 1);
    scene.thread.take(MemoryMessage::Backed(1, u64::MAX - 5, 100));
    scene.thread.take(MemoryMessage::Backed(1, 0, u64::MAX));
    scene.thread.take(MemoryMessage::Backed(1, 1 << 30, 0));
    scene.thread.take(MemoryMessage::Backed(7, 1 << 30, MB));
    scene.thread.take(MemoryMessage::Unbacked(1, 5));
    scene.thread.take(MemoryMessage::Runs(9));
    assert_eq!(scene.settle(page_ops::PageOpStatus::Done), []);
}

/// Makes a client active at this time with a launch.
fn works(scene: &mut Scene, client: u64, now: Instant) {
    let (entry, _) = &scene.clients[client as usize - 1];
    entry.lane.counters.launches.fetch_add(1, Ordering::Relaxed);
    scene.thread.share(now);
}

#[test]
fn jobs_at_work_that_find_no_room_together_take_turns_and_no_others() {
    let (mut scene, begin) = (Scene::new(256 * MB, 3), Instant::now());
    for client in [1, 2, 3] {
        scene.thread.take(MemoryMessage::Backed(client, 1 << 40, 40 * MB));
    }
    scene.settle(page_ops::PageOpStatus::Done);
    let turns = |scene: &Scene| [1, 2, 3].map(|client| scene.thread.turns.of(client).is_some());
    // A context takes a quarter of the device, so 60 MB are left, which suffices for one client.
    for client in [1, 2, 3] {
        works(&mut scene, client, begin);
    }
    assert_eq!(turns(&scene), [true; 3]);
    // A client that is idle for long does not count.
    let later = begin + IDLE;
    works(&mut scene, 1, later - IDLE / 2);
    works(&mut scene, 2, later - IDLE / 2);
    scene.thread.share(later + IDLE / 4);
    assert_eq!(turns(&scene), [true, true, false]);
    // A client that waits at the gate is active again.
    scene.clients[2].0.lane.reports.waiting.store(1, Ordering::Relaxed);
    scene.thread.share(later + IDLE / 4);
    assert_eq!(turns(&scene), [true; 3]);
    scene.thread.take(MemoryMessage::Left(3));
    scene.thread.take(MemoryMessage::Left(2));
    works(&mut scene, 1, later);
    assert_eq!(turns(&scene)[1..], [false; 2]);
}

#[test]
fn room_that_has_just_come_is_believed_after_a_while() {
    let (mut scene, mut now) = (Scene::new(256 * MB, 2), Instant::now());
    let base = 1 << 40;
    scene.thread.take(MemoryMessage::Backed(1, base, 60 * MB));
    scene.thread.take(MemoryMessage::Backed(2, base, 60 * MB));
    scene.thread.take(MemoryMessage::Backed(2, base + 64 * MB, 60 * MB));
    scene.settle(page_ops::PageOpStatus::Done);
    works(&mut scene, 1, now);
    works(&mut scene, 2, now);
    assert!(scene.thread.turns.of(1).is_some());
    scene.thread.take(MemoryMessage::Unbacked(2, base));
    scene.settle(page_ops::PageOpStatus::Done);
    for (after, still) in [(0, true), (500, true), (1_100, false)] {
        now += Duration::from_millis(after);
        works(&mut scene, 1, now);
        works(&mut scene, 2, now);
        assert_eq!(scene.thread.turns.of(1).is_some(), still, "after {after} ms");
        assert_eq!(scene.thread.turns.of(2).is_some(), still);
    }
}

/// Gives the first `jobs` clients `bytes` each, and makes them work.
fn all_work(scene: &mut Scene, jobs: u64, bytes: u64, now: Instant) {
    for client in 1..=jobs {
        scene.thread.take(MemoryMessage::Backed(client, 1 << 40, bytes));
    }
    scene.thread.learn();
    for client in 1..=jobs {
        works(scene, client, now);
    }
}

#[test]
fn a_turn_is_as_long_as_its_migration_asks_for_and_as_the_bound_on_being_away_leaves() {
    const GB: u64 = 1 << 30;
    // Two devices with room for one set of 1 GB, contexts of 450 MB each and a 64th of the device;
    // then a device with room for all sets.
    for (device, jobs, moved) in [(9 * GB / 4, 2, 1), (11 * GB / 4, 3, 1), (64 * GB, 2, 0)] {
        let (mut scene, now) = (Scene::new(device, jobs), Instant::now());
        all_work(&mut scene, jobs, GB, now);
        let length = scene.thread.turns.of(1);
        if moved == 0 {
            assert_eq!(length, None, "there is room");
            continue;
        }
        let length = length.expect("no room");
        // In and out at 22.2 GB/s one way: 97 ms if no memory remained on the device.
        assert!(length >= 20_000_000, "{length}");
        assert!(length <= 97_000_000 * 100 / 65, "{length}");
        assert!(
            length * (jobs - 1) <= 500_000_000,
            "{length}: nobody is away for longer"
        );
    }
}

#[test]
fn turns_that_must_be_longer_than_the_bound_are_and_launches_wait_as_long() {
    const GB: u64 = 1 << 30;
    // Six jobs of 4 GB each; there is room for two, contexts of 450 MB, and a 64th of the device.
    let (mut scene, now) = (Scene::new(11 * GB, 6), Instant::now());
    all_work(&mut scene, 6, 4 * GB, now);
    let length = scene.thread.turns.of(1).expect("no room");
    let between = scene.thread.turns.swapped_out(1).expect("turns");
    assert_eq!(between, length * 5);
    assert!(between > 500_000_000 && between <= 2_000_000_000, "{between}");
    scene.thread.show();
    let wait = |scene: &Scene| {
        let entry = &scene.clients[0].0;
        entry.lane.orders.longest_wait.load(Ordering::Relaxed)
    };
    assert!(wait(&scene) >= between / 3 * 4 && wait(&scene) >= 1_000_000_000);
    let figures = Arc::clone(&scene.clients[0].0);
    assert_eq!(figures.figures.swapped_out.load(Ordering::Relaxed), between);
    assert_eq!(figures.figures.swapped_out_needed.load(Ordering::Relaxed), 0);
    // Without turns, the longest wait of a launch is unchanged.
    for client in 2..=6 {
        scene.thread.take(MemoryMessage::Unbacked(client, 1 << 40));
    }
    scene.thread.learn();
    for after in [0, 1_100] {
        works(&mut scene, 1, now + Duration::from_millis(after));
    }
    assert_eq!(scene.thread.turns.of(1), None);
    scene.thread.show();
    assert_eq!(wait(&scene), 1_000_000_000);
}

#[test]
fn turns_keep_the_bound_by_default_and_say_what_they_would_need() {
    const GB: u64 = 1 << 30;
    let settings = MemorySettings::of(&Options::default());
    assert_eq!(settings.max_swapped_out, settings.swapped_out_limit);
    let (mut scene, now) = (Scene::new(11 * GB, 6), Instant::now());
    scene.thread.turns = Turns::new(TurnRule::new(settings.max_swapped_out, settings.swapped_out_limit));
    all_work(&mut scene, 6, 4 * GB, now);
    let between = scene.thread.turns.swapped_out(1).expect("turns");
    assert!(between <= settings.max_swapped_out, "{between}");
    scene.thread.show();
    let needed = scene.clients[0].0.figures.swapped_out_needed.load(Ordering::Relaxed);
    assert!(needed > settings.max_swapped_out, "{needed}");
}

#[test]
fn an_owner_may_bound_being_swapped_out_by_more_than_a_launch_waits_else() {
    let of = |max_ms: u64, longest_wait: Option<u64>| {
        let mut options = Options::default();
        options.core.max_swapped_out = max_ms * 1_000_000;
        options.longest_wait_said = longest_wait.is_some();
        if let Some(ms) = longest_wait {
            options.longest_wait = Duration::from_millis(ms);
        }
        MemorySettings::of(&options).max_swapped_out / 1_000_000
    };
    assert_eq!(of(5_000, None), 5_000);
    assert_eq!(of(5_000, Some(1_000)), 750, "the owner's own bound on waits wins");
    assert_eq!(of(100_000, None), 22_500, "no launch waits for more than 30 s");
}

#[test]
fn what_the_host_has_to_spare_is_seen_anew() {
    let mut scene = Scene::new(512 * MB, 1);
    scene.thread.take(MemoryMessage::Backed(1, 1 << 40, 100 * MB));
    scene.settle(page_ops::PageOpStatus::Done);
    let limit = |scene: &Scene| scene.thread.planner.as_ref().expect("a plan").config().host_limit;
    let stale = |scene: &mut Scene| scene.thread.planner.as_mut().expect("a plan").set_host_limit(7);
    stale(&mut scene);
    let now = Instant::now();
    scene.thread.survey(now);
    assert_eq!(limit(&scene), 7, "it looked not long ago");
    // Memory on the host may remain there even if little host memory is left.
    scene.thread.residency.went(1, granules(1 << 40, 100 * MB));
    scene.thread.survey(now + SURVEY);
    assert!(
        limit(&scene) > 7 && limit(&scene) * 2 * MB >= 100 * MB,
        "{}",
        limit(&scene)
    );
}

#[test]
fn what_clients_say_of_their_memory_is_kept_within_bounds() {
    let mut scene = Scene::new(256 * MB, 2);
    scene.thread.host = 256 * MB;
    let base = 1u64 << 40;
    let granules = |thread: &MemoryThread, client: u64| thread.clients[&client].granules;
    // Memory beyond device + host is left to demand paging.
    scene.thread.take(MemoryMessage::Backed(1, base, 1 << 42));
    assert_eq!(granules(&scene.thread, 1), 0);
    for range in 0..20 {
        scene
            .thread
            .take(MemoryMessage::Backed(1, base + range * 64 * MB, 64 * MB));
    }
    assert_eq!(granules(&scene.thread, 1), 256);
    scene.thread.take(MemoryMessage::Unbacked(1, base));
    assert_eq!(granules(&scene.thread, 1), 256 - 32);
    // The same range again, but shorter.
    scene.thread.take(MemoryMessage::Backed(1, base + 64 * MB, 2 * MB));
    assert_eq!(granules(&scene.thread, 1), 256 - 32 - 31);
    // A client without a range has no forecast.
    assert_eq!((scene.thread.uses_left(2), scene.thread.uses_left(9)), (0, 0));
}

#[test]
fn a_device_is_as_large_as_most_users_say() {
    let mut scene = Scene::new(256 * MB, 0);
    let says = |thread: &mut MemoryThread, client, uid, bytes| {
        let entry = Arc::into_inner(entry(client)).expect("its own").of(uid, None);
        thread.take(MemoryMessage::Joined(Arc::new(entry)));
        thread.take(MemoryMessage::Device(client, "gpu".into(), bytes));
    };
    for client in 1..=3 {
        says(&mut scene.thread, client, 7, MB);
    }
    assert_eq!(scene.thread.sizes()["gpu"], MB);
    says(&mut scene.thread, 4, 8, 80 << 30);
    assert_eq!(scene.thread.sizes()["gpu"], MB, "one voice each: who came first");
    says(&mut scene.thread, 5, 9, 80 << 30);
    assert_eq!(
        scene.thread.sizes()["gpu"],
        80 << 30,
        "two users against one with three clients"
    );
    says(&mut scene.thread, 6, 10, u64::MAX);
    assert_eq!(scene.thread.sizes()["gpu"], 80 << 30);
    for client in 1..=6 {
        scene.thread.take(MemoryMessage::Left(client));
    }
    assert!(scene.thread.sizes().is_empty(), "nothing is kept of who left");
}
