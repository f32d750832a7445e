// SPDX-License-Identifier: MIT OR Apache-2.0
//! The link to the broker: shared memory, messages, and the environment's settings.
//!
//! Without a broker the lane is private memory whose mode is `Free`, so readers need no check. A
//! link is never freed.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use weft_gate::{charge, wait};
use weft_protocol::Ns;
use weft_protocol::control::ToBroker;
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::eviction::{MoveBy, Residence};
use weft_protocol::lane::{self, Kind, Lane, LaneRecord, Mode, bells, flags};
use weft_protocol::transport::{self, fds, map::Mapping};

use super::bell::Bell;
use super::costs::Costs;
use super::messages::Messages;
use super::settings::Settings;
use crate::lock::lock;
use crate::thread;

/// A move of the process's memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryMove {
    pub by: MoveBy,
    pub residence: Residence,
    pub bytes: u64,
    /// When it left, ns of the machine's clock; 0: it has not.
    pub since: Ns,
}

/// The link between a session and its current broker.
#[derive(Debug)]
pub struct BrokerLink {
    pub lane: &'static Lane,
    pub epoch_page: &'static EpochPage,
    pub lane_place: Mapping<Lane>,
    pub epoch_page_place: Mapping<EpochPage>,
    pub bell: Bell,
    /// Messages to the broker, not urgent.
    pub messages: Messages,
    /// Brokers attached so far: each has its own page operations.
    pub attachments: AtomicU64,
    /// The move under way, for the next broker.
    moving: Mutex<Option<MemoryMove>>,
    /// Process of the last broker; 0: there was none, or it is not visible from here.
    pub broker: AtomicU32,
    pub settings: Settings,
    pub costs: Costs,
}

static ONLY: AtomicPtr<BrokerLink> = AtomicPtr::new(ptr::null_mut());

/// The link of a process on one device.
#[inline]
pub fn only() -> Option<&'static BrokerLink> {
    // SAFETY: null, or part of a leaked box, which is never freed.
    unsafe { ONLY.load(Ordering::Acquire).as_ref() }
}

/// Sets the process's only link; `None` with no device or several.
pub fn set_only(link: Option<&'static BrokerLink>) {
    let link = link.map_or(ptr::null_mut(), |link| ptr::from_ref(link).cast_mut());
    ONLY.store(link, Ordering::Release);
}

impl BrokerLink {
    /// A link without a broker.
    pub fn new(settings: Settings) -> Result<BrokerLink, transport::TransportError> {
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
            moving: Mutex::new(None),
            broker: AtomicU32::new(0),
            settings,
            costs: Costs::default(),
        })
    }

    /// Queues a message. If the helper empties the queue, dropped messages are counted.
    pub fn tell(&self, message: ToBroker) {
        let _ = self.messages.put(message);
    }

    #[inline]
    pub fn write(&self, kind: Kind, at: Ns, kernel: u64, a: u64, b: u64) {
        self.lane.record(LaneRecord {
            kind,
            thread: thread::mark(),
            at,
            kernel,
            a,
            b,
        });
    }

    /// Whether stage 1 is active.
    #[inline]
    pub fn sampling(&self) -> bool {
        self.lane.orders.flags.load(Ordering::Relaxed) & flags::PROFILE != 0
    }

    /// The broker's order for this process.
    #[inline]
    pub fn mode(&self) -> Mode {
        // Unknown: the broker is faulty, so behave as if there were none.
        Mode::from_word(self.lane.orders.mode.load(Ordering::Relaxed)).unwrap_or(Mode::Free)
    }

    /// Cost of a launch about which nothing is known, ns.
    #[inline]
    pub fn unknown_cost(&self) -> Ns {
        self.lane.orders.unknown_cost.load(Ordering::Relaxed)
    }

    /// Takes `cost` ns of credit if it is there and valid.
    #[inline]
    pub fn take_credit(&self, cost: Ns) -> bool {
        self.lane.orders.take(self.epoch_page, charge::in_credit(cost))
    }

    /// Takes `cost` ns from the credit word without cover.
    pub fn overdraw(&self, cost: Ns) {
        self.lane.orders.overdraw(charge::in_credit(cost));
    }

    /// Longest wait of a launch at the gate, ns.
    pub fn longest_wait(&self) -> Ns {
        wait::longest_wait(self.lane.orders.longest_wait.load(Ordering::Relaxed))
    }

    /// Notes the move under way; `None`: there is none.
    pub fn set_moving(&self, moving: Option<MemoryMove>) {
        *lock(&self.moving) = moving;
        self.report_moving();
    }

    /// Writes that move into the lane, which may be a new broker's. The mover may be in the driver.
    pub fn report_moving(&self) {
        let moving = lock(&self.moving);
        if let Some(step) = *moving {
            let slot = &self.lane.eviction;
            let is_on_host = matches!(step.residence, Residence::Evicted | Residence::Returns);
            slot.movable.store(step.bytes, Ordering::Relaxed);
            slot.set_by(step.by);
            slot.set_residence(step.residence, if is_on_host { step.bytes } else { 0 }, step.since);
        }
    }

    /// Number of the current broker.
    pub fn attachment(&self) -> u64 {
        self.attachments.load(Ordering::Acquire)
    }

    /// Whether the last broker's process exists, even if it only writes its books as it ends.
    pub fn broker_runs(&self) -> bool {
        let pid = i32::try_from(self.broker.load(Ordering::Relaxed));
        let pid = pid.ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        process.is_some_and(|process| !fds::hung_up(&process, PollFlags::IN))
    }

    pub fn is_attached(&self) -> bool {
        self.lane.magic.load(Ordering::Relaxed) == lane::MAGIC
    }

    /// Assumed rate of copies between host and device, MB a second.
    pub fn host_copy_mb_per_s(&self) -> u32 {
        self.lane.orders.host_copy_mb_per_s.load(Ordering::Relaxed)
    }

    /// Predicted time, ns, of a copy between host and device.
    pub fn host_copy_time(&self, bytes: u64) -> Ns {
        charge::copy_time(bytes, self.host_copy_mb_per_s())
    }

    /// Predicted time, ns, of a fill or copy on the device.
    pub fn device_copy_time(&self, bytes: u64) -> Ns {
        let rate = &self.lane.orders.device_copy_mb_per_s;
        charge::copy_time(bytes, rate.load(Ordering::Relaxed))
    }

    /// Longest wait, ns, of a launch only for the device.
    pub fn device_wait(&self) -> Ns {
        self.lane.orders.device_wait.load(Ordering::Relaxed)
    }

    /// Wakes the broker after plain stores.
    pub fn fence_and_ring(&self) {
        fence(Ordering::SeqCst);
        self.ring();
    }

    /// Wakes a broker that sleeps and wants a ring. The caller has just changed a word with a
    /// sequentially consistent read-modify-write, or made a fence. A broker that reads the word
    /// again after announcing sleep sees the change.
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

    /// Wakes the broker, even from a nap: a background job waits for an idle process.
    #[inline]
    pub fn ring_idle(&self) {
        if self.lane.broker_sleeps.load(Ordering::SeqCst) != bells::NONE {
            self.wake_broker();
        }
    }

    #[cold]
    #[inline(never)]
    pub fn wake_broker(&self) {
        if self.lane.broker_sleeps.swap(bells::NONE, Ordering::AcqRel) != bells::NONE {
            self.bell.ring();
        }
    }
}
