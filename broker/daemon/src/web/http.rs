// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and answers: HTTP/1.1, `GET` and `HEAD`. Pure.
//!
//! `httparse` parses the request. The rest is weft's own code, not `tiny_http`, the small server
//! without an asynchronous runtime. That one bounds neither a request's time nor its size nor the
//! number of connections, and it starts its own threads for them.
#![forbid(unsafe_code)]

/// The longest request, bytes. A scraper's request has some hundred, a browser's some thousand.
pub(super) const LONGEST_REQUEST_BYTES: usize = 8 << 10;

/// Most header lines of a request.
const MOST_HEADERS: usize = 64;

/// A request for a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebRequest {
    /// The path, without a query.
    pub path: String,
    /// The `Accept` headers, joined by commas.
    pub accept: String,
    /// The `Host` headers, joined by commas: the name in the browser's address.
    pub host: String,
}

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebAnswer {
    /// The status line's end.
    pub status: &'static str,
    /// The text's type.
    pub media: &'static str,
    /// More header lines, each with its end of line.
    pub headers: &'static str,
    /// The body.
    pub text: String,
}

impl WebAnswer {
    /// A refusal, with `hint` for people.
    pub fn refusal(status: &'static str, hint: &str) -> WebAnswer {
        WebAnswer {
            status,
            media: "text/plain; charset=utf-8",
            headers: match status.starts_with("405") {
                true => "Allow: GET, HEAD\r\n",
                false => "",
            },
            text: format!("{status}; {hint}\n"),
        }
    }

    /// Its bytes. Without `body` only the head, with the length.
    pub(super) fn bytes(&self, body: bool) -> Vec<u8> {
        let WebAnswer {
            status, media, headers, ..
        } = self;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n",
            self.text.len()
        );
        let mut bytes = head.into_bytes();
        if body {
            bytes.extend_from_slice(self.text.as_bytes());
        }
        bytes
    }
}

/// Result of parsing a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The request is incomplete.
    More,
    /// A request for a page, or only for its head.
    Page { request: WebRequest, body: bool },
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
    let header = |name: &str| {
        let values = parsed
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        let values: Vec<_> = values.map(|header| String::from_utf8_lossy(header.value)).collect();
        values.join(",")
    };
    let target = parsed.path.unwrap_or_default();
    let request = WebRequest {
        path: target.split('?').next().unwrap_or_default().to_string(),
        accept: header("accept"),
        host: header("host"),
    };
    Wanted::Page { request, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_for_a_page_or_refused() {
        let page = |path: &str, host: &str, body| {
            let [path, host] = [path, host].map(str::to_string);
            let accept = String::new();
            Wanted::Page {
                request: WebRequest { path, accept, host },
                body,
            }
        };
        for (request, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", page("/metrics", "x", true)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", page("/metrics", "", false)),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", page("/metrics", "", true)),
            (
                "GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil\r\n\r\n",
                page("/", "localhost,evil", true),
            ),
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
    fn an_answer_says_its_length() {
        let answer = WebAnswer {
            status: "200 OK",
            media: "text/plain",
            headers: "Cache-Control: no-store\r\n",
            text: "größe".to_string(),
        };
        let whole = String::from_utf8(answer.bytes(true)).expect("text");
        let (head, body) = whole.split_once("\r\n\r\n").expect("a head");
        assert!(
            head.contains("Content-Length: 7\r\nCache-Control: no-store\r\n") && head.ends_with("Connection: close"),
            "{head}"
        );
        assert_eq!(body, "größe");
        assert_eq!(answer.bytes(false).len(), head.len() + 4);
        let refused = WebAnswer::refusal("405 Method Not Allowed", "x").bytes(true);
        let refused = String::from_utf8(refused).expect("text");
        assert!(refused.contains("\r\nAllow: GET, HEAD\r\n"), "{refused}");
    }
}
