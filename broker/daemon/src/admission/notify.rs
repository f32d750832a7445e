//! Lines for jobs that wait for memory: their place, the reason, and their progress.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::controller::{Controller, wake};
use crate::clock;
use weft_admission::Job;
use weft_protocol::Ns;
use weft_protocol::admission_slot::AdmissionState;
use weft_protocol::control::ToClient;

/// Interval of lines about a new place, and most lines per job.
const POSITIONS: Ns = 10_000_000_000;
const TOLD: u32 = 20;

impl Controller {
    /// Tells a job's processes that they wait, where, and why.
    pub fn waits(&self, job: Job) {
        let queue = self.queue();
        let Some(gang) = self.gangs.get(&job) else { return };
        let row = queue
            .waiting
            .iter()
            .find(|row| row.clients.iter().any(|it| gang.members.contains_key(it)));
        let Some(row) = row else { return };
        for member in gang.members.values() {
            let admission_slot = &member.entry.lane.admission_slot;
            if admission_slot.state() == AdmissionState::Waits {
                continue;
            }
            let line = format!(
                "waits for device memory, number {} of {} in the queue: {} (weft queue shows it; Ctrl-C ends the job)",
                row.position,
                queue.waiting.len(),
                row.reason
            );
            let _ = member.sender.send(ToClient::Said(line));
            admission_slot.position.store(row.position as u32, Ordering::Relaxed);
            admission_slot
                .state
                .store(AdmissionState::Waits as u32, Ordering::Release);
            wake(&admission_slot.state);
        }
    }

    /// Tells waiting jobs their new places, within the bounds.
    pub fn tells_positions(&mut self) {
        let now = clock::now();
        if now.saturating_sub(self.positions) < POSITIONS {
            return;
        }
        self.positions = now;
        let queue = self.queue();
        for row in &queue.waiting {
            for client in &row.clients {
                let Some(gang) = self.clients.get(client).and_then(|job| self.gangs.get_mut(job)) else {
                    continue;
                };
                let Some(member) = gang.members.get(client) else {
                    continue;
                };
                let admission_slot = &member.entry.lane.admission_slot;
                let was = admission_slot.position.swap(row.position as u32, Ordering::Relaxed);
                if u64::from(was) != row.position && admission_slot.state() == AdmissionState::Waits && gang.told < TOLD
                {
                    gang.told += 1;
                    let (position, all) = (row.position, queue.waiting.len());
                    let line = format!("number {position} of {all} in the queue now: {}", row.reason);
                    let _ = member.sender.send(ToClient::Said(line));
                }
            }
        }
    }
}
