// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies weft's files into a folder of the node that containers mount.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Files that containers need: the library for jobs, and the `weft` command for users inside.
const FILES: [&str; 2] = ["libweft.so", "weft"];

/// File names of the driver's library. Each is a link to `libweft.so`.
const LINKS: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Copies weft's files, and makes links with the driver's names in `lib` below them. Each file is
/// replaced atomically, so running jobs keep the library that they have loaded.
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
    let links = to.join("lib");
    fs::create_dir_all(&links).with_context(|| format!("cannot make {}", links.display()))?;
    for name in LINKS.iter().filter(|name| fs::read_link(links.join(name)).is_err()) {
        let link = || -> std::io::Result<()> {
            let new = links.join(format!(".{name}.new"));
            let _ = fs::remove_file(&new);
            symlink("../libweft.so", &new)?;
            fs::rename(&new, links.join(name))
        };
        link().with_context(|| format!("cannot make {name} in {}", links.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
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
        let names = |folder: &Path| {
            let all = fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name());
            all.map(|name| name.into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let expected = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!(
            names(to.path()),
            expected(&["lib", "libweft.so"]),
            "nothing else is left"
        );
        let links = to.path().join("lib");
        assert_eq!(names(&links), expected(&LINKS));
        for name in LINKS {
            assert_eq!(fs::read_to_string(links.join(name)).unwrap(), "two");
        }
    }

    #[test]
    fn a_folder_without_weft_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let said = install(empty.path(), empty.path()).unwrap_err().to_string();
        assert!(said.contains("no libweft.so"), "{said}");
    }
}
