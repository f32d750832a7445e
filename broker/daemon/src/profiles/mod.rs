// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profile writer, which is a separate thread, and the profiles of a shared broker's guests.
#![forbid(unsafe_code)]

pub mod guest_profiles;
pub mod writer;
