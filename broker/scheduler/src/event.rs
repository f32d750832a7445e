// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that the core takes in, and the decisions that it returns.

use std::sync::Arc;

use weft_profiles::Profile;

use weft_protocol::{Client, Ns, credit::RunAheadWindow, lane::Mode};

/// Event from a lane or a socket. The core trusts none.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client attached. The answer holds its first [`Decision::Mode`].
    Attached {
        /// The new client. If it is already attached, the event is ignored and counted.
        client: Client,
        /// 0 (most important) to 9; more counts as 9.
        priority: u8,
        /// The job's profile.
        profile: Option<Arc<Profile>>,
    },
    /// A client detached or died.
    Gone(Client),
    /// `weft set` changed a client's priority.
    Priority(Client, u8),
    /// Amount that a client's foreground work may lose to background jobs. A value that is not
    /// given is the broker's ([`Config`](crate::Config)).
    Budget {
        /// The client.
        client: Client,
        /// Part of its time by which it may be slowed down on average; 0: not at all.
        slowdown: Option<f64>,
        /// [`Config::slo`](crate::Config::slo).
        slo: Option<Ns>,
        /// Part of the device's time that it has at least as a background job.
        at_least: Option<f64>,
    },
    /// A client's profile does not fit its device and is forgotten. Its books continue.
    Unprofiled(Client),
    /// A client launched a kernel, graph or transfer.
    Launched {
        /// The client.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Predicted time, ns, by the client's own table.
        cost: Ns,
        /// When the launch was made.
        at: Ns,
    },
    /// A synchronising call waited until nothing of the client was left on the device.
    Idle(Client, Ns),
    /// A synchronising call found that nothing of the client was left: the work had ended before.
    FoundIdle(Client, Ns),
    /// A call of the client waited for a part of its work, and returned.
    PartialWait {
        /// The client.
        client: Client,
        /// The work that was launched up to this time was awaited.
        covers: Ns,
        /// When the call was made.
        since: Ns,
        /// When it returned.
        at: Ns,
    },
    /// Wake-up hint: an idle client made a driver call other than a launch, such as its input copy.
    WakeUpHint(Client, Ns),
    /// A background job waits at the gate with this kernel, which replaces another.
    Waits {
        /// The client.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Predicted time, ns.
        cost: Ns,
        /// Since when the client waits.
        since: Ns,
    },
    /// Credit word of a waiting background job, sent between [`Event::Progress`] and
    /// [`Event::Waits`]. Other threads have taken the credit that the books show beyond it, and
    /// have not reported that yet. Optional.
    Holds {
        /// The client.
        client: Client,
        /// Below zero if overdrawn.
        left: i64,
    },
    /// A background job no longer waits at the gate. Optional: a launch or a covering grant ends a
    /// wait too.
    Passed(Client),
    /// A background job's cumulative reports, in predicted ns.
    Progress {
        /// The client.
        client: Client,
        /// All that was ever taken from the credit word, even beyond its credit.
        issued: Ns,
        /// The part of it that was seen to end.
        settled: Ns,
    },
    /// Credit that was replenished under run-ahead windows, read after [`Event::Progress`].
    Renewed {
        /// The client.
        client: Client,
        /// All credit ever replenished, ns.
        total: Ns,
    },
    /// A client's credit word was swapped to zero: the answer to [`Decision::Revoke`], and to a
    /// [`Decision::Grant`] under other launch epochs. Only grants, such swaps and the client's own
    /// use (`issued`) change the word.
    Revoked {
        /// The client.
        client: Client,
        /// Credit in the word, ns. Below zero if overdrawn.
        left: i64,
    },
    /// The memory of this client and others no longer fits the device together, or fits again.
    /// Those of one priority take turns, so that memory can move.
    Oversubscribed {
        /// The client.
        client: Client,
        /// Length of its turns from the next one on, ns. `None`: there is room.
        turn: Option<Ns>,
    },
    /// Time to switch from one process to another from now on, ns, once the broker knows whether
    /// clients share the device under MPS.
    SwitchCost(Ns),
    /// [`Config::slowdown`](crate::Config::slowdown) from now on, 0 to 1.
    Slowdown(f64),
    /// Kernel time that the device measured.
    Sampled {
        /// The client.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Kernel time, ns.
        time: Ns,
        /// When the kernel was launched.
        at: Ns,
    },
    /// Like [`Event::Sampled`], but a large part of the time may be the host's.
    SampledBetween {
        /// The client.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// The least that the kernel took, ns.
        least: Ns,
        /// The most that the kernel took, ns.
        most: Ns,
        /// When the kernel was launched.
        at: Ns,
    },
    /// Time passed.
    Tick,
}

/// Decision of the core. Carry decisions out in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send a client its mode.
    Mode(Client, Mode),
    /// Set or end a client's run-ahead window: before its [`Decision::Grant`], or without one.
    RunAheadWindow(Client, Option<RunAheadWindow>),
    /// Add to a background job's credit word and ring its doorbell.
    ///
    /// If `bound`, the credit holds only while the launch epochs above the client's priority stay
    /// as they were when this iteration began. So read the epoch page, then the lanes, ask the
    /// core, and store **that** reading as the lane's launch epochs. A foreground launch that the
    /// core has not seen then voids the credit. Earlier credit must not revive: if the stored
    /// launch epochs differ, first swap the word to zero and report [`Event::Revoked`].
    Grant {
        /// The client.
        client: Client,
        /// Predicted GPU time to add, ns.
        credit: Ns,
        /// Whether the launch of a more important foreground job voids it.
        bound: bool,
        /// Number of such launches that the credit outlives. The lane's launch epochs are the
        /// reading plus this.
        outlives: u64,
    },
    /// Start or stop timing some launches ([`Event::Sampled`]) of a client whose kernel times have
    /// no other source.
    Times(Client, bool),
    /// Have a client charge this time for this kernel from now on, ns. Kernel 0: all kernels for
    /// which its table has no time.
    Charge(Client, u64, Ns),
    /// Swap a background job's credit word to zero and report its content as [`Event::Revoked`].
    Revoke(Client),
}
