// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger over killed brokers: clients that reattach, return as other processes, or never
//! return.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::clients::registry::NewEntry;
use weft_protocol::admission_slot::AdmissionState;
use weft_protocol::transport::map::SharedLane;

mod auto_backing;
mod evicted;
mod free_memory;
mod seen;
mod shared;

const GB: u64 = 1 << 30;

/// A process that lives until the value is dropped.
struct Somebody(Child);

impl Somebody {
    fn new() -> Somebody {
        let cat = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Somebody(cat.expect("cat is everywhere"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Admission, with numbers for its clients.
struct Broker {
    handle: AdmissionHandle,
    clients: u64,
}

impl Broker {
    /// A broker on this ledger, if any.
    fn begin(file: Option<&Path>) -> Broker {
        Broker {
            handle: AdmissionHandle::new(file.map(Path::to_path_buf)),
            clients: 0,
        }
    }

    /// A broker with unknown contexts and without NVML.
    fn cold() -> Broker {
        let broker = Broker::begin(None);
        broker.handle.controller().parts().1.set_measures();
        broker
    }

    /// Attaches a client of this process.
    fn new_job(&mut self, pid: u32, command: String) -> Arc<Entry> {
        self.clients += 1;
        Arc::new(Entry::new(NewEntry {
            client: self.clients,
            pid,
            command,
            profile: None,
            loaded: None,
            trouble: None,
            profiling: false,
            priority: 5,
            lane: Arc::new(SharedLane::lane().expect("a lane")),
        }))
    }

    /// Handles a client's probe; its time may be in the future.
    fn sees(&self, client: u64, look: MemoryProbe) {
        self.handle.controller().probe(client, look, false);
    }

    /// A client requests (or has: `runs`) `memory` bytes of a device of 8 GiB.
    fn comes(&mut self, pid: u32, gang: &str, memory: u64, runs: Option<u64>) -> Arc<Entry> {
        self.comes_to("gpu", pid, gang, memory, runs)
    }

    /// A job of user `uid` reports a device of `total` bytes and requests `memory`.
    fn of_user(&mut self, uid: u32, uuid: &str, total: u64, memory: u64) -> Arc<Entry> {
        self.clients += 1;
        let entry = Arc::new(
            Entry::new(NewEntry {
                client: self.clients,
                pid: self.clients as u32,
                command: format!("job {} of user {uid}", self.clients),
                profile: None,
                loaded: None,
                trouble: None,
                profiling: false,
                priority: 5,
                lane: Arc::new(SharedLane::lane().expect("a lane")),
            })
            .of(uid, None),
        );
        let wants = Wants {
            uuid: uuid.into(),
            total,
            memory: Some(memory),
            processes: 1,
            user: uid.to_string(),
            ..Wants::default()
        };
        self.handle.wants(&entry, &ToTheClient::nobody(), wants);
        entry
    }

    /// `comes` for the device with this UUID.
    fn comes_to(&mut self, uuid: &str, pid: u32, gang: &str, memory: u64, runs: Option<u64>) -> Arc<Entry> {
        let entry = self.new_job(pid, format!("job {gang}"));
        let wants = Wants {
            uuid: uuid.into(),
            total: 8 * GB,
            memory: Some(memory),
            gang: gang.into(),
            processes: 1,
            runs,
            ..Wants::default()
        };
        self.handle.wants(&entry, &ToTheClient::nobody(), wants);
        entry
    }
}

fn standing(entry: &Entry) -> AdmissionState {
    entry.lane.admission_slot.state()
}

#[test]
fn whoever_comes_first_after_a_restart_finds_the_places_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (foreground, waiter, late) = (Somebody::new(), Somebody::new(), Somebody::new());
    let mut first = Broker::begin(Some(&file));
    assert_eq!(
        standing(&first.comes(foreground.pid(), "a", 5 * GB, None)),
        AdmissionState::Admitted
    );
    assert_eq!(
        standing(&first.comes(waiter.pid(), "b", 4 * GB, None)),
        AdmissionState::Waits
    );
    // The broker is killed. A new job arrives at its successor before any client reattaches.
    let mut second = Broker::begin(Some(&file));
    let new_job = second.comes(late.pid(), "c", 4 * GB, None);
    assert_eq!(standing(&new_job), AdmissionState::Waits);
    let queue = second.handle.queue();
    assert_eq!(
        queue.running.iter().map(|row| (row.pid, row.share)).collect::<Vec<_>>(),
        [(foreground.pid(), 5 * GB)]
    );
    assert_eq!(
        queue.waiting.iter().map(|row| row.pid).collect::<Vec<_>>(),
        [waiter.pid(), late.pid()]
    );
    // They reattach: the running job keeps its memory, with the latest growth; the waiting job
    // keeps its place.
    let back = second.comes(foreground.pid(), "a", 5 * GB, Some(5 * GB + 7));
    assert_eq!(standing(&back), AdmissionState::Admitted);
    assert_eq!(back.lane.admission_slot.quota.load(Ordering::Relaxed), 5 * GB + 7);
    let queued = second.comes(waiter.pid(), "b", 4 * GB, None);
    assert_eq!(standing(&queued), AdmissionState::Waits);
    let queue = second.handle.queue();
    assert_eq!(
        (queue.running.len(), queue.running[0].share, queue.waiting.len()),
        (1, 5 * GB + 7, 2)
    );
    second.handle.gone(2);
    assert_eq!(
        (standing(&queued), standing(&new_job)),
        (AdmissionState::Admitted, AdmissionState::Admitted)
    );
    let sums = second.handle.queue();
    assert_eq!((sums.admitted, sums.waited), (3, 2));
}

#[test]
fn without_the_book_a_new_job_slips_in() {
    // The result without a ledger.
    let (foreground, late) = (Somebody::new(), Somebody::new());
    let mut first = Broker::begin(None);
    assert_eq!(
        standing(&first.comes(foreground.pid(), "a", 5 * GB, None)),
        AdmissionState::Admitted
    );
    let mut second = Broker::begin(None);
    assert_eq!(
        standing(&second.comes(late.pid(), "c", 4 * GB, None)),
        AdmissionState::Admitted
    );
}

#[test]
fn who_died_while_there_was_no_broker_holds_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (foreground, waiter, late) = (Somebody::new(), Somebody::new(), Somebody::new());
    let mut first = Broker::begin(Some(&file));
    first.comes(foreground.pid(), "a", 5 * GB, None);
    first.comes(waiter.pid(), "b", 4 * GB, None);
    let waiting = waiter.pid();
    drop(foreground);
    let mut second = Broker::begin(Some(&file));
    // The waiting job was admitted before it reattached, and gets its admission then.
    assert_eq!(
        second
            .handle
            .queue()
            .running
            .iter()
            .map(|row| row.pid)
            .collect::<Vec<_>>(),
        [waiting]
    );
    assert_eq!(
        standing(&second.comes(late.pid(), "c", 5 * GB, None)),
        AdmissionState::Waits
    );
    assert_eq!(
        standing(&second.comes(waiting, "b", 4 * GB, None)),
        AdmissionState::Admitted
    );
    second.handle.gone(2);
    assert_eq!(second.handle.queue().running.len(), 1);
    // Once the last job has ended there is nothing to keep.
    second.handle.gone(1);
    second.handle.close();
    assert!(!file.exists());
}

#[test]
fn who_does_not_come_back_but_runs_keeps_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (foreground, late) = (Somebody::new(), Somebody::new());
    Broker::begin(Some(&file)).comes(foreground.pid(), "a", 5 * GB, None);
    // It never reattaches, to one broker after another.
    let mut second = Broker::begin(Some(&file));
    assert_eq!(second.handle.queue().running.len(), 1);
    second.handle.close();
    let mut third = Broker::begin(Some(&file));
    let new_job = third.comes(late.pid(), "c", 4 * GB, None);
    assert_eq!(standing(&new_job), AdmissionState::Waits);
    let pid = foreground.pid();
    drop(foreground);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while standing(&new_job) != AdmissionState::Admitted {
        assert!(
            std::time::Instant::now() < deadline,
            "process {pid} is gone and still has its place"
        );
        third.handle.tick();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // A known pid with another start time is another process, and gets no place.
    let _ = second.comes(pid, "d", GB, None);
    assert_eq!(third.handle.queue().running.len(), 1);
}

#[test]
fn each_device_and_each_instance_of_a_partitioned_one_has_its_own_queue() {
    // The driver's UUID shows CUDA_VISIBLE_DEVICES and MIG instances.
    let mut broker = Broker::begin(None);
    let first = broker.comes_to("gpu 1", 1, "a", 6 * GB, None);
    let other = broker.comes_to("gpu 2", 2, "b", 6 * GB, None);
    let instance = broker.comes_to("an instance of gpu 2", 3, "c", 6 * GB, None);
    for entry in [&first, &other, &instance] {
        assert_eq!(standing(entry), AdmissionState::Admitted);
    }
    let waiter = broker.comes_to("gpu 2", 4, "d", 6 * GB, None);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    // Free memory on another device does not help: the job chose its device.
    broker.handle.gone(1);
    broker.handle.gone(3);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    broker.handle.gone(2);
    assert_eq!(standing(&waiter), AdmissionState::Admitted);
    assert_eq!(broker.handle.queue().devices.len(), 3);
}

#[test]
fn a_run_has_taught_once_its_process_has_ended_even_if_it_hung_up_before() {
    let mut broker = Broker::begin(None);
    let somebody = Somebody::new();
    let pid = somebody.pid();
    let silent = Wants {
        uuid: "gpu".into(),
        total: 8 * GB,
        processes: 1,
        ..Wants::default()
    };
    let entry = broker.new_job(pid, "cat".to_string());
    broker.handle.wants(&entry, &ToTheClient::nobody(), silent);
    entry.lane.counters.memory_peak.store(GB, Ordering::Relaxed);
    broker.handle.let_go(entry.client, None);
    assert!(broker.handle.learnt(Some(pid), None).is_none(), "it runs");
    drop(somebody);
    assert!(broker.handle.learnt(Some(pid), None).is_some(), "it ended");
}

#[test]
fn a_run_teaches_and_a_weight_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let mut broker = Broker::begin(Some(&file));
    broker.handle.weigh("ann", 3);
    let said = broker.comes(1, "a", GB, None);
    said.lane.counters.memory_peak.store(GB, Ordering::Relaxed);
    broker.handle.gone(1);
    assert!(broker.handle.learnt(None, None).is_none(), "it had said what it takes");
    let silent = Wants {
        uuid: "gpu".into(),
        total: 8 * GB,
        processes: 1,
        ..Wants::default()
    };
    broker.clients += 1;
    let entry = Arc::new(Entry::new(NewEntry {
        client: broker.clients,
        pid: 77,
        command: "python train.py".into(),
        profile: None,
        loaded: None,
        trouble: None,
        profiling: false,
        priority: 5,
        lane: Arc::new(SharedLane::lane().expect("a lane")),
    }));
    broker.handle.wants(&entry, &ToTheClient::nobody(), silent);
    entry.lane.counters.memory_peak.store(3 * GB, Ordering::Relaxed);
    broker.handle.more(entry.client, 20 * GB, 0);
    broker.handle.gone(entry.client);
    let took = broker.handle.learnt(Some(77), None).expect("it taught");
    assert_eq!(
        (took.peak, took.denied, took.command.as_str()),
        (3 * GB, true, "python train.py")
    );
    assert!(broker.handle.learnt(Some(78), None).is_none());
    let freed = broker.handle.queue().freed;
    assert_eq!(freed.iter().map(|row| row.pid).collect::<Vec<_>>(), [77, 1]);
    assert_eq!((freed[0].share, freed[1].share), (8 * GB / request::UNKNOWN_PART, GB));
    assert!(freed[1].at <= freed[0].at && freed[0].at <= clock::now());
    broker.handle.close();
    let weights = Broker::begin(Some(&file)).handle.queue().weights;
    assert_eq!(
        weights
            .iter()
            .map(|row| (row.user.as_str(), row.weight))
            .collect::<Vec<_>>(),
        [("ann", 3)]
    );
}

/// A probe long after the last change.
fn look(free: u64, held: u64) -> MemoryProbe {
    let at = clock::now() + 3_000_000_000;
    let own = 0;
    MemoryProbe { free, held, own, at }
}

#[test]
fn the_processes_of_a_job_have_no_more_together_than_it_was_let_in_with() {
    let mut broker = Broker::begin(None);
    let share = |entry: &Entry| entry.lane.admission_slot.quota.load(Ordering::Relaxed);
    let job = |broker: &Broker| broker.handle.queue().running[0].share;
    let first = broker.comes(1, "a", 6 * GB, None);
    assert_eq!(share(&first), 6 * GB, "nobody said that there would be more of them");
    first.lane.counters.memory.store(4 * GB, Ordering::Relaxed);
    // An equal part would be 3 GiB, but the first process holds more.
    let second = broker.comes(2, "a", 6 * GB, None);
    assert_eq!((share(&first), share(&second), job(&broker)), (4 * GB, 2 * GB, 6 * GB));
    // Its sibling has nothing to spare, but the device has.
    broker.handle.more(second.client, GB, 0);
    assert_eq!((share(&second), job(&broker)), (3 * GB, 7 * GB));
    // It gets the bytes that the sibling freed, but not while the sibling is taking memory.
    first.lane.counters.memory.store(GB, Ordering::Relaxed);
    first.lane.moves.begun(1);
    broker.handle.more(second.client, 2 * GB, 0);
    assert_eq!((share(&second), broker.handle.queue().denied), (3 * GB, 1));
    first.lane.moves.done(1, clock::now());
    broker.handle.more(second.client, 2 * GB, 0);
    assert_eq!((share(&first), share(&second), job(&broker)), (2 * GB, 5 * GB, 7 * GB));
    // It gets all memory of a process that ended.
    broker.handle.gone(first.client);
    broker.handle.more(second.client, 2 * GB, 0);
    assert_eq!((share(&second), job(&broker)), (7 * GB, 7 * GB));
    assert_eq!(standing(&broker.comes(3, "b", 2 * GB, None)), AdmissionState::Waits);
}

/// One of two processes of a job that declares 6 GiB, or one process on a further device.
fn wants_on(broker: &mut Broker, uuid: &str, pid: u32, about: Wants) -> Arc<Entry> {
    let entry = broker.new_job(pid, format!("process {pid} on {uuid}"));
    let wants = Wants {
        uuid: uuid.into(),
        total: 8 * GB,
        processes: about.processes.max(1),
        devices: 2,
        ..about
    };
    broker.handle.wants(&entry, &ToTheClient::nobody(), wants);
    entry
}

/// Devices, shares and numbers of processes of running jobs.
fn running(broker: &Broker) -> Vec<(String, u64, usize)> {
    let mut rows: Vec<_> = broker.handle.queue().running;
    rows.sort_by(|a, b| (&a.device, a.pid).cmp(&(&b.device, b.pid)));
    rows.into_iter()
        .map(|row| (row.device, row.share, row.clients.len()))
        .collect()
}

fn share(entry: &Entry) -> u64 {
    entry.lane.admission_slot.quota.load(Ordering::Relaxed)
}

#[test]
fn a_rank_that_comes_to_another_device_takes_its_part_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let mut broker = Broker::begin(Some(&file));
    let rank = |memory| Wants {
        memory: Some(memory),
        gang: "ranks".into(),
        processes: 2,
        ..Wants::default()
    };
    let (here, there) = (Somebody::new(), Somebody::new());
    let first = wants_on(&mut broker, "a", here.pid(), rank(6 * GB));
    assert_eq!(standing(&first), AdmissionState::Admitted);
    assert_eq!(
        running(&broker),
        [("a".into(), 6 * GB, 1)],
        "where the others go is not known yet"
    );
    let second = wants_on(&mut broker, "b", there.pid(), rank(6 * GB));
    assert_eq!(standing(&second), AdmissionState::Admitted);
    assert_eq!(running(&broker), [("a".into(), 3 * GB, 1), ("b".into(), 3 * GB, 1)]);
    assert_eq!((share(&first), share(&second)), (3 * GB, 3 * GB));
    // The rest of each device is for others.
    assert_eq!(
        standing(&broker.comes_to("a", 3, "x", 5 * GB, None)),
        AdmissionState::Admitted
    );
    let waiter = broker.comes_to("b", 4, "y", 6 * GB, None);
    assert_eq!(standing(&waiter), AdmissionState::Waits);
    broker.handle.gone(waiter.client);
    // The next broker knows both, and each reattaches to its own.
    let mut after = Broker::begin(Some(&file));
    let back = |memory| Wants {
        runs: Some(3 * GB),
        ..rank(memory)
    };
    let second = wants_on(&mut after, "b", there.pid(), back(6 * GB));
    let first = wants_on(&mut after, "a", here.pid(), back(6 * GB));
    assert_eq!((share(&first), share(&second)), (3 * GB, 3 * GB));
    assert_eq!(
        running(&after)
            .iter()
            .filter(|row| row.2 > 0 && row.1 == 3 * GB)
            .count(),
        2,
        "{:?}",
        running(&after)
    );
    after.handle.gone(second.client);
    assert_eq!(running(&after).iter().filter(|(device, ..)| device == "b").count(), 0);
}

#[test]
fn a_job_of_ranks_that_waits_asks_for_less_when_one_of_them_comes_elsewhere() {
    let mut broker = Broker::begin(None);
    let other = broker.comes_to("a", 1, "x", 4 * GB, None);
    let rank = Wants {
        memory: Some(6 * GB),
        gang: "ranks".into(),
        processes: 2,
        ..Wants::default()
    };
    let first = wants_on(&mut broker, "a", 2, rank.clone());
    assert_eq!(standing(&first), AdmissionState::Waits, "all of it does not fit");
    let second = wants_on(&mut broker, "b", 3, rank);
    assert_eq!(
        (standing(&first), standing(&second)),
        (AdmissionState::Admitted, AdmissionState::Admitted)
    );
    assert_eq!((share(&first), share(&second)), (3 * GB, 3 * GB));
    drop(other);
}

#[test]
fn a_process_on_two_devices_has_what_it_said_on_the_first_and_what_is_free_on_the_other() {
    let mut broker = Broker::begin(None);
    let said = |memory, further| Wants {
        memory: Some(memory),
        further,
        ..Wants::default()
    };
    let first = wants_on(&mut broker, "a", 7, said(6 * GB, 0));
    let second = wants_on(&mut broker, "b", 7, said(6 * GB, 1));
    assert_eq!((share(&first), share(&second)), (6 * GB, GB / 8));
    assert_eq!(
        second.lane.admission_slot.declared.load(Ordering::Relaxed),
        0,
        "of that device nothing was said"
    );
    broker.handle.more(second.client, 3 * GB, 0);
    assert_eq!(
        running(&broker),
        [("a".into(), 6 * GB, 1), ("b".into(), 3 * GB + GB / 8, 1)]
    );
    // The need exceeds one device: the job asks the next device for the rest.
    let mut broker = Broker::begin(None);
    let first = wants_on(&mut broker, "a", 8, said(12 * GB, 0));
    let second = wants_on(&mut broker, "b", 8, said(12 * GB, 1));
    assert_eq!((share(&first), share(&second)), (8 * GB, 4 * GB));
    assert_eq!(
        standing(&broker.comes_to("b", 9, "x", 5 * GB, None)),
        AdmissionState::Waits
    );
    broker.handle.gone(first.client);
    broker.handle.gone(second.client);
    assert_eq!(running(&broker), [("b".into(), 5 * GB, 1)]);
}

#[test]
fn jobs_that_wait_for_one_another_do_not_wait_for_ever() {
    let mut broker = Broker::begin(None);
    let said = |memory, further| Wants {
        memory: Some(memory),
        further,
        ..Wants::default()
    };
    // Each job has a device and wants half of the other job's.
    let first = wants_on(&mut broker, "a", 7, said(12 * GB, 0));
    let second = wants_on(&mut broker, "b", 8, said(12 * GB, 0));
    let third = broker.comes_to("b", 9, "plain", GB, None);
    let goes_on = wants_on(&mut broker, "b", 7, said(12 * GB, 1));
    broker.handle.tick();
    assert_eq!(
        standing(&goes_on),
        AdmissionState::Waits,
        "the one that is there waits for nothing"
    );
    let closes = wants_on(&mut broker, "a", 8, said(12 * GB, 1));
    assert_eq!(standing(&closes), AdmissionState::Waits);
    broker.handle.tick();
    assert_eq!(
        (standing(&goes_on), standing(&closes)),
        (AdmissionState::Waits, AdmissionState::Refused)
    );
    assert_eq!(standing(&third), AdmissionState::Waits, "nobody else is turned away");
    // The other job runs when this one ends.
    broker.handle.gone(closes.client);
    broker.handle.gone(second.client);
    assert_eq!(
        (standing(&first), standing(&goes_on)),
        (AdmissionState::Admitted, AdmissionState::Admitted)
    );
}

#[test]
fn jobs_that_grow_where_the_other_one_holds_do_not_wait_for_ever() {
    let mut broker = Broker::begin(None);
    let answers = |entry: &Entry| entry.lane.admission_slot.answers.load(Ordering::Relaxed);
    let waits = |entry: &Entry| entry.lane.admission_slot.growing.load(Ordering::Relaxed) != 0;
    let said = |memory, further| Wants {
        memory: Some(memory),
        further,
        ..Wants::default()
    };
    // Two jobs, each with a process on both devices, which they fill.
    let first = wants_on(&mut broker, "a", 7, said(12 * GB, 0));
    broker.handle.gone(first.client);
    let first = wants_on(&mut broker, "a", 7, said(6 * GB, 0));
    let other = wants_on(&mut broker, "b", 7, said(6 * GB, 1));
    let second = wants_on(&mut broker, "b", 8, said(6 * GB, 0));
    let there = wants_on(&mut broker, "a", 8, said(6 * GB, 1));
    for entry in [&first, &other, &second, &there] {
        assert_eq!(standing(entry), AdmissionState::Admitted);
    }
    const LONG: u64 = 600_000_000_000;
    // The first grows on the second one's device and waits.
    broker.handle.more(other.client, 5 * GB, LONG);
    broker.handle.tick();
    assert!(waits(&other), "the second one waits for nothing and may end");
    broker.handle.more(there.client, 5 * GB, LONG);
    broker.handle.tick();
    assert_eq!(
        (waits(&other), waits(&there), answers(&there)),
        (true, false, 1),
        "the last one hears that there is none"
    );
    broker.handle.gone(second.client);
    assert_eq!(
        (waits(&other), answers(&other), share(&other)),
        (false, 1, 5 * GB + GB / 8)
    );
}

#[test]
fn who_wants_more_waits_for_a_neighbour_and_not_for_ever() {
    let mut broker = Broker::begin(None);
    let answers = |entry: &Entry| entry.lane.admission_slot.answers.load(Ordering::Relaxed);
    let waits = |entry: &Entry| entry.lane.admission_slot.growing.load(Ordering::Relaxed) != 0;
    let (first, second) = (broker.comes(1, "a", 4 * GB, None), broker.comes(2, "b", 3 * GB, None));
    const LONG: u64 = 60_000_000_000;
    broker.handle.more(first.client, 3 * GB, LONG);
    assert!(waits(&first) && answers(&first) == 0);
    assert_eq!(
        broker
            .handle
            .queue()
            .running
            .iter()
            .map(|row| row.waits_for)
            .sum::<u64>(),
        3 * GB
    );
    // Both would wait for each other: the second one is denied at once.
    broker.handle.more(second.client, 3 * GB, LONG);
    assert_eq!((waits(&second), answers(&second), share(&second)), (false, 1, 3 * GB));
    broker.handle.gone(second.client);
    assert_eq!((waits(&first), answers(&first), share(&first)), (false, 1, 7 * GB));
    // No job ends within the time.
    let third = broker.comes(3, "c", GB, None);
    broker.handle.more(third.client, 2 * GB, 1);
    std::thread::sleep(std::time::Duration::from_millis(1));
    broker.handle.tick();
    assert_eq!((waits(&third), answers(&third), share(&third)), (false, 1, GB));
    // A wait that was given up, or whose client ended, delays no other job.
    broker.handle.more(third.client, 2 * GB, LONG);
    broker.handle.no_more(third.client);
    assert_eq!((waits(&third), answers(&third)), (false, 2));
    broker.handle.more(third.client, 2 * GB, LONG);
    broker.handle.gone(third.client);
    assert_eq!(standing(&broker.comes(4, "d", GB, None)), AdmissionState::Admitted);
    assert_eq!(broker.handle.queue().denied, 2);
}

#[test]
fn a_managed_job_may_be_larger_than_the_device() {
    let mut broker = Broker::begin(None);
    let managed = |memory| Wants {
        memory: Some(memory),
        managed: true,
        ..Wants::default()
    };
    let first = wants_on(&mut broker, "gpu", 1, managed(GB));
    broker.sees(first.client, look(8 * GB - (400 << 20), 0));
    assert_eq!(broker.handle.queue().devices[0].context, 400 << 20);
    broker.handle.gone(first.client);
    for (pid, memory) in [(2, 8 * GB), (3, 11 * GB)] {
        let large = broker.new_job(pid, "large".into());
        let wants = Wants {
            uuid: "gpu".into(),
            total: 8 * GB,
            processes: 1,
            devices: 1,
            ..managed(memory)
        };
        broker.handle.wants(&large, &ToTheClient::nobody(), wants);
        assert_eq!(standing(&large), AdmissionState::Admitted, "{memory}");
        broker.handle.gone(large.client);
    }
}
