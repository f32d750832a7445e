// SPDX-License-Identifier: MIT OR Apache-2.0
//! A broker process, and minimal clients that act as the interposer's session.
#![allow(dead_code)]

#[path = "../../../../tests/bounded.rs"]
mod bounded;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_api::status::Status;
use weft_protocol::VERSION;
use weft_protocol::control::{Hello, ToBroker, Wants};
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::lane::{Kind, Lane, LaneRecord, Mode};
use weft_protocol::latency_budget::LatencyBudget;
use weft_protocol::transport::client::{self, Attachment};
use weft_protocol::transport::map::Mapping;

use self::bounded::Bounded;

/// Time far above any wait here on a busy machine; reaching it fails the test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The `weft` command of this build.
pub fn weft() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command
        .env_remove("LD_PRELOAD")
        .env_remove("WEFT_CUDA_LIBRARY")
        .env_remove("WEFT_PROFILE_DIR")
        .env_remove("WEFT_MODE")
        .env_remove("WEFT_PRIORITY")
        .env_remove("WEFT_DEVICE_PRIORITIES")
        .env_remove("CUDA_MPS_CLIENT_PRIORITY")
        .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        .env_remove("WEFT_PROFILE")
        .env_remove("WEFT_OUTCOME")
        .env_remove("WEFT_LOG")
        // Ignores the settings of this machine and its user.
        .env("WEFT_CONFIG", "/dev/null")
        .env_remove("WEFT_NAME")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

/// A folder with a broker's socket, its profiles, and a stand-in for libweft: the C library's
/// mathematics, which any process may preload.
pub struct Home {
    folder: tempfile::TempDir,
    _bounded: Bounded,
}

impl Home {
    pub fn new() -> Home {
        let folder = tempfile::tempdir().expect("a folder");
        let maps = fs::read_to_string("/proc/self/maps").expect("own maps");
        let library = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.contains("libc.so.6") || path.contains("libc-2"))
            .map(|path| Path::new(path).with_file_name("libm.so.6"))
            .expect("a dynamic program");
        fs::copy(library, folder.path().join("libweft.so")).expect("copied");
        Home {
            folder,
            _bounded: Bounded::new(),
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.path().join("run/broker.sock")
    }

    pub fn profiles(&self) -> PathBuf {
        self.path().join("profiles")
    }

    /// Output of brokers in the foreground.
    pub fn broker_log(&self) -> PathBuf {
        self.path().join("broker.log")
    }

    pub fn places(&self) -> Places {
        Places::at(self.socket())
    }

    /// The command in this home.
    pub fn weft(&self) -> Command {
        let mut command = weft();
        command
            .env("WEFT_SOCKET", self.socket())
            .env("WEFT_PROFILE_DIR", self.profiles())
            .env("WEFT_STATE_DIR", self.path().join("state"))
            .env("WEFT_LIBRARY", self.path().join("libweft.so"));
        command
    }

    /// Runs the command.
    pub fn done(&self, arguments: &[&str]) -> Output {
        self.weft().args(arguments).output().expect("ran")
    }

    pub fn broker(&self, arguments: &[&str]) -> Broker<'_> {
        let mut command = self.weft();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.broker_log())
            .expect("a log");
        command.args(["broker"]).args(arguments).stderr(log);
        let child = command.spawn().expect("started");
        let broker = Broker { child, home: self };
        until("the broker answers", || admin::pings(&self.places()));
        broker
    }

    pub fn status(&self) -> Status {
        match admin::ask(&self.places(), &AdminQuestion::Status) {
            Ok(Answer::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }
}

impl Home {
    /// The one client, once the broker lists it (a moment after the attach).
    pub fn only_client(&self) -> weft_api::status::ClientStatus {
        until("one client is listed", || self.status().clients.len() == 1);
        self.status().clients.remove(0)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A broker that a command started must not outlive the test.
        let _ = admin::ask(&self.places(), &AdminQuestion::Stop);
    }
}

/// A broker in the foreground.
pub struct Broker<'a> {
    pub child: Child,
    home: &'a Home,
}

impl Broker<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn alive(&mut self) -> bool {
        self.child.try_wait().expect("asked").is_none()
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    pub fn status(&self) -> Status {
        self.home.status()
    }

    /// Number of lanes that the broker has mapped.
    pub fn lanes(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("maps");
        maps.matches("memfd:weft-lane").count()
    }

    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .expect("descriptors")
            .count()
    }
}

impl Drop for Broker<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition that must become true.
pub fn until(what: &str, mut check: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !check() {
        assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client.
pub struct Client {
    pub attached: Attachment,
    pub lane: Mapping<Lane>,
    pub epoch_page: Mapping<EpochPage>,
}

/// As [`hello`], of a job with this command line.
pub fn named(priority: u8, command: &str) -> Hello {
    Hello {
        command: command.to_string(),
        ..hello(priority)
    }
}

pub fn hello(priority: u8) -> Hello {
    Hello {
        version: VERSION,
        pid: std::process::id(),
        priority,
        profile: None,
        profiling: false,
        command: "a test's client".to_string(),
        budget: LatencyBudget::default(),
        name: None,
    }
}

impl Client {
    /// Reports the one device, of 16 GiB, under MPS.
    pub fn on_a_device(&self) {
        self.say(ToBroker::Device {
            name: "A GPU".to_string(),
            uuid: "0f".repeat(16),
            memory: 16 << 30,
            driver: 13_020,
            mps: Some(true),
        });
    }

    /// Asks for memory of the one device, of 16 GiB.
    pub fn wants(&self, memory: Option<u64>) {
        self.say(ToBroker::Wants(Wants {
            uuid: "0f".repeat(16),
            total: 16 << 30,
            further: 0,
            devices: 1,
            memory,
            duration: None,
            gang: String::new(),
            processes: 1,
            user: String::new(),
            managed: false,
            either: false,
            host: None,
            runs: None,
            limit: None,
        }));
    }

    pub fn attach(socket: &Path, hello: Hello) -> Client {
        Client::try_attach(socket, hello).expect("attached")
    }

    pub fn try_attach(socket: &Path, hello: Hello) -> Result<Client, weft_protocol::transport::TransportError> {
        let attached = client::attach(socket, hello, PATIENCE)?;
        let lane = Mapping::<Lane>::reserve()?;
        lane.put(&attached.lane)?;
        let epoch_page = Mapping::<EpochPage>::reserve()?;
        epoch_page.put(&attached.epoch_page)?;
        lane.get().reports.state.store(1, Ordering::Release);
        Ok(Client {
            attached,
            lane,
            epoch_page,
        })
    }

    pub fn lane(&self) -> &'static Lane {
        self.lane.get()
    }

    pub fn mode(&self) -> Option<Mode> {
        Mode::from_word(self.lane().orders.mode.load(Ordering::Acquire))
    }

    pub fn say(&self, message: ToBroker) {
        self.attached.channel.send(message).expect("said");
    }

    /// Writes a record and rings the doorbell if the broker wants it.
    pub fn record(&self, kind: Kind, kernel: u64, a: u64, b: u64) {
        self.lane().record(LaneRecord {
            kind,
            thread: 1,
            at: now(),
            kernel,
            a,
            b,
        });
        self.ring();
    }

    /// Becomes idle.
    pub fn become_idle(&self) {
        self.lane().become_idle_fenced(now());
        self.ring();
    }

    /// Launches like a foreground job.
    pub fn launch(&self, kernel: u64, cost: u64) {
        let lane = self.lane();
        lane.counters.launches.fetch_add(1, Ordering::Relaxed);
        self.epoch_page
            .get()
            .bump(lane.orders.epoch.load(Ordering::Relaxed) as usize);
        self.record(Kind::Launch, kernel, cost, 0);
    }

    /// Arrives at the gate like a background job.
    pub fn come_to_gate(&self, kernel: u64, cost: u64) {
        let reports = &self.lane().reports;
        reports.wanted_kernel.store(kernel, Ordering::Relaxed);
        reports.wanted_cost.store(cost, Ordering::Relaxed);
        reports.waiting_since.store(now(), Ordering::Relaxed);
        reports.waiting.store(1, Ordering::Release);
        self.ring();
    }

    /// The gate's check: credit that is not void.
    pub fn may_go(&self) -> bool {
        use weft_protocol::lane::flags::CREDIT_BOUND_TO_EPOCHS;
        let orders = &self.lane().orders;
        let bound = orders.flags.load(Ordering::Acquire) & CREDIT_BOUND_TO_EPOCHS != 0;
        let epoch = orders.epoch.load(Ordering::Relaxed) as usize;
        let void = bound && orders.epochs.load(Ordering::Acquire) != self.epoch_page.get().sum_above(epoch);
        orders.credit.load(Ordering::Acquire) > 0 && !void
    }

    pub fn ring(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.lane().broker_sleeps.swap(0, Ordering::AcqRel) == 1 {
            rustix::io::write(&self.attached.bell, &1u64.to_ne_bytes()).expect("rung");
        }
    }
}

pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
