//! Jobs with auto backing (`--backing auto`): the core's choice, for the book, the admission slots
//! and people.
//!
//! What holds: a process hears its backing once, with its admission, and keeps it. A process that
//! began without the broker has device memory, and the book follows.
#![forbid(unsafe_code)]

use super::AdmissionHandle;
use super::controller::Controller;
use super::report::size;
use weft_admission::{Backing, Decision, Event, Job};
use weft_protocol::control::{ToClient, Wants};

/// Host bytes left by the job's control groups, if its managed memory could exceed them: others may
/// evict all of it.
pub fn cramped(wants: &Wants, peak: u64) -> Option<u64> {
    wants.host.filter(|left| *left < peak)
}

/// Why a job with auto backing has device memory, as the end of a line.
pub fn reason(left: u64) -> String {
    format!(
        "; on managed memory it would exceed its control group, which leaves {} of host memory",
        size(left)
    )
}

/// Warning to a job that insists on managed memory.
pub fn warning(left: u64, peak: u64) -> String {
    format!(
        "its control group leaves {} of host memory, its managed memory is {}: what others push off the device is charged there, and the kernel ends who exceeds it (raise Slurm's --mem, Kubernetes' limits.memory or memory.max)",
        size(left),
        size(peak)
    )
}

impl AdmissionHandle {
    /// A client with auto backing has begun on device memory.
    pub fn on_device(&self, client: u64) {
        let mut book = self.book();
        book.arrivals.is_on_device(client);
        if let Some(job) = book.clients.get(&client).copied() {
            book.is_on_device(job);
        }
    }
}

impl Controller {
    /// Enters the core's choices in the book, before the ledger is written.
    pub fn chooses(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            if let Decision::Admit { job, .. } = decision
                && let Some(gang) = self.gangs.get_mut(job)
            {
                gang.managed = self.machine.is_managed(*job);
            }
        }
    }

    /// Tells a job whose memory did not fit what was chosen.
    pub fn tells_choice(&self, job: Job) {
        if !matches!(self.machine.backing(job), Some(Backing::Beyond { .. })) {
            return;
        }
        let Some(gang) = self.gangs.get(&job) else { return };
        let line = format!(
            "{:.2} GiB of device memory are not free beside the others: begins at once on managed memory (--backing auto; --backing device waits for them)",
            gang.asked as f64 / f64::from(1u32 << 30)
        );
        for member in gang.members.values() {
            let _ = member.sender.send(ToClient::Said(line.clone()));
        }
    }

    /// Enters that a job is on device memory, whatever was decided.
    pub fn is_on_device(&mut self, job: Job) {
        let Some(gang) = self.gangs.get_mut(&job) else { return };
        gang.managed = false;
        let clients: Vec<u64> = gang.members.keys().copied().collect();
        self.tell(Event::OnDevice(job));
        self.carry_out();
        if let Some(part) = self.part(job) {
            for client in clients {
                self.admission_slot(client, part);
            }
        }
    }

    /// A running job's backing, and why, for people.
    pub fn memory_of(backing: Backing) -> &'static str {
        match backing {
            Backing::Device | Backing::Either { .. } => "device",
            Backing::Managed { .. } => "managed",
            Backing::Beyond { .. } => "managed: did not fit",
        }
    }
}
