// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sockets, and the thread that answers visitors.
//!
//! One thread polls all connections. Each has a bound in time and size, and their number is small.
//! The user behind a TCP connection is unknown, so connections do not queue: a new one replaces the
//! connection whose last progress is oldest. A visitor that does not read delays only itself. The
//! thread ends with its [`WebServer`].
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
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getpeername,
    getsockname, listen, send, shutdown, socket_with,
};

use super::http::{self, Wanted, WebAnswer, WebRequest};
use crate::base::options::Door;
use crate::base::thread_priority::ThreadPriority;
use crate::server::{Asker, user_of};
use weft_protocol::transport::{fds, peer};

/// Most connections at a time. A further one displaces another. The number suffices for a visitor
/// to send its request while another process opens thousands.
const MOST_CONNECTIONS: usize = 128;

/// Connections that are accepted before open ones are served.
const ACCEPTED_AT_ONCE: usize = MOST_CONNECTIONS / 4;

/// The kernel's queue of connections: beyond it a visitor's first packet is lost.
const BACKLOG: i32 = 1024;

/// Time within which a request must arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time within which an answer must be read: a scraper's own bound is 10 s by default.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait until a visitor closes the connection: after an earlier close it may lose the
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
struct WebDoor {
    socket: OwnedFd,
    is_unix: bool,
}

/// Listening sockets.
#[derive(Debug, Default)]
pub struct WebDoors {
    doors: Vec<WebDoor>,
    files: Vec<SocketFile>,
}

impl WebDoors {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// Listens on a TCP address. Returns it, with the kernel's port for port 0.
    pub fn open_tcp(&mut self, address: SocketAddr) -> Result<SocketAddr> {
        let listener = TcpListener::bind(address).context("cannot listen")?;
        listener.set_nonblocking(true).context("cannot listen")?;
        listen(&listener, BACKLOG).context("cannot listen")?;
        let bound = listener.local_addr().unwrap_or(address);
        self.doors.push(WebDoor {
            socket: listener.into(),
            is_unix: false,
        });
        Ok(bound)
    }

    /// Listens on a unix socket of this path, for the owner or for the door's group.
    pub fn open_unix(&mut self, path: &Path, door: Door) -> Result<()> {
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
        self.doors.push(WebDoor { socket, is_unix: true });
        Ok(())
    }
}

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visitor {
    /// A process at a unix socket.
    Local {
        /// Whether it is root's or this user's.
        is_owner: bool,
    },
    /// An address, and the address here that it connected to. `None`: it has left.
    Remote(Option<(SocketAddr, SocketAddr)>),
}

/// Function that answers a request.
pub type WebHandler = Box<dyn FnMut(&WebRequest, Visitor) -> WebAnswer + Send>;

/// Handle of the thread that answers. When it is dropped, the thread ends and the sockets' files
/// are removed.
#[derive(Debug)]
pub struct WebServer {
    /// The thread polls the other end, which hangs up with this.
    _end: Option<PipeWriter>,
    _files: Vec<SocketFile>,
}

impl WebServer {
    /// Starts the thread `name`, if there is a socket.
    pub fn start(name: &str, doors: WebDoors, handler: WebHandler) -> io::Result<WebServer> {
        let WebDoors { doors, files } = doors;
        if doors.is_empty() {
            return Ok(WebServer {
                _end: None,
                _files: files,
            });
        }
        let (watched, end) = io::pipe()?;
        std::thread::Builder::new().name(name.into()).spawn(move || {
            ThreadPriority::Last.take();
            WebThread {
                doors,
                handler,
                visits: Vec::new(),
            }
            .run(&watched);
        })?;
        Ok(WebServer {
            _end: Some(end),
            _files: files,
        })
    }
}

/// Phase of a connection.
#[derive(Debug)]
enum VisitPhase {
    /// The request is being read.
    Reads(Vec<u8>),
    /// The answer is being sent, from this byte on.
    Writes(Vec<u8>, usize),
    /// The answer was sent; the visitor must close.
    Closes,
}

#[derive(Debug)]
struct WebVisit {
    socket: OwnedFd,
    visitor: Visitor,
    phase: VisitPhase,
    deadline: Instant,
    /// Time of its last progress: its begin, the begin of its answer, or a read of the answer.
    moved: Instant,
}

struct WebThread {
    doors: Vec<WebDoor>,
    handler: WebHandler,
    visits: Vec<WebVisit>,
}

impl WebThread {
    fn run(mut self, end: &PipeReader) {
        loop {
            let now = Instant::now();
            self.visits.retain(|visit| visit.deadline > now);
            let mut set = vec![PollFd::new(end, PollFlags::IN)];
            set.extend(self.visits.iter().map(|visit| match visit.phase {
                VisitPhase::Writes(..) => PollFd::new(&visit.socket, PollFlags::OUT),
                VisitPhase::Reads(_) | VisitPhase::Closes => PollFd::new(&visit.socket, PollFlags::IN),
            }));
            set.extend(self.doors.iter().map(|door| PollFd::new(&door.socket, PollFlags::IN)));
            let until = self.visits.iter().map(|visit| visit.deadline).min();
            let patience = until.map(fds::left);
            match poll(&mut set, patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    log::warn!("the web server ends: waiting for visitors: {errno}");
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
            let handler = &mut self.handler;
            self.visits
                .retain_mut(|visit| ready.next() != Some(true) || visit.step(handler));
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
                    peer::peer(&socket).is_ok_and(|peer| {
                        let (uid, pid) = (user_of(&socket, &peer), peer.pid);
                        Asker { uid, pid }.is_owner()
                    })
                };
                let moved = Instant::now();
                let visitor = match door.is_unix {
                    true => Visitor::Local { is_owner: is_owner() },
                    false => Visitor::Remote(ends(&socket)),
                };
                let visit = WebVisit {
                    visitor,
                    socket,
                    phase: VisitPhase::Reads(Vec::new()),
                    deadline: moved + REQUEST_TIMEOUT,
                    moved,
                };
                let stalest = (0..self.visits.len()).min_by_key(|at| self.visits.get(*at).map(|one| one.moved));
                if let Some(at) = stalest.filter(|_| self.visits.len() >= MOST_CONNECTIONS) {
                    self.visits.swap_remove(at);
                }
                self.visits.push(visit);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(Errno::INTR | Errno::CONNABORTED) => true,
            Err(errno) => {
                log::warn!("accepting a visitor: {errno}");
                std::thread::sleep(SHORTAGE);
                false
            }
        }
    }
}

impl WebVisit {
    /// Continues until the socket would block. False: the connection is over.
    fn step(&mut self, handler: &mut WebHandler) -> bool {
        if let VisitPhase::Reads(request) = &mut self.phase {
            let Some(answer) = hear(&self.socket, request, self.visitor, handler) else {
                return false;
            };
            match answer {
                Heard::More => return true,
                Heard::Answer(answer) => {
                    self.phase = VisitPhase::Writes(answer, 0);
                    self.moved = Instant::now();
                    self.deadline = self.moved + ANSWER_TIMEOUT;
                }
            }
        }
        if let VisitPhase::Writes(answer, sent) = &mut self.phase {
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
            self.phase = VisitPhase::Closes;
            self.moved = Instant::now();
            self.deadline = self.moved + CLOSE_TIMEOUT;
        }
        // Discards further data until the visitor closes. It reads one piece per round, because
        // other visitors wait.
        let mut rest = [0; 4096];
        match rustix::io::read(&self.socket, &mut rest) {
            Ok(bytes) => bytes > 0,
            Err(errno) => matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }
}

/// The other side's address and ours.
fn ends(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
    Some((peer, SocketAddr::try_from(getsockname(socket).ok()?).ok()?))
}

enum Heard {
    More,
    Answer(Vec<u8>),
}

/// Reads the request's bytes that have arrived; `None`: the visitor closed the connection.
fn hear(socket: &OwnedFd, request: &mut Vec<u8>, visitor: Visitor, handler: &mut WebHandler) -> Option<Heard> {
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
            Wanted::Refused(why, body) => WebAnswer::refusal(why, "GET and HEAD of a page are answered").bytes(body),
            Wanted::Page { request, body } => handler(&request, visitor).bytes(body),
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
        server: Option<WebServer>,
        answered: Arc<AtomicUsize>,
    }

    impl Served {
        fn new() -> Served {
            let folder = tempfile::tempdir().expect("a folder");
            let mut doors = WebDoors::default();
            let path = folder.path().join("b.sock.metrics");
            doors.open_unix(&path, Door::Private).expect("opened");
            let any = "127.0.0.1:0".parse().expect("an address");
            let address = doors.open_tcp(any).expect("opened");
            let answered = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&answered);
            let handler: WebHandler = Box::new(move |request, visitor| {
                count.fetch_add(1, Ordering::Relaxed);
                WebAnswer {
                    status: "200 OK",
                    media: "text/plain",
                    headers: "",
                    text: format!("{} {visitor:?}\n{}", request.path, "x".repeat(2 << 20)),
                }
            });
            Served {
                address,
                folder,
                server: Some(WebServer::start("weft-test", doors, handler).expect("started")),
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
        let mut served = Served::new();
        let tcp = asked(served.tcp(), REQUEST);
        assert!(
            tcp.starts_with("HTTP/1.1 200 OK\r\n") && tcp.contains(&format!(", {}))", served.address)),
            "{:.200}",
            tcp
        );
        assert!(tcp.len() > 2 << 20, "the whole answer came");
        let unix = asked(UnixStream::connect(served.path()).expect("connected"), REQUEST);
        assert!(unix.contains("/metrics Local { is_owner: true }\n"), "{:.200}", unix);
        let mode = fs::metadata(served.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(asked(served.tcp(), "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
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
        let served = Served::new();
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
        wordy.write_all(b"POST / HTTP/1.1\r\n\r\n").expect("sent");
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
    fn a_socket_that_a_killed_process_left_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("b.sock.metrics");
        let opened = || {
            let mut doors = WebDoors::default();
            doors.open_unix(&path, Door::Private).expect("opened");
            doors
        };
        let WebDoors { doors, files } = opened();
        files.into_iter().for_each(std::mem::forget);
        drop(doors);
        assert!(path.exists());
        let next = opened();
        assert!(!next.is_empty());
        drop(next);
        assert!(!path.exists());
    }
}
