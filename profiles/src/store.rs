// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles by name, in a directory. A profile is replaced atomically.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{Profile, ProfileError, codec, codec::FORMAT, file};

/// End of a profile's file name.
pub const SUFFIX: &str = ".profile";

/// Longest name: with suffix and a temporary file's marks it fits every file system.
const MAX_NAME: usize = 64;

/// End of the name under which a replaced profile is kept.
const OLD: &str = ".old";

/// A directory of profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    directory: PathBuf,
}

/// Checks a profile's name: it becomes a file name, and people type it.
pub fn valid_name(name: &str) -> Result<(), ProfileError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(allowed)
        // "a.profile" would be listed as a second "a".
        && !name.ends_with(SUFFIX);
    if good {
        Ok(())
    } else {
        Err(ProfileError::Name(name.chars().take(80).collect()))
    }
}

impl Store {
    /// Store in this directory, which is made when the first profile is saved.
    pub fn at(directory: impl Into<PathBuf>) -> Store {
        Store {
            directory: directory.into(),
        }
    }

    /// Store in the user's directory: `WEFT_PROFILE_DIR`, else `weft/profiles` in `XDG_DATA_HOME`,
    /// else in `~/.local/share`.
    pub fn of_user() -> Result<Store, ProfileError> {
        Store::from_lookup(|name| env::var_os(name).map(PathBuf::from))
    }

    fn from_lookup(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Store, ProfileError> {
        let set = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
        if let Some(directory) = set("WEFT_PROFILE_DIR") {
            return Ok(Store::at(directory));
        }
        let data = set("XDG_DATA_HOME")
            // By the base directory specification a relative path counts as unset.
            .filter(|path| path.is_absolute())
            .or_else(|| set("HOME").map(|home| home.join(".local/share")))
            .ok_or(ProfileError::NoDirectory)?;
        Ok(Store::at(data.join("weft/profiles")))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Store and name of the profile that `called` means: a name in the user's directory, or a file
    /// (with a slash), with or without its `.profile`.
    pub fn locate(called: &str) -> Result<(Store, String), ProfileError> {
        let Some((folder, file)) = called.rsplit_once('/') else {
            return Ok((Store::of_user()?, called.to_owned()));
        };
        let folder = if folder.is_empty() { "/" } else { folder };
        let name = file.strip_suffix(SUFFIX).unwrap_or(file);
        Ok((Store::at(folder), name.to_owned()))
    }

    fn make_directory(&self) -> Result<(), ProfileError> {
        let made = fs::create_dir_all(&self.directory);
        Ok(made.map_err(|source| FORMAT.io("make the directory", &self.directory, source))?)
    }

    /// Path of a profile of this name, whether or not it exists.
    pub fn path(&self, name: &str) -> Result<PathBuf, ProfileError> {
        valid_name(name)?;
        Ok(self.directory.join(format!("{name}{SUFFIX}")))
    }

    /// Reads a profile.
    pub fn load(&self, name: &str) -> Result<Profile, ProfileError> {
        let path = self.path(name)?;
        match read(&path) {
            Err(ProfileError::File(error)) if error.is_missing() => {
                // A name without a folder is one in the user's directory.
                let name = match Store::of_user().is_ok_and(|own| own == *self) {
                    true => name.to_owned(),
                    false => path.with_extension("").display().to_string(),
                };
                Err(ProfileError::Missing { name, path })
            }
            other => other,
        }
    }

    /// Writes a profile under its name, replacing an older one.
    pub fn save(&self, profile: &Profile) -> Result<PathBuf, ProfileError> {
        let path = self.path(&profile.name)?;
        let bytes = codec::encode(profile, &path)?;
        self.make_directory()?;
        replace(&path, |file| file.write_all(&bytes))?;
        Ok(path)
    }

    /// Checks that a profile of this name could be written, and makes the directory. Changes no
    /// profile.
    pub fn ready(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name)?;
        self.make_directory()?;
        file::could_replace(&path).map_err(|source| FORMAT.io("write", &path, source).into())
    }

    /// Keeps the profile as `NAME.old`, replacing an older one. Returns the new name, if there was
    /// a profile.
    pub fn set_aside(&self, name: &str) -> Result<Option<String>, ProfileError> {
        let path = self.path(name)?;
        if !path.exists() {
            return Ok(None);
        }
        let stem: String = name.chars().take(MAX_NAME - OLD.len()).collect();
        let old = format!("{stem}{OLD}");
        match self.load(name) {
            Ok(profile) => self.save(&Profile {
                name: old.clone(),
                ..profile
            })?,
            // Another version of weft may be able to read it.
            Err(_) => {
                let target = self.path(&old)?;
                fs::copy(&path, &target).map_err(|source| FORMAT.io("write", &target, source))?;
                target
            }
        };
        Ok(Some(old))
    }

    /// Names of the profiles, sorted; none without a directory.
    pub fn names(&self) -> Result<Vec<String>, ProfileError> {
        let io_error = |source| ProfileError::File(FORMAT.io("list", &self.directory, source));
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(io_error)?.file_name();
            if let Some(name) = file.to_str().and_then(|name| name.strip_suffix(SUFFIX))
                && valid_name(name).is_ok()
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a profile.
    pub fn remove(&self, name: &str) -> Result<(), ProfileError> {
        let path = self.path(name)?;
        fs::remove_file(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ProfileError::Missing {
                name: name.to_owned(),
                path,
            },
            _ => FORMAT.io("remove", &path, source).into(),
        })
    }
}

/// Reads a profile from a file of any name.
pub(crate) fn read(path: &Path) -> Result<Profile, ProfileError> {
    codec::decode(&FORMAT.read(path)?, path)
}

/// Replaces a profile's file, which only its owner may read.
fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), ProfileError> {
    Ok(FORMAT.replace(path, 0o600, write)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::sample;

    fn files(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_profile_goes_out_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("deep/er"));
        assert_eq!(store.names().unwrap(), Vec::<String>::new());
        let mut profile = sample();
        store.save(&profile).unwrap();
        profile.runs = 2;
        store.save(&profile).unwrap();
        assert_eq!(store.load("resnet").unwrap(), profile);
        assert_eq!(store.names().unwrap(), ["resnet"]);
        assert_eq!(files(store.directory()), ["resnet.profile"]);
        store.remove("resnet").unwrap();
        assert!(matches!(store.load("resnet"), Err(ProfileError::Missing { .. })));
        assert!(matches!(store.remove("resnet"), Err(ProfileError::Missing { .. })));
    }

    #[test]
    fn a_missing_profile_is_told_with_what_to_do() {
        let error = Store::at("/nowhere").load("bert").unwrap_err().to_string();
        assert_eq!(
            error,
            "no profile \"/nowhere/bert\" at /nowhere/bert.profile: record it with `weft profile --name /nowhere/bert -- COMMAND`"
        );
    }

    #[test]
    fn a_file_is_called_with_its_ending_or_without() {
        let directory = tempfile::tempdir().unwrap();
        Store::at(directory.path()).save(&sample()).unwrap();
        let folder = directory.path().display();
        for called in [format!("{folder}/resnet"), format!("{folder}/resnet.profile")] {
            let (store, name) = Store::locate(&called).unwrap();
            assert_eq!(store.load(&name).unwrap(), sample(), "{called}");
        }
        // Without a slash it is a name, not a file.
        let at_the_root = Store::locate("/a.profile").unwrap();
        assert_eq!(at_the_root, (Store::at("/"), "a".to_owned()));
    }

    #[test]
    fn names_are_no_paths() {
        for good in ["a", "resnet-50_v1.5", "7b", &"n".repeat(MAX_NAME)] {
            assert!(valid_name(good).is_ok(), "{good}");
        }
        let long = "n".repeat(MAX_NAME + 1);
        for bad in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            ".hidden",
            "-x",
            "a b",
            "a\0",
            "ä",
            "a\n",
            "x.profile",
            &long,
        ] {
            assert!(matches!(valid_name(bad), Err(ProfileError::Name(_))), "{bad:?}");
        }
    }

    #[test]
    fn what_is_replaced_is_kept_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path());
        assert_eq!(store.set_aside("resnet").unwrap(), None);
        let mut profile = sample();
        for runs in [1, 2] {
            profile.runs = runs;
            store.save(&profile).unwrap();
            assert_eq!(store.set_aside("resnet").unwrap().as_deref(), Some("resnet.old"));
            let kept = store.load("resnet.old").unwrap();
            assert_eq!((kept.runs, kept.name.as_str()), (runs, "resnet.old"));
        }
        assert_eq!(store.names().unwrap(), ["resnet", "resnet.old"]);
        // An unreadable profile, and one of the longest name.
        let long = "n".repeat(MAX_NAME);
        fs::write(store.path(&long).unwrap(), "of another weft").unwrap();
        let old = store.set_aside(&long).unwrap().unwrap();
        assert_eq!(old.len(), MAX_NAME);
        assert_eq!(fs::read(store.path(&old).unwrap()).unwrap(), b"of another weft");
    }

    #[test]
    fn whether_one_could_be_written_is_known_before() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("deep/er"));
        store.ready("resnet").unwrap();
        assert_eq!(files(store.directory()), [""; 0]);
        fs::create_dir(store.path("taken").unwrap()).unwrap();
        assert!(store.ready("taken").is_err());
        let nowhere = Store::at("/proc/weft").ready("resnet").unwrap_err().to_string();
        assert!(nowhere.contains("/proc/weft"), "{nowhere}");
    }

    #[test]
    fn a_full_disk_leaves_the_old_profile() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path());
        store.save(&sample()).unwrap();
        let path = store.path("resnet").unwrap();
        let full = |file: &mut File| {
            file.write_all(b"weftPROF half of")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        let error = replace(&path, full).unwrap_err().to_string();
        assert!(
            error.contains("unchanged") && error.contains("resnet.profile"),
            "{error}"
        );
        assert!(!error.contains('\n'));
        assert_eq!(store.load("resnet").unwrap(), sample());
        assert_eq!(files(directory.path()), ["resnet.profile"]);
    }

    #[test]
    fn a_real_full_device_is_told() {
        // Linux has a device that is always full.
        let Ok(mut full) = File::options().write(true).open("/dev/full") else {
            return;
        };
        let source = full.write_all(b"x").unwrap_err();
        let error = FORMAT.io("write", Path::new("/p"), source);
        assert!(error.to_string().contains("make room"), "{error}");
    }

    #[test]
    fn strange_files_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path());
        fs::write(directory.path().join("text.profile"), "not a profile at all").unwrap();
        fs::write(directory.path().join("empty.profile"), "").unwrap();
        fs::create_dir(directory.path().join("dir.profile")).unwrap();
        let huge = File::create(directory.path().join("huge.profile")).unwrap();
        huge.set_len(codec::MAX_BYTES + 1).unwrap();
        for (name, expected) in [
            ("text", "is not a weft profile"),
            ("empty", "is not a weft profile"),
            ("dir", "cannot read"),
            ("huge", "too large"),
        ] {
            let error = store.load(name).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_directory_is_found_as_documented() {
        let store = |set: &[(&str, &str)]| {
            Store::from_lookup(|name| {
                set.iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| PathBuf::from(value))
            })
        };
        let all = [("WEFT_PROFILE_DIR", "/w"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(store(&all).unwrap(), Store::at("/w"));
        assert_eq!(store(&all[1..]).unwrap(), Store::at("/x/weft/profiles"));
        assert_eq!(store(&all[2..]).unwrap(), Store::at("/h/.local/share/weft/profiles"));
        let relative = [("XDG_DATA_HOME", "x"), ("HOME", "/h"), ("WEFT_PROFILE_DIR", "")];
        assert_eq!(store(&relative).unwrap(), Store::at("/h/.local/share/weft/profiles"));
        assert!(matches!(store(&[]), Err(ProfileError::NoDirectory)));
    }
}
