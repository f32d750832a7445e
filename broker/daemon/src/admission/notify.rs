// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines for jobs that wait for memory: their place, the reason, and their progress.
#![forbid(unsafe_code)]

use super::job_table::{Gang, JobTable};
use weft_api::queue::Queue;
use weft_protocol::Ns;

/// Interval between lines about a new place.
const POSITIONS_NS: Ns = 10_000_000_000;
/// Most lines per job about new places.
const POSITION_LINES: u32 = 20;

/// Makes a job's processes wait, and sends each a line with its place and the reason.
pub fn tell_wait(gang: &Gang, queue: &Queue) {
    let has = |client: &u64| gang.members.contains_key(client);
    let Some(row) = queue.waiting.iter().find(|row| row.clients.iter().any(has)) else {
        return;
    };
    for member in gang.members.values().filter(|member| !member.waits()) {
        let line = format!(
            "waits for device memory, number {} of {} in the queue: {} (weft queue shows it; Ctrl-C ends the job)",
            row.position,
            queue.waiting.len(),
            row.reason
        );
        member.wait(row.position, &line);
    }
}

/// Time at which lines about new places were last sent.
#[derive(Debug, Default)]
pub struct PositionLines(Ns);

impl PositionLines {
    /// Whether it is time for new lines; if so, they count as sent.
    pub fn are_due(&mut self, now: Ns) -> bool {
        let due = now.saturating_sub(self.0) >= POSITIONS_NS;
        if due {
            self.0 = now;
        }
        due
    }

    /// Sends waiting jobs lines about their new places.
    pub fn send(&self, queue: &Queue, jobs: &mut JobTable) {
        let all = queue.waiting.len();
        for row in &queue.waiting {
            for client in &row.clients {
                let gang = jobs.job_of(*client).and_then(|job| jobs.gang_mut(job));
                let Some(gang) = gang else { continue };
                let Some(member) = gang.members.get(client) else {
                    continue;
                };
                let moved = member.set_position(row.position);
                if moved && member.waits() && gang.told < POSITION_LINES {
                    member.say(&format!(
                        "number {} of {all} in the queue now: {}",
                        row.position, row.reason
                    ));
                    gang.told += 1;
                }
            }
        }
    }
}
