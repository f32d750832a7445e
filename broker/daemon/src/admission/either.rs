//! Jobs that leave open what their memory is (`--backing auto`): what the core decided, for the
//! book, the admission slots and people.
//!
//! What holds: a process is told once, with its admission, and is what it was told for as long as
//! it runs. One that began without the broker's word has device memory, and the book goes by that.
#![forbid(unsafe_code)]

use super::AdmissionHandle;
use super::book::Book;
use super::report::size;
use weft_admission::{Backing, Decision, Event, Job};
use weft_protocol::control::{ToClient, Wants};

/// What a job's control groups leave it of the host, if that is less than all of its managed
/// memory: others may push all of it off the device.
pub fn cramped(wants: &Wants, peak: u64) -> Option<u64> {
    wants.host.filter(|left| *left < peak)
}

/// Why a job that left it open has device memory, as the end of a line.
pub fn reason(left: u64) -> String {
    format!(
        "; on managed memory it would exceed its control group, which leaves {} of host memory",
        size(left)
    )
}

/// What a job is told that wants managed memory whatever comes.
pub fn warning(left: u64, peak: u64) -> String {
    format!(
        "its control group leaves {} of host memory, its managed memory is {}: what others push off the device is charged there, and the kernel ends who exceeds it (raise Slurm's --mem, Kubernetes' limits.memory or memory.max)",
        size(left),
        size(peak)
    )
}

impl AdmissionHandle {
    /// A client left open what its memory is, and has begun on device memory.
    pub fn on_device(&self, client: u64) {
        let mut book = self.book();
        book.arrivals.is_on_device(client);
        if let Some(job) = book.clients.get(&client).copied() {
            book.is_on_device(job);
        }
    }
}

impl Book {
    /// What was decided of jobs that left it open is in the book before it is on the disk.
    pub fn chooses(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            if let Decision::Admit { job, .. } = decision
                && let Some(gang) = self.gangs.get_mut(job)
            {
                gang.managed = self.machine.is_managed(*job);
            }
        }
    }

    /// Says to a job whose memory did not fit what became of that.
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

    /// A job is on device memory, whatever was decided.
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

    /// What a running job's memory is, and why, in a few words.
    pub fn memory_of(backing: Backing) -> &'static str {
        match backing {
            Backing::Device | Backing::Either { .. } => "device",
            Backing::Managed { .. } => "managed",
            Backing::Beyond { .. } => "managed: did not fit",
        }
    }
}
