// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sockets, and the thread that answers scrapers.
//!
//! One thread polls all connections. Each has a bound in time and size, and their number is small.
//! The user behind a TCP connection is unknown, so connections do not queue: a new one replaces the
//! connection whose last progress is oldest. A scraper that does not read delays only itself. The
//! thread ends with its [`MetricsServer`].
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, send,
    shutdown, socket_with,
};

use super::exposition::MetricsFormat;
use super::http::{self, Wanted};
use super::page::MetricsAudience;
use crate::base::options::Door;
use crate::base::thread_priority::ThreadPriority;
use crate::server::{Asker, user_of};
use weft_api::metrics_address::MetricsAddress;
use weft_api::paths::Places;
use weft_protocol::transport::{fds, peer};

/// Most connections at a time. A further one displaces another. The number suffices for a scraper
/// to send its request while another process opens thousands.
const MOST_CONNECTIONS: usize = 128;

/// Connections that are accepted before open ones are served.
const ACCEPTED_AT_ONCE: usize = MOST_CONNECTIONS / 4;

/// The kernel's queue of connections: beyond it a scraper's first packet is lost.
const BACKLOG: i32 = 1024;

/// Time within which a request must arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time within which an answer must be read: a scraper's own bound is 10 s by default.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait until a scraper closes the connection: after an earlier close it may lose the
/// answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after an accept without descriptors or memory.
const SHORTAGE: Duration = Duration::from_millis(100);

/// A socket's file, removed with this.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another broker may have replaced the file with its own.
        if fs::symlink_metadata(&self.path).is_ok_and(|facts| (facts.dev(), facts.ino()) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A listening socket.
#[derive(Debug)]
struct MetricsDoor {
    socket: OwnedFd,
    is_unix: bool,
}

/// The listening sockets of the metrics.
#[derive(Debug, Default)]
pub struct MetricsDoors {
    doors: Vec<MetricsDoor>,
    files: Vec<SocketFile>,
}

impl MetricsDoors {
    /// Opens the addresses, and the default socket unless it is off. If a TCP address cannot be
    /// opened, for example because another process has it, a warning is logged: jobs need the
    /// broker nevertheless. If a unix socket in `addresses` cannot be opened, that is an error.
    pub fn open(places: &Places, door: Door, addresses: &[MetricsAddress]) -> Result<MetricsDoors> {
        let mut doors = MetricsDoors::default();
        for address in addresses {
            let opened = match address {
                MetricsAddress::Tcp(address) => {
                    if let Err(error) = doors.open_tcp(*address) {
                        log::warn!("no metrics at {address}: {error:#}");
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

    fn open_tcp(&mut self, address: SocketAddr) -> Result<()> {
        let listener = TcpListener::bind(address).context("cannot listen")?;
        listener.set_nonblocking(true).context("cannot listen")?;
        listen(&listener, BACKLOG).context("cannot listen")?;
        let bound = listener.local_addr().unwrap_or(address);
        log::info!("metrics at http://{bound}/metrics");
        if !address.ip().is_loopback() {
            log::warn!(
                "metrics at {bound}: every host that reaches this address can read them, without authentication"
            );
        }
        self.doors.push(MetricsDoor {
            socket: listener.into(),
            is_unix: false,
        });
        Ok(())
    }

    fn open_unix(&mut self, path: &Path, door: Door) -> Result<()> {
        if let Ok(facts) = fs::symlink_metadata(path) {
            if !facts.file_type().is_socket() {
                bail!("path exists and is not a socket: remove it or choose another");
            }
            if UnixStream::connect(path).is_ok() {
                bail!("another process listens on it");
            }
        }
        // Bound under another name, then renamed: no process connects before its mode is set.
        let mut fresh = path.as_os_str().to_os_string();
        fresh.push(".new");
        let _ = fs::remove_file(&fresh);
        let address = SocketAddrUnix::new(&fresh).context("the path may have at most 103 bytes")?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).context("cannot make a socket")?;
        bind(&socket, &address).context("cannot make the socket's file")?;
        let mode = match door {
            Door::Shared { group: Some(group) } => {
                std::os::unix::fs::chown(&fresh, None, Some(group)).context("cannot give it to the group")?;
                0o660
            }
            Door::Private | Door::Shared { group: None } => 0o600,
        };
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)).context("cannot set the socket's permissions")?;
        listen(&socket, BACKLOG).context("cannot listen")?;
        let facts = fs::symlink_metadata(&fresh).context("cannot examine the socket")?;
        fs::rename(&fresh, path).context("cannot put the socket in place")?;
        self.files.push(SocketFile {
            path: path.to_path_buf(),
            inode: (facts.dev(), facts.ino()),
        });
        self.doors.push(MetricsDoor { socket, is_unix: true });
        Ok(())
    }
}

/// Function that makes the text in a format, with the names that its audience may see.
type Texts = Box<dyn Fn(MetricsFormat, MetricsAudience) -> String + Send>;

/// Handle of the thread that answers. When it is dropped, the thread ends and the sockets' files
/// are removed.
#[derive(Debug)]
pub struct MetricsServer {
    /// The thread polls the other end, which hangs up with this.
    _end: Option<PipeWriter>,
    _files: Vec<SocketFile>,
}

impl MetricsServer {
    /// Starts the thread, if there is a socket. With `shared`, other users than the broker's owner
    /// may connect, and get no names of jobs.
    pub fn start(doors: MetricsDoors, shared: bool, texts: Texts) -> io::Result<MetricsServer> {
        let MetricsDoors { doors, files } = doors;
        if doors.is_empty() {
            return Ok(MetricsServer {
                _end: None,
                _files: files,
            });
        }
        let (watched, end) = io::pipe()?;
        std::thread::Builder::new().name("weft-metrics".into()).spawn(move || {
            ThreadPriority::Last.take();
            MetricsThread {
                doors,
                shared,
                texts,
                scrapers: Vec::new(),
            }
            .run(&watched);
        })?;
        Ok(MetricsServer {
            _end: Some(end),
            _files: files,
        })
    }
}

/// Phase of a connection.
#[derive(Debug)]
enum ScrapePhase {
    /// The request is being read.
    Reads(Vec<u8>),
    /// The answer is being sent, from this byte on.
    Writes(Vec<u8>, usize),
    /// The answer was sent; the scraper must close.
    Closes,
}

#[derive(Debug)]
struct Scraper {
    socket: OwnedFd,
    audience: MetricsAudience,
    phase: ScrapePhase,
    deadline: Instant,
    /// Time of its last progress: its begin, the begin of its answer, or a read of the answer.
    moved: Instant,
}

struct MetricsThread {
    doors: Vec<MetricsDoor>,
    shared: bool,
    texts: Texts,
    scrapers: Vec<Scraper>,
}

impl MetricsThread {
    fn run(mut self, end: &PipeReader) {
        loop {
            let now = Instant::now();
            self.scrapers.retain(|scraper| scraper.deadline > now);
            let mut set = vec![PollFd::new(end, PollFlags::IN)];
            set.extend(self.scrapers.iter().map(|scraper| match scraper.phase {
                ScrapePhase::Writes(..) => PollFd::new(&scraper.socket, PollFlags::OUT),
                ScrapePhase::Reads(_) | ScrapePhase::Closes => PollFd::new(&scraper.socket, PollFlags::IN),
            }));
            set.extend(self.doors.iter().map(|door| PollFd::new(&door.socket, PollFlags::IN)));
            let until = self.scrapers.iter().map(|scraper| scraper.deadline).min();
            let patience = until.map(fds::left);
            match poll(&mut set, patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    log::warn!("metrics end: waiting for scrapers: {errno}");
                    return;
                }
            }
            let mut ready = set.iter().map(|entry| !entry.revents().is_empty());
            if ready.next() == Some(true) {
                return;
            }
            let ready: Vec<bool> = ready.collect();
            drop(set);
            let mut ready = ready.into_iter();
            let texts = &self.texts;
            self.scrapers
                .retain_mut(|scraper| ready.next() != Some(true) || scraper.step(texts));
            let opened: Vec<bool> = ready.collect();
            for (at, comes) in opened.into_iter().enumerate() {
                // False: no further connection waits.
                (0..ACCEPTED_AT_ONCE).take_while(|_| comes && self.accept(at)).count();
            }
        }
    }

    /// Accepts a connection, which replaces another one if there are too many. False: there is
    /// none.
    fn accept(&mut self, at: usize) -> bool {
        let Some(door) = self.doors.get(at) else {
            return false;
        };
        match accept_with(&door.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let is_owner = || {
                    let peer = peer::peer(&socket).ok().filter(|_| door.is_unix);
                    peer.is_some_and(|peer| {
                        let (uid, pid) = (user_of(&socket, &peer), peer.pid);
                        Asker { uid, pid }.is_owner()
                    })
                };
                let moved = Instant::now();
                let audience = match door.is_unix {
                    _ if !self.shared || is_owner() => MetricsAudience::Owner,
                    true => MetricsAudience::Guest,
                    false => MetricsAudience::Network,
                };
                let scraper = Scraper {
                    audience,
                    socket,
                    phase: ScrapePhase::Reads(Vec::new()),
                    deadline: moved + REQUEST_TIMEOUT,
                    moved,
                };
                let stalest = (0..self.scrapers.len()).min_by_key(|at| self.scrapers.get(*at).map(|one| one.moved));
                if let Some(at) = stalest.filter(|_| self.scrapers.len() >= MOST_CONNECTIONS) {
                    self.scrapers.swap_remove(at);
                }
                self.scrapers.push(scraper);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(Errno::INTR | Errno::CONNABORTED) => true,
            Err(errno) => {
                log::warn!("accepting a scraper: {errno}");
                std::thread::sleep(SHORTAGE);
                false
            }
        }
    }
}

impl Scraper {
    /// Continues until the socket would block. False: the connection is over.
    fn step(&mut self, texts: &Texts) -> bool {
        if let ScrapePhase::Reads(request) = &mut self.phase {
            let Some(answer) = hear(&self.socket, request, self.audience, texts) else {
                return false;
            };
            match answer {
                Heard::More => return true,
                Heard::Answer(answer) => {
                    self.phase = ScrapePhase::Writes(answer, 0);
                    self.moved = Instant::now();
                    self.deadline = self.moved + ANSWER_TIMEOUT;
                }
            }
        }
        if let ScrapePhase::Writes(answer, sent) = &mut self.phase {
            while let Some(rest) = answer.get(*sent..).filter(|rest| !rest.is_empty()) {
                match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                    Ok(more) => {
                        *sent += more;
                        self.moved = Instant::now();
                    }
                    Err(Errno::AGAIN) => return true,
                    Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
            if shutdown(&self.socket, Shutdown::Write).is_err() {
                return false;
            }
            self.phase = ScrapePhase::Closes;
            self.moved = Instant::now();
            self.deadline = self.moved + CLOSE_TIMEOUT;
        }
        // Discards further data until the scraper closes. It reads one piece per round, because
        // other scrapers wait.
        let mut rest = [0; 4096];
        match rustix::io::read(&self.socket, &mut rest) {
            Ok(bytes) => bytes > 0,
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }
}

enum Heard {
    More,
    Answer(Vec<u8>),
}

/// Reads the request's bytes that have arrived; `None`: the scraper closed the connection.
fn hear(socket: &OwnedFd, request: &mut Vec<u8>, audience: MetricsAudience, texts: &Texts) -> Option<Heard> {
    let mut part = [0; 1024];
    loop {
        match rustix::io::read(socket, &mut part) {
            Ok(0) => return None,
            Ok(bytes) => request.extend_from_slice(part.get(..bytes)?),
            Err(Errno::AGAIN) => return Some(Heard::More),
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        }
        let answer = match http::read(request) {
            Wanted::More => continue,
            Wanted::Refused(why, body) => http::refusal(why, body),
            Wanted::Metrics { format, body } => {
                let text = texts(format, audience);
                http::answer("200 OK", format.media_type(), &text, body)
            }
        };
        return Some(Heard::Answer(answer));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A server on a TCP address of the kernel's choice and on a unix socket.
    struct Served {
        address: SocketAddr,
        folder: tempfile::TempDir,
        server: Option<MetricsServer>,
        answered: Arc<AtomicUsize>,
    }

    impl Served {
        fn new(shared: bool) -> Served {
            let folder = tempfile::tempdir().expect("a folder");
            let places = Places::at(folder.path().join("b.sock"));
            let any = "127.0.0.1:0".parse().expect("an address");
            let mut doors = MetricsDoors::open(&places, Door::Private, &[]).expect("opened");
            let listener = TcpListener::bind::<SocketAddr>(any).expect("bound");
            let address = listener.local_addr().expect("bound");
            listener.set_nonblocking(true).expect("set");
            doors.doors.push(MetricsDoor {
                socket: listener.into(),
                is_unix: false,
            });
            let answered = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&answered);
            let texts: Texts = Box::new(move |format, audience| {
                count.fetch_add(1, Ordering::Relaxed);
                format!("{format:?} {audience:?}\n{}", "x".repeat(2 << 20))
            });
            Served {
                address,
                folder,
                server: Some(MetricsServer::start(doors, shared, texts).expect("started")),
                answered,
            }
        }

        fn tcp(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
            stream
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("b.sock.metrics")
        }
    }

    fn asked(mut stream: impl Read + Write, request: &str) -> String {
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        answer
    }

    const REQUEST: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn both_sockets_answer_and_are_gone_at_the_end() {
        let mut served = Served::new(false);
        let tcp = asked(served.tcp(), REQUEST);
        assert!(
            tcp.starts_with("HTTP/1.1 200 OK\r\n") && tcp.contains("Prometheus Owner\n"),
            "{:.200}",
            tcp
        );
        assert!(tcp.len() > 2 << 20, "the whole answer came");
        let unix = asked(UnixStream::connect(served.path()).expect("connected"), REQUEST);
        assert!(unix.contains("Prometheus Owner\n"), "{:.200}", unix);
        let mode = fs::metadata(served.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(asked(served.tcp(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let large = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(20_000));
        assert!(asked(served.tcp(), &large).starts_with("HTTP/1.1 431 "));
        assert_eq!(served.answered.load(Ordering::Relaxed), 2);
        served.server = None;
        assert!(!served.path().exists());
        let begin = Instant::now();
        while TcpStream::connect(served.address).is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the thread ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn nobody_waits_for_scrapers_that_say_nothing_or_do_not_read_or_say_too_much() {
        let served = Served::new(false);
        let is_closed = |mut stream: &TcpStream| {
            stream.set_nonblocking(true).expect("set");
            !matches!(stream.read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        };
        let _deaf: Vec<_> = (0..MOST_CONNECTIONS)
            .map(|_| {
                let mut deaf = served.tcp();
                deaf.write_all(REQUEST.as_bytes()).expect("sent");
                deaf
            })
            .collect();
        let silent: Vec<_> = (0..3 * MOST_CONNECTIONS).map(|_| served.tcp()).collect();
        let mut wordy = served.tcp();
        wordy.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        let words = std::thread::spawn(move || while wordy.write_all(&[b'x'; 65_536]).is_ok() {});
        // A request after all of these is answered before the time of any is over.
        for _ in 0..3 {
            let answer = asked(served.tcp(), REQUEST);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{:.200}", answer);
        }
        let open = silent.iter().filter(|stream| !is_closed(stream)).count();
        assert!((1..=MOST_CONNECTIONS).contains(&open), "{open} have a place");
        words.join().expect("its connection ended");
    }

    #[test]
    fn a_shared_broker_tells_names_to_its_owner_alone() {
        let served = Served::new(true);
        assert!(asked(served.tcp(), REQUEST).contains("Prometheus Network\n"));
        let unix = UnixStream::connect(served.path()).expect("connected");
        assert!(asked(unix, REQUEST).contains("Prometheus Owner\n"));
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
        let refused = MetricsDoors::open(&places, Door::Private, &[address.clone(), MetricsAddress::Off]);
        let error = format!("{:#}", refused.expect_err("no socket"));
        assert!(error.starts_with(&format!("metrics at {address}: ")), "{error}");
        let without = MetricsDoors::open(
            &places,
            Door::Private,
            &[MetricsAddress::Tcp(port), MetricsAddress::Off],
        );
        assert!(without.expect("a broker without it").doors.is_empty());
        assert_eq!(fs::read_to_string(&file).expect("there"), "mine");
        let off = MetricsDoors::open(&places, Door::Private, &[MetricsAddress::Off]).expect("opened");
        assert!(off.doors.is_empty() && !places.metrics().exists());
        // A killed broker leaves its socket; the next broker replaces it.
        let first = MetricsDoors::open(&places, Door::Private, &[]).expect("opened");
        let MetricsDoors { doors, files } = first;
        files.into_iter().for_each(std::mem::forget);
        drop(doors);
        assert!(places.metrics().exists());
        let next = MetricsDoors::open(&places, Door::Private, &[]).expect("opened");
        assert_eq!(next.doors.len(), 1);
        drop(next);
        assert!(!places.metrics().exists());
    }
}
