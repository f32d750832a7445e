// SPDX-License-Identifier: MIT OR Apache-2.0
//! One scheduling core per device (a MIG instance is one). A process on several devices is several
//! clients.
//!
//! A client names its device before its first context, hence before its first launch. Until then it
//! belongs to the first known device, so a one-device machine has one core. With several devices, a
//! client that has named none is in the core `nowhere`.
//!
//! Each client reports whether it shares its device under MPS, and its server
//! ([`Cores::shares`]). Clients of two servers take turns. A single client that does not use the
//! server of the others makes the device time-sliced, with the switch cost. Once no client with a
//! report is left, the cost is unchanged.
//!
//! Invariant: a client is in one core at a time, which gets its arrival, events and end in that
//! order.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_profiles::Profile;

use crate::clients::registry::Entry;
use crate::scheduler_mailbox::View;
use weft_protocol::Ns;
use weft_protocol::epoch_page::ROWS;
use weft_protocol::latency_budget::{LatencyBudget, part};
use weft_scheduler::{Client, Config, Core, Decision, Event};

/// Most devices, more than any machine has, MIG instances included. Further UUIDs map to the first
/// device, which bounds the cost of invented UUIDs.
const MOST: usize = 128;

/// Index in [`Cores::all`] of the first known device.
const FIRST: usize = 0;

#[derive(Debug)]
struct DeviceCore {
    /// The device's UUID; `None`: not named yet.
    uuid: Option<String>,
    core: Core,
}

/// All cores, and the core of each client.
#[derive(Debug)]
pub(super) struct Cores {
    /// Its `switch_cost` applies to time-sliced devices.
    config: Config,
    /// Whether the clients' reports of MPS count.
    listens: bool,
    all: Vec<DeviceCore>,
    /// Clients that named no device while there were several.
    nowhere: Core,
    /// Device index; `None`: `nowhere`.
    of: HashMap<Client, Option<usize>>,
    /// UUID of each named device.
    said: HashMap<Client, String>,
    /// Clients that wait for device memory. They have no work and are in no core, so no job gives
    /// way to them.
    aside: HashSet<Client>,
    /// The MPS server that each client reports; `None`: it takes turns.
    mps: HashMap<Client, Option<u64>>,
}

impl Cores {
    pub(super) fn new(config: Config, listens: bool) -> Cores {
        let first = DeviceCore {
            uuid: None,
            core: Core::new(config.clone()),
        };
        Cores {
            all: vec![first],
            nowhere: Core::new(config.clone()),
            config,
            listens,
            of: HashMap::new(),
            said: HashMap::new(),
            aside: HashSet::new(),
            mps: HashMap::new(),
        }
    }

    /// The core of the first known device.
    pub(super) fn first(&self) -> &Core {
        self.all.first().map_or(&self.nowhere, |one| &one.core)
    }

    /// Passes an event to the client's core, or to all cores.
    pub(super) fn handle(&mut self, now: Ns, event: Event, out: &mut Vec<Decision>) {
        let Some(client) = whose(&event) else {
            for one in &mut self.all {
                one.core.handle(now, event.clone(), out);
            }
            if self.all.len() > 1 {
                self.nowhere.handle(now, event, out);
            }
            return;
        };
        if matches!(event, Event::Attached { .. }) {
            let at = (self.all.len() == 1).then_some(FIRST);
            self.of.entry(client).or_insert(at);
        }
        let gone = matches!(event, Event::Gone(_));
        if !self.aside.contains(&client) {
            self.core_of(client).handle(now, event, out);
        }
        if gone {
            self.aside.remove(&client);
            let at = self.of.remove(&client).flatten();
            self.said.remove(&client);
            if self.mps.remove(&client).is_some() {
                self.switches(now, at, out);
            }
        }
    }

    /// Sets the default slowdown, also of later devices.
    pub(super) fn set_slowdown(&mut self, now: Ns, part: f64, out: &mut Vec<Decision>) {
        self.config.slowdown = part;
        let all = self.all.iter_mut().map(|one| &mut one.core);
        for core in all.chain([&mut self.nowhere]) {
            core.handle(now, Event::Slowdown(part), out);
        }
    }

    /// Records the MPS server under which a client shares its device.
    pub(super) fn shares(&mut self, now: Ns, client: Client, server: Option<u64>, out: &mut Vec<Decision>) {
        let Some(at) = self.of.get(&client).copied() else {
            return;
        };
        self.mps.insert(client, server);
        self.switches(now, at, out);
    }

    /// Updates a device's switch cost.
    fn switches(&mut self, now: Ns, at: Option<usize>, out: &mut Vec<Decision>) {
        let Some(at) = at.filter(|_| self.listens) else { return };
        let cost = match self.words(at) {
            (0, 0) => return,
            (_, 0) => 0,
            _ => self.config.switch_cost,
        };
        if let Some(one) = self.all.get_mut(at)
            && one.core.config().switch_cost != cost
        {
            one.core.handle(now, Event::SwitchCost(cost), out);
        }
    }

    /// Numbers of clients under the MPS server that has most, and of all others.
    fn words(&self, at: usize) -> (usize, usize) {
        let of = |client: &Client| self.of.get(client).copied().flatten();
        let words = self.mps.iter().filter(|(client, _)| of(client) == Some(at));
        let mut servers: HashMap<u64, usize> = HashMap::new();
        let mut all = 0;
        for (_, server) in words {
            all += 1;
            server
                .iter()
                .for_each(|server| *servers.entry(*server).or_default() += 1);
        }
        let most = servers.into_values().max().unwrap_or(0);
        (most, all - most)
    }

    fn core_of(&mut self, client: Client) -> &mut Core {
        // With one device a launch needs no lookup. Events of unknown clients go to the first core,
        // which does not know them either.
        let at = match self.all.len() {
            1 => Some(FIRST),
            _ => self.of.get(&client).copied().unwrap_or(Some(FIRST)),
        };
        match at.and_then(|at| self.all.get_mut(at)) {
            Some(one) => &mut one.core,
            None => &mut self.nowhere,
        }
    }

    /// Records a client's device. The first report counts and returns the device's row on the epoch
    /// page.
    pub(super) fn says(
        &mut self,
        now: Ns,
        client: Client,
        uuid: &str,
        who: NewClient,
        out: &mut Vec<Decision>,
    ) -> Option<usize> {
        let before = self.of.get(&client).copied()?;
        if uuid.is_empty() || self.said.contains_key(&client) {
            return None;
        }
        self.said.insert(client, uuid.to_string());
        let place = self.place(uuid);
        let (at, row) = (Some(place), Some(place % ROWS));
        if before == at {
            return row;
        }
        let aside = self.aside.contains(&client);
        if !aside {
            self.core_of(client).handle(now, Event::Gone(client), out);
        }
        self.of.insert(client, at);
        if !aside {
            self.arrives(now, client, who, out);
        }
        row
    }

    /// Keeps a client out of its core while it waits for device memory.
    pub(super) fn waits(&mut self, now: Ns, client: Client, waits: bool, who: NewClient, out: &mut Vec<Decision>) {
        if !self.of.contains_key(&client) || self.aside.contains(&client) == waits {
            return;
        }
        if waits {
            self.core_of(client).handle(now, Event::Gone(client), out);
            self.aside.insert(client);
        } else {
            self.aside.remove(&client);
            self.arrives(now, client, who, out);
        }
    }

    fn arrives(&mut self, now: Ns, client: Client, who: NewClient, out: &mut Vec<Decision>) {
        for event in who.comes(client) {
            self.core_of(client).handle(now, event, out);
        }
    }

    /// Rows of the epoch page in use.
    pub(super) fn rows(&self) -> usize {
        self.all.len().min(ROWS)
    }

    fn place(&mut self, uuid: &str) -> usize {
        let known = |one: &DeviceCore| one.uuid.as_deref() == Some(uuid);
        if let Some(at) = self.all.iter().position(known) {
            return at;
        }
        if let Some(first) = self.all.first_mut().filter(|first| first.uuid.is_none()) {
            first.uuid = Some(uuid.to_string());
            return FIRST;
        }
        if self.all.len() >= MOST {
            return FIRST;
        }
        self.all.push(DeviceCore {
            uuid: Some(uuid.to_string()),
            core: Core::new(self.config.clone()),
        });
        self.all.len() - 1
    }

    /// Time at which [`Event::Tick`] is next due in any core.
    pub(super) fn next_wake(&self, now: Ns) -> Option<Ns> {
        let wakes = self.all.iter().map(|one| one.core.next_wake(now));
        wakes.chain([self.nowhere.next_wake(now)]).flatten().min()
    }

    /// Each device's state, the first device's first.
    pub(super) fn snapshots(&self) -> Vec<View> {
        let each = self.all.iter().enumerate();
        each.map(|(at, one)| self.view(at, one)).collect()
    }

    /// The state of a client's device; `None`: it is in no core, or its device is not known.
    pub(super) fn view_of(&self, client: Client) -> Option<View> {
        let at = self.of.get(&client).copied().flatten()?;
        (!self.aside.contains(&client)).then(|| Some(self.view(at, self.all.get(at)?)))?
    }

    fn view(&self, at: usize, one: &DeviceCore) -> View {
        let (under_mps, not_under_mps) = self.words(at);
        View {
            uuid: one.uuid.clone(),
            snapshot: one.core.snapshot(),
            under_mps,
            not_under_mps,
        }
    }
}

/// Facts about an arriving client for a core.
#[derive(Debug)]
pub(super) struct NewClient {
    /// 0 to 9.
    pub(super) priority: u8,
    pub(super) profile: Option<Arc<Profile>>,
    /// Its slowdown budget as a foreground job.
    pub(super) budget: LatencyBudget,
}

impl NewClient {
    /// The facts of a registered client.
    pub(super) fn of(entry: &Entry) -> NewClient {
        NewClient {
            priority: entry.priority.load(Ordering::Relaxed),
            profile: entry.loaded.clone(),
            budget: entry.budget(),
        }
    }

    /// Events for its arrival, and for its budget if it set one.
    pub(super) fn comes(self, client: Client) -> impl Iterator<Item = Event> {
        let attached = Event::Attached {
            client,
            priority: self.priority,
            profile: self.profile,
        };
        let budget = (!self.budget.is_unsaid()).then(|| budget_event(client, self.budget));
        [Some(attached), budget].into_iter().flatten()
    }
}

/// Event for a client's budget.
pub(super) fn budget_event(client: Client, budget: LatencyBudget) -> Event {
    Event::Budget {
        client,
        slowdown: budget.slowdown_part(),
        slo: budget.slo,
        at_least: budget.at_least.map(part),
    }
}

/// The event's client; `None`: for all.
fn whose(event: &Event) -> Option<Client> {
    Some(match event {
        Event::Tick | Event::SwitchCost(_) | Event::Slowdown(_) => return None,
        Event::Attached { client, .. }
        | Event::Launched { client, .. }
        | Event::Waits { client, .. }
        | Event::Holds { client, .. }
        | Event::Progress { client, .. }
        | Event::Renewed { client, .. }
        | Event::Revoked { client, .. }
        | Event::Oversubscribed { client, .. }
        | Event::Budget { client, .. }
        | Event::PartialWait { client, .. }
        | Event::Sampled { client, .. }
        | Event::SampledBetween { client, .. } => *client,
        Event::Gone(client)
        | Event::Priority(client, _)
        | Event::Unprofiled(client)
        | Event::Idle(client, _)
        | Event::FoundIdle(client, _)
        | Event::WakeUpHint(client, _)
        | Event::Passed(client) => *client,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::lane::Mode;

    struct World {
        cores: Cores,
        out: Vec<Decision>,
        modes: HashMap<Client, Mode>,
    }

    impl World {
        fn new() -> World {
            World {
                cores: Cores::new(Config::default(), true),
                out: Vec::new(),
                modes: HashMap::new(),
            }
        }

        fn settle(&mut self) {
            for decision in self.out.drain(..) {
                if let Decision::Mode(client, mode) = decision {
                    self.modes.insert(client, mode);
                }
            }
        }

        fn tell(&mut self, event: Event) {
            self.cores.handle(1, event, &mut self.out);
            self.settle();
        }

        fn comes(&mut self, client: u64, priority: u8) {
            self.tell(Event::Attached {
                client: Client(client),
                priority,
                profile: None,
            });
        }

        fn says(&mut self, client: u64, priority: u8, uuid: &str) {
            let who = NewClient {
                priority,
                profile: None,
                budget: LatencyBudget::default(),
            };
            self.cores.says(1, Client(client), uuid, who, &mut self.out);
            self.settle();
        }

        fn mode(&self, client: u64) -> Mode {
            self.modes[&Client(client)]
        }
    }

    #[test]
    fn on_one_device_there_is_one_core() {
        let mut world = World::new();
        world.comes(1, 0);
        world.says(1, 0, "a");
        world.comes(2, 5);
        assert_eq!(
            (world.mode(1), world.mode(2)),
            (Mode::Foreground, Mode::Background),
            "also before it has said its device"
        );
        world.says(2, 5, "a");
        assert_eq!((world.mode(1), world.mode(2)), (Mode::Foreground, Mode::Background));
        assert_eq!(world.cores.snapshots().len(), 1);
    }

    #[test]
    fn who_waits_for_memory_has_no_role_and_takes_nobodys() {
        let mut world = World::new();
        world.comes(1, 5);
        world.says(1, 5, "a");
        let who = || NewClient {
            priority: 0,
            profile: None,
            budget: LatencyBudget::default(),
        };
        world.comes(2, 0);
        world.says(2, 0, "a");
        assert_eq!((world.mode(1), world.mode(2)), (Mode::Background, Mode::Foreground));
        world.cores.waits(1, Client(2), true, who(), &mut world.out);
        world.settle();
        assert_eq!(world.mode(1), Mode::Alone, "the one that runs is alone");
        world.tell(Event::Priority(Client(2), 0));
        world.cores.waits(1, Client(2), false, who(), &mut world.out);
        world.settle();
        assert_eq!((world.mode(1), world.mode(2)), (Mode::Background, Mode::Foreground));
        // The client ends while it waits, on a machine with several devices.
        world.comes(3, 5);
        world.says(3, 5, "b");
        world.cores.waits(1, Client(2), true, who(), &mut world.out);
        world.tell(Event::Gone(Client(2)));
        world.cores.waits(1, Client(2), false, who(), &mut world.out);
        world.settle();
        assert_eq!(world.mode(1), Mode::Alone);
    }

    #[test]
    fn what_a_client_may_lose_goes_with_it_from_core_to_core() {
        let mut world = World::new();
        let budget = LatencyBudget {
            slowdown: Some(20_000),
            slo: Some(7_000_000),
            at_least: None,
        };
        let who = || NewClient {
            priority: 0,
            profile: None,
            budget,
        };
        let told = |world: &World, at: usize, client: u64| {
            let view = world.cores.snapshots()[at].snapshot.client(Client(client)).cloned();
            view.map(|view| (view.slowdown_allowed, view.slo))
        };
        let said = Some((0.02, Some(7_000_000)));
        world.comes(1, 5);
        world.says(1, 5, "a");
        for event in who().comes(Client(2)) {
            world.tell(event);
        }
        assert_eq!(told(&world, 0, 2), said);
        assert_eq!(told(&world, 0, 1), Some((Config::default().slowdown, None)));
        world.cores.says(1, Client(2), "b", who(), &mut world.out);
        assert_eq!((told(&world, 0, 2), told(&world, 1, 2)), (None, said));
        world.cores.waits(1, Client(2), true, who(), &mut world.out);
        // While it waits for memory, no core gets its events.
        world.tell(budget_event(Client(2), LatencyBudget::default()));
        assert_eq!(told(&world, 1, 2), None);
        world.cores.waits(1, Client(2), false, who(), &mut world.out);
        assert_eq!(told(&world, 1, 2), said);
    }

    #[test]
    fn jobs_on_different_devices_have_nothing_to_do_with_one_another() {
        let mut world = World::new();
        world.comes(1, 0);
        world.says(1, 0, "a");
        world.comes(2, 5);
        world.says(2, 5, "b");
        assert_eq!((world.mode(1), world.mode(2)), (Mode::Alone, Mode::Alone));
        // With several devices, a client without a device affects no other.
        world.comes(3, 9);
        assert_eq!(
            (world.mode(1), world.mode(2), world.mode(3)),
            (Mode::Alone, Mode::Alone, Mode::Alone)
        );
        world.says(3, 9, "b");
        assert_eq!(
            (world.mode(1), world.mode(2), world.mode(3)),
            (Mode::Alone, Mode::Foreground, Mode::Background)
        );
        world.says(3, 9, "a");
        assert_eq!(world.mode(3), Mode::Background, "what it said first counts");
        world.tell(Event::Gone(Client(3)));
        assert_eq!(world.mode(2), Mode::Alone);
        world.tell(Event::Tick);
        assert_eq!(world.cores.snapshots().len(), 2);
    }

    #[test]
    fn a_device_switches_as_soon_as_one_of_its_clients_says_so() {
        let cost = |world: &World, at: usize| world.cores.snapshots()[at].snapshot.switch_cost;
        let shares = |world: &mut World, client: u64, mps: bool| {
            let server = mps.then_some(7);
            world.cores.shares(1, Client(client), server, &mut world.out);
            world.settle();
        };
        let sliced = Config::default().switch_cost;
        let mut world = World::new();
        world.comes(1, 0);
        world.says(1, 0, "a");
        assert_eq!(cost(&world, 0), sliced, "until anybody says otherwise");
        shares(&mut world, 1, true);
        assert_eq!(cost(&world, 0), 0);
        // Another device has its own cost.
        world.comes(2, 5);
        world.says(2, 5, "b");
        shares(&mut world, 2, false);
        assert_eq!((cost(&world, 0), cost(&world, 1)), (0, sliced));
        // One client without MPS makes the device switch for all.
        world.comes(3, 5);
        world.says(3, 5, "a");
        assert_eq!(cost(&world, 0), 0, "it has said nothing yet");
        shares(&mut world, 3, false);
        assert_eq!(cost(&world, 0), sliced);
        let views = world.cores.snapshots();
        assert_eq!((views[0].under_mps, views[0].not_under_mps), (1, 1));
        world.tell(Event::Gone(Client(3)));
        assert_eq!(cost(&world, 0), 0);
        // The last client's report counts until another client reports.
        world.tell(Event::Gone(Client(1)));
        assert_eq!(cost(&world, 0), 0);
        shares(&mut world, 9, false);
        assert_eq!(cost(&world, 0), 0, "nobody known");
        assert!(world.cores.mps.len() == 1, "of those who left nothing is kept");
        // Clients of two servers take turns.
        shares(&mut world, 1, true);
        world.comes(4, 5);
        world.says(4, 5, "a");
        world.comes(5, 5);
        world.says(5, 5, "a");
        for (client, server) in [(4, 7), (5, 8)] {
            world.cores.shares(1, Client(client), Some(server), &mut world.out);
            world.settle();
        }
        let views = world.cores.snapshots();
        assert_eq!((views[0].under_mps, views[0].not_under_mps), (1, 1));
        assert_eq!(cost(&world, 0), sliced);
        world.tell(Event::Gone(Client(5)));
        assert_eq!(cost(&world, 0), 0);
        // A cost that the owner set does not change.
        let mut fixed = World::new();
        fixed.cores = Cores::new(Config::default(), false);
        fixed.comes(1, 0);
        shares(&mut fixed, 1, true);
        assert_eq!(cost(&fixed, 0), sliced);
    }

    #[test]
    fn what_a_client_makes_up_costs_little() {
        let mut world = World::new();
        for client in 0..2 * MOST as u64 {
            world.comes(client, 5);
            world.says(client, 5, &client.to_string());
            world.tell(Event::Gone(Client(client)));
        }
        assert_eq!(world.cores.snapshots().len(), MOST);
        assert!(world.cores.of.is_empty() && world.cores.said.is_empty());
        world.says(9_999, 5, "a");
        assert!(world.cores.said.is_empty(), "nobody known");
    }
}
