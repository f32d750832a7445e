// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address at which metrics are served.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// An address of `weft broker --metrics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
    /// No default socket in the directory of the broker's socket.
    Off,
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        if text == "off" {
            return Ok(MetricsAddress::Off);
        }
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: needs a path (unix:/run/weft/metrics.sock)".to_string()),
            Some(path) => Ok(MetricsAddress::Unix(path.into())),
            None => text
                .parse()
                .map(MetricsAddress::Tcp)
                .map_err(|_| format!("{text} is not an address; write 127.0.0.1:9431, [::1]:9431, unix:/path, or off")),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Tcp(address) => write!(f, "{address}"),
            MetricsAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            MetricsAddress::Off => f.write_str("off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_tcp_or_a_path() {
        for text in ["127.0.0.1:9431", "[::1]:9431", "0.0.0.0:1", "unix:/run/m.sock", "off"] {
            let address: MetricsAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        for wrong in [
            "9431",
            ":9431",
            "localhost",
            "127.0.0.1",
            "unix:",
            "127.0.0.1:99999",
            "",
        ] {
            assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
        }
    }
}
