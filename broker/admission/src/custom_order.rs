// SPDX-License-Identifier: MIT OR Apache-2.0
//! An order of admission from outside: the lab compares weft's order with others.
#![forbid(unsafe_code)]

use std::fmt;

use super::event::Ask;
use super::need::{Backing, DeviceId};

/// An order that is not part of weft.
#[derive(Debug)]
pub struct CustomOrder {
    /// Name for people.
    pub name: &'static str,
    /// The waiter that begins next, and its place; `None` if none may begin now.
    pub next: fn(&Waiters<'_>) -> Option<WaiterFit>,
}

/// Orders are equal if their names are.
impl PartialEq for CustomOrder {
    fn eq(&self, other: &CustomOrder) -> bool {
        self.name == other.name
    }
}

impl Eq for CustomOrder {}

/// A waiter that may begin, and its place.
#[derive(Debug, Clone, Copy)]
pub struct WaiterFit {
    /// Bytes left free next to it.
    pub left: u64,
    /// Its index in order of arrival.
    pub at: usize,
    /// Its device.
    pub device: DeviceId,
    pub(super) backing: Backing,
}

/// Queries of an order to the state.
pub(super) trait WaitingList {
    /// Waiters that are not suspended nor at a cap: indices and requests in order of arrival.
    fn waiters(&self) -> Vec<(usize, &Ask)>;

    /// Place of the waiter at index `at`, on an empty device only if `empty`.
    fn fit(&self, at: usize, empty: bool) -> Option<WaiterFit>;
}

/// The waiters that may be admitted.
pub struct Waiters<'a>(pub(super) &'a dyn WaitingList);

impl fmt::Debug for Waiters<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.all()).finish()
    }
}

impl<'a> Waiters<'a> {
    /// Indices and requests in order of arrival.
    pub fn all(&self) -> impl Iterator<Item = (usize, &'a Ask)> {
        self.0.waiters().into_iter()
    }

    /// Place of the waiter at index `at`: the allowed device with least free memory left.
    pub fn fit(&self, at: usize) -> Option<WaiterFit> {
        self.0.fit(at, false)
    }

    /// As [`Waiters::fit`], on devices without jobs.
    pub fn fit_on_empty(&self, at: usize) -> Option<WaiterFit> {
        self.0.fit(at, true)
    }
}
