//! Puts weft's files into a folder of the node, from where containers are given them.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Files that jobs need: the library, and the command for those who look from inside.
const FILES: [&str; 2] = ["libweft.so", "weft"];

/// Copies weft's files. Each is replaced as a whole: jobs that run keep the library they have.
pub fn install(from: &Path, to: &Path) -> Result<()> {
    ensure!(from.join("libweft.so").is_file(), "no libweft.so in {}", from.display());
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for file in FILES.iter().filter(|file| from.join(file).is_file()) {
        let new = to.join(format!(".{file}.new"));
        let copy = || -> std::io::Result<()> {
            fs::copy(from.join(file), &new)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
            fs::File::open(&new)?.sync_all()?;
            fs::rename(&new, to.join(file))
        };
        copy().with_context(|| format!("cannot copy {file} from {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_file_that_is_in_use_stays_what_it_was() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("libweft.so"), "one").unwrap();
        install(from.path(), to.path()).unwrap();
        let mut held = fs::File::open(to.path().join("libweft.so")).unwrap();
        fs::write(from.path().join("libweft.so"), "two").unwrap();
        install(from.path(), to.path()).unwrap();
        let mut text = String::new();
        held.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        assert_eq!(fs::read_to_string(to.path().join("libweft.so")).unwrap(), "two");
        let names: Vec<_> = fs::read_dir(to.path())
            .unwrap()
            .map(|one| one.unwrap().file_name())
            .collect();
        assert_eq!(names, ["libweft.so"], "nothing else is left");
    }

    #[test]
    fn a_folder_without_weft_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let said = install(empty.path(), empty.path()).unwrap_err().to_string();
        assert!(said.contains("no libweft.so"), "{said}");
    }
}
