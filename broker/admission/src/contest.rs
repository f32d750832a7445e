//! What an order from outside ([`Contender`](super::Contender)) sees of the machine.
#![forbid(unsafe_code)]

use super::event::Ask;
use super::load::Load;
use super::need::{Backing, DeviceId, Need};
use super::state::Admission;

/// The jobs that wait and may be let in.
#[derive(Debug)]
pub struct Waiters<'a>(&'a Admission);

/// A waiter that may begin, and where.
#[derive(Debug, Clone, Copy)]
pub struct Fit {
    /// Bytes that are free there beside it.
    pub left: u64,
    /// Its place in the order in which jobs came.
    pub at: usize,
    /// Where it begins.
    pub device: DeviceId,
    pub(super) backing: Backing,
}

impl<'a> Waiters<'a> {
    pub(super) fn new(machine: &'a Admission) -> Waiters<'a> {
        Waiters(machine)
    }

    /// Their places, and what they asked, in the order in which they came.
    pub fn all(&self) -> impl Iterator<Item = (usize, &'a Ask)> {
        self.0.there().map(|(at, waiter)| (at, &waiter.ask))
    }

    /// Where the one at this place fits and leaves least free, of the devices whose present load
    /// suits.
    pub fn fit(&self, at: usize, suits: impl Fn(&Load) -> bool) -> Option<Fit> {
        let waiter = self.0.waiting.get(at)?;
        let suits = |device: DeviceId| suits(&self.0.load(device));
        let (device, backing) = self.0.place(waiter, |device, _, _| suits(device.id))?;
        let about = self.0.devices.get(&device)?;
        let need = Need {
            backing,
            ..waiter.ask.need
        };
        let load = self.0.load(device).with(&need, need.fixed(about));
        Some(Fit {
            left: load.free(about),
            at,
            device,
            backing,
        })
    }
}
