//! The core's own cost: in steady state it allocates nothing, and an event's cost does not grow with the number of clients.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Instant,
};

use weft_broker::core::{Client, Config, Core, Decision, Event, Ns, PolicyName};

/// The system's allocator, counting by thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a const-initialised thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const US: Ns = 1_000;

/// A broker with one holder and so many fillers, all of which wait.
struct Crowd {
    core: Core,
    now: Ns,
    out: Vec<Decision>,
    fillers: u64,
    issued: Vec<Ns>,
    events: u64,
}

impl Crowd {
    fn new(policy: PolicyName, fillers: u64) -> Crowd {
        let config = Config {
            policy,
            ..Config::default()
        };
        let mut crowd = Crowd {
            core: Core::new(config),
            now: 1_000_000_000,
            out: Vec::new(),
            fillers,
            issued: vec![0; fillers as usize + 1],
            events: 0,
        };
        for client in 0..=fillers {
            crowd.tell(Event::Attached {
                client: Client(client),
                priority: if client == 0 { 0 } else { 1 + (client % 9) as u8 },
                profile: None,
            });
        }
        crowd.out.clear();
        for client in 1..=fillers {
            crowd.waits(client);
        }
        crowd
    }

    fn tell(&mut self, event: Event) {
        self.events += 1;
        self.core.handle(self.now, event, &mut self.out);
    }

    fn waits(&mut self, client: u64) {
        self.tell(Event::Waits {
            client: Client(client),
            kernel: client,
            cost: (20 + client % 300) * US,
            since: self.now,
        });
    }

    /// A request of the holder, then a gap in which whoever gets credit uses all of it and waits again.
    fn round(&mut self) {
        for kernel in 0..60 {
            self.now += 5 * US;
            self.tell(Event::Launched {
                client: Client(0),
                kernel,
                cost: 20 * US,
                at: self.now,
            });
        }
        self.now += 1_000 * US;
        self.tell(Event::Idle(Client(0), self.now));
        for _ in 0..20 {
            self.now += 250 * US;
            self.tell(Event::Tick);
            let mut at = 0;
            while at < self.out.len() {
                match self.out[at] {
                    Decision::Grant { client, credit, .. } => {
                        let issued = &mut self.issued[client.0 as usize];
                        *issued += credit;
                        let issued = *issued;
                        self.tell(Event::Progress {
                            client,
                            issued,
                            settled: issued,
                        });
                        self.waits(client.0);
                    }
                    Decision::Revoke(client) => self.tell(Event::Revoked { client, left: 0 }),
                    Decision::Mode(..) => {}
                }
                at += 1;
                if at > 4 * self.fillers as usize + 64 {
                    break;
                }
            }
            self.out.clear();
        }
    }
}

#[test]
fn steady_state_allocates_nothing() {
    for (policy, _, _) in PolicyName::ALL {
        let mut crowd = Crowd::new(policy, 200);
        for _ in 0..200 {
            crowd.round();
        }
        let before = (ALLOCATIONS.with(Cell::get), crowd.events);
        for _ in 0..200 {
            crowd.round();
        }
        let allocations = ALLOCATIONS.with(Cell::get) - before.0;
        let events = crowd.events - before.1;
        assert!(events > 10_000);
        assert_eq!(allocations, 0, "{policy}: in {events} events");
        assert!(crowd.core.snapshot().counters.grants > 50, "{policy}: nothing was done");
    }
}

/// For people: `cargo test --release -p weft-broker --test steady -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn events_a_second() {
    for (policy, _, _) in PolicyName::ALL {
        for fillers in [1, 10, 100, 1_000] {
            let mut crowd = Crowd::new(policy, fillers);
            crowd.round();
            let (start, before) = (Instant::now(), crowd.events);
            while start.elapsed().as_millis() < 500 {
                crowd.round();
            }
            let events = crowd.events - before;
            let ns = start.elapsed().as_nanos() as f64 / events as f64;
            println!(
                "{policy:10} {fillers:5} fillers: {ns:6.0} ns an event, {:.1} million a second",
                1e3 / ns
            );
        }
    }
}
