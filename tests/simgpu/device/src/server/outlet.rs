// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine's outputs: news for the clients, lines of the log, the time of the next wake-up.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_engine::memory::{BLOCK_BYTES, Ledger, PAGE_BYTES, PagePlace};
use weft_engine::{Ns, Output};

use super::DeviceProcess;
use super::client::Client;
use super::in_flight::Meta;
use super::log::Fate;
use crate::op::Seq;
use crate::shared::futex;
use crate::shared::lane::{ANY, News};

/// Oldest prompt operations of a client that count for the next wake-up. Later ones are due later,
/// except those of other streams.
const PROMPTS: usize = 64;

/// With more of them the device wakes at least once in this interval (device time).
const PROMPT_BEAT_NS: Ns = 1_000_000;

impl DeviceProcess {
    /// Empties the engine's outputs into lanes and log.
    pub(super) fn collect(&mut self) {
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Done {
                    tag,
                    start,
                    end,
                    segments,
                    ..
                } => {
                    let Some(meta) = self.metas.take(tag) else { continue };
                    self.write_log(&meta, start, end, Fate::Ended, &segments);
                    self.ended(&meta, start, end);
                }
                Output::Aborted { tag, start, at, .. } => {
                    let Some(meta) = self.metas.take(tag) else { continue };
                    if let Some(start) = start {
                        self.write_log(&meta, start, at, Fate::Aborted, &[]);
                    }
                    self.ended(&meta, at, at);
                }
                Output::Reached { tag, at, .. } => {
                    let Some(meta) = self.metas.get(tag) else { continue };
                    let Some(client) = self.client(meta.client) else {
                        continue;
                    };
                    client.tell(News::Reached { seq: meta.seq, at });
                    client.has_prompt_news = true;
                }
                Output::Switch { to, start, end } => {
                    let owner = self.clients.iter().flatten().find_map(|client| {
                        let ctx = client.contexts.iter().find(|(_, context)| **context == to)?;
                        Some((client.pid, *ctx.0))
                    });
                    if let (Some(log), Some((pid, ctx))) = (&mut self.log, owner) {
                        log.switch(pid, ctx, start, end);
                    }
                }
            }
        }
    }

    fn client(&mut self, number: u32) -> Option<&mut Client> {
        self.clients.get_mut(number as usize)?.as_mut()
    }

    fn ended(&mut self, meta: &Meta, start: Ns, end: Ns) {
        let Some(client) = self.client(meta.client) else { return };
        client.end(meta.seq);
        client.tell(News::Ended {
            seq: meta.seq,
            start,
            end,
        });
        client.has_prompt_news |= meta.prompt;
    }

    fn write_log(&mut self, meta: &Meta, start: Ns, end: Ns, fate: Fate, segments: &[(Ns, Ns)]) {
        let Some(log) = &mut self.log else { return };
        if let Some(client) = self.clients.get(meta.client as usize).and_then(Option::as_ref) {
            log.operation(client, meta, self.names.json(meta.name), start, end, fate, segments);
        }
    }

    /// Wakes threads whose news has come. Answers the earliest time at which something awaited can
    /// have ended; `None`: nothing awaited will end by itself.
    pub(super) fn give_out(&mut self) -> Option<Ns> {
        let next_event = self.engine.next_event_time();
        let mut wake: Option<Ns> = None;
        let mut at = |time: Option<Ns>| {
            // Nothing ends before the next event, nor an operation before its own bound.
            if let (Some(next), Some(time)) = (next_event, time)
                && time != Ns::MAX
            {
                let time = time.max(next);
                wake = Some(wake.map_or(time, |wake| wake.min(time)));
            }
        };
        for (number, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else { continue };
            let mut ring = false;
            for wanted in client.lane.wanted() {
                if wanted == ANY {
                    ring |= client.has_news;
                    at(next_event);
                    continue;
                }
                match client.pending(Seq(wanted)) {
                    Some(op) => at(self.engine.earliest_end(op)),
                    None => ring = true,
                }
            }
            client.has_news = false;
            let request = client.asked;
            if request != client.refreshed {
                client.refreshed = request;
                client.publish_bound(&self.engine);
                if let Some(pager) = self.engine.memory() {
                    client
                        .lane
                        .answer_blocks(|block| on_device(pager.ledger(), number as u32, block));
                }
                client.lane.refreshed.store(request, Ordering::SeqCst);
                ring = true;
            }
            if ring {
                futex::ring(&client.lane.bell);
            }
            if std::mem::take(&mut client.has_prompt_news) {
                futex::ring(&client.lane.prompt_bell);
            }
            let engine = &self.engine;
            client.prompts.retain(|op| !engine.is_done(*op));
            for op in client.prompts.iter().take(PROMPTS) {
                at(engine.earliest_end(*op));
            }
            if client.prompts.len() > PROMPTS {
                at(Some(engine.now() + PROMPT_BEAT_NS));
            }
        }
        wake
    }
}

/// Bits of the pages of a client's block that lie only on the device.
fn on_device(ledger: &Ledger, owner: u32, block: u64) -> u32 {
    let Some(start) = block.checked_mul(BLOCK_BYTES) else {
        return 0;
    };
    (0..BLOCK_BYTES / PAGE_BYTES)
        .filter(|page| ledger.place(owner, start.saturating_add(page * PAGE_BYTES)) == Some(PagePlace::Device))
        .fold(0, |pages, page| pages | 1 << page)
}
