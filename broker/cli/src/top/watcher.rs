//! The thread that asks the broker, so that keys are heard while it does not answer.
#![forbid(unsafe_code)]

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::super::text;
use super::app::BrokerNews;
use weft_daemon::admin::{self, Answer, Question};
use weft_daemon::places::Places;
use weft_daemon::status::Status;
use weft_protocol::latency_budget::LatencyBudget;

/// Asks once.
pub fn look(places: &Places) -> anyhow::Result<Box<Status>> {
    match admin::ask(places, &Question::Status)? {
        Answer::Status(status) => Ok(status),
        other => anyhow::bail!("unexpected answer {other:?}"),
    }
}

/// A client's new priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPriority {
    /// Client number.
    pub client: u64,
    /// 0 (matters most) to 9.
    pub priority: u8,
}

/// The thread's queues. It ends when they are dropped.
#[derive(Debug)]
pub struct Watcher {
    orders: Sender<NewPriority>,
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

    /// Asks for a change, soon.
    pub fn order(&self, order: NewPriority) {
        // The thread lives as long as this.
        let _ = self.orders.send(order);
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
    orders: &Receiver<NewPriority>,
    tells: &Sender<BrokerNews>,
) {
    let mut next = Instant::now() + interval;
    loop {
        match orders.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(order) => {
                if let Err(why) = set(places, order)
                    && tells.send(BrokerNews::Refused(why)).is_err()
                {
                    return;
                }
                // The next look shows what came of it: intervals stay alike.
                continue;
            }
            Err(RecvTimeoutError::Timeout) => next = Instant::now() + interval,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let news = match look(places) {
            Ok(status) => BrokerNews::Status(status, since.elapsed().as_secs_f64()),
            Err(error) => BrokerNews::Gone(text::told(&error)),
        };
        if tells.send(news).is_err() {
            return;
        }
    }
}

fn set(places: &Places, order: NewPriority) -> Result<(), String> {
    let question = Question::Set {
        client: Some(order.client),
        pid: None,
        job: None,
        priority: Some(order.priority),
        budget: LatencyBudget::default(),
    };
    match admin::ask(places, &question) {
        Ok(Answer::Set(0)) => Err(format!("client {} is gone", order.client)),
        Ok(_) => Ok(()),
        Err(error) => Err(text::told(&error.into())),
    }
}
