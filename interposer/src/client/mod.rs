// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process as a client of the broker: link, settings, clock.
//!
//! This module knows no hooks, launches or memory.
//!
//! | module | contains |
//! | --- | --- |
//! | [`link`] | lane, epoch page, messages and wake-ups to the broker |
//! | [`messages`], [`bell`] | queue to the broker, and its doorbell |
//! | [`costs`] | predicted times from the broker |
//! | [`settings`], [`backing_mode`], [`deferral`] | the environment's settings |
//! | [`device_share`], [`stream_levels`] | requests to the device itself; priorities of streams |
//! | [`clock`] | the time |
//! | [`autostart`] | the start of a broker |

pub mod autostart;
pub mod backing_mode;
pub mod bell;
pub mod clock;
pub mod costs;
pub mod deferral;
pub mod device_share;
pub mod link;
pub mod messages;
pub mod settings;
pub mod stream_levels;
