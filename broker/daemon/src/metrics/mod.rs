// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics of the broker for Prometheus, in OpenMetrics 1.0.0 or in Prometheus' text format 0.0.4.
//!
//! ```text
//! scraper --- GET /metrics ---> thread weft-metrics ---+
//! weft metrics --- question --> thread that answers ---+--> MetricsCache --- status, at most
//!                                                           once a second ---> as `weft status`
//! ```
//!
//! No thread waits for a scraper: the metrics thread has the lowest priority, and each connection
//! has a bound. The scheduler's thread takes at most one further snapshot a second, and only while
//! there are scrapes. docs/metrics.md has a row for each family.
//!
//! | file | holds |
//! | --- | --- |
//! | `family` | names, units and meanings of all families; pure |
//! | `page` | samples from a status; counters that never fall; pure |
//! | `exposition` | samples as text, in both formats; pure |
//! | `cache` | the last status, for a second |
//! | `pages` | the sockets of the metrics, and the answer to a scraper |
#![forbid(unsafe_code)]

mod cache;
mod exposition;
mod family;
mod page;
mod pages;

pub use self::cache::MetricsCache;
pub use self::exposition::MetricsFormat;
pub use self::page::MetricsAudience;

pub(crate) use self::pages::{handler, open};
