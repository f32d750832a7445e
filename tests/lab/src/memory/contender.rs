// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contenders that are compared.
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_paging::{Overlap, PlanOptions, Victims};

use crate::{MS, Ns};

/// A way to run jobs whose memory exceeds the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Everything fits: the ceiling.
    Ideal,
    /// The stock driver: demand paging under the device's own time slices. Published ratios are
    /// relative to it.
    Stock,
    /// The same with the density prefetcher's threshold at 1 %.
    StockTuned,
    /// Demand paging in turns of the common slice.
    StockTurns,
    /// Demand paging in turns of 30 s, as nvshare takes them.
    Nvshare,
    /// A model of MSched: its template prediction, OPT, both directions at once at a switch, the
    /// first kernel starts early. Always on the duplex link that its changed driver has.
    Msched,
    /// weft, moving whole allocations rather than only the touched parts.
    WholeAllocations,
    /// weft with LRU in place of OPT.
    Lru,
    /// weft.
    Weft,
    /// weft without transfers before the switch; the job starts when all its memory is in.
    NoPipelining,
    /// weft copying dead data.
    NoDiscard,
    /// weft copying data that no job writes.
    NoDuplication,
}

/// All of them.
pub const ALL: [Contender; 12] = [
    Contender::Ideal,
    Contender::Stock,
    Contender::StockTuned,
    Contender::StockTurns,
    Contender::Nvshare,
    Contender::Msched,
    Contender::WholeAllocations,
    Contender::Lru,
    Contender::Weft,
    Contender::NoPipelining,
    Contender::NoDiscard,
    Contender::NoDuplication,
];

/// The length of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// This time on the clock.
    Wall(Ns),
    /// This much of the job's own time; its waits for memory come on top.
    Own(Ns),
}

impl Contender {
    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Ideal => "ideal",
            Contender::Stock => "stock",
            Contender::StockTuned => "stock, tuned",
            Contender::StockTurns => "stock, in turns",
            Contender::Nvshare => "nvshare's turns",
            Contender::Msched => "MSched (model)",
            Contender::WholeAllocations => "whole allocations",
            Contender::Lru => "LRU",
            Contender::Weft => "weft",
            Contender::NoPipelining => "no pipelining",
            Contender::NoDiscard => "no discard",
            Contender::NoDuplication => "no duplication",
        }
    }

    /// The planner's options; `None` if the contender has no planner.
    pub fn options(self) -> Option<PlanOptions> {
        let weft = PlanOptions::default();
        Some(match self {
            Contender::Ideal
            | Contender::Stock
            | Contender::StockTuned
            | Contender::StockTurns
            | Contender::Nvshare => return None,
            Contender::Msched => PlanOptions {
                overlap: Overlap::AtSwitch,
                victims: Victims::Opt,
                discard: false,
                read_duplication: false,
                whole_allocations: false,
            },
            Contender::WholeAllocations => PlanOptions {
                whole_allocations: true,
                ..weft
            },
            Contender::Lru => PlanOptions {
                victims: Victims::Lru,
                ..weft
            },
            Contender::Weft => weft,
            Contender::NoPipelining => PlanOptions {
                overlap: Overlap::Nothing,
                ..weft
            },
            Contender::NoDiscard => PlanOptions { discard: false, ..weft },
            Contender::NoDuplication => PlanOptions {
                read_duplication: false,
                ..weft
            },
        })
    }

    /// The length of its turns, if the common slice is `slice` and the device's own is `device`.
    pub fn turn(self, slice: Ns, device: Ns) -> Length {
        match self {
            Contender::Stock | Contender::StockTuned => Length::Wall(device),
            // nvshare's default quantum.
            Contender::Nvshare => Length::Wall(30_000 * MS),
            _ => Length::Own(slice),
        }
    }

    /// Whether the kind of link makes a difference to it.
    pub fn moves_ahead(self) -> bool {
        self.options().is_some() && self != Contender::Msched
    }
}

/// The rule that decides whether the batch job may launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchRule {
    /// There is no batch job.
    Alone,
    /// XSched's: see the table in `machine/service.rs`.
    Xsched,
    /// weft's: see the same table.
    Weft,
}

/// How a service shares the device with a batch job that leaves it too little memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The service has the device for itself.
    Alone,
    /// XSched's rule on a device that holds both.
    XschedFits,
    /// XSched's rule, the stock driver's demand paging.
    Xsched,
    /// The same with the density prefetcher's threshold at 1 %.
    XschedTuned,
    /// weft's rule, demand paging.
    WeftPaging,
    /// weft.
    Weft,
}

/// All of them.
pub const SIDES: [Side; 6] = [
    Side::Alone,
    Side::XschedFits,
    Side::Xsched,
    Side::XschedTuned,
    Side::WeftPaging,
    Side::Weft,
];

impl Side {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Side::Alone => "the service alone",
            Side::XschedFits => "XSched, all fits",
            Side::Xsched => "XSched, paging",
            Side::XschedTuned => "XSched, paging, tuned",
            Side::WeftPaging => "weft's rule, paging",
            Side::Weft => "weft",
        }
    }

    /// The rule for the batch job's launches.
    pub fn rule(self) -> LaunchRule {
        match self {
            Side::Alone => LaunchRule::Alone,
            Side::XschedFits | Side::Xsched | Side::XschedTuned => LaunchRule::Xsched,
            Side::WeftPaging | Side::Weft => LaunchRule::Weft,
        }
    }

    /// Whether the device holds the memory of both jobs.
    pub fn fits(self) -> bool {
        matches!(self, Side::Alone | Side::XschedFits)
    }

    /// Whether the broker's planner moves memory.
    pub fn planned(self) -> bool {
        self == Side::Weft
    }

    /// Whether the driver's prefetcher is tuned.
    pub fn tuned(self) -> bool {
        self == Side::XschedTuned
    }
}
