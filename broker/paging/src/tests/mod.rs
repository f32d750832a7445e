// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the planner on a small machine in virtual time. After every step they check the
//! invariants of the crate's documentation.
#![forbid(unsafe_code)]

mod world;

use proptest::prelude::*;

use self::world::{World, begun};
use super::*;
use weft_protocol::{Client, Ns};

/// Bound on rounds of taking orders.
const MOST_ROUNDS: usize = 100;

/// Time of a granule on the link.
const STEP: Ns = 100;

fn link(duplex: bool) -> Link {
    let rate = GRANULE as f64 * 1e9 / STEP as f64;
    Link {
        inward: rate,
        outward: rate,
        both: 2.0 * rate,
        duplex,
    }
}

fn config(capacity: u64, options: PlanOptions) -> PagingConfig {
    PagingConfig {
        capacity,
        host_limit: 1 << 30,
        link: link(true),
        in_flight: 8,
        per_order: 4,
        options,
    }
}

/// Granules from 0 on in a row, each for `each` ns.
fn sweep(count: u64, each: Ns, access: Access) -> WorkingSet {
    WorkingSet {
        period: count * each,
        uses: (0..count)
            .map(|granule| Use {
                at: granule * each,
                range: GranuleRange {
                    first: granule,
                    count: 1,
                },
                access,
            })
            .collect(),
    }
}

#[test]
fn what_comes_next_is_brought_during_the_turn_before() {
    // Each set fits half the device and comes in less than a turn: after the first turn no client
    // waits.
    let sets = vec![sweep(40, 200, Access::ReadWrite); 4];
    let mut world = World::new(config(80, PlanOptions::default()), sets);
    world.rounds(1, 8_000);
    let stalled = world.stalled;
    assert!(stalled > 0, "the very first set had to be waited for");
    world.rounds(3, 8_000);
    assert_eq!(world.stalled, stalled, "all that came later came in time");
    assert_eq!(world.faults, 0);
}

#[test]
fn what_a_running_kernel_uses_is_not_taken_from_it() {
    // All granules of a kernel are in use until the next kernel begins.
    let mut set = sweep(4, 4_000, Access::Read);
    for one in &mut set.uses {
        one.range = GranuleRange {
            first: one.at / 4_000 * 10,
            count: 10,
        };
    }
    let sets = vec![set; 4];
    let mut world = World::new(config(80, PlanOptions::default()), sets);
    let timeline: Vec<ResidencySlot> = world
        .clients()
        .iter()
        .map(|client| ResidencySlot {
            client: *client,
            length: 16_000,
        })
        .collect();
    world.turn(&timeline[..1]);
    world.planner.switch(&timeline);
    world.pump();
    world.run_until(world.now + 100_000);
    for kernel in 0..4u64 {
        for part in [0, 2_000, 1_999] {
            world.planner.ran(Client(0), part);
            world.pump();
            world.run_until(world.now + 10_000);
            let there = |granule| world.planner.is_there(Client(0), granule);
            assert!((kernel * 10..40).all(there), "kernel {kernel}");
        }
        world.planner.ran(Client(0), 1);
        world.pump();
        world.run_until(world.now + 10_000);
    }
    assert!(!world.planner.is_there(Client(0), 0), "what it has passed goes");
}

#[test]
fn what_a_turn_has_used_for_the_last_time_is_not_brought_back() {
    // Each turn goes round its set three times, and the device holds 1.5 sets. In the last round
    // used granules make way for the other set; earlier needs of them have lapsed.
    let sets = vec![sweep(20, 100, Access::ReadWrite); 2];
    let mut world = World::new(config(30, PlanOptions::default()), sets);
    world.rounds(2, 6_000);
    let turn = |client| ResidencySlot {
        client: Client(client),
        length: 6_000,
    };
    for (runs, waits) in [(0, 1), (1, 0)] {
        world.asked.clear();
        world.turn(&[turn(runs), turn(waits)]);
        let mut own: Vec<u64> = world
            .asked
            .iter()
            .filter(|(client, _)| *client == Client(runs))
            .map(|(_, granule)| *granule)
            .collect();
        own.sort_unstable();
        let all = own.len();
        own.dedup();
        assert_eq!(own.len(), all, "{:?}", world.asked);
        assert!(
            world.asked.iter().any(|(client, _)| *client == Client(waits)),
            "nothing was brought for who comes next"
        );
    }
    assert_eq!(world.faults, 0);
}

#[test]
fn a_turn_that_ends_elsewhere_in_the_same_kernel_spends_nothing_early() {
    // Twenty short kernels, then one that takes a third of the period. Turns end at its end and at
    // its start.
    let mut set = sweep(21, 100, Access::ReadWrite);
    set.period = 3_000;
    let mut world = World::new(config(30, PlanOptions::default()), vec![set; 2]);
    let turn = |client, length| ResidencySlot {
        client: Client(client),
        length,
    };
    for length in [8_900, 8_200, 9_800, 8_200, 9_500] {
        for (runs, waits) in [(0, 1), (1, 0)] {
            world.turn(&[turn(runs, length), turn(waits, length)]);
        }
    }
    assert_eq!(world.faults, 0);
}

#[test]
fn a_turn_that_was_shortened_by_waits_gives_up_granules_before_it_ends() {
    let sets = vec![sweep(20, 100, Access::ReadWrite); 2];
    let mut world = World::new(config(30, PlanOptions::default()), sets);
    let turn = |client| ResidencySlot {
        client: Client(client),
        length: 4_000,
    };
    world.turn(&[turn(0), turn(1)]);
    world.planner.switch(&[turn(0), turn(1)]);
    world.planner.ran(Client(0), 1_000);
    world.pump();
    world.run_until(world.now + 10_000);
    let used = |world: &World| {
        (0..10)
            .filter(|granule| world.planner.is_there(Client(0), *granule))
            .count()
    };
    assert_eq!(used(&world), 10, "another round follows");
    world.planner.ends_in(Client(0), 1_000);
    world.pump();
    world.run_until(world.now + 10_000);
    assert_eq!(used(&world), 0, "the turn ends with this round");
    assert!((10..20).all(|granule| world.planner.is_there(Client(0), granule)));
    world.planner.ends_in(Client(1), 1);
    world.planner.ends_in(Client(0), 5_000);
    assert!(!world.planner.promised(Client(0), 0), "a turn gets no longer");
}

#[test]
fn a_kernel_under_way_at_a_turns_end_keeps_its_granules() {
    let sets = vec![sweep(20, 100, Access::ReadWrite); 2];
    let mut world = World::new(config(30, PlanOptions::default()), sets);
    let turn = |client, length| ResidencySlot {
        client: Client(client),
        length,
    };
    world.turn(&[turn(0, 2_000), turn(1, 2_000)]);
    // The turn ends in the middle of the last kernel, whose next use is the furthest.
    world.planner.switch(&[turn(0, 1_950), turn(1, 2_000)]);
    world.planner.ran(Client(0), 1_960);
    world.pump();
    world.run_until(world.now + 10_000);
    assert!(world.planner.is_there(Client(0), 19));
    world.planner.ran(Client(0), 40);
    world.pump();
    world.run_until(world.now + 10_000);
    let there = (0..20).filter(|granule| world.planner.is_there(Client(0), *granule));
    assert_eq!(there.count(), 10, "the other client's are all there");
}

/// A foreground job that uses 10 of its 20 granules, a background job of 20, and room for 30.
fn beside_a_foreground() -> (World, Vec<ResidencySlot>) {
    let mut world = World::new(
        config(30, PlanOptions::default()),
        vec![sweep(10, 100, Access::ReadWrite), sweep(20, 100, Access::ReadWrite)],
    );
    let unused = GranuleRange { first: 10, count: 10 };
    world.planner.placed(Client(0), unused, GranulePlace::Device);
    world.planner.pin(Client(0), true);
    world.pinned.insert(Client(0));
    let turn = |client| ResidencySlot {
        client: Client(client),
        length: 10_000,
    };
    (world, vec![turn(0), turn(1)])
}

#[test]
fn what_a_foreground_job_does_not_use_makes_room() {
    let (mut world, timeline) = beside_a_foreground();
    world.pinned.clear();
    world.turn(&timeline);
    let turned = [timeline[1], timeline[0]];
    world.turn(&turned);
    world.turn(&turned);
    let there = |client, granules: std::ops::Range<u64>| {
        granules
            .filter(|granule| world.planner.is_there(Client(client), *granule))
            .count()
    };
    assert_eq!(there(0, 0..10), 10, "what the foreground job uses stays");
    assert_eq!(there(0, 10..20), 0, "what it does not use goes");
    assert_eq!(there(1, 0..20), 20, "and the background job finds room");
}

#[test]
fn of_a_foreground_job_of_whom_nothing_is_known_nothing_goes() {
    let (mut world, timeline) = beside_a_foreground();
    world.planner.set_working_set(Client(0), WorkingSet::default(), 0);
    for granule in 0..10 {
        let one = GranuleRange {
            first: granule,
            count: 1,
        };
        world.planner.placed(Client(0), one, GranulePlace::Device);
    }
    // `World::pump` checks that no pinned granule leaves.
    world.planner.switch(&[timeline[1], timeline[0]]);
    world.pump();
    world.run_until(100_000);
    let there = |granule: &u64| world.planner.is_there(Client(0), *granule);
    assert_eq!((0..20).filter(there).count(), 20);
}

#[test]
fn what_came_by_faults_beyond_the_capacity_is_given_back() {
    // More than may be out at a time.
    let mut world = World::new(
        config(40, PlanOptions::default()),
        vec![sweep(40, 100, Access::ReadWrite), sweep(30, 100, Access::ReadWrite)],
    );
    let turn = |client| ResidencySlot {
        client: Client(client),
        length: 4_000,
    };
    world.turn(&[turn(0), turn(1)]);
    for granule in 0..30 {
        let one = GranuleRange {
            first: granule,
            count: 1,
        };
        world.planner.faulted(Client(1), one);
    }
    assert!(world.planner.taken() > 40 + u64::from(world.planner.config().in_flight));
    let mut orders = Vec::new();
    world.planner.switch(&[turn(1), turn(0)]);
    for _ in 0..MOST_ROUNDS {
        orders.clear();
        world.planner.orders(&mut orders);
        for order in &orders {
            world.planner.done(order.id, OrderStatus::Done);
        }
        world.planner.ran(Client(1), 100);
    }
    assert!(world.planner.taken() <= 40, "{}", world.planner.taken());
}

#[test]
fn a_kernel_keeps_what_it_uses_however_often_the_plan_is_made_anew() {
    // Three kernels of ten granules on room for 15: each gives way to the next.
    let mut set = sweep(3, 9_000, Access::ReadWrite);
    for one in &mut set.uses {
        one.range = GranuleRange {
            first: one.at / 9_000 * 10,
            count: 10,
        };
    }
    let mut world = World::new(config(15, PlanOptions::default()), vec![set]);
    let turn = ResidencySlot {
        client: Client(0),
        length: 90_000,
    };
    world.planner.switch(&[turn]);
    world.pump();
    world.run_until(5_000);
    for kernel in 0..9u64 {
        for part in 0..9 {
            // A position and an unchanged set: the plan is made again in the middle of the kernel.
            world.planner.ran(Client(0), 1_000);
            world.planner.replan();
            world.pump();
            world.run_until(world.now + 1_000);
            let used = (kernel + u64::from(part == 8)) % 3 * 10;
            if part < 8 {
                let there = |granule| world.planner.is_there(Client(0), granule);
                assert!((used..used + 10).all(there), "kernel {kernel}, part {part}");
            }
        }
        world.run_until(world.now + 5_000);
    }
}

#[test]
fn prefetches_come_in_the_order_of_first_use() {
    let mut set = sweep(20, 100, Access::Read);
    for (at, one) in set.uses.iter_mut().enumerate() {
        one.range.first = 100 - at as u64;
    }
    let mut world = World::new(config(40, PlanOptions::default()), vec![set]);
    world.turn(&[ResidencySlot {
        client: Client(0),
        length: 2_000,
    }]);
    let expected: Vec<u64> = (0..20).map(|at| 100 - at).collect();
    // Granules of one order have no order.
    let asked: Vec<u64> = world
        .asked
        .chunks(4)
        .flat_map(|four| {
            let mut four: Vec<u64> = four.iter().map(|(_, granule)| *granule).collect();
            four.sort_by_key(|granule| std::cmp::Reverse(*granule));
            four
        })
        .collect();
    assert_eq!(asked, expected);
    assert_eq!(world.faults, 0);
}

#[test]
fn weights_are_copied_out_never_and_dead_data_is_dropped() {
    let with = |access, options| {
        let mut world = World::new(config(60, options), vec![sweep(40, 200, access); 3]);
        world.rounds(4, 8_000);
        let rows = world.planner.rows();
        let sum = |kind: fn(&PagingStats) -> u64| rows.iter().map(kind).sum::<u64>() / GRANULE;
        assert!(sum(|row| row.evicted) <= world.copied_out);
        (
            world.copied_out,
            sum(|row| row.released),
            sum(|row| row.discarded),
            sum(|row| row.prefetched),
        )
    };
    let all = PlanOptions::default();
    let (copied, released, discarded, _) = with(Access::Read, all);
    assert_eq!((copied, discarded), (0, 0));
    assert!(released > 100);
    let plain = PlanOptions {
        read_duplication: false,
        ..all
    };
    let (copied, released, ..) = with(Access::Read, plain);
    assert!(copied > 100 && released == 0);

    let (copied, _, discarded, prefetched) = with(Access::Write, all);
    assert_eq!((copied, prefetched), (0, 0), "dead data is neither copied out nor in");
    assert!(discarded > 100);
    let plain = PlanOptions { discard: false, ..all };
    let (copied, _, discarded, prefetched) = with(Access::Write, plain);
    assert!(copied > 100 && discarded == 0 && prefetched > 100);
}

#[test]
fn advice_follows_what_is_written() {
    let mut planner = Planner::new(config(10, PlanOptions::default()));
    planner.join(Client(1));
    let mut set = sweep(4, 10, Access::Read);
    set.uses[2].access = Access::ReadWrite;
    planner.set_working_set(Client(1), set.clone(), 0);
    let mut orders = Vec::new();
    planner.orders(&mut orders);
    let advice = |orders: &[PagingOrder]| -> Vec<(u64, u32, OrderKind)> {
        orders
            .iter()
            .filter(|order| matches!(order.kind, OrderKind::Advise(_)))
            .map(|order| (order.range.first, order.range.count, order.kind))
            .collect()
    };
    assert_eq!(
        advice(&orders),
        [(0, 2, OrderKind::Advise(true)), (3, 1, OrderKind::Advise(true))]
    );
    orders.clear();
    set.uses[3].access = Access::ReadWrite;
    planner.set_working_set(Client(1), set, 0);
    planner.orders(&mut orders);
    assert_eq!(advice(&orders), [(3, 1, OrderKind::Advise(false))]);
}

#[test]
fn without_pipelining_a_turn_starts_when_everything_is_in() {
    let serial = PlanOptions {
        overlap: Overlap::Nothing,
        ..PlanOptions::default()
    };
    let mut world = World::new(config(60, serial), vec![sweep(40, 200, Access::ReadWrite); 3]);
    let pipelined = |overlap| {
        let options = PlanOptions { overlap, ..serial };
        let mut world = World::new(config(60, options), vec![sweep(40, 200, Access::ReadWrite); 3]);
        world.rounds(4, 8_000);
        assert_eq!(world.faults, 0);
        world.stalled
    };
    world.rounds(4, 8_000);
    assert_eq!(world.faults, 0);
    let (at_switch, ahead) = (pipelined(Overlap::AtSwitch), pipelined(Overlap::Ahead));
    assert!(world.stalled > at_switch, "{} {at_switch}", world.stalled);
    assert!(at_switch > ahead, "{at_switch} {ahead}");
}

#[test]
fn a_job_larger_than_the_device_goes_round_in_it() {
    // The link is half as fast as the kernels, so the cost is the migration.
    let set = sweep(100, 50, Access::ReadWrite);
    let mut config = config(40, PlanOptions::default());
    // By default, granules in flight would be a fifth of this device.
    (config.in_flight, config.per_order) = (2, 1);
    let mut world = World::new(config, vec![set.clone()]);
    let turn = [ResidencySlot {
        client: Client(0),
        length: 50_000,
    }];
    world.turn(&turn);
    assert_eq!(world.faults, 0);
    let least = least_fetches(&string(&[set], 10, 5_000), 40);
    assert!(world.prefetched < least * 115 / 100, "{} of {least}", world.prefetched);
    assert!(world.stalled < least * STEP, "{}", world.stalled);
}

#[test]
fn what_is_refused_stays_and_is_asked_again_at_the_next_switch() {
    let mut planner = Planner::new(config(10, PlanOptions::default()));
    let client = Client(1);
    planner.join(client);
    planner.set_working_set(client, sweep(4, 10, Access::ReadWrite), 0);
    planner.placed(client, GranuleRange { first: 0, count: 4 }, GranulePlace::Host);
    let turn = [ResidencySlot { client, length: 40 }];
    planner.switch(&turn);
    let mut orders = Vec::new();
    planner.orders(&mut orders);
    assert_eq!(orders.len(), 1);
    assert!(planner.promised(client, 2));
    planner.done(orders[0].id, OrderStatus::Refused);
    planner.done(orders[0].id, OrderStatus::Done);
    orders.clear();
    planner.orders(&mut orders);
    assert!(orders.is_empty(), "not again in this turn");
    assert!(!planner.promised(client, 2) && !planner.is_there(client, 2));
    assert_eq!(planner.rows()[0].refused, 1);
    planner.switch(&turn);
    planner.orders(&mut orders);
    assert_eq!(orders.len(), 1);
    assert_eq!(planner.totals(), planner.recounted());
}

#[test]
fn the_host_is_not_filled_beyond_its_limit() {
    // 120 granules, 60 on the device, 70 on the host: at most 10 duplicates.
    for access in [Access::Read, Access::ReadWrite] {
        let mut config = config(60, PlanOptions::default());
        config.host_limit = 130;
        let mut world = World::new(config, vec![sweep(40, 200, access); 3]);
        world.rounds(1, 8_000);
        world.planner.config.host_limit = 70.max(world.planner.on_host());
        world.rounds(4, 8_000);
    }
}

#[test]
fn no_more_of_a_client_is_moved_out_than_its_control_group_leaves() {
    for limit in [Some(15), Some(0), None] {
        let mut world = World::new(
            config(60, PlanOptions::default()),
            vec![sweep(40, 200, Access::ReadWrite); 3],
        );
        world.planner.set_client_host_limit(Client(1), limit);
        world.rounds(6, 8_000);
        let on_host = world.planner.on_host_of(Client(1));
        match limit {
            Some(limit) => assert!(on_host <= limit, "{on_host} of {limit}"),
            None => assert!(on_host > 15, "without a limit more goes: {on_host}"),
        }
        assert_eq!(world.planner.recounted(), world.planner.totals());
    }
}

#[test]
fn what_was_freed_or_left_is_forgotten() {
    let mut world = World::new(
        config(60, PlanOptions::default()),
        vec![sweep(40, 200, Access::ReadWrite); 3],
    );
    world.rounds(1, 8_000);
    world.planner.freed(Client(1), GranuleRange { first: 0, count: 10 });
    world.pump();
    world.planner.leave(Client(2));
    world.pump();
    world.planner.leave(Client(0));
    world.planner.leave(Client(1));
    world.pump();
    let totals = world.planner.totals();
    assert_eq!((totals.device, totals.arriving, totals.host), (0, 0, 0));
}

/// Least fetches of any demand paging: Belady's MIN over the string of uses.
fn least_fetches(string: &[(Client, u64)], capacity: usize) -> u64 {
    let mut there: Vec<(Client, u64)> = Vec::new();
    let mut fetches = 0;
    for (at, one) in string.iter().enumerate() {
        if there.contains(one) {
            continue;
        }
        fetches += 1;
        if there.len() == capacity {
            let next = |one: &(Client, u64)| string[at..].iter().position(|other| other == one).unwrap_or(usize::MAX);
            let victim = (0..there.len()).max_by_key(|index| next(&there[*index])).unwrap();
            there.swap_remove(victim);
        }
        there.push(*one);
    }
    fetches
}

fn string(sets: &[WorkingSet], rounds: usize, length: Ns) -> Vec<(Client, u64)> {
    let mut string = Vec::new();
    let mut positions = vec![0; sets.len()];
    for _ in 0..rounds {
        for (number, set) in sets.iter().enumerate() {
            let mut left = length;
            let mut begun = begun(set, positions[number]);
            while left > 0 {
                let position = positions[number];
                let now = begun.take().unwrap_or(position);
                for one in set.uses.iter().filter(|one| one.at == now) {
                    string.extend(one.range.granules().map(|granule| (Client(number as u64), granule)));
                }
                let next = set.uses.iter().map(|one| one.at).find(|at| *at > position);
                let step = (next.unwrap_or(set.period) - position).min(left);
                left -= step;
                positions[number] = (position + step) % set.period;
            }
        }
    }
    string
}

fn sets() -> impl Strategy<Value = Vec<WorkingSet>> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write), Just(Access::ReadWrite)];
    let one = (4u64..20, 1u64..5, access).prop_map(|(count, each, access)| sweep(count, each * 100, access));
    prop::collection::vec(one, 2..5)
}

/// Sets with repeated granules in any order.
fn wild_sets() -> impl Strategy<Value = Vec<WorkingSet>> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write), Just(Access::ReadWrite)];
    let one = (0u64..12, 0u64..16, 1u32..4, access).prop_map(|(at, first, count, access)| Use {
        at: at * 100,
        range: GranuleRange { first, count },
        access,
    });
    let set = prop::collection::vec(one, 1..12).prop_map(|mut uses| {
        uses.sort_by_key(|one| one.at);
        WorkingSet { period: 1_200, uses }
    });
    prop::collection::vec(set, 1..5)
}

fn options() -> impl Strategy<Value = PlanOptions> {
    let overlap = prop_oneof![Just(Overlap::Nothing), Just(Overlap::AtSwitch), Just(Overlap::Ahead)];
    let victims = prop_oneof![Just(Victims::Opt), Just(Victims::Lru)];
    (overlap, victims, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(overlap, victims, discard, read_duplication, whole_allocations)| PlanOptions {
            overlap,
            victims,
            discard,
            read_duplication,
            whole_allocations,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The crate's invariants hold for any input; `World::pump` checks them.
    #[test]
    fn what_holds_always_holds(
        sets in wild_sets(), options in options(), capacity in 4u64..40, in_flight in 1u32..12, length in 1u64..30, duplex: bool, pin: bool,
    ) {
        let mut config = config(capacity, options);
        config.in_flight = in_flight;
        config.link = link(duplex);
        let mut world = World::new(config, sets);
        if pin {
            world.planner.pin(Client(0), true);
            world.pinned.insert(Client(0));
        }
        world.rounds(3, length * 100);
        let allocated: u64 = world.planner.rows().iter().map(|row| row.allocated).sum();
        let there: u64 = world.planner.clients.iter().map(|(_, memory)| memory.slots.len() as u64).sum();
        prop_assert_eq!(allocated, there * GRANULE);
    }

    /// `least <= OPT <= LRU`, in fetches.
    #[test]
    fn opt_is_no_worse_than_lru(sets in sets(), share in 40u64..95, length in 4u64..40) {
        let all: u64 = sets.iter().map(|set| set.uses.len() as u64).sum();
        let largest = sets.iter().map(|set| set.uses.len() as u64).max().unwrap();
        let capacity = (all * share / 100).max(largest);
        let length = length * 100;
        let run = |victims| {
            let options = PlanOptions { victims, overlap: Overlap::AtSwitch, discard: false, ..PlanOptions::default() };
            let mut world = World::new(config(capacity, options), sets.clone());
            world.rounds(6, length);
            (world.prefetched, world.faults)
        };
        let ((opt, opt_faults), (lru, lru_faults)) = (run(Victims::Opt), run(Victims::Lru));
        prop_assert_eq!((opt_faults, lru_faults), (0, 0));
        let least = least_fetches(&string(&sets, 6, length), capacity as usize);
        prop_assert!(least <= opt, "{} is less than possible ({})", opt, least);
        prop_assert!(opt <= lru, "OPT {} LRU {} least {}", opt, lru, least);
    }
}
