//! Metrics of the broker for Prometheus, in OpenMetrics 1.0.0 or in Prometheus' text format 0.0.4.
//!
//! ```text
//! scraper --- GET /metrics ---> thread weft-metrics ---+
//! weft metrics --- question --> thread that answers ---+--> MetricsCache --- status, at most
//!                                                           once a second ---> as `weft status`
//! ```
//!
//! Nobody waits for a scraper: the thread has the lowest rank, and each connection has a bound. The
//! scheduler's thread is asked for one more look a second at most, and that only while somebody
//! scrapes. docs/metrics.md has a row for each family.
//!
//! | file | holds |
//! | --- | --- |
//! | `family` | names, units and meanings of all families; pure |
//! | `page` | from a status to samples; counters that never fall; pure |
//! | `exposition` | samples as text, in both formats; pure |
//! | `cache` | the last status, for a second |
//! | `address` | where metrics are served |
//! | `http` | requests and answers; pure |
//! | `server` | the sockets, the thread and its connections |
#![forbid(unsafe_code)]

mod cache;
mod exposition;
mod family;
mod http;
mod page;
mod server;

pub use self::cache::MetricsCache;
pub use self::exposition::MetricsFormat;
pub use self::family::{FAMILIES, MetricFamily};
pub use self::server::{MetricsDoors, MetricsServer};
