//! Fetching one node's metrics, with bounds on time and size.
//!
//! No HTTP library is needed for one GET of a text. An answer to an HTTP/1.0 request has no chunks.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::node_address::NodePlace;
use crate::text;

/// Longest answer, bytes: a broker's page is below a megabyte.
const LONGEST_ANSWER_BYTES: usize = 4 << 20;

/// Size of one read, bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Fetches the metrics. Only the resolution of a name may take longer than `within`: it has the
/// system's own bound.
pub(super) fn fetch(place: &NodePlace, within: Duration) -> Result<String, String> {
    let deadline = Instant::now() + within;
    let late = || format!("no answer within {within:?}");
    let answer = match place {
        NodePlace::Tcp(host, port) => {
            let mut why = "its name does not resolve to an address".to_string();
            let addresses = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|error| text::why(&error))?;
            let mut stream = None;
            for address in addresses {
                let left = left(deadline).ok_or_else(late)?;
                match TcpStream::connect_timeout(&address, left) {
                    Ok(connected) => {
                        stream = Some(connected);
                        break;
                    }
                    Err(error) => why = told(&error, &late),
                }
            }
            exchange(stream.ok_or(why)?, host, deadline)
        }
        NodePlace::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(|error| text::why(&error))?;
            exchange(stream, "weft", deadline)
        }
    };
    let answer = answer.map_err(|error| told(&error, &late))?;
    body(&answer)
}

fn left(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn told(error: &io::Error, late: &dyn Fn() -> String) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => late(),
        _ => text::why(error),
    }
}

/// A connection whose reads and writes have a bound.
trait BoundedStream: Read + Write {
    fn bound(&self, left: Duration) -> io::Result<()>;
}

impl BoundedStream for TcpStream {
    fn bound(&self, left: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(left))?;
        self.set_read_timeout(Some(left))
    }
}

impl BoundedStream for UnixStream {
    fn bound(&self, left: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(left))?;
        self.set_read_timeout(Some(left))
    }
}

fn exchange(mut stream: impl BoundedStream, host: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain;version=0.0.4\r\n\r\n");
    stream.bound(left(deadline).ok_or_else(late)?)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        // A sender of one byte per second gets the same total time.
        stream.bound(left(deadline).ok_or_else(late)?)?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if answer.len() > LONGEST_ANSWER_BYTES {
            return Err(io::Error::other("its answer is too long"));
        }
    }
}

/// The text of a successful answer.
fn body(answer: &[u8]) -> Result<String, String> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("its answer is not HTTP")?;
    let mut words = head.lines().next().unwrap_or_default().split_whitespace();
    match (words.next(), words.next()) {
        (Some(version), Some("200")) if version.starts_with("HTTP/") => Ok(body.to_string()),
        (Some(version), Some(status)) if version.starts_with("HTTP/") && status.len() == 3 => {
            let status: String = status.chars().filter(char::is_ascii_digit).collect();
            Err(format!("it answered with HTTP status {status}"))
        }
        _ => Err("its answer is not HTTP".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(30);

    fn of(listener: &TcpListener) -> NodePlace {
        NodePlace::Tcp("127.0.0.1".to_string(), listener.local_addr().expect("bound").port())
    }

    fn answered(answer: &'static str, within: Duration) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let place = of(&listener);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("came");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        });
        let got = fetch(&place, within);
        server.join().expect("served");
        got
    }

    #[test]
    fn only_a_good_answer_is_a_text() {
        assert_eq!(
            answered("HTTP/1.1 200 OK\r\nX: y\r\n\r\nx 1\n", PATIENCE),
            Ok("x 1\n".to_string())
        );
        let status = answered("HTTP/1.1 503 \u{1b}[2J\r\n\r\n", PATIENCE);
        assert_eq!(status, Err("it answered with HTTP status 503".to_string()));
        for wrong in ["", "SSH-2.0-x\r\n", "x 200 y\r\n\r\n", "HTTP/1.1\r\n\r\n"] {
            assert_eq!(
                answered(wrong, PATIENCE),
                Err("its answer is not HTTP".to_string()),
                "{wrong}"
            );
        }
    }

    #[test]
    fn who_is_silent_or_gone_is_told_within_the_bound() {
        // The kernel accepts the connection, but the test never reads it.
        let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
        assert_eq!(fetch(&of(&silent), SOON), Err("no answer within 50ms".to_string()));
        let place = of(&silent);
        drop(silent);
        let gone = fetch(&place, PATIENCE).expect_err("nobody listens");
        assert!(gone.contains("efused"), "{gone}");
        let missing = NodePlace::Unix("/nowhere/weft.sock.metrics".into());
        assert!(fetch(&missing, PATIENCE).is_err());
    }

    #[test]
    fn one_who_drips_has_no_longer_bound() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let place = of(&listener);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("came");
            // Writes until the reader has gone.
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert_eq!(fetch(&place, SOON), Err("no answer within 50ms".to_string()));
        server.join().expect("it noticed");
    }
}
