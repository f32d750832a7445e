//! Addresses of nodes' metrics, in the form that users write. Pure.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Port of an address without one, as in the examples in deploy/prometheus.
pub const DEFAULT_PORT: u16 = 9431;

/// Largest number of nodes in a view: each has a thread.
pub const MOST_NODES: usize = 1024;

/// Location of a node's metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePlace {
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// A unix socket, local or forwarded.
    Unix(PathBuf),
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// Name for people.
    pub name: String,
    /// Location of its metrics.
    pub place: NodePlace,
}

impl fmt::Display for NodePlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodePlace::Tcp(host, port) if host.contains(':') => write!(out, "[{host}]:{port}"),
            NodePlace::Tcp(host, port) => write!(out, "{host}:{port}"),
            NodePlace::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// List of nodes given by an option.
pub type NodeList = Arc<[NodeAddress]>;

/// Parses nodes with commas between them.
pub fn parse_list(text: &str) -> Result<NodeList, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let nodes: Result<Vec<NodeAddress>, String> = words.map(parse).collect();
    let nodes = nodes?;
    match nodes.len() {
        0 => Err("no node given; write HOST:PORT, with commas between several".to_string()),
        1..=MOST_NODES => Ok(Arc::from(nodes)),
        count => Err(format!("{count} nodes are more than the {MOST_NODES} of one view")),
    }
}

/// Parses `[NAME=]HOST[:PORT]`, `[NAME=][::1]:PORT` or `[NAME=]unix:PATH`.
fn parse(word: &str) -> Result<NodeAddress, String> {
    let wrong = || format!("{word} is not a node; write [NAME=]HOST[:PORT] or [NAME=]unix:/path");
    let (name, place) = match word.split_once('=') {
        Some((name, place)) => (Some(name), place),
        None => (None, word),
    };
    if let Some(path) = place.strip_prefix("unix:") {
        let path = Some(path).filter(|path| path.starts_with('/')).ok_or_else(wrong)?;
        let name = name.unwrap_or(path).to_string();
        let place = NodePlace::Unix(path.into());
        return Ok(NodeAddress { name, place });
    }
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest),
        None => place.split_at(place.find(':').unwrap_or(place.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => DEFAULT_PORT,
        None => return Err(wrong()),
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
    };
    let letter = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
    if host.is_empty() || !host.chars().all(letter) || name.is_some_and(str::is_empty) {
        return Err(wrong());
    }
    Ok(NodeAddress {
        name: name.unwrap_or(host).to_string(),
        place: NodePlace::Tcp(host.to_string(), port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_a_host_with_a_port_or_a_socket() {
        for (word, name, place) in [
            ("gpu1", "gpu1", "gpu1:9431"),
            ("gpu1.lan:9500", "gpu1.lan", "gpu1.lan:9500"),
            ("10.0.0.3:80", "10.0.0.3", "10.0.0.3:80"),
            ("[::1]:9431", "::1", "[::1]:9431"),
            ("[fe80::1%eth0]", "fe80::1%eth0", "[fe80::1%eth0]:9431"),
            ("a=10.0.0.3", "a", "10.0.0.3:9431"),
            ("a=unix:/run/x.metrics", "a", "unix:/run/x.metrics"),
            ("unix:/run/x.metrics", "/run/x.metrics", "unix:/run/x.metrics"),
        ] {
            let node = parse(word).expect(word);
            assert_eq!((node.name.as_str(), node.place.to_string().as_str()), (name, place));
        }
        for wrong in [
            ":9431",
            "a:",
            "a:b",
            "a:0",
            "a:99999",
            "a=",
            "=a",
            "unix:",
            "unix:x",
            "http://a:9431",
            "a b",
            "[::1",
            "[::1]x",
            "\u{1b}[2J",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_list("a, b:1,").map(|nodes| nodes.len()), Ok(2));
        assert!(parse_list(" ,").is_err());
        assert!(parse_list(&"a,".repeat(MOST_NODES + 1)).is_err());
    }
}
