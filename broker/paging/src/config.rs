//! What the planner is set to.
#![forbid(unsafe_code)]

use super::GRANULE;
use weft_protocol::Ns;

/// The link between host and device, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes a second to the device, with nothing going the other way.
    pub inward: f64,
    /// Bytes a second to the host, with nothing going the other way.
    pub outward: f64,
    /// Bytes a second with both directions busy, their sum. Of no meaning where they share one
    /// rate.
    pub both: f64,
    /// Both directions at once go at their own rate. Otherwise they share one: a byte out delays a
    /// byte in.
    pub duplex: bool,
}

impl Link {
    /// How long this many granules take to the device, alone.
    pub fn time_in(&self, granules: u64) -> Ns {
        time(granules, self.inward)
    }

    /// How long this many granules take to the host, alone.
    pub fn time_out(&self, granules: u64) -> Ns {
        time(granules, self.outward)
    }
}

impl Link {
    /// How long this many granules take, in and out together.
    pub fn time(&self, inward: u64, outward: u64) -> Ns {
        let (alone_in, alone_out) = (self.time_in(inward), self.time_out(outward));
        if !self.duplex {
            return alone_in + alone_out;
        }
        // Each direction has its part of the sum until one is through; the rest of the other goes
        // as if alone.
        let slower = ((self.inward + self.outward) / self.both.max(1.0)).max(1.0);
        let together = alone_in.min(alone_out) as f64 * slower;
        alone_in.abs_diff(alone_out) + together as Ns
    }
}

fn time(granules: u64, rate: f64) -> Ns {
    (granules as f64 * GRANULE as f64 * 1e9 / rate.max(1.0)) as Ns
}

/// Whose granules go first when room is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Victims {
    /// Those whose next use is furthest in the future (Belady's OPT, over the timeline).
    #[default]
    Opt,
    /// Those whose last use is furthest in the past, as the stock driver does.
    Lru,
}

/// How far moving memory and running kernels go together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Not at all: at a switch everything in the way goes out, then the set of the next comes in,
    /// then it starts ("without pipelining").
    Nothing,
    /// At a switch both directions at once, and the first kernel starts when its own granules are
    /// in (what MSched does).
    AtSwitch,
    /// As `AtSwitch`, and the sets of those who come next are brought in during the turns before
    /// theirs, as far as room allows.
    #[default]
    Ahead,
}

/// Ideas that can be switched off one by one, for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// See [`Overlap`].
    pub overlap: Overlap,
    /// See [`Victims`].
    pub victims: Victims,
    /// Granules whose content will be overwritten before it is read are dropped rather than copied
    /// out.
    pub discard: bool,
    /// Granules that nobody writes keep their copy on the host, so that evicting them copies
    /// nothing.
    pub read_duplication: bool,
    /// Instead of what a job touches, the whole allocations that it touches.
    pub whole_allocations: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            overlap: Overlap::Ahead,
            victims: Victims::Opt,
            discard: true,
            read_duplication: true,
            whole_allocations: false,
        }
    }
}

/// What the planner is set to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Granules of device memory that jobs may fill.
    pub capacity: u64,
    /// Granules of host memory that evicted granules and kept copies may take.
    pub host_limit: u64,
    /// The link.
    pub link: Link,
    /// Granules out in each direction at most (both directions together on a one-way link): enough
    /// that the link never idles between an order's end and the next one's begin, little enough
    /// that a change of mind costs little. 64 granules are 2 to 3 ms.
    pub in_flight: u32,
    /// Granules in one order at most: 16 are half a millisecond, far above what issuing an order
    /// costs.
    pub per_order: u32,
    /// See [`Options`].
    pub options: Options,
}

impl Config {
    /// The defaults for a device of this many bytes, a host with as many to spare, and this link.
    pub fn new(device_bytes: u64, host_bytes: u64, link: Link) -> Config {
        Config {
            capacity: device_bytes / GRANULE,
            host_limit: host_bytes / GRANULE,
            link,
            in_flight: 64,
            per_order: 16,
            options: Options::default(),
        }
    }
}
