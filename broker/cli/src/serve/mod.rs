// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft serve`: a live page of the jobs in a browser, with their reports and the history.
//!
//! It only reads. It answers processes of this user and of root, and no page of another site:
//! a browser sends the name in its address as `Host`, and that must be loopback's.
#![forbid(unsafe_code)]

mod page;

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weft_api::history::HistoryQuery;
use weft_api::metrics_address::MetricsAddress;
use weft_api::paths::Places;
use weft_api::plain_text as clean;
use weft_api::status::Status;
use weft_daemon::options::Door;
use weft_daemon::web::{Visitor, WebAnswer, WebDoors, WebRequest, WebServer};

use super::history::Patience;
use super::top::board::Board;
use super::{browser, history, report, status, text, top};

/// Seconds between two looks, as the page's script makes them.
const INTERVAL_S: f64 = 1.0;

/// Age up to which pages share a look: the script's clocks may be a little fast.
const SHARED_FOR: Duration = Duration::from_millis(500);

/// Age of the last look from which on a new one has no past: the charts' time axis counts looks. A
/// glance at another tab keeps it.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Longest wait for the broker, which answers in some ms. All pages share one thread.
const ASK_PATIENCE: Duration = Duration::from_secs(2);

/// Number of ended jobs on the page of the history.
const ENDED_SHOWN: u64 = 200;

/// Header lines of every answer. A job chooses its name, so the page may run and load nothing but
/// this server's own script.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; connect-src 'self'; \
style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
Cross-Origin-Resource-Policy: same-origin\r\nX-Content-Type-Options: nosniff\r\n\
Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\n";

/// Media type of a page.
const HTML: &str = "text/html; charset=utf-8";

const EXAMPLES: &str = "\
Examples:
  weft serve --open
  weft serve --listen 127.0.0.1:0                        # a free port
  ssh -t -L 9432:127.0.0.1:9432 gpu-machine weft serve   # from another machine
  curl http://127.0.0.1:9432/top.json                    # also status.json and history.json";

/// Show the jobs in a browser: a live page, their reports and the history
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ServePageArgs {
    /// Loopback address or unix socket: 127.0.0.1:9432, [::1]:9432, unix:/path
    #[arg(long, value_name = "ADDRESS", value_parser = listen, default_value = "127.0.0.1:9432")]
    listen: MetricsAddress,
    /// Open the page in the browser: BROWSER, else xdg-open
    #[arg(long)]
    open: bool,
}

fn listen(text: &str) -> Result<MetricsAddress, String> {
    match text.parse() {
        Ok(MetricsAddress::Tcp(address)) if !address.ip().is_loopback() => Err(format!(
            "{address} is not a loopback address; use 127.0.0.1:{0}, and ssh -L {0}:127.0.0.1:{0} from elsewhere",
            address.port()
        )),
        Err(_) | Ok(MetricsAddress::Off) => Err("write 127.0.0.1:9432, [::1]:9432 or unix:/path".to_string()),
        Ok(address) => Ok(address),
    }
}

/// Serves until a signal.
pub fn main(args: ServePageArgs) -> Result<ExitCode> {
    if args.open && matches!(args.listen, MetricsAddress::Unix(_)) {
        eprintln!("weft: --open needs a TCP address, because browsers open no unix socket: --listen 127.0.0.1:0");
        return Ok(ExitCode::from(2));
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot take signals")?;
    let mut doors = WebDoors::default();
    let opened = match &args.listen {
        MetricsAddress::Tcp(address) => doors.open_tcp(*address).map(|bound| format!("http://{bound}/")),
        MetricsAddress::Unix(path) => doors.open_unix(path, Door::Private).map(|()| args.listen.to_string()),
        MetricsAddress::Off => bail!("nothing to listen at"),
    };
    let shown = opened.with_context(|| format!("{} (--listen chooses another address)", args.listen))?;
    let mut pages = LivePages {
        places: Places::of_environment(),
        board: Board::new(INTERVAL_S),
        begin: Instant::now(),
        last: None,
        silent_until: None,
    };
    let answers = Box::new(move |request: &WebRequest, visitor: Visitor| pages.answer(request, visitor));
    let server = WebServer::start("weft-serve", doors, answers).context("cannot start a thread")?;
    text::print(&format!("{shown} (Ctrl-C ends it)"));
    if args.open
        && let Err(why) = browser::open(OsStr::new(&shown))
    {
        text::warn(format_args!("not opened: {why}; open {shown}"));
    }
    signals.forever().next();
    drop(server);
    Ok(ExitCode::SUCCESS)
}

/// The pages, and the looks at the broker that the live page consists of.
struct LivePages {
    places: Places,
    board: Board,
    begin: Instant,
    /// When the broker was asked last, and the reason if it did not answer.
    last: Option<(Instant, Option<String>)>,
    /// End of the time for which a broker that did not answer is not asked.
    silent_until: Option<Instant>,
}

impl LivePages {
    fn answer(&mut self, request: &WebRequest, visitor: Visitor) -> WebAnswer {
        let refused = |status, why: &str| WebAnswer {
            headers: HEADERS,
            ..WebAnswer::refusal(status, why)
        };
        let reason = |status, why: &str| WebAnswer {
            status,
            media: HTML,
            headers: HEADERS,
            text: page::reason_page(why),
        };
        if !is_ours(visitor) {
            return refused("403 Forbidden", "weft serve answers only the user who started it");
        }
        if !is_loopback(&request.host) {
            let why = "weft serve answers only at localhost, 127.0.0.1 or [::1]";
            return refused("421 Misdirected Request", why);
        }
        let html = |text| Ok((HTML, text));
        let made = match request.path.as_str() {
            "/" => html(page::live_page(&self.live())),
            "/live" => html(self.live()),
            "/live.js" => Ok(("text/javascript; charset=utf-8", page::SCRIPT.to_string())),
            "/history" => self.ended().and_then(|page| html(page::history_page(&page.jobs))),
            "/status.json" => self.ask(status_of).and_then(|status| json(&*status)),
            "/history.json" => self.ended().and_then(|page| json(&page)),
            "/top.json" => match self.look() {
                Some(gone) => json(&serde_json::json!({"schema": weft_api::status::SCHEMA, "gone": gone})),
                None => json(&top::json::line(&self.board)),
            },
            path => {
                let pid = path.strip_prefix("/report/").filter(|pid| pid.parse::<u32>().is_ok());
                if pid.is_none() && path != "/report" {
                    return refused("404 Not Found", "the live page is at /");
                }
                match self.ask(|places, patience| report::about(places, pid, patience, page::NAV)) {
                    Ok(Ok(page)) => html(page),
                    Ok(Err(nobody)) => return reason("404 Not Found", &nobody),
                    Err(error) => Err(error),
                }
            }
        };
        let (media, text) = match made {
            Ok(made) => made,
            Err(error) => {
                let (why, status) = (text::told(&error), "503 Service Unavailable");
                return match request.path.ends_with(".json") {
                    true => refused(status, &why),
                    false => reason(status, &why),
                };
            }
        };
        WebAnswer {
            status: "200 OK",
            media,
            headers: HEADERS,
            text,
        }
    }

    /// The changing part of the live page.
    fn live(&mut self) -> String {
        let gone = self.look();
        page::live(&self.board, gone.as_deref())
    }

    /// Asks the broker, at most once an interval. Returns the reason if it did not answer.
    fn look(&mut self) -> Option<String> {
        let now = Instant::now();
        let age = |last: &(Instant, _)| now.duration_since(last.0);
        match &self.last {
            Some(last) if age(last) < SHARED_FOR => return last.1.clone(),
            Some(last) if age(last) < LONGEST_PAUSE => {}
            _ => self.board = Board::new(INTERVAL_S),
        }
        let gone = match self.ask(status_of) {
            Ok(status) => {
                self.board.update(*status, self.begin.elapsed().as_secs_f64());
                None
            }
            Err(error) => Some(text::told(&error)),
        };
        self.last = Some((Instant::now(), gone.clone()));
        gone
    }

    fn ended(&mut self) -> Result<history::HistoryPage> {
        let query = HistoryQuery {
            last: Some(ENDED_SHOWN),
            ..HistoryQuery::default()
        };
        self.ask(|places, patience| history::page(places, &query, patience))
    }

    /// Asks the broker. One that did not answer is not asked for a while: it has the thread for a
    /// third of the time, and other pages have the rest.
    fn ask<T>(&mut self, question: impl FnOnce(&Places, Patience) -> T) -> T {
        let begin = Instant::now();
        if let Some(until) = self.silent_until
            && begin < until
        {
            return question(
                &self.places,
                Err(format!("the broker did not answer within {ASK_PATIENCE:?}")),
            );
        }
        let answer = question(&self.places, Ok(ASK_PATIENCE));
        let took = begin.elapsed();
        self.silent_until = (took >= ASK_PATIENCE).then(|| Instant::now() + 2 * took);
        answer
    }
}

/// The broker's status.
fn status_of(places: &Places, patience: Patience) -> Result<Box<Status>> {
    status::ask_within(places, patience.map_err(anyhow::Error::msg)?)
}

/// An answer as JSON.
fn json<T: Serialize>(answer: &T) -> Result<(&'static str, String)> {
    let text = clean::json(&serde_json::to_string_pretty(answer)?);
    Ok(("application/json", format!("{text}\n")))
}

/// Whether a `Host` header names this machine's loopback. Another site whose name leads to
/// 127.0.0.1 could otherwise read the pages (DNS rebinding).
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _port)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Whether a visitor is this user, or root, which passes connections on under WSL. Others of the
/// machine reach loopback, too.
fn is_ours(visitor: Visitor) -> bool {
    match visitor {
        // The socket's mode lets only this user and root connect.
        Visitor::Local { .. } => true,
        Visitor::Remote(None) => false,
        Visitor::Remote(Some((theirs, ours))) => {
            let table = match theirs {
                SocketAddr::V4(_) => "/proc/self/net/tcp",
                SocketAddr::V6(_) => "/proc/self/net/tcp6",
            };
            let sockets = fs::read_to_string(table).unwrap_or_default();
            let owner = owner(&sockets, theirs, ours);
            owner.is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
        }
    }
}

/// User of the TCP socket with these addresses, its own first (proc_pid_net(5)).
fn owner(sockets: &str, own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let (own, other) = (in_table(own), in_table(other));
    sockets.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = fields.next()? == own && fields.next()? == other;
        // State, queues, timer, retransmits, then the user.
        fields.nth(4).filter(|_| is_it)?.parse().ok()
    })
}

/// An address as the kernel's table has it: 32-bit words in the machine's order, and the port.
fn in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| {
        let word = word.try_into().unwrap_or_default();
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopbacks_names_are_answered() {
        for ours in [
            "localhost",
            "LOCALHOST:9432",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]",
            "[::1]:9432",
        ] {
            assert!(is_loopback(ours), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example:9432",
            "127.0.0.1.evil.example",
            "localhost,evil.example",
            "10.0.0.1",
            "[::2]",
            "0.0.0.0",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn a_sockets_user_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:24D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 1 1 0\n\
            1: 0100007F:24D8 0100007F:C001 01 00000000:00000000 00:00000000 00000000     8        0 2 1 0\n\
            2: 0100007F:C001 0100007F:24D8 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0\n";
        let [theirs, ours] = ["127.0.0.1:49153", "127.0.0.1:9432"].map(|text| text.parse().expect("an address"));
        assert_eq!(owner(table, theirs, ours), Some(1_000));
        assert_eq!(owner(table, ours, theirs), Some(8));
        assert_eq!(owner(table, theirs, theirs), None);
        let six = in_table("[::1]:9432".parse().expect("an address"));
        assert_eq!(six, "00000000000000000000000001000000:24D8");
    }
}
