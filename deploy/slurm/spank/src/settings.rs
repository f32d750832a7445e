// SPDX-License-Identifier: MIT OR Apache-2.0
//! The administrator's settings in the plugin's line of `plugstack.conf`.
#![forbid(unsafe_code)]

use super::weft::{amount, priority};

/// The library's path in weft's packages.
const LIBRARY: &str = "/usr/lib/weft/libweft.so";

/// The socket of `weft broker --shared`.
const SOCKET: &str = "/run/weft/broker.sock";

/// Memory that a shard stands for, bytes. It fits the example `gres.conf`: 1 GiB.
const SHARD_BYTES: u64 = 1 << 30;

/// The arguments of the plugin's line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSettings {
    /// `lib=`: the interposer's absolute path.
    pub library: String,
    /// `socket=`: the socket of the node's shared broker.
    pub socket: String,
    /// `default_priority=`: the priority of jobs that request none. `None` is weft's default.
    pub default_priority: Option<u8>,
    /// `shard=`: memory that a shard stands for, bytes. `None` (`shard=no`): it sets no memory.
    pub shard_bytes: Option<u64>,
    /// `leftover=kill|leave`: whether the plugin kills processes of an ended job that Slurm no
    /// longer tracks.
    pub kills_leftovers: bool,
    /// `comment=`: the absolute path of the `weft` command by which a job's outcome becomes its
    /// `AdminComment`. `None`: it does not.
    pub comment: Option<String>,
}

impl Default for PluginSettings {
    fn default() -> PluginSettings {
        PluginSettings {
            library: LIBRARY.to_string(),
            socket: SOCKET.to_string(),
            default_priority: None,
            shard_bytes: Some(SHARD_BYTES),
            kills_leftovers: true,
            comment: None,
        }
    }
}

impl PluginSettings {
    /// The settings, and a line for each mistake. A wrong setting keeps its default.
    pub fn read<'a>(arguments: impl IntoIterator<Item = &'a str>) -> (PluginSettings, Vec<String>) {
        let (mut settings, mut wrong) = (PluginSettings::default(), Vec::new());
        for argument in arguments {
            if let Err(why) = settings.take(argument) {
                wrong.push(format!("plugstack.conf: {argument}: {why}"));
            }
        }
        (settings, wrong)
    }

    fn take(&mut self, argument: &str) -> Result<(), String> {
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        match name {
            "lib" => self.library = preloadable(value)?,
            "socket" => self.socket = absolute(value)?,
            "default_priority" => match priority::parse(value) {
                Some(level) => self.default_priority = Some(level),
                None => return Err(priority::CHOICE.to_string()),
            },
            "shard" if value == "no" => self.shard_bytes = None,
            "shard" => self.shard_bytes = Some(amount::parse(value)?),
            "leftover" => match value {
                "kill" => self.kills_leftovers = true,
                "leave" => self.kills_leftovers = false,
                _ => return Err("kill or leave".to_string()),
            },
            "comment" => self.comment = Some(absolute(value)?),
            _ => {
                let known = "lib=, socket=, default_priority=, shard=, leftover= and comment=";
                return Err(format!("there are {known}"));
            }
        }
        Ok(())
    }
}

fn absolute(path: &str) -> Result<String, String> {
    match path.starts_with('/') {
        true => Ok(path.to_string()),
        false => Err("an absolute path".to_string()),
    }
}

/// The linker splits `LD_PRELOAD` at blanks and colons.
fn preloadable(path: &str) -> Result<String, String> {
    match path.contains([' ', ':', '\t']) {
        true => Err("a path without blanks and colons".to_string()),
        false => absolute(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_settings() {
        assert_eq!(PluginSettings::read([]), (PluginSettings::default(), vec![]));
        let line = "lib=/w/libweft.so socket=/run/w/s default_priority=low shard=2GiB leftover=leave comment=/w/weft";
        let (settings, wrong) = PluginSettings::read(line.split(' '));
        let expected = PluginSettings {
            library: "/w/libweft.so".into(),
            socket: "/run/w/s".into(),
            default_priority: Some(7),
            shard_bytes: Some(2 << 30),
            kills_leftovers: false,
            comment: Some("/w/weft".into()),
        };
        assert_eq!((settings, wrong), (expected, vec![]));
        assert_eq!(PluginSettings::read(["shard=no"]).0.shard_bytes, None);
    }

    #[test]
    fn a_wrong_argument_is_told_and_leaves_its_default() {
        for wrong in [
            "lib=libweft.so",
            "lib=/a b",
            "socket=",
            "default_priority=urgent",
            "shard=0",
            "leftover=maybe",
            "comment=weft",
            "colour=red",
            "lib",
        ] {
            let (settings, told) = PluginSettings::read([wrong]);
            assert_eq!(settings, PluginSettings::default(), "{wrong}");
            assert_eq!(told.len(), 1, "{wrong}");
        }
    }
}
