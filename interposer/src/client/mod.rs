//! The process as a client of the broker: link, settings, clock.
//!
//! This module knows no hooks, launches or memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`link`] | lane, epoch page, and how the broker is told and woken |
//! | [`messages`], [`bell`] | queue to the broker, and its doorbell |
//! | [`costs`] | predicted times from the broker |
//! | [`settings`], [`backing_mode`], [`deferral`] | the environment's settings |
//! | [`device_share`], [`stream_levels`] | what the device itself is asked; priorities of streams |
//! | [`clock`] | the time |
//! | [`autostart`] | starts a broker |

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
