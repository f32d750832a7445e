//! What devices are there.
#![forbid(unsafe_code)]

use super::book::Book;
use crate::core::admission::{Device, DeviceId, Event};

impl Book {
    /// The device with this UUID; a new one if it was not heard of.
    pub fn device(&mut self, uuid: &str, total: u64) -> DeviceId {
        if let Some(at) = self.devices.iter().position(|known| known == uuid) {
            return DeviceId(at as u32);
        }
        let context = self.known.context_on(uuid);
        let device = Device {
            context: context.unwrap_or(0),
            measured: context.is_some() || !self.measures,
            ..Device::new(DeviceId(self.devices.len() as u32), total)
        };
        self.devices.push(uuid.to_string());
        self.tell(Event::Device(device));
        device.id
    }
}
