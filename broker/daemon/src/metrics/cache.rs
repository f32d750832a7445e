// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cache of the last status for a second, and the pages made from it.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::exposition::{self, MetricsFormat};
use super::page::{MetricsAudience, PageMaker};
use weft_api::status::Status;

/// Longest age of a status that is used again: several scrapers cost as much as one.
const LONGEST_AGE: Duration = Duration::from_secs(1);

/// Cache of the last status. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MetricsCache(Arc<Mutex<CachedStatus>>);

#[derive(Debug, Default)]
struct CachedStatus {
    last: Option<(Instant, Status)>,
    maker: PageMaker,
}

impl MetricsCache {
    /// The metrics as text. `read` is called if the last status is a second old or older.
    pub fn text(&self, format: MetricsFormat, audience: MetricsAudience, read: impl FnOnce() -> Status) -> String {
        self.text_at(Instant::now(), format, audience, read)
    }

    fn text_at(
        &self,
        now: Instant,
        format: MetricsFormat,
        audience: MetricsAudience,
        read: impl FnOnce() -> Status,
    ) -> String {
        // Other callers wait meanwhile, at most as long as `weft status` may take.
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let CachedStatus { last, maker } = &mut *cached;
        if last
            .as_ref()
            .is_some_and(|(taken, _)| now.saturating_duration_since(*taken) >= LONGEST_AGE)
        {
            *last = None;
        }
        let (_, status) = last.get_or_insert_with(|| (now, read()));
        let page = maker.page(status, audience);
        drop(cached);
        exposition::text(&page, format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::status::BrokerStatus;

    #[test]
    fn the_broker_is_asked_once_a_second() {
        let cache = MetricsCache::default();
        let begin = Instant::now();
        let mut asked = 0;
        for ms in [0, 1, 500, 999, 1_000, 1_500, 1_999, 2_000] {
            let text = cache.text_at(
                begin + Duration::from_millis(ms),
                MetricsFormat::OpenMetrics,
                match ms % 2 {
                    0 => MetricsAudience::Owner,
                    _ => MetricsAudience::Network,
                },
                || {
                    asked += 1;
                    Status {
                        schema: weft_api::status::SCHEMA,
                        broker: BrokerStatus {
                            decisions: asked,
                            ..BrokerStatus::default()
                        },
                        clients: Vec::new(),
                        ended: Vec::new(),
                        warnings: Vec::new(),
                    }
                },
            );
            assert!(
                text.contains(&format!("weft_broker_decisions_total {}\n", 1 + ms / 1_000)),
                "{text}"
            );
        }
        assert_eq!(asked, 3);
    }
}
