//! What an order from outside ([`Contender`](super::Contender)) sees of the state.
#![forbid(unsafe_code)]

use super::event::Ask;
use super::load::Load;
use super::need::{Backing, DeviceId, Need};
use super::state::Admission;

/// The waiters that may be admitted.
#[derive(Debug)]
pub struct Waiters<'a>(&'a Admission);

/// A waiter that may begin, and its place.
#[derive(Debug, Clone, Copy)]
pub struct Fit {
    /// Bytes left free beside it.
    pub left: u64,
    /// Its index in order of arrival.
    pub at: usize,
    /// Its device.
    pub device: DeviceId,
    pub(super) backing: Backing,
}

impl<'a> Waiters<'a> {
    pub(super) fn new(machine: &'a Admission) -> Waiters<'a> {
        Waiters(machine)
    }

    /// Indices and requests in order of arrival.
    pub fn all(&self) -> impl Iterator<Item = (usize, &'a Ask)> {
        self.0.there().map(|(at, waiter)| (at, &waiter.ask))
    }

    /// Place of the waiter at index `at`: the allowed device with least free memory beside it, of
    /// those whose load suits.
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
