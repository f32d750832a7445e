// SPDX-License-Identifier: MIT OR Apache-2.0
//! Use of free memory: bytes that clients read as free, bytes that undeclared jobs do not hold, and
//! memory of processes that are not clients any more.

use super::*;
use weft_protocol::admission_slot::DEFAULT_PATIENCE_NS;

const LONG_NS: Ns = 60_000_000_000;

/// A job without a declared need.
pub(super) fn undeclared(broker: &mut Broker, pid: u32, priority: u8) -> Arc<Entry> {
    let entry = broker.new_job(pid, format!("job {pid}"));
    entry.priority.store(priority, Ordering::Relaxed);
    let wants = Wants {
        uuid: "gpu".into(),
        total: 8 * GB,
        processes: 1,
        ..Wants::default()
    };
    broker.handle.wants(&entry, &ToTheClient::nobody(), wants);
    entry
}

fn holds(entry: &Entry, bytes: u64) {
    entry.lane.counters.memory.store(bytes, Ordering::Relaxed);
}

fn limit(entry: &Entry) -> u64 {
    entry.lane.admission_slot.limit.load(Ordering::Relaxed)
}

fn answers(entry: &Entry) -> (u32, bool) {
    let slot = &entry.lane.admission_slot;
    (
        slot.answers.load(Ordering::Relaxed),
        slot.growing.load(Ordering::Relaxed) != 0,
    )
}

/// Ticks until this holds.
pub(super) fn until(broker: &Broker, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not within 30 s");
        broker.handle.tick();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn what_a_job_reads_as_free_is_the_same_before_and_after_it_grows() {
    let mut broker = Broker::begin(None);
    let first = undeclared(&mut broker, 1, 5);
    assert_eq!(limit(&first), 8 * GB);
    for step in 1..=3 {
        broker.handle.more(first.client, GB, 0);
        assert_eq!((limit(&first), answers(&first).0), (8 * GB, step), "after {step} GiB");
    }
    // A job cannot get another job's share, only bytes that the other job gives back.
    let second = broker.comes(2, "b", 4 * GB, None);
    assert_eq!(limit(&first), 4 * GB);
    broker.handle.more(first.client, GB / 2, 0);
    assert_eq!(limit(&first), 4 * GB);
    broker.handle.gone(second.client);
    assert_eq!(limit(&first), 8 * GB);
}

#[test]
fn a_grant_is_its_own_requests_though_a_sibling_waits() {
    let mut broker = Broker::begin(None);
    let (first, other) = (broker.comes(1, "a", GB, None), broker.comes(2, "b", 4 * GB, None));
    let second = broker.comes(3, "a", GB, None);
    let had = share(&second);
    for sibling in [&first, &second] {
        holds(sibling, share(sibling));
    }
    broker.handle.more(first.client, 6 * GB, LONG_NS);
    assert_eq!(answers(&first), (0, true));
    broker.handle.more(second.client, GB, 0);
    assert_eq!((answers(&second), share(&second)), ((1, false), had + GB));
    assert_eq!(answers(&first), (0, true), "it waits on");
    let together = share(&first) + share(&second);
    assert_eq!(running(&broker)[0].1, together, "no byte was granted twice");
    broker.handle.gone(other.client);
    assert_eq!(answers(&first), (1, false));
}

#[test]
fn what_one_process_waits_with_only_one_has_in_the_end() {
    let mut broker = Broker::begin(None);
    let (first, second) = (broker.comes(1, "a", 2 * GB, None), broker.comes(2, "a", 2 * GB, None));
    let other = broker.comes(3, "b", 5 * GB, None);
    holds(&first, share(&first));
    // The first process waits for more, also for bytes that its sibling does not hold. The sibling
    // wants them back.
    broker.handle.more(first.client, 3 * GB, LONG_NS);
    assert_eq!(answers(&first), (0, true));
    broker.handle.more(second.client, GB, 0);
    holds(&second, GB);
    broker.handle.gone(other.client);
    assert_eq!((answers(&first), answers(&second)), ((1, false), (1, false)));
    assert_eq!(running(&broker)[0].1, share(&first) + share(&second));
}

#[test]
fn what_an_undeclared_job_does_not_hold_is_had_before_anybody_waits_or_is_denied() {
    const BEGAN_BYTES: u64 = 8 * GB / 64;
    let mut broker = Broker::begin(None);
    let first = undeclared(&mut broker, 1, 5);
    broker.handle.more(first.client, 6 * GB, 0);
    holds(&first, 6 * GB);
    let second = undeclared(&mut broker, 2, 5);
    broker.handle.more(second.client, 4 * GB, LONG_NS);
    assert_eq!(answers(&second), (0, true), "the first one holds it");
    // The bytes are freed: the waiting process gets them at the next check.
    holds(&first, 0);
    until(&broker, || answers(&second) == (1, false));
    assert_eq!(share(&second), BEGAN_BYTES + 4 * GB);
    assert!(share(&first) + share(&second) <= 8 * GB);
    // Both limits show the bytes that the processes can have.
    holds(&second, 4 * GB);
    until(&broker, || limit(&first) == 4 * GB);
    holds(&second, 0);
    until(&broker, || limit(&first) == 8 * GB - BEGAN_BYTES);
    broker.handle.more(first.client, 7 * GB - share(&first), 0);
    assert_eq!((answers(&first).0, share(&first)), (2, 7 * GB));
    // A job that declares its need begins at once.
    let declared = broker.comes(3, "c", 7 * GB, None);
    assert_eq!(standing(&declared), AdmissionState::Admitted);
    assert_eq!(share(&first), BEGAN_BYTES);
    // A declared need is reserved, whether the job holds it or not.
    broker.handle.more(first.client, GB, 0);
    assert_eq!((share(&first), share(&declared)), (BEGAN_BYTES, 7 * GB));
}

#[test]
fn a_refused_allocation_shows_what_is_taken_and_leaves_the_share_as_it_was() {
    const BEGAN_BYTES: u64 = 8 * GB / 64;
    let mut broker = Broker::begin(None);
    let first = undeclared(&mut broker, 1, 5);
    broker.handle.more(first.client, 4 * GB, 0);
    assert_eq!((answers(&first).0, share(&first)), (1, BEGAN_BYTES + 4 * GB));
    // The driver has less than was granted.
    broker.handle.refused(first.client, GB);
    assert_eq!((answers(&first).0, share(&first)), (2, BEGAN_BYTES));
    assert_eq!(broker.handle.queue().devices[0].foreign, 7 * GB);
    broker.handle.more(first.client, 4 * GB, 0);
    assert_eq!((answers(&first).0, share(&first)), (3, BEGAN_BYTES), "denied");
    broker.handle.more(first.client, GB / 2, 0);
    assert_eq!((answers(&first).0, share(&first)), (4, BEGAN_BYTES + GB / 2));
    // It keeps what it holds.
    holds(&first, GB / 2);
    broker.handle.refused(first.client, GB / 4);
    assert_eq!((answers(&first).0, share(&first)), (5, GB / 2));
    // Users that distrust each other believe only NVML.
    let mut broker = Broker::begin(None);
    broker.handle = broker.handle.shared(true);
    let first = undeclared(&mut broker, 1, 5);
    broker.handle.refused(first.client, 0);
    assert_eq!(broker.handle.queue().devices[0].foreign, 0);
}

#[test]
fn nothing_is_taken_from_a_client_that_takes_memory_right_now() {
    let mut broker = Broker::begin(None);
    let first = undeclared(&mut broker, 1, 5);
    broker.handle.more(first.client, 6 * GB, 0);
    let (had, second) = (share(&first), undeclared(&mut broker, 2, 5));
    first.lane.moves.begun(1);
    broker.handle.more(second.client, 4 * GB, 0);
    assert_eq!((share(&first), answers(&second)), (had, (1, false)));
    assert_eq!(share(&second), 8 * GB / 64, "denied");
    holds(&first, GB);
    first.lane.moves.done(1, clock::now());
    broker.handle.more(second.client, 4 * GB, 0);
    assert_eq!(share(&second), 4 * GB + 8 * GB / 64);
    assert!(share(&first) >= GB && share(&first) + share(&second) <= 8 * GB);
}

#[test]
fn the_most_important_job_is_answered_at_once_unless_it_said_that_it_waits() {
    let mut broker = Broker::begin(None);
    let service = undeclared(&mut broker, 1, 0);
    let training = broker.comes(2, "b", 6 * GB, None);
    broker.handle.more(service.client, 4 * GB, DEFAULT_PATIENCE_NS);
    assert_eq!(answers(&service), (1, false));
    broker.handle.more(service.client, 4 * GB, LONG_NS);
    assert_eq!(answers(&service), (1, true));
    broker.handle.no_more(service.client);
    // Between jobs of equal priority, one waits for the other, which may end.
    broker.handle.priority(training.client, 0);
    broker.handle.more(service.client, 4 * GB, DEFAULT_PATIENCE_NS);
    assert_eq!(answers(&service), (2, true));
}

#[test]
fn who_is_let_go_keeps_its_share_until_its_process_ends() {
    let mut broker = Broker::begin(None);
    let (holder, other) = (Somebody::new(), Somebody::new());
    let first = broker.comes(holder.pid(), "a", 6 * GB, None);
    let waiter = broker.comes(other.pid(), "b", 5 * GB, None);
    broker.handle.let_go(first.client, None);
    broker.handle.tick();
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    assert_eq!(running(&broker), [("gpu".to_string(), 6 * GB, 0)]);
    // Its memory does not count as foreign.
    let later = clock::now() + 3_000_000_000;
    broker.handle.controller().observe_free("gpu", 2 * GB, later);
    assert_eq!(broker.handle.queue().devices[0].foreign, 0);
    // It reattaches to its share, and is let go again.
    let back = broker.comes(holder.pid(), "a", 6 * GB, Some(6 * GB));
    assert_eq!((share(&back), running(&broker)[0].1), (6 * GB, 6 * GB));
    broker.handle.let_go(back.client, None);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    drop(holder);
    until(&broker, || standing(&waiter) == AdmissionState::Admitted);
    // A waiting job holds nothing, and neither does one whose process ended.
    let last = broker.comes(other.pid(), "c", 5 * GB, None);
    broker.handle.let_go(last.client, None);
    assert_eq!(broker.handle.queue().waiting.len(), 0);
    drop(other);
    broker.handle.let_go(waiter.client, None);
    assert_eq!(broker.handle.queue().running.len(), 0);
}

#[test]
fn a_process_that_runs_another_program_is_a_new_job() {
    let mut broker = Broker::begin(None);
    let (holder, other) = (Somebody::new(), Somebody::new());
    let first = broker.comes(holder.pid(), "a", 6 * GB, None);
    let waiter = broker.comes(other.pid(), "b", 5 * GB, None);
    broker.handle.let_go(first.client, None);
    let second = broker.comes(holder.pid(), "c", 2 * GB, None);
    assert_eq!(standing(&waiter), AdmissionState::Admitted);
    assert_eq!((standing(&second), share(&second)), (AdmissionState::Admitted, 2 * GB));
    assert_eq!(running(&broker).len(), 2);
}

#[test]
fn an_ending_broker_admits_nobody_and_its_successor_knows_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (holder, other) = (Somebody::new(), Somebody::new());
    let mut ending = Broker::begin(Some(&file));
    let first = ending.comes(holder.pid(), "a", 6 * GB, None);
    let waiter = ending.comes(other.pid(), "b", 5 * GB, None);
    ending.handle.close();
    ending.handle.gone(first.client);
    ending.handle.tick();
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    ending.handle.gone(waiter.client);
    let next = Broker::begin(Some(&file)).handle.queue();
    assert_eq!((next.running.len(), next.waiting.len()), (1, 1));
}

#[test]
fn a_process_of_the_book_is_no_stranger() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (paused, other) = (Somebody::new(), Somebody::new());
    Broker::begin(Some(&file)).comes(paused.pid(), "a", 3 * GB, None);
    // The broker is killed. The paused job cannot reattach, and NVML shows the bytes that it holds.
    let mut next = Broker::begin(Some(&file));
    let later = clock::now() + 3_000_000_000;
    next.handle.controller().observe_free("gpu", 5 * GB, later);
    assert_eq!(next.handle.queue().devices[0].foreign, 0);
    assert_eq!(
        standing(&next.comes(other.pid(), "b", 5 * GB, None)),
        AdmissionState::Admitted
    );
    // Other programs hold the bytes beyond the paused job's share.
    next.handle.controller().observe_free("gpu", 4 * GB, later + 1);
    assert_eq!(next.handle.queue().devices[0].foreign, GB);
}

#[test]
fn who_fits_beside_memory_that_is_on_its_way_back_does_not_wait_for_it() {
    let mut broker = Broker::begin(None);
    let comes = |broker: &mut Broker, memory, number| {
        let entry = broker.new_job(1, "next".into());
        let wants = Wants {
            uuid: "gpu".into(),
            total: 8 * GB,
            memory: Some(memory),
            processes: 1,
            ..Wants::default()
        };
        let reading = watch::Reading {
            number,
            at: clock::now(),
            free: vec![("gpu".into(), 4 * GB)],
            memory: vec![("gpu".into(), 8 * GB)],
        };
        let new_job = (&entry, &ToTheClient::nobody(), wants);
        broker.handle.controller().arrive(new_job, true, Some(&reading));
        entry
    };
    let left = broker.comes(1, "a", 4 * GB, None);
    broker.handle.gone(left.client);
    assert_eq!(standing(&comes(&mut broker, 3 * GB, 1)), AdmissionState::Admitted);
    assert!(broker.handle.controller().needs_nvml(), "it is looked again at once");
    assert_eq!(
        standing(&comes(&mut broker, 4 * GB, 2)),
        AdmissionState::Unknown,
        "it may fit when that has come back"
    );
}
