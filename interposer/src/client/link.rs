//! The link to the broker: what lies in shared memory, what is told, and what the environment asks
//! for.
//!
//! The lane is private memory whose mode says `Free` while no broker is attached, so that whatever
//! reads it need not ask. A link is made with its session and never freed.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use weft_protocol::Ns;
use weft_protocol::control::ToBroker;
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::lane::{self, DILATION_ONE, Kind, Lane, Record, bells, flags};
use weft_protocol::transport::{self, map::Place as Mapping};

use super::bell::Bell;
use super::costs::Costs;
use super::messages::Messages;
use super::settings::Settings;
use crate::thread;

/// What ties a session to its broker, whatever broker there is.
#[derive(Debug)]
pub struct BrokerLink {
    /// The lane, whatever is there now.
    pub lane: &'static Lane,
    /// The epoch page, whatever is there now.
    pub epoch_page: &'static EpochPage,
    /// Where the lane is.
    pub lane_place: Mapping<Lane>,
    /// Where the epoch page is.
    pub epoch_page_place: Mapping<EpochPage>,
    /// The broker's doorbell.
    pub bell: Bell,
    /// To the broker, not urgent.
    pub messages: Messages,
    /// Brokers attached to so far: each has page operations of its own.
    pub attachments: AtomicU64,
    /// What the environment asks for.
    pub settings: Settings,
    /// Predicted times.
    pub costs: Costs,
}

/// The link of a process on one device; null where there is none or there are several.
static ONLY: AtomicPtr<BrokerLink> = AtomicPtr::new(ptr::null_mut());

/// The link of a process on one device.
#[inline]
pub fn only() -> Option<&'static BrokerLink> {
    // SAFETY: null, or part of a leaked box, which nothing ever frees.
    unsafe { ONLY.load(Ordering::Acquire).as_ref() }
}

/// From now on the process has this one link; `None`: it has none, or several.
pub fn set_only(link: Option<&'static BrokerLink>) {
    let link = link.map_or(ptr::null_mut(), |link| ptr::from_ref(link).cast_mut());
    ONLY.store(link, Ordering::Release);
}

impl BrokerLink {
    /// A link to no broker.
    pub fn new(settings: Settings) -> Result<BrokerLink, transport::Error> {
        let lane_place = Mapping::reserve()?;
        let epoch_page_place = Mapping::reserve()?;
        Ok(BrokerLink {
            lane: lane_place.get(),
            epoch_page: epoch_page_place.get(),
            lane_place,
            epoch_page_place,
            bell: Bell::default(),
            messages: Messages::default(),
            attachments: AtomicU64::new(0),
            settings,
            costs: Costs::default(),
        })
    }

    /// Tells the broker. A full queue is counted where the queue is emptied.
    pub fn tell(&self, message: ToBroker) {
        let _ = self.messages.put(message);
    }

    /// Writes a record into the lane.
    #[inline]
    pub fn write(&self, kind: Kind, at: Ns, kernel: u64, a: u64, b: u64) {
        self.lane.record(Record {
            kind,
            thread: thread::mark(),
            at,
            kernel,
            a,
            b,
        });
    }

    /// Whether stage 1 goes on.
    #[inline]
    pub fn sampling(&self) -> bool {
        self.lane.orders.flags.load(Ordering::Relaxed) & flags::PROFILE != 0
    }

    /// Which broker it is: a number that grows with each.
    pub fn attachment(&self) -> u64 {
        self.attachments.load(Ordering::Acquire)
    }

    /// Whether there is one.
    pub fn is_attached(&self) -> bool {
        self.lane.magic.load(Ordering::Relaxed) == lane::MAGIC
    }

    /// How many times slower than a real device this one is, where the broker was told so: a
    /// simulated one among more work than it has cores for.
    pub fn stated_slowness(&self) -> Option<f64> {
        match self.lane.orders.dilation.load(Ordering::Relaxed) {
            0 | DILATION_ONE => None,
            dilation => Some(f64::from(dilation) / f64::from(DILATION_ONE)),
        }
    }

    /// What takes so long on a real device, on this one.
    pub fn slowed(&self, real: Ns) -> Ns {
        match self.lane.orders.dilation.load(Ordering::Relaxed) {
            0 | DILATION_ONE => real,
            dilation => real.saturating_mul(u64::from(dilation)) / u64::from(DILATION_ONE),
        }
    }

    /// Wakes the broker after plain stores.
    pub fn fence_and_ring(&self) {
        fence(Ordering::SeqCst);
        self.ring();
    }

    /// Wakes a broker that sleeps and wants to be woken. Its caller has just changed a word that
    /// the broker looks at by a sequentially consistent read-modify-write, or fenced, so a broker
    /// that looks once more after it said that it sleeps sees what was reported.
    #[inline]
    pub fn ring(&self) {
        if self.wants_ring() {
            self.wake_broker();
        }
    }

    /// Whether the broker sleeps and wants to be woken.
    #[inline(always)]
    pub fn wants_ring(&self) -> bool {
        self.lane.broker_sleeps.load(Ordering::SeqCst) == bells::ALL
    }

    /// Wakes the broker where the process has become idle: that also wakes a broker that naps,
    /// because a background job waits for this very moment.
    #[inline]
    pub fn ring_idle(&self) {
        if self.lane.broker_sleeps.load(Ordering::SeqCst) != bells::NONE {
            self.wake_broker();
        }
    }

    /// Wakes it, unless another thread does.
    #[cold]
    #[inline(never)]
    pub fn wake_broker(&self) {
        if self.lane.broker_sleeps.swap(bells::NONE, Ordering::AcqRel) != bells::NONE {
            self.bell.ring();
        }
    }
}
