// SPDX-License-Identifier: MIT OR Apache-2.0
//! A profile's place on disk: by name in the user's folder, or by `FOLDER/NAME`.
//!
//! `weft run` passes the absolute form, because the broker's folder may differ from the job's.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use weft_profiles::{Profile, ProfileError, Store};

/// The folder and the name.
pub fn locate(called: &str) -> Result<(Store, String), ProfileError> {
    Store::locate(called)
}

/// The absolute form, which means the same in every process.
pub fn absolute(called: &str) -> Result<String, ProfileError> {
    let (store, name) = locate(called)?;
    weft_profiles::valid_name(&name)?;
    let folder = std::path::absolute(store.directory()).unwrap_or_else(|_| store.directory().to_path_buf());
    Ok(format!("{}/{name}", folder.display()))
}

/// The name without its folder, for people.
pub fn short(called: &str) -> &str {
    match called.rsplit_once('/') {
        Some((_, file)) => file.strip_suffix(weft_profiles::SUFFIX).unwrap_or(file),
        None => called,
    }
}

/// Reads a profile.
pub fn load(called: &str) -> Result<Profile, ProfileError> {
    let (store, name) = locate(called)?;
    store.load(&name)
}

/// Checks, before a job is run for it, that the profile can be written.
pub fn ready(called: &str) -> Result<(), ProfileError> {
    let (store, name) = locate(called)?;
    store.ready(&name)
}

/// The profile's file, present or not.
pub fn file(called: &str) -> Result<PathBuf, ProfileError> {
    let (store, name) = locate(called)?;
    store.path(&name)
}

/// The user's folder, for people; empty if unknown.
pub fn folder() -> PathBuf {
    Store::of_user().map_or_else(|_| PathBuf::new(), |store| Path::new(store.directory()).to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_form_names_folder_and_name() {
        assert_eq!(absolute("/a/b/resnet").expect("good"), "/a/b/resnet");
        assert_eq!(short("/a/b/resnet"), "resnet");
        assert_eq!(file("/a/b/resnet").expect("good"), PathBuf::from("/a/b/resnet.profile"));
        assert_eq!(absolute("/a/b/resnet.profile").expect("good"), "/a/b/resnet");
        assert_eq!(short("/a/b/resnet.profile"), "resnet");
        assert!(absolute("/a/../b/.hidden").is_err());
        assert!(absolute("").is_err());
    }
}
