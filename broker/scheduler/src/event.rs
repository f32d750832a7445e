//! What the core is told and what it answers.

use std::sync::Arc;

use weft_profiles::Profile;

use weft_protocol::{Client, Ns, credit::RunAheadWindow, lane::Mode};

/// What happened. The driver of the core copies these from lanes and sockets; the core takes none
/// of them at its word.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client attached. Its first [`Decision::Mode`] comes with the answer to this.
    Attached {
        /// Who. A number that is attached already is ignored and counted.
        client: Client,
        /// 0 (most important) to 9; more counts as 9.
        priority: u8,
        /// What is known about its job.
        profile: Option<Arc<Profile>>,
    },
    /// A client is gone (goodbye or death).
    Gone(Client),
    /// `weft set` changed a priority.
    Priority(Client, u8),
    /// A client's profile does not fit its device: what it says is forgotten. Its books go on,
    /// since its reports count from its beginning.
    Unprofiled(Client),
    /// A client launched a kernel, graph or transfer. `cost` is the predicted time on the device,
    /// from the client's own table.
    Launched {
        /// Who.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Predicted time, ns.
        cost: Ns,
        /// When the launch was made.
        at: Ns,
    },
    /// Nothing of the client is left on the device, seen by a synchronising call at this time.
    Idle(Client, Ns),
    /// An idle client made a driver call that is no launch (its input copy, say): it is about to
    /// launch.
    Stirred(Client, Ns),
    /// A background job waits at the gate with this kernel. Told again with another kernel it
    /// replaces the first; told again unchanged it does nothing.
    Waits {
        /// Who.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Predicted time, ns.
        cost: Ns,
        /// Since when.
        since: Ns,
    },
    /// What is in the credit word of a background job that waits, read after the figures of the
    /// last [`Event::Progress`] and told before [`Event::Waits`]. What the books have left beyond
    /// it was taken by other threads of the client and is not reported yet. Optional: without it
    /// nothing counts as so taken.
    Holds {
        /// Who.
        client: Client,
        /// Below zero if overdrawn.
        left: i64,
    },
    /// A background job no longer waits at the gate, as its lane says. Optional: a launch or a
    /// grant that covers the wanted kernel ends a wait too.
    Passed(Client),
    /// A background job's cumulative reports, read from its lane: work issued under credit and work
    /// whose end was seen, predicted ns.
    Progress {
        /// Who.
        client: Client,
        /// All that was ever taken from the credit word, with or without credit in it.
        issued: Ns,
        /// Of that, what was seen to end.
        settled: Ns,
    },
    /// Under a run-ahead window so much credit came back in all, as its lane says. Read after the
    /// figures of the [`Event::Progress`] that is told before it.
    Renewed {
        /// Who.
        client: Client,
        /// All that ever came back.
        total: Ns,
    },
    /// The driver swapped a client's credit word to zero and this came back: the answer to
    /// [`Decision::Revoke`], and to a [`Decision::Grant`] under other launch epochs. Below zero if
    /// the client had overdrawn. So that credit given = issued + revoked + left, the word is never
    /// changed in any other way than by a grant, by such a swap and by the client's taking (which
    /// `issued` counts).
    Revoked {
        /// From whom.
        client: Client,
        /// What was left.
        left: i64,
    },
    /// The memory that this client and others need does not fit the device together: those of one
    /// priority of whom this is told take turns of such a length, so that memory can be moved for
    /// each. `None`: there is room.
    Crowded {
        /// Who.
        client: Client,
        /// How long its turns are from its next one on, ns.
        turn: Option<Ns>,
    },
    /// What it costs this device to go from one process to another from now on: whether its clients
    /// share it under MPS became known.
    SwitchCost(Ns),
    /// How long a kernel of this client took, as the device measured it.
    Sampled {
        /// Who.
        client: Client,
        /// Hash of the kernel.
        kernel: u64,
        /// Its time, ns.
        time: Ns,
        /// When it was launched.
        at: Ns,
    },
    /// Time passed.
    Tick,
}

/// What to do about it, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Tell a client its mode.
    Mode(Client, Mode),
    /// Write down what a client may do with its credit by itself. Before the [`Decision::Grant`] it
    /// is for, and alone where it changes.
    RunAheadWindow(Client, Option<RunAheadWindow>),
    /// Add to a background job's credit word, ring its bell.
    ///
    /// If `bound`, the credit holds only while the launch epochs above the client's priority stand
    /// as they stood when this turn of the driver began: read the epoch page first, then the lanes'
    /// records, then ask the core, then store **that** reading as the lane's launch epochs. A
    /// foreground job's launch that the core has not seen then voids the credit. Credit from an
    /// earlier grant, given under other launch epochs, must not come back to life: if the launch
    /// epochs differ from those stored, swap the word to zero first and report it as
    /// [`Event::Revoked`].
    Grant {
        /// To whom.
        client: Client,
        /// Predicted GPU time, ns.
        credit: Ns,
        /// Void as soon as a more important foreground job launches.
        bound: bool,
    },
    /// Have launches of a client timed by the device now and then ([`Event::Sampled`]), or no more:
    /// its ends are seen too late to say how long its kernels take, and no profile does.
    Times(Client, bool),
    /// Swap a background job's credit word to zero, then tell the core what was in it:
    /// [`Event::Revoked`].
    Revoke(Client),
}
