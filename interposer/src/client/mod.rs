//! The process as a client of the broker: the link, the settings, the clock.
//!
//! Nothing here knows of hooks, launches or memory.
//!
//! | module | holds |
//! | --- | --- |
//! | [`link`] | the lane, the epoch page, and how the broker is told and woken |
//! | [`messages`], [`bell`] | the queue to the broker, and its doorbell |
//! | [`costs`] | predicted times, as the broker told them |
//! | [`settings`], [`backing_mode`], [`deferral`] | what the environment asks for |
//! | [`clock`] | the time |
//! | [`autostart`] | a broker that is started |

pub mod autostart;
pub mod backing_mode;
pub mod bell;
pub mod clock;
pub mod costs;
pub mod deferral;
pub mod link;
pub mod messages;
pub mod settings;
