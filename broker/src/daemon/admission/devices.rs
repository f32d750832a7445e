//! What devices are there, and what contexts and strangers take of them.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use super::book::Book;
use crate::core::admission::{Device, DeviceId, Event, Job};

/// No context is taken for larger than this part of a device: then others than weft's jobs hold memory.
const LARGEST_CONTEXT: u64 = 8;

impl Book {
    /// The device with this UUID; a new one if it was not heard of.
    pub fn device(&mut self, uuid: &str, total: u64) -> DeviceId {
        if let Some(at) = self.devices.iter().position(|known| known == uuid) {
            return DeviceId(at as u32);
        }
        let device = Device::new(DeviceId(self.devices.len() as u32), total);
        self.devices.push(uuid.to_string());
        self.tell(Event::Device(device));
        device.id
    }

    /// A client's first context is there, so much of its device is free, and so much it held itself when it looked. What contexts take is what nobody is known to hold when one has
    /// just been made. The first figure that makes sense counts; what is more than that later is others'.
    pub fn context(&mut self, client: u64, free: u64, own: u64) {
        let Some(job) = self.clients.get(&client).copied() else {
            return;
        };
        let Some((device, _)) = self.machine.share(job) else {
            return;
        };
        let mut held = 0u64;
        let mut contexts = 0u64;
        for (other, gang) in &self.gangs {
            if self.machine.share(*other).is_some_and(|(at, _)| at == device) {
                if !gang.absent.is_empty() {
                    // Who has not come back holds nobody knows how much: another time.
                    return;
                }
                for (other, member) in &gang.members {
                    // It may have taken more since it looked.
                    let has = match *other == client {
                        true => own,
                        false => member.entry.lane.counters.memory.load(Ordering::Relaxed),
                    };
                    held = held.saturating_add(has);
                    contexts += 1;
                }
            }
        }
        let Some(mut about) = self.about(device).copied() else {
            return;
        };
        let unknown = about.memory.saturating_sub(free).saturating_sub(held);
        let each = unknown / contexts.max(1);
        let first = about.context == 0 && each > 0 && each <= about.memory / LARGEST_CONTEXT;
        if first {
            about.context = each;
            about.foreign = 0;
        } else {
            about.foreign = unknown.saturating_sub(about.context.saturating_mul(contexts));
        }
        self.tell(Event::Device(about));
        if first {
            // They were let in before a context's size was known. A fact, whether it fits or not.
            let there: Vec<(Job, u64)> = self
                .gangs
                .iter()
                .filter(|(job, _)| self.machine.share(**job).is_some_and(|(at, _)| at == device))
                .map(|(job, gang)| (*job, about.context.saturating_mul(gang.members.len() as u64)))
                .collect();
            for (job, contexts) in there {
                self.tell(Event::Has(job, contexts));
            }
        }
        self.carry_out();
    }
}
