// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a profile, which only this module knows.
//!
//! [`crate::format`] has the header; the body is a [`Profile`] in bincode 2's standard
//! configuration.
//!
//! | version | what changed |
//! |---|---|
//! | 1 | the first |
//! | 2 | working sets, after the kernels. A body of version 1 lacks them |
//! | 3 | run time, after the working sets. A body of version 2 lacks it |
//! | 4 | another kind of template ([`crate::working_set::Template::Table`], the last). A body of version 3 is one of version 4 without any |
//! | 5 | a number that is always 0 now, after the run time. A body of version 4 lacks it |
//! | 6 | the errors of the times, after that number. A body of version 5 lacks them |
//!
//! A field is added or changed only with a new version. This build reads old versions and writes
//! the newest. It checks a decoded body for soundness.

use std::{borrow::Cow, path::Path};

use crate::format::{Format, Wording};
use crate::{Profile, ProfileError};

/// First bytes of a profile's file.
pub const MAGIC: [u8; 8] = *b"weftPROF";

/// Version that this build writes.
pub const VERSION: u8 = 6;

/// Oldest version that this build reads.
pub const OLDEST: u8 = 1;

/// Encoding of empty working sets.
const NO_WORKING_SETS: u8 = 0;

/// Encoding of an unknown run time.
const NO_DURATION: u8 = 0;

/// Encoding of the field without use.
const UNUSED: u8 = 0;

/// Encoding of times without a known error.
const NO_ERROR: u8 = 0;

/// Largest profile file that is read, bytes: [`crate::MAX_KERNELS`] kernels with names of 400 bytes
/// and twenty buckets each take about 40 MiB.
pub const MAX_BYTES: u64 = 64 << 20;

pub(crate) const FORMAT: Format<{ MAX_BYTES as usize }> = Format {
    magic: MAGIC,
    version: VERSION,
    oldest: OLDEST,
    wording: &Wording {
        name: "profile",
        not_ours: "is not a weft profile: remove it and take the profile again",
        again: "take the profile again",
        smaller: "take the profile again",
        full: " (the profile that was there before is unchanged: make room and take it again)",
        denied: " (set WEFT_PROFILE_DIR to a directory of yours)",
    },
};

/// Encodes a profile. `path` is for the message.
pub fn encode(profile: &Profile, path: &Path) -> Result<Vec<u8>, ProfileError> {
    Ok(FORMAT.encode(profile, path)?)
}

/// Decodes a profile. `path` is for the message.
pub fn decode(file: &[u8], path: &Path) -> Result<Profile, ProfileError> {
    let (version, body) = FORMAT.open(file, path)?;
    // Fields that later versions append to this one's body.
    let more: &[u8] = match version {
        1 => &[NO_WORKING_SETS, NO_DURATION, UNUSED, NO_ERROR, NO_ERROR],
        2 => &[NO_DURATION, UNUSED, NO_ERROR, NO_ERROR],
        3 | 4 => &[UNUSED, NO_ERROR, NO_ERROR],
        5 => &[NO_ERROR, NO_ERROR],
        _ => &[],
    };
    let body = match more.is_empty() {
        true => Cow::Borrowed(body),
        false => Cow::Owned([body, more].concat()),
    };
    let profile: Profile = FORMAT.decode(&body, path)?;
    match profile.unsound() {
        Some(why) => Err(FORMAT.corrupt(path, why).into()),
        None => Ok(profile),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::HEADER_BYTES;
    use crate::profile::tests::sample;

    fn path() -> &'static Path {
        Path::new("/p/resnet.profile")
    }

    /// A forged file: this body after a header that fits it.
    fn with_header(body: &[u8]) -> Vec<u8> {
        FORMAT.seal(VERSION, body)
    }

    fn body_of(profile: &Profile) -> Vec<u8> {
        encode(profile, path()).unwrap().split_off(HEADER_BYTES)
    }

    #[test]
    fn what_is_written_is_read() {
        for profile in [sample(), Profile::default()] {
            let file = encode(&profile, path()).unwrap();
            assert_eq!(decode(&file, path()).unwrap(), profile);
        }
    }

    #[test]
    fn every_truncation_is_told() {
        let file = encode(&sample(), path()).unwrap();
        for length in 0..file.len() {
            let error = decode(&file[..length], path()).unwrap_err();
            let expected = if length < 9 { "not a weft profile" } else { "truncated" };
            assert!(error.to_string().contains(expected), "{length}: {error}");
        }
        let mut longer = file;
        longer.push(0);
        let error = decode(&longer, path()).unwrap_err().to_string();
        assert!(error.contains("truncated"), "{error}");
    }

    #[test]
    fn every_changed_byte_is_told() {
        let file = encode(&sample(), path()).unwrap();
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 0x20;
            let message = decode(&changed, path()).unwrap_err().to_string();
            assert!(message.contains("/p/resnet.profile"), "{message}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn another_version_is_told() {
        let mut file = encode(&sample(), path()).unwrap();
        file[8] = VERSION + 1;
        assert_eq!(
            decode(&file, path()).unwrap_err().to_string(),
            "/p/resnet.profile has profile format 7, this weft reads 6: take the profile again with this weft"
        );
    }

    #[test]
    fn profiles_of_earlier_versions_are_read() {
        let profile = Profile {
            ran: 0,
            over: 0,
            short: 0,
            ..sample()
        };
        let mut file = encode(&profile, path()).unwrap();
        for (version, lacks) in [(3, 3), (4, 3), (5, 2)] {
            let sealed = FORMAT.seal(version, &file[HEADER_BYTES..file.len() - lacks]);
            assert_eq!(decode(&sealed, path()).unwrap(), profile);
        }
        let second = FORMAT.seal(2, &file[HEADER_BYTES..file.len() - 4]);
        assert_eq!(decode(&second, path()).unwrap(), profile);
        let old = FORMAT.seal(OLDEST, &file[HEADER_BYTES..file.len() - 5]);
        assert_eq!(decode(&old, path()).unwrap(), profile);
        // The same bytes under the new version's number end too early.
        file.truncate(HEADER_BYTES);
        file[8] = OLDEST;
        assert!(decode(&file, path()).is_err());
        assert!(decode(&FORMAT.seal(VERSION, &old[HEADER_BYTES..]), path()).is_err());
    }

    #[test]
    fn working_sets_are_kept() {
        let mut profile = sample();
        profile.working_sets = crate::working_set::example();
        let file = encode(&profile, path()).unwrap();
        assert_eq!(decode(&file, path()).unwrap(), profile);
        let mut twice = profile.clone();
        twice.merge(&profile).unwrap();
        assert_eq!(twice.working_sets, profile.working_sets);
    }

    #[test]
    fn ceiling_of_a_lying_length() {
        // A name of 2^60 bytes, and 2^60 kernels: refused before any such allocation.
        let huge = [253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert!(decode(&with_header(&huge), path()).is_err());
        let mut kernels = body_of(&Profile::default());
        let errors = [kernels.pop(), kernels.pop()];
        assert_eq!(errors, [Some(NO_ERROR); 2], "the last fields are the times' errors");
        assert_eq!(kernels.pop(), Some(UNUSED), "the one before them has no use");
        assert_eq!(kernels.pop(), Some(NO_DURATION), "the one before it how long it ran");
        assert_eq!(
            kernels.pop(),
            Some(NO_WORKING_SETS),
            "the one before it the list of working sets"
        );
        assert_eq!(kernels.pop(), Some(0), "before that the list of kernels");
        kernels.extend_from_slice(&huge);
        assert!(decode(&with_header(&kernels), path()).is_err());
    }

    #[test]
    fn a_well_formed_body_without_sense_is_told() {
        let mut profile = sample();
        profile.kernels.reverse();
        let body = body_of(&profile);
        let error = decode(&with_header(&body), path()).unwrap_err().to_string();
        assert_eq!(
            error,
            "/p/resnet.profile is corrupt (kernels out of order): take the profile again"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(body in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&body, path());
            let _ = decode(&with_header(&body), path());
        }
    }
}
