// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sockets of the metrics, and the answer to a scraper's request.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};

use super::exposition::{self, MetricsFormat};
use super::page::MetricsAudience;
use crate::base::options::Door;
use crate::web::{Visitor, WebAnswer, WebDoors, WebHandler, WebRequest};
use weft_api::metrics_address::MetricsAddress;
use weft_api::paths::Places;

/// Opens the addresses, and the default socket unless it is off. If a TCP address cannot be
/// opened, for example because another process has it, a warning is logged: jobs need the
/// broker nevertheless. If a unix socket in `addresses` cannot be opened, that is an error.
pub(crate) fn open(places: &Places, door: Door, addresses: &[MetricsAddress]) -> Result<WebDoors> {
    let mut doors = WebDoors::default();
    for address in addresses {
        let opened = match address {
            MetricsAddress::Tcp(address) => {
                match doors.open_tcp(*address) {
                    Err(error) => log::warn!("no metrics at {address}: {error:#}"),
                    Ok(bound) => {
                        log::info!("metrics at http://{bound}/metrics");
                        if !bound.ip().is_loopback() {
                            log::warn!(
                                "metrics at {bound}: every host that reaches this address can read them, without authentication"
                            );
                        }
                    }
                }
                continue;
            }
            MetricsAddress::Unix(path) => doors.open_unix(path, door),
            MetricsAddress::Off => continue,
        };
        opened.with_context(|| format!("metrics at {address}"))?;
    }
    if !addresses.contains(&MetricsAddress::Off) {
        let path = places.metrics();
        if let Err(error) = doors.open_unix(&path, door) {
            log::warn!("no metrics at {}: {error:#}", path.display());
        }
    }
    Ok(doors)
}

/// Function that makes the text in a format, with the names that its audience may see.
type Texts = Box<dyn Fn(MetricsFormat, MetricsAudience) -> String + Send>;

/// The server's answers. With `shared`, other users than the broker's owner may connect, and get no
/// names of jobs.
pub(crate) fn handler(shared: bool, texts: Texts) -> WebHandler {
    Box::new(move |request: &WebRequest, visitor| {
        if request.path != "/metrics" {
            return WebAnswer::refusal("404 Not Found", "the metrics are at /metrics");
        }
        let audience = match visitor {
            _ if !shared => MetricsAudience::Owner,
            Visitor::Local { is_owner: true } => MetricsAudience::Owner,
            Visitor::Local { is_owner: false } => MetricsAudience::Guest,
            Visitor::Remote(_) => MetricsAudience::Network,
        };
        let format = exposition::format(&request.accept);
        WebAnswer {
            status: "200 OK",
            media: format.media_type(),
            headers: "",
            text: texts(format, audience),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_shared_broker_tells_names_to_its_owner_alone() {
        let asked = |shared, visitor| {
            let mut handler = handler(shared, Box::new(|format, audience| format!("{format:?} {audience:?}")));
            let request = |path: &str| WebRequest {
                path: path.to_string(),
                accept: String::new(),
                host: String::new(),
            };
            assert_eq!(handler(&request("/metricsx"), visitor).status, "404 Not Found");
            handler(&request("/metrics"), visitor).text
        };
        let local = |is_owner| Visitor::Local { is_owner };
        assert_eq!(asked(true, Visitor::Remote(None)), "Prometheus Network");
        assert_eq!(asked(true, local(true)), "Prometheus Owner");
        assert_eq!(asked(true, local(false)), "Prometheus Guest");
        assert_eq!(asked(false, Visitor::Remote(None)), "Prometheus Owner");
    }

    #[test]
    fn a_file_that_is_no_socket_and_a_port_that_is_taken_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let places = Places::at(folder.path().join("b.sock"));
        let file = folder.path().join("notes");
        fs::write(&file, "mine").expect("written");
        let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = taken.local_addr().expect("bound");
        let address = MetricsAddress::Unix(file.clone());
        let refused = open(&places, Door::Private, &[address.clone(), MetricsAddress::Off]);
        let error = format!("{:#}", refused.expect_err("no socket"));
        assert!(error.starts_with(&format!("metrics at {address}: ")), "{error}");
        let without = open(
            &places,
            Door::Private,
            &[MetricsAddress::Tcp(port), MetricsAddress::Off],
        );
        assert!(without.expect("a broker without it").is_empty());
        assert_eq!(fs::read_to_string(&file).expect("there"), "mine");
        let off = open(&places, Door::Private, &[MetricsAddress::Off]).expect("opened");
        assert!(off.is_empty() && !places.metrics().exists());
        let usual = open(&places, Door::Private, &[]).expect("opened");
        assert!(!usual.is_empty() && places.metrics().exists());
    }
}
