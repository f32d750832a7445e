// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and answers: HTTP/1.1, `GET` and `HEAD` of `/metrics`. Pure.
//!
//! `httparse` parses the request. The rest is weft's own code, not `tiny_http`, the small server
//! without an asynchronous runtime. That one bounds neither a request's time nor its size nor the
//! number of connections, and it starts its own threads for them.
#![forbid(unsafe_code)]

use super::exposition::MetricsFormat;

/// The longest request, bytes. A scraper's request has some hundred.
pub(super) const LONGEST_REQUEST_BYTES: usize = 8 << 10;

/// Most header lines of a request.
const MOST_HEADERS: usize = 64;

/// Result of parsing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The request is incomplete.
    More,
    /// A request for the metrics, or only for their head.
    Metrics { format: MetricsFormat, body: bool },
    /// A refusal: the status line's end, and whether a body is wanted.
    Refused(&'static str, bool),
}

/// Parses the part of a request that has arrived.
pub(super) fn read(request: &[u8]) -> Wanted {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if request.len() < LONGEST_REQUEST_BYTES => return Wanted::More,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Wanted::Refused("431 Request Header Fields Too Large", true);
        }
        Err(_) => return Wanted::Refused("400 Bad Request", true),
    }
    let body = parsed.method != Some("HEAD");
    if !matches!(parsed.method, Some("GET" | "HEAD")) {
        return Wanted::Refused("405 Method Not Allowed", body);
    }
    let target = parsed.path.unwrap_or_default();
    if target.split('?').next() != Some("/metrics") {
        return Wanted::Refused("404 Not Found", body);
    }
    let accepts = parsed
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("accept"));
    let accepts: Vec<_> = accepts.map(|header| String::from_utf8_lossy(header.value)).collect();
    Wanted::Metrics {
        format: format(&accepts.join(",")),
        body,
    }
}

/// The format that an `Accept` header prefers: OpenMetrics only if the header names it.
fn format(accept: &str) -> MetricsFormat {
    let (mut open, mut plain) = (0.0, 0.0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut known) = (1.0, true);
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "version" => known = matches!(value.trim(), "1.0.0" | "0.0.1" | "0.0.4"),
                _ => {}
            }
        }
        let best: &mut f64 = match media.as_str() {
            "application/openmetrics-text" => &mut open,
            "text/plain" | "text/*" | "*/*" => &mut plain,
            _ => continue,
        };
        if known {
            *best = best.max(quality);
        }
    }
    match open > 0.0 && open >= plain {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Prometheus,
    }
}

/// An answer. `media` is the body's type. Without `body` it has only the head, with the length.
pub(super) fn answer(status: &str, media: &str, text: &str, body: bool) -> Vec<u8> {
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        text.len()
    );
    let mut answer = head.into_bytes();
    if body {
        answer.extend_from_slice(text.as_bytes());
    }
    answer
}

/// An answer that refuses the request.
pub(super) fn refusal(status: &'static str, body: bool) -> Vec<u8> {
    let text = format!("{status}; the metrics are at /metrics\n");
    answer(status, "text/plain; charset=utf-8", &text, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use MetricsFormat::{OpenMetrics, Prometheus};

    #[test]
    fn a_request_is_metrics_or_refused() {
        let metrics = |format, body| Wanted::Metrics { format, body };
        for (request, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", metrics(Prometheus, true)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", metrics(Prometheus, false)),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", metrics(Prometheus, true)),
            ("GET / HTTP/1.1\r\n\r\n", Wanted::Refused("404 Not Found", true)),
            ("GET /metricsx HTTP/1.1\r\n\r\n", Wanted::Refused("404 Not Found", true)),
            (
                "POST /metrics HTTP/1.1\r\n\r\n",
                Wanted::Refused("405 Method Not Allowed", true),
            ),
            ("GET /metrics HTTP/1.1\r\nHost", Wanted::More),
            ("", Wanted::More),
            ("\u{1}\u{2}\r\n\r\n", Wanted::Refused("400 Bad Request", true)),
            ("GET /metrics HTTP/2\r\n\r\n", Wanted::Refused("400 Bad Request", true)),
        ] {
            assert_eq!(read(request.as_bytes()), wanted, "{request:?}");
        }
        let too_large = Wanted::Refused("431 Request Header Fields Too Large", true);
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(LONGEST_REQUEST_BYTES));
        assert_eq!(read(long.as_bytes()), too_large);
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEADERS + 1));
        assert_eq!(read(many.as_bytes()), too_large);
    }

    #[test]
    fn openmetrics_goes_to_those_who_ask_for_it() {
        let scraper = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                       text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, wanted) in [
            (scraper, OpenMetrics),
            ("application/openmetrics-text", OpenMetrics),
            (
                "Application/OpenMetrics-Text; version=1.0.0; q=0.5, text/plain; q=0.4",
                OpenMetrics,
            ),
            ("", Prometheus),
            ("*/*", Prometheus),
            ("text/html", Prometheus),
            ("text/plain, application/openmetrics-text;q=0.5", Prometheus),
            ("application/openmetrics-text;q=0", Prometheus),
            ("application/openmetrics-text;version=9.0.0", Prometheus),
            ("application/openmetrics-text;q=much", Prometheus),
        ] {
            assert_eq!(format(accept), wanted, "{accept}");
        }
    }

    #[test]
    fn an_answer_says_its_length() {
        let whole = answer("200 OK", "text/plain", "größe", true);
        let whole = String::from_utf8(whole).expect("text");
        let (head, body) = whole.split_once("\r\n\r\n").expect("a head");
        assert!(
            head.contains("Content-Length: 7\r\n") && head.ends_with("Connection: close"),
            "{head}"
        );
        assert_eq!(body, "größe");
        assert_eq!(answer("200 OK", "text/plain", "größe", false).len(), head.len() + 4);
        let refused = String::from_utf8(refusal("405 Method Not Allowed", true)).expect("text");
        assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    }
}
