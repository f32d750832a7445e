// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles that a shared broker's guests send.
//!
//! Invariants: a user has one copy of each content, at most [`PROFILES_OF_A_USER_BYTES`] in all.
//! One profile of a user is decoded at a time, because a short file may hold a large profile.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use weft_profiles::{Profile, codec};

/// Most bytes in memory for a user's profiles.
pub const PROFILES_OF_A_USER_BYTES: usize = 64 << 20;

/// The profiles of all users.
#[derive(Debug, Default)]
pub struct GuestProfiles {
    users: Mutex<BTreeMap<u32, UserProfiles>>,
    /// Keyed per process, so no client can make collisions.
    state: RandomState,
}

type UserProfiles = Arc<Mutex<Vec<GuestProfile>>>;

#[derive(Debug)]
struct GuestProfile {
    content: (u64, usize),
    bytes: usize,
    profile: Weak<Profile>,
}

impl GuestProfiles {
    /// The profile in these bytes, which the client calls `called`, or a line with the error.
    pub fn take(&self, uid: u32, called: &str, bytes: &[u8]) -> Result<Arc<Profile>, String> {
        let kept = {
            let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
            // Forgets users without profiles; a list that another thread holds is in use.
            users.retain(|_, kept| {
                Arc::strong_count(kept) > 1
                    || kept
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .iter()
                        .any(GuestProfile::lives)
            });
            Arc::clone(users.entry(uid).or_default())
        };
        // Held while a profile is decoded.
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(GuestProfile::lives);
        let content = (self.state.hash_one(bytes), bytes.len());
        let same = kept.iter().find(|one| one.content == content);
        if let Some(profile) = same.and_then(|one| one.profile.upgrade()) {
            return Ok(profile);
        }
        let profile = codec::decode(bytes, Path::new(called)).map_err(|error| error.to_string())?;
        let room = PROFILES_OF_A_USER_BYTES.saturating_sub(kept.iter().map(|one| one.bytes).sum());
        let bytes = profile.footprint();
        if bytes > room {
            return Err(format!(
                "the profiles of this user's jobs together exceed {} MiB, the limit of a shared broker",
                PROFILES_OF_A_USER_BYTES >> 20
            ));
        }
        let profile = Arc::new(profile);
        kept.push(GuestProfile {
            content,
            bytes,
            profile: Arc::downgrade(&profile),
        });
        Ok(profile)
    }
}

impl GuestProfile {
    fn lives(&self) -> bool {
        self.profile.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(name: usize) -> Vec<u8> {
        let profile = Profile {
            // The name is the larger part of the profile.
            name: format!("{name:04}").repeat(1 << 18),
            ..Profile::default()
        };
        codec::encode(&profile, Path::new("a")).expect("encoded")
    }

    #[test]
    fn of_each_content_a_user_has_one_copy_and_all_have_a_bound() {
        let profiles = GuestProfiles::default();
        let first = profiles.take(7, "a", &bytes(0)).expect("taken");
        let again = profiles.take(7, "b", &bytes(0)).expect("taken");
        assert!(Arc::ptr_eq(&first, &again), "one copy");
        let others = profiles.take(8, "a", &bytes(0)).expect("taken");
        assert!(!Arc::ptr_eq(&first, &others), "of each user");
        let mut kept: Vec<_> = (1..63)
            .map(|name| profiles.take(7, "a", &bytes(name)).expect("room"))
            .collect();
        let full = profiles.take(7, "a", &bytes(63)).expect_err("full");
        assert!(full.contains("exceed 64 MiB"), "{full}");
        assert!(profiles.take(8, "a", &bytes(63)).is_ok(), "another user has room");
        assert!(
            profiles.take(7, "a", &bytes(1)).is_ok(),
            "what is there already takes none"
        );
        kept.pop();
        assert!(profiles.take(7, "a", &bytes(63)).is_ok(), "who leaves makes room");
        assert!(profiles.take(7, "a", b"rubbish").is_err());
        drop((first, again, others, kept));
        assert!(profiles.take(9, "a", &bytes(0)).is_ok());
        let users = profiles.users.lock().expect("nobody panicked");
        assert_eq!(
            users.keys().copied().collect::<Vec<_>>(),
            [9],
            "who has none is forgotten"
        );
    }
}
