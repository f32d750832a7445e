//! The book among brokers that are killed: clients that come back, come back as others, or never.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::daemon::registry::Newcomer;
use crate::transport::map::SharedLane;

const GB: u64 = 1 << 30;

/// A process that stays until it is dropped.
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

/// A broker's desk, and the numbers of its clients.
struct Broker {
    desk: Desk,
    clients: u64,
}

impl Broker {
    /// On this file, if any.
    fn begin(file: Option<&Path>) -> Broker {
        Broker {
            desk: Desk::new(Policy::Weft, file.map(Path::to_path_buf)),
            clients: 0,
        }
    }

    /// A client of this process wants (or has: `runs`) so much of a device of 8 GiB.
    fn comes(&mut self, pid: u32, gang: &str, memory: u64, runs: Option<u64>) -> Arc<Entry> {
        self.clients += 1;
        let entry = Arc::new(Entry::new(Newcomer {
            client: self.clients,
            pid,
            command: format!("job {gang}"),
            profile: None,
            loaded: None,
            trouble: None,
            profiling: false,
            priority: 5,
            lane: Arc::new(SharedLane::lane().expect("a lane")),
        }));
        let wants = Wants {
            uuid: "gpu".into(),
            total: 8 * GB,
            memory: Some(memory),
            gang: gang.into(),
            processes: 1,
            runs,
            ..Wants::default()
        };
        self.desk.wants(&entry, &ToTheClient::nobody(), wants);
        entry
    }
}

fn standing(entry: &Entry) -> Standing {
    entry.lane.seat.standing()
}

#[test]
fn whoever_comes_first_after_a_restart_finds_the_places_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (holder, waiter, late) = (Somebody::new(), Somebody::new(), Somebody::new());
    let mut first = Broker::begin(Some(&file));
    assert_eq!(
        standing(&first.comes(holder.pid(), "a", 5 * GB, None)),
        Standing::Admitted
    );
    assert_eq!(standing(&first.comes(waiter.pid(), "b", 4 * GB, None)), Standing::Waits);
    // Killed: nothing more of it happens. Its successor hears of a newcomer before anybody is back.
    let mut second = Broker::begin(Some(&file));
    let newcomer = second.comes(late.pid(), "c", 4 * GB, None);
    assert_eq!(standing(&newcomer), Standing::Waits);
    let queue = second.desk.queue();
    assert_eq!(
        queue.running.iter().map(|row| (row.pid, row.share)).collect::<Vec<_>>(),
        [(holder.pid(), 5 * GB)]
    );
    assert_eq!(
        queue.waiting.iter().map(|row| row.pid).collect::<Vec<_>>(),
        [waiter.pid(), late.pid()]
    );
    // Back: the one that ran keeps what it has, also what it got last; the other one its place.
    let back = second.comes(holder.pid(), "a", 5 * GB, Some(5 * GB + 7));
    assert_eq!(standing(&back), Standing::Admitted);
    assert_eq!(back.lane.seat.share.load(Ordering::Relaxed), 5 * GB + 7);
    let queued = second.comes(waiter.pid(), "b", 4 * GB, None);
    assert_eq!(standing(&queued), Standing::Waits);
    let queue = second.desk.queue();
    assert_eq!(
        (queue.running.len(), queue.running[0].share, queue.waiting.len()),
        (1, 5 * GB + 7, 2)
    );
    second.desk.gone(2);
    assert_eq!(
        (standing(&queued), standing(&newcomer)),
        (Standing::Admitted, Standing::Admitted)
    );
    let sums = second.desk.queue();
    assert_eq!((sums.admitted, sums.waited), (3, 2));
}

#[test]
fn without_the_book_a_newcomer_slips_in() {
    // What the book is there for: this is how it was.
    let (holder, late) = (Somebody::new(), Somebody::new());
    let mut first = Broker::begin(None);
    assert_eq!(
        standing(&first.comes(holder.pid(), "a", 5 * GB, None)),
        Standing::Admitted
    );
    let mut second = Broker::begin(None);
    assert_eq!(
        standing(&second.comes(late.pid(), "c", 4 * GB, None)),
        Standing::Admitted
    );
}

#[test]
fn who_died_while_there_was_no_broker_holds_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (holder, waiter, late) = (Somebody::new(), Somebody::new(), Somebody::new());
    let mut first = Broker::begin(Some(&file));
    first.comes(holder.pid(), "a", 5 * GB, None);
    first.comes(waiter.pid(), "b", 4 * GB, None);
    let waiting = waiter.pid();
    drop(holder);
    let mut second = Broker::begin(Some(&file));
    // The waiter was let in before it is back; it learns that when it is.
    assert_eq!(
        second
            .desk
            .queue()
            .running
            .iter()
            .map(|row| row.pid)
            .collect::<Vec<_>>(),
        [waiting]
    );
    assert_eq!(standing(&second.comes(late.pid(), "c", 5 * GB, None)), Standing::Waits);
    assert_eq!(standing(&second.comes(waiting, "b", 4 * GB, None)), Standing::Admitted);
    second.desk.gone(2);
    assert_eq!(second.desk.queue().running.len(), 1);
    // The last one leaves, and there is nothing to keep.
    second.desk.gone(1);
    second.desk.close();
    assert!(!file.exists());
}

#[test]
fn who_does_not_come_back_but_runs_keeps_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("book");
    let (holder, late) = (Somebody::new(), Somebody::new());
    Broker::begin(Some(&file)).comes(holder.pid(), "a", 5 * GB, None);
    // One broker after another, and it never comes.
    let mut second = Broker::begin(Some(&file));
    assert_eq!(second.desk.queue().running.len(), 1);
    second.desk.close();
    let mut third = Broker::begin(Some(&file));
    let newcomer = third.comes(late.pid(), "c", 4 * GB, None);
    assert_eq!(standing(&newcomer), Standing::Waits);
    let pid = holder.pid();
    drop(holder);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while standing(&newcomer) != Standing::Admitted {
        assert!(
            std::time::Instant::now() < deadline,
            "process {pid} is gone and still has its place"
        );
        third.desk.tick();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Another process under a known one's number is another process; nobody is let in on its place.
    let _ = second.comes(pid, "d", GB, None);
    assert_eq!(third.desk.queue().running.len(), 1);
}
