// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that asks the broker, so that keys work while the broker does not answer.
#![forbid(unsafe_code)]

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::super::{job, status, text};
use super::app::BrokerNews;
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_protocol::latency_budget::LatencyBudget;

/// Change of a client's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOrder {
    /// New priority, 0 (matters most) to 9.
    Priority(u8),
    /// Whether its processes are stopped; otherwise they continue.
    Stop(bool),
}

/// Queues to and from the thread, which ends when they are dropped.
#[derive(Debug)]
pub struct Watcher {
    orders: Sender<(u64, JobOrder)>,
    news: Receiver<BrokerNews>,
}

impl Watcher {
    /// Starts the thread, which looks each `interval`.
    pub fn start(places: Places, interval: Duration, since: Instant) -> std::io::Result<Watcher> {
        let (orders, incoming) = channel();
        let (tells, news) = channel();
        let thread = std::thread::Builder::new().name("weft-top".into());
        thread.spawn(move || watch(&places, interval, since, &incoming, &tells))?;
        Ok(Watcher { orders, news })
    }

    /// Requests a change of this client's job.
    pub fn order(&self, client: u64, order: JobOrder) {
        // The thread lives as long as this queue.
        let _ = self.orders.send((client, order));
    }

    /// News, if any came.
    pub fn news(&self) -> Option<BrokerNews> {
        self.news.try_recv().ok()
    }
}

fn watch(
    places: &Places,
    interval: Duration,
    since: Instant,
    orders: &Receiver<(u64, JobOrder)>,
    tells: &Sender<BrokerNews>,
) {
    let mut next = Instant::now() + interval;
    loop {
        match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok((client, order)) => {
                let done = match order {
                    JobOrder::Priority(priority) => set(places, client, priority),
                    JobOrder::Stop(stopped) => job::stop(places, client, stopped),
                };
                if let Err(why) = done
                    && tells.send(BrokerNews::Refused(why)).is_err()
                {
                    return;
                }
                // The next regular look shows the result, so intervals keep their length.
                continue;
            }
            Err(RecvTimeoutError::Timeout) => next = Instant::now() + interval,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let news = match status::ask(places) {
            Ok(status) => BrokerNews::Status(status, since.elapsed().as_secs_f64()),
            Err(error) => BrokerNews::Gone(text::told(&error)),
        };
        if tells.send(news).is_err() {
            return;
        }
    }
}

fn set(places: &Places, client: u64, priority: u8) -> Result<(), String> {
    let question = AdminQuestion::Set {
        client: Some(client),
        pid: None,
        job: None,
        priority: Some(priority),
        budget: LatencyBudget::default(),
    };
    match admin::ask(places, &question) {
        Ok(Answer::Set(0)) => Err(format!("client {client} is gone")),
        Ok(_) => Ok(()),
        Err(error) => Err(text::told(&error.into())),
    }
}
