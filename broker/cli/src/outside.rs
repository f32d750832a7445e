// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of work that bypasses weft: programs into which the dynamic linker preloads nothing,
//! and processes that opened the driver without weft.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::libraries;
use weft_protocol::command_line;

/// Deepest nesting of interpreters that are scripts.
const DEEPEST: usize = 4;

/// Bytes read of a script's first line, the same as in the kernel.
const FIRST_LINE: usize = 256;

/// Bytes of a 64-bit ELF header.
const HEADER: usize = 64;

/// ELF segment type that names the dynamic linker.
const INTERPRETER: u32 = 3;

/// Finding about a program whose dynamic linker is musl's.
const MUSL: &str = "is built for musl, whose dynamic linker cannot load weft's library";

/// Container engines whose service starts the containers, without the caller's environment.
const ENGINES: [&str; 4] = ["docker", "podman", "nerdctl", "kubectl"];

/// Name in the maps of a process that opened the driver through weft, and of its forked children.
const THROUGH_WEFT: &[u8] = b"/memfd:weft-driver";

/// Name in a process's maps of the memory that a job shares with its broker.
const LANE: &[u8] = b"/memfd:weft-lane";

/// Engine commands that start a job.
const BEGINS: [&str; 4] = ["run", "exec", "create", "up"];

/// Reason why weft is not in a command's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// The reason as a line for the user.
    pub why: String,
    /// Whether the command would not start with weft preloaded.
    pub breaks: bool,
}

/// Reason why weft cannot be preloaded into this command; `None` if it can, or if unknown.
pub fn reason(program: &OsStr, arguments: &[OsString]) -> Option<Unreached> {
    let harmless = |why| Unreached { why, breaks: false };
    if let Some(engine) = engine(program, arguments) {
        return Some(harmless(format!(
            "{engine} does not pass on the environment, so its container runs outside weft; give the container the variables that `weft run -- env` shows (LD_PRELOAD, WEFT_*), and mount the files they name and the socket's folder"
        )));
    }
    // Opening a pipe would block.
    let path = found(program).filter(|path| path.is_file())?;
    let why = of_file(&path, DEEPEST)?;
    let program = program.display();
    Some(match why == MUSL {
        true => Unreached {
            why: format!("{program} {why}: it and the programs it starts run outside weft"),
            breaks: true,
        },
        false => harmless(format!(
            "{program} {why}: it runs outside weft, but the programs it starts run under weft"
        )),
    })
}

/// The container engine, if this command starts a job without weft's variables.
fn engine(program: &OsStr, arguments: &[OsString]) -> Option<&'static str> {
    let name = Path::new(program).file_name()?;
    let engine = ENGINES.into_iter().find(|engine| name == *engine)?;
    let begins = arguments.iter().any(|word| BEGINS.iter().any(|begins| word == begins));
    // `-e LD_PRELOAD=…`, a file of variables, or podman's option to pass on all variables.
    let told = arguments.iter().any(|word| {
        let word = word.to_string_lossy();
        word.contains("LD_PRELOAD") || word.starts_with("--env-file") || word == "--env-host"
    });
    (begins && !told).then_some(engine)
}

/// The file of a command.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found.find(|path| {
        let about = fs::metadata(path);
        about.is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0)
    })
}

fn of_file(path: &Path, depth: usize) -> Option<&'static str> {
    let mut file = File::open(path).ok()?;
    let mut start = Vec::new();
    Read::by_ref(&mut file)
        .take(FIRST_LINE as u64)
        .read_to_end(&mut start)
        .ok()?;
    if let Some(line) = start.strip_prefix(b"#!") {
        // A script has the rights of its interpreter.
        let line = line.split(|byte| *byte == b'\n').next()?;
        let mut words = line.split(|byte| b" \t".contains(byte));
        let interpreter = words.find(|word| !word.is_empty())?;
        return of_file(Path::new(OsStr::from_bytes(interpreter)), depth.checked_sub(1)?);
    }
    match linker(&file, &start)? {
        None => return Some("is statically linked"),
        Some(linker) if linker.windows(MUSL_LINKER.len()).any(|part| part == MUSL_LINKER) => return Some(MUSL),
        Some(_) => {}
    }
    has_rights(path, &file)
        .then_some("is set-user-id, set-group-id or has capabilities, so the system does not preload libraries into it")
}

/// Part of the names of musl's dynamic linkers.
const MUSL_LINKER: &[u8] = b"/ld-musl-";

/// Longest name of a dynamic linker, bytes.
const LONGEST_LINKER_BYTES: u64 = 4096;

/// The dynamic linker that an ELF file for this machine names, if any. `None` for other files and
/// for the dynamic linker itself.
fn linker(file: &File, start: &[u8]) -> Option<Option<Vec<u8>>> {
    let header = start.get(..HEADER)?;
    // 64 bits, little-endian.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(header.get(at..at + 2)?.try_into().ok()?));
    let offset = u64::from_le_bytes(header.get(32..40)?.try_into().ok()?);
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    let mut segments = vec![0; size.checked_mul(count)?];
    file.read_exact_at(&mut segments, offset).ok()?;
    let kind = INTERPRETER.to_le_bytes();
    let Some(named) = segments
        .chunks_exact(size.max(4))
        .find(|segment| segment.starts_with(&kind))
    else {
        return Some(None);
    };
    let word = |at: usize| Some(u64::from_le_bytes(named.get(at..at + 8)?.try_into().ok()?));
    let mut name = vec![0; word(32)?.min(LONGEST_LINKER_BYTES) as usize];
    file.read_exact_at(&mut name, word(8)?).ok()?;
    Some(Some(name))
}

/// Whether a program gains rights that this user lacks.
fn has_rights(path: &Path, file: &File) -> bool {
    let Ok(about) = file.metadata() else { return false };
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let other_user = about.mode() & 0o4000 != 0 && about.uid() != user;
    let other_group = about.mode() & 0o2010 == 0o2010 && about.gid() != group;
    // Root gains nothing.
    let capable = || user != 0 && rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok();
    other_user || other_group || capable()
}

/// A process that has weft and opened the driver, but is not a job of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outside {
    /// Its pid.
    pub pid: u32,
    /// Its command line.
    pub command: String,
}

/// Parts of weft and of the driver that a process has loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// weft's library as the process names it.
    pub weft: Option<PathBuf>,
    /// Device and inode of that file.
    pub identity: Option<(u64, u64)>,
    /// Whether the driver is loaded.
    pub driver: bool,
    /// Whether it or its parent opened the driver through weft.
    pub through_weft: bool,
    /// Whether it has a broker's lane: it is or was a job.
    pub lane: bool,
}

impl Loaded {
    /// Whether its library is this file.
    pub fn is(&self, library: &Path) -> bool {
        self.identity.is_some() && self.identity == libraries::identity(library)
    }
}

/// Processes of this user that one `weft run` started, found by their environment.
pub fn of_gang(gang: &str) -> Vec<u32> {
    let has = |pid: &u32| variable(*pid, "WEFT_GANG").as_deref() == Some(gang);
    pids().into_iter().filter(has).collect()
}

/// A variable of a process at its start; `None` also if the process belongs to another user.
pub fn variable(pid: u32, name: &str) -> Option<String> {
    let variables = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut pairs = variables.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    pairs.find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key == name).then(|| value.to_string())
    })
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).collect()
}

/// All such processes of this user, except the broker's jobs in `attached`.
pub fn processes(attached: &[u32]) -> Vec<Outside> {
    let known = LibraryFiles::known();
    let mut found: Vec<Outside> = pids()
        .into_iter()
        .filter(|pid| !attached.contains(pid))
        .filter(|pid| {
            let loaded = known.loaded_by(*pid);
            loaded.weft.is_some() && loaded.driver && !loaded.through_weft && !is_off(*pid)
        })
        .map(|pid| Outside {
            pid,
            command: command(pid),
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Device and inode of weft's library and of the driver.
#[derive(Debug)]
pub struct LibraryFiles {
    weft: Option<(u64, u64)>,
    driver: Option<(u64, u64)>,
}

impl LibraryFiles {
    /// The files that this command uses. It searches for the driver, so call it once.
    pub fn known() -> LibraryFiles {
        let weft = libraries::find_weft();
        let driver = libraries::find_driver(weft.as_deref());
        LibraryFiles {
            weft: weft.as_deref().and_then(libraries::identity),
            driver: driver.as_ref().and_then(|driver| libraries::identity(&driver.path)),
        }
    }

    /// The files that a process has loaded; none if it belongs to another user.
    pub fn loaded_by(&self, pid: u32) -> Loaded {
        self.loaded(&fs::read(format!("/proc/{pid}/maps")).unwrap_or_default())
    }

    fn loaded(&self, maps: &[u8]) -> Loaded {
        let mut loaded = Loaded::default();
        for line in maps.split(|byte| *byte == b'\n') {
            let Some((numbers, path)) = mapped(line) else { continue };
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if self.weft == Some(numbers) || name.starts_with(libraries::WEFT.as_bytes()) {
                loaded.weft = Some(PathBuf::from(OsStr::from_bytes(path)));
                loaded.identity = Some(numbers);
            } else if self.driver == Some(numbers) || name.starts_with(b"libcuda.so") {
                loaded.driver = true;
            } else if path.starts_with(THROUGH_WEFT) {
                loaded.through_weft = true;
            } else if path.starts_with(LANE) {
                loaded.lane = true;
            }
        }
        loaded
    }
}

/// Device, inode and path of a line of a process's maps.
fn mapped(line: &[u8]) -> Option<((u64, u64), &[u8])> {
    let start = line.iter().position(|byte| *byte == b'/')?;
    let (fields, path) = line.split_at(start);
    let mut fields = std::str::from_utf8(fields).ok()?.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let device = rustix::fs::makedev(number(major)?, number(minor)?);
    Some(((device, fields.next()?.parse().ok()?), path))
}

/// Whether `WEFT_MODE=off` is set in a process.
pub fn is_off(pid: u32) -> bool {
    variable(pid, "WEFT_MODE").as_deref() == Some("off")
}

/// The command line of a process; empty if unknown.
pub fn command(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    command_line::join(words.map(String::from_utf8_lossy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_weft_and_a_driver_is_found_by_its_map() {
        let files = LibraryFiles {
            weft: None,
            driver: Some((rustix::fs::makedev(8, 0x10), 77)),
        };
        let weft = b"7f00-7f10 r-xp 00000000 08:10 12                 /opt/weft dir/libweft.so\n".as_slice();
        let named = b"7f00-7f10 r-xp 00000000 08:10 13                 /usr/lib/libcuda.so.570.1\n".as_slice();
        let numbered = b"7f00-7f10 r-xp 00000000 08:10 77                 /elsewhere/libsimcuda.so\n".as_slice();
        let other =
            b"7f00-7f10 rw-p 00000000 00:00 0 \n7f00-7f10 r-xp 00000000 08:11 77 /usr/lib/libcudart.so.12\n".as_slice();
        for (parts, both) in [
            ([weft, named], true),
            ([other, numbered], false),
            ([numbered, weft], true),
            ([weft, other], false),
        ] {
            let loaded = files.loaded(&parts.concat());
            assert_eq!(
                loaded.weft.is_some() && loaded.driver,
                both,
                "{:?}",
                String::from_utf8_lossy(&parts.concat())
            );
        }
        // For example a process of a job that does not use the device.
        let through = b"7f00-7f10 r--s 00000000 00:01 2056               /memfd:weft-driver (deleted)\n".as_slice();
        assert!(files.loaded(&[weft, named, through].concat()).through_weft);
        assert!(!files.loaded(&[weft, named].concat()).through_weft);
    }

    #[test]
    fn an_engine_that_begins_a_job_and_was_told_nothing_of_weft_is_known() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let of = |program: &str, line: &str| engine(OsStr::new(program), &words(line));
        assert_eq!(
            of("/usr/bin/docker", "run --gpus all image python serve.py"),
            Some("docker")
        );
        assert_eq!(of("podman", "exec box python train.py"), Some("podman"));
        assert_eq!(of("docker", "ps"), None);
        assert_eq!(of("docker", "run -e LD_PRELOAD=/weft/libweft.so image"), None);
        assert_eq!(of("podman", "run --env-host image"), None);
        assert_eq!(of("python", "run exec"), None);
    }

    #[test]
    fn programs_that_name_a_dynamic_linker_are_told_from_others() {
        let program = std::env::current_exe().expect("a test is a program");
        assert_eq!(of_file(&program, DEEPEST), None);
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("script");
        fs::write(&script, format!("#! {} -x\n", program.display())).expect("written");
        assert_eq!(of_file(&script, DEEPEST), None);
        let mut header = [0u8; HEADER];
        header.get_mut(..6).expect("six").copy_from_slice(b"\x7fELF\x02\x01");
        let alone = folder.path().join("alone");
        fs::write(&alone, header).expect("written");
        assert_eq!(of_file(&alone, DEEPEST), Some("is statically linked"));
        fs::write(&script, format!("#!{}\n", alone.display())).expect("written");
        assert_eq!(of_file(&script, DEEPEST), Some("is statically linked"));
        let mut musl = vec![0u8; 2 * HEADER];
        musl.get_mut(..6).expect("six").copy_from_slice(b"\x7fELF\x02\x01");
        // One segment of 56 bytes after the header, which names the string after it.
        for (at, byte) in [(32, 64), (54, 56), (56, 1), (64, 3), (72, 128), (96, 26)] {
            *musl.get_mut(at).expect("inside") = byte;
        }
        musl.extend_from_slice(b"/lib/ld-musl-x86_64.so.1\0\0");
        fs::write(&alone, musl).expect("written");
        assert_eq!(of_file(&alone, DEEPEST), Some(MUSL));
        fs::write(&script, format!("#!{}\n", script.display())).expect("written");
        assert_eq!(of_file(&script, DEEPEST), None, "it calls itself");
    }
}
