//! The bytes of a profile. Nobody else knows them.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 1 | [`VERSION`]: of the header and of what follows it |
//! | 9 | 7 | zero |
//! | 16 | 8 | length of the body, little-endian |
//! | 24 | 8 | [`weft_kernel_id::image_hash`] of the body, little-endian |
//! | 32 | | the body: [`Profile`] by bincode 2's standard configuration |
//!
//! | version | what changed |
//! |---|---|
//! | 1 | the first |
//! | 2 | working sets, behind the kernels. A body of version 1 is one of version 2 without them |
//! | 3 | how long it ran, behind the working sets. A body of version 2 is one of version 3 without it |
//! | 4 | another kind of template ([`crate::working_set::Template::Table`], the last). A body of version 3 is one of version 4 that has none |
//! | 5 | how many served runs refined it, behind how long it ran. A body of version 4 is one of version 5 without it |
//!
//! A field is added or changed only with a new version; old ones are read, and written as the newest. The checksum is looked at before the body is decoded, the decoder is given a
//! limit on what it may allocate, and what it yields is checked for sense.

use std::{borrow::Cow, path::Path};

use crate::envelope::{self, Broken, HEADER};
use crate::{Error, Profile};

/// Tells a profile from other files.
pub const MAGIC: [u8; 8] = *b"weftPROF";

/// The format that this build writes.
pub const VERSION: u8 = 5;

/// The oldest that it reads.
pub const OLDEST: u8 = 1;

/// No working sets, as they stand in a body: a list of none.
const NO_WORKING_SETS: u8 = 0;

/// No time that it ran, as it stands in a body.
const NOBODY_LOOKED: u8 = 0;

/// No run that refined it, as it stands in a body.
const NOT_REFINED: u8 = 0;

/// The largest profile that is read. [`crate::MAX_KERNELS`] kernels with names of 400 bytes and twenty buckets each take about 40 MiB.
pub const MAX_BYTES: u64 = 64 << 20;

fn bincode_config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<{ MAX_BYTES as usize }>()
}

/// The bytes of a profile. `path` is for the message.
pub fn encode(profile: &Profile, path: &Path) -> Result<Vec<u8>, Error> {
    let body = bincode::serde::encode_to_vec(profile, bincode_config()).map_err(|error| Error::Corrupt {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    let bytes = (HEADER + body.len()) as u64;
    if bytes > MAX_BYTES {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            bytes,
            limit: MAX_BYTES,
        });
    }
    Ok(envelope::seal(MAGIC, VERSION, &body))
}

/// The profile of these bytes. `path` is for the message.
pub fn decode(file: &[u8], path: &Path) -> Result<Profile, Error> {
    let corrupt = |why: &str| Error::Corrupt {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    // What versions after a file's own put behind its body.
    let with = |version: u8, more: &[u8]| {
        let body = envelope::open(MAGIC, version, file)?;
        Ok(Cow::Owned([body, more].concat()))
    };
    let opened = match envelope::open(MAGIC, VERSION, file) {
        Err(Broken::Version(OLDEST)) => with(OLDEST, &[NO_WORKING_SETS, NOBODY_LOOKED, NOT_REFINED]),
        Err(Broken::Version(2)) => with(2, &[NOBODY_LOOKED, NOT_REFINED]),
        Err(Broken::Version(version @ (3 | 4))) => with(version, &[NOT_REFINED]),
        opened => opened.map(Cow::Borrowed),
    };
    let body = opened.map_err(|broken| match broken {
        Broken::NotOurs => Error::NotAProfile(path.to_owned()),
        Broken::Version(found) => Error::Version {
            path: path.to_owned(),
            found,
            known: VERSION,
        },
        Broken::Truncated { expected } => Error::Truncated {
            path: path.to_owned(),
            found: file.len() as u64,
            expected,
        },
        Broken::Corrupt(why) => corrupt(why),
    })?;
    let (profile, used): (Profile, usize) =
        bincode::serde::decode_from_slice(&body, bincode_config()).map_err(|error| corrupt(&error.to_string()))?;
    if used != body.len() {
        return Err(corrupt("bytes left over"));
    }
    match profile.unsound() {
        Some(why) => Err(corrupt(why)),
        None => Ok(profile),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::tests::sample;

    fn path() -> &'static Path {
        Path::new("/p/resnet.profile")
    }

    /// Puts a body behind a header that fits it: what somebody who forges a file would do.
    fn with_header(body: &[u8]) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        file.push(VERSION);
        file.extend_from_slice(&[0; 7]);
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(&weft_kernel_id::image_hash(body).to_le_bytes());
        file.extend_from_slice(body);
        file
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
            let expected = if length < 9 { "not a profile" } else { "truncated" };
            assert!(error.to_string().contains(expected), "{length}: {error}");
        }
        let mut longer = file;
        longer.push(0);
        assert!(matches!(decode(&longer, path()), Err(Error::Truncated { .. })));
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
        file[8] = 6;
        assert_eq!(
            decode(&file, path()).unwrap_err().to_string(),
            "/p/resnet.profile has profile format 6, this weft reads 5: take the profile again with this weft"
        );
    }

    #[test]
    fn profiles_of_earlier_versions_are_read() {
        let profile = Profile {
            ran: 0,
            refined: 0,
            ..sample()
        };
        let mut file = encode(&profile, path()).unwrap();
        for version in [3, 4] {
            let sealed = envelope::seal(MAGIC, version, &file[HEADER..file.len() - 1]);
            assert_eq!(decode(&sealed, path()).unwrap(), profile);
        }
        let second = envelope::seal(MAGIC, 2, &file[HEADER..file.len() - 2]);
        assert_eq!(decode(&second, path()).unwrap(), profile);
        let old = envelope::seal(MAGIC, OLDEST, &file[HEADER..file.len() - 3]);
        assert_eq!(decode(&old, path()).unwrap(), profile);
        // The same bytes under the new version's number end too early.
        file.truncate(HEADER);
        file[8] = OLDEST;
        assert!(decode(&file, path()).is_err());
        assert!(decode(&envelope::seal(MAGIC, VERSION, &old[HEADER..]), path()).is_err());
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
        // A name of 2^60 bytes, and 2^60 kernels: refused before anything of that size is allocated.
        let huge = [253, 0, 0, 0, 0, 0, 0, 0, 16];
        assert!(decode(&with_header(&huge), path()).is_err());
        let mut kernels = bincode::serde::encode_to_vec(Profile::default(), bincode_config()).unwrap();
        assert_eq!(
            kernels.pop(),
            Some(NOT_REFINED),
            "the last field is how many runs refined it"
        );
        assert_eq!(kernels.pop(), Some(NOBODY_LOOKED), "the one before it how long it ran");
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
        let body = bincode::serde::encode_to_vec(&profile, bincode_config()).unwrap();
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
