// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configuration of the simulated device: the TOML file that `SIMGPU_CONFIG` names; environment
//! variables override it.
//!
//! ```toml
//! [device]
//! # Figures of a GPU (tests/simgpu/calibration), by name or path; the keys below override them.
//! calibration = "a100-like"
//! mode = "timeslice"            # or "mps"
//! slice_ns = 1500000
//! switch_ns = 100000
//! memory = 42949672960          # bytes
//! dilation = 1.0                # wall seconds a device second
//! seed = 1
//! jitter = 0.0                  # kernel times vary by up to this share, e.g. 0.05
//!
//! [[kernel]]                    # the first rule that matches decides
//! name = "ampere_sgemm_*"       # `*` and `?` stand for any text and any character
//! grid = [32, 1, 1]             # optional
//! block = [128, 1, 1]           # optional
//! ns = 42000                    # or: quantiles = [ [0.0, 1000], [0.5, 1500], [1.0, 9000] ]
//!
//! [default]                     # for kernels no rule matches, see `Durations`
//! base_ns = 2500
//! ```
//!
//! An unknown key is an error, so a typing mistake is no silent default.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use simgpu_calibration::{Calibration, CalibrationError, Figures};
use weft_engine::memory::MemorySettings;
use weft_engine::{Mode, Settings};

use crate::model::model;

/// Reason for which a configuration cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable(PathBuf, std::io::Error),
    /// The file is no configuration.
    Malformed(PathBuf, String),
    /// An environment variable has no valid value.
    Variable(&'static str, String),
    /// A value that no device can have.
    Value(&'static str),
    /// The calibration is unusable.
    Calibration(CalibrationError),
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigError::Unreadable(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            ConfigError::Malformed(path, error) => write!(f, "{}: {error}", path.display()),
            ConfigError::Variable(name, value) => write!(f, "{name}={value} makes no sense"),
            ConfigError::Value(what) => f.write_str(what),
            ConfigError::Calibration(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConfigError {}

/// How contexts share the device, by the names of `SIMGPU_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Contexts take turns of one slice.
    #[default]
    TimeSlice,
    /// Contexts take turns kernel by kernel, without cost.
    Mps,
}

/// Default of host memory for managed memory: that of MSched's larger test bed.
const HOST_MEMORY_BYTES: u64 = 96 << 30;

/// The `[device]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// Calibration (name or path) of figures that are not given here; `SIMGPU_CALIBRATION`
    /// overrides it. `None`: the model's ([`crate::model::Model::calibration`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// How contexts share the device; `SIMGPU_MODE` overrides it.
    pub mode: Sharing,
    /// [`Settings::slice`].
    pub slice_ns: u64,
    /// [`Settings::switch`].
    pub switch_ns: u64,
    /// [`Settings::launch_latency`].
    pub launch_latency_ns: u64,
    /// [`Settings::copy_latency`].
    pub copy_latency_ns: u64,
    /// [`Settings::to_device`], bytes a microsecond.
    pub to_device: u64,
    /// [`Settings::to_host`], bytes a microsecond.
    pub to_host: u64,
    /// Rate of prefetches to the device, bytes a microsecond.
    pub prefetch_to_device: u64,
    /// Rate of prefetches to the host, bytes a microsecond.
    pub prefetch_to_host: u64,
    /// Sum of both rates while prefetches run both ways, bytes a microsecond.
    pub prefetch_both_ways: u64,
    /// Whether prefetches run both ways at once. MSched's changed driver does so; whether a stock
    /// driver does is not known.
    pub prefetch_duplex: bool,
    /// Threshold of the density prefetcher, per cent: 51 in the stock driver, 100 for none.
    pub prefetch_threshold: u32,
    /// Cost of each block of a batch of faults before its data moves, ns.
    pub fault_batch_ns: u64,
    /// Cost of evicting a block for a fault without its data, ns.
    pub evict_block_ns: u64,
    /// Host memory for managed memory, bytes; `SIMGPU_HOST_MEMORY` overrides it.
    pub host_memory: u64,
    /// [`Settings::within_device`], bytes a microsecond.
    pub within_device: u64,
    /// [`Settings::memset_latency`].
    pub memset_latency_ns: u64,
    /// [`Settings::memset`], bytes a microsecond.
    pub memset: u64,
    /// [`Settings::kernel_gap`].
    pub kernel_gap_ns: u64,
    /// [`Settings::dependent_early`].
    pub dependent_early_ns: u64,
    /// [`Settings::timed_record`].
    pub timed_record_ns: u64,
    /// [`Settings::untimed_record`].
    pub untimed_record_ns: u64,
    /// Time from the end of a stream's work to the return of a wait for it, ns.
    pub wait_return_ns: u64,
    /// Device memory, bytes; `SIMGPU_MEMORY` overrides it.
    pub memory: u64,
    /// Device memory of a context itself, bytes.
    pub context_memory: u64,
    /// Wall seconds a device second; `SIMGPU_DILATION` overrides it. With 10, two cores keep up.
    pub dilation: f64,
    /// Seed of the jitter and of draws from quantiles.
    pub seed: u64,
    /// Part by which kernel times vary evenly, 0 to 1.
    pub jitter: f64,
    /// Time for which the device outlives its last client, wall milliseconds.
    pub linger_ms: u64,
    /// Whether to log which context gets the compute engine (`"op":"switch"` lines).
    pub log_switches: bool,
}

impl DeviceConfig {
    /// A device with the figures of a calibration.
    fn of(figures: &Figures) -> DeviceConfig {
        let engine = figures.engine;
        let paging = figures.paging(HOST_MEMORY_BYTES, true);
        DeviceConfig {
            calibration: None,
            mode: Sharing::TimeSlice,
            slice_ns: engine.slice,
            switch_ns: engine.switch,
            launch_latency_ns: engine.launch_latency,
            copy_latency_ns: engine.copy_latency,
            to_device: engine.to_device,
            to_host: engine.to_host,
            prefetch_to_device: figures.prefetch_to_device,
            prefetch_to_host: figures.prefetch_to_host,
            prefetch_both_ways: figures.prefetch_both_ways,
            prefetch_duplex: true,
            prefetch_threshold: paging.threshold,
            fault_batch_ns: paging.fault_batch,
            evict_block_ns: paging.evict_block,
            host_memory: HOST_MEMORY_BYTES,
            within_device: engine.within_device,
            memset_latency_ns: engine.memset_latency,
            memset: engine.memset,
            kernel_gap_ns: engine.kernel_gap,
            dependent_early_ns: engine.dependent_early,
            timed_record_ns: engine.timed_record,
            untimed_record_ns: engine.untimed_record,
            wait_return_ns: figures.wait_return,
            memory: figures.memory,
            context_memory: figures.context_memory,
            dilation: 1.0,
            seed: 1,
            jitter: 0.0,
            linger_ms: 500,
            log_switches: false,
        }
    }
}

impl Default for DeviceConfig {
    fn default() -> DeviceConfig {
        DeviceConfig::of(standard())
    }
}

/// The standard calibration's figures.
fn standard() -> &'static Figures {
    static STANDARD: OnceLock<Figures> = OnceLock::new();
    STANDARD.get_or_init(|| {
        Calibration::load(simgpu_calibration::STANDARD)
            .and_then(|calibration| calibration.figures())
            .expect("the standard calibration is in the program, and its own tests read it")
    })
}

/// One `[[kernel]]` rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelRule {
    /// Pattern of the kernel's name: `*` is any text, `?` any one character.
    pub name: String,
    /// Grid to match, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<[u32; 3]>,
    /// Block to match, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<[u32; 3]>,
    /// Kernel time, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<u64>,
    /// Or a distribution of kernel times: (share, ns) points with shares rising from 0 to 1,
    /// straight lines between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<Vec<(f64, u64)>>,
}

/// The `[default]` table, see [`crate::Durations`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultDuration {
    /// Time of the smallest kernel, ns; from the calibration.
    pub base_ns: u64,
    /// Time that each full wave of threads adds, ns; from the calibration.
    pub wave_ns: u64,
    /// Threads that run at once; from the calibration.
    pub threads_at_once: u64,
    /// Longest default, ns. 20 ms: a strange launch shape must not stop a test.
    pub longest_ns: u64,
}

impl DefaultDuration {
    /// Kernel times of these figures.
    fn of(figures: &Figures) -> DefaultDuration {
        DefaultDuration {
            base_ns: figures.kernel_base,
            wave_ns: figures.kernel_wave,
            threads_at_once: figures.threads_at_once,
            longest_ns: 20_000_000,
        }
    }
}

impl Default for DefaultDuration {
    fn default() -> DefaultDuration {
        DefaultDuration::of(standard())
    }
}

/// A whole configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The device.
    pub device: DeviceConfig,
    /// Kernels that match no rule.
    pub default: DefaultDuration,
    /// Kernels by name and shape.
    pub kernel: Vec<KernelRule>,
}

impl Config {
    /// Reads a configuration from TOML text. Errors name `origin`.
    pub fn parse(text: &str, origin: &Path) -> Result<Config, ConfigError> {
        Config::parse_with(text, origin, None)?.checked()
    }

    /// [`Config::parse`] with a calibration that replaces the text's.
    fn parse_with(text: &str, origin: &Path, calibration: Option<String>) -> Result<Config, ConfigError> {
        let malformed = |error: toml::de::Error| ConfigError::Malformed(origin.to_owned(), error.to_string());
        let config: Config = toml::from_str(text).map_err(malformed)?;
        let of_model = || Some(model().calibration.to_owned()).filter(|name| name != simgpu_calibration::STANDARD);
        let named = calibration.or_else(|| config.device.calibration.clone());
        let Some(name) = named.or_else(of_model) else {
            return Ok(config);
        };
        let figures = Calibration::load(&name)
            .and_then(|calibration| calibration.figures())
            .map_err(ConfigError::Calibration)?;
        // Keys of the text override the calibration's.
        let mut all = toml::Table::new();
        let device = DeviceConfig {
            calibration: Some(name),
            ..DeviceConfig::of(&figures)
        };
        let written = |error: toml::ser::Error| ConfigError::Malformed(origin.to_owned(), error.to_string());
        all.insert("device".to_owned(), toml::Value::try_from(device).map_err(written)?);
        let default = toml::Value::try_from(DefaultDuration::of(&figures)).map_err(written)?;
        all.insert("default".to_owned(), default);
        let text: toml::Table = toml::from_str(text).map_err(malformed)?;
        for (key, value) in text {
            match (all.get_mut(&key).and_then(toml::Value::as_table_mut), value) {
                (Some(table), toml::Value::Table(over)) => {
                    table.extend(over.into_iter().filter(|(key, _)| key != "calibration"));
                }
                (_, value) => {
                    all.insert(key, value);
                }
            }
        }
        all.try_into().map_err(malformed)
    }

    /// The environment's configuration: the file in `SIMGPU_CONFIG`, overridden by `SIMGPU_MODE`,
    /// `SIMGPU_MEMORY`, `SIMGPU_PROCESSORS` (multiprocessors, of the model's) and
    /// `SIMGPU_DILATION`. `SIMGPU_CALIBRATION` replaces the file's calibration, not its other
    /// values.
    pub fn from_environment() -> Result<Config, ConfigError> {
        let calibration = variable("SIMGPU_CALIBRATION");
        let mut config = match std::env::var_os("SIMGPU_CONFIG").filter(|path| !path.is_empty()) {
            Some(path) => {
                let path = PathBuf::from(path);
                let text =
                    std::fs::read_to_string(&path).map_err(|error| ConfigError::Unreadable(path.clone(), error))?;
                Config::parse_with(&text, &path, calibration)?
            }
            None => Config::parse_with("", Path::new("SIMGPU_CALIBRATION"), calibration)?,
        };
        if let Some(mode) = variable("SIMGPU_MODE") {
            config.device.mode = match mode.as_str() {
                "timeslice" => Sharing::TimeSlice,
                "mps" => Sharing::Mps,
                "control" if mps_daemon().is_some() => Sharing::Mps,
                "control" => Sharing::TimeSlice,
                _ => return Err(ConfigError::Variable("SIMGPU_MODE", mode)),
            };
        }
        if let Some(memory) = variable("SIMGPU_MEMORY") {
            config.device.memory = bytes(&memory).ok_or(ConfigError::Variable("SIMGPU_MEMORY", memory))?;
        }
        if let Some(processors) = variable("SIMGPU_PROCESSORS") {
            let wrong = || ConfigError::Variable("SIMGPU_PROCESSORS", processors.clone());
            let number: u32 = processors.parse().map_err(|_| wrong())?;
            if number == 0 || number > model().processors {
                return Err(wrong());
            }
            config.divide(number);
        }
        if let Some(memory) = variable("SIMGPU_HOST_MEMORY") {
            config.device.host_memory = bytes(&memory).ok_or(ConfigError::Variable("SIMGPU_HOST_MEMORY", memory))?;
        }
        if let Some(dilation) = variable("SIMGPU_DILATION") {
            config.device.dilation = dilation
                .parse()
                .map_err(|_| ConfigError::Variable("SIMGPU_DILATION", dilation))?;
        }
        config.checked()
    }

    /// Reduces the device to `processors` multiprocessors: threads at once and bandwidth within it
    /// shrink in proportion. Kernels with a time of their own keep it.
    fn divide(&mut self, processors: u32) {
        let part = |whole: u64| (whole * u64::from(processors) / u64::from(model().processors)).max(1);
        self.default.threads_at_once = part(self.default.threads_at_once);
        self.device.within_device = part(self.device.within_device);
        self.device.memset = part(self.device.memset);
    }

    fn checked(self) -> Result<Config, ConfigError> {
        let device = &self.device;
        if !(device.dilation.is_finite() && (0.001..=1_000_000.0).contains(&device.dilation)) {
            return Err(ConfigError::Value("dilation must lie between 0.001 and 1000000"));
        }
        if !(0.0..=1.0).contains(&device.jitter) {
            return Err(ConfigError::Value("jitter must lie between 0 and 1"));
        }
        if device.slice_ns == 0 {
            return Err(ConfigError::Value("slice_ns must not be 0"));
        }
        for rule in &self.kernel {
            if rule.ns.is_some() == rule.quantiles.is_some() {
                return Err(ConfigError::Value("a [[kernel]] needs either ns or quantiles"));
            }
            let rising = |points: &[(f64, u64)]| {
                points.windows(2).all(|pair| match pair {
                    [(a, low), (b, high)] => a <= b && low <= high,
                    _ => true,
                }) && points.first().is_some_and(|(share, _)| *share == 0.0)
                    && points.last().is_some_and(|(share, _)| *share == 1.0)
            };
            if rule.quantiles.as_deref().is_some_and(|points| !rising(points)) {
                return Err(ConfigError::Value(
                    "quantiles must rise in both columns, from share 0 to share 1",
                ));
            }
        }
        Ok(self)
    }

    /// Settings of managed memory.
    pub fn paging(&self) -> MemorySettings {
        let device = &self.device;
        MemorySettings {
            capacity: device.memory,
            host_limit: device.host_memory,
            to_device: device.prefetch_to_device,
            to_host: device.prefetch_to_host,
            both_ways: device.prefetch_both_ways,
            duplex: device.prefetch_duplex,
            fault_batch: device.fault_batch_ns,
            evict_block: device.evict_block_ns,
            threshold: device.prefetch_threshold,
            ..MemorySettings::default()
        }
    }

    /// Settings of the engine.
    pub fn engine(&self, trace: bool) -> Settings {
        let device = &self.device;
        Settings {
            mode: match device.mode {
                Sharing::TimeSlice => Mode::TimeSlice,
                Sharing::Mps => Mode::Mps,
            },
            slice: device.slice_ns,
            switch: device.switch_ns,
            launch_latency: device.launch_latency_ns,
            copy_latency: device.copy_latency_ns,
            to_device: device.to_device,
            to_host: device.to_host,
            within_device: device.within_device,
            memset_latency: device.memset_latency_ns,
            memset: device.memset,
            kernel_gap: device.kernel_gap_ns,
            dependent_early: device.dependent_early_ns,
            timed_record: device.timed_record_ns,
            untimed_record: device.untimed_record_ns,
            trace,
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A connection to the MPS daemon at `CUDA_MPS_PIPE_DIRECTORY`, if one listens.
pub fn mps_daemon() -> Option<UnixStream> {
    let pipes = variable("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".to_owned());
    UnixStream::connect(Path::new(&pipes).join("control")).ok()
}

/// A size: bytes, or with a unit.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number: u64 = number.trim().parse().ok().filter(|number| *number > 0)?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("test.toml"))
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("").ok(), Some(Config::default()));
    }

    #[test]
    fn the_defaults_are_the_engines() {
        assert_eq!(Config::default().engine(false), Settings::default());
    }

    #[test]
    fn a_calibration_goes_under_what_the_file_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("measured.toml");
        let figures = "gpu = 'x'\nbase = 'a100-like'\n[values]\nswitch_ns = { value = 7, source = 'paper: x' }\nslice_ns = { value = 8, source = 'paper: x' }\nkernel_base_ns = { value = 9, source = 'paper: x' }\n";
        std::fs::write(&path, figures).expect("the folder is ours");
        let path = path.display();
        let text = format!(
            "[device]\nslice_ns = 80\ncalibration = '{path}'\n[default]\nlongest_ns = 5\n[[kernel]]\nname = 'k'\nns = 1\n"
        );
        let config = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        let expected = DeviceConfig {
            calibration: Some(path.to_string()),
            switch_ns: 7,
            slice_ns: 80,
            ..DeviceConfig::default()
        };
        assert_eq!(config.device, expected);
        let expected = DefaultDuration {
            base_ns: 9,
            longest_ns: 5,
            ..DefaultDuration::default()
        };
        assert_eq!(config.default, expected);
        assert_eq!(config.kernel.len(), 1);
        // `simgpu-device config` prints a configuration that reads back equal.
        let printed = toml::to_string(&config).expect("a configuration is a table");
        assert_eq!(parse(&printed).ok(), Some(config));

        let error = parse("[device]\ncalibration = 'nothing'")
            .expect_err("no such name")
            .to_string();
        assert!(error.contains("no calibration nothing"), "{error}");
        assert!(parse(&format!("[device]\ncalibration = '{path}'\nslice = 5")).is_err());
    }

    #[test]
    fn managed_memory_is_as_the_configuration_says() {
        let text = "[device]\ncalibration = 'rtx5080-like'\nhost_memory = 5\nprefetch_duplex = false\nprefetch_threshold = 1\n";
        let paging = Config::parse(text, Path::new("x")).unwrap().paging();
        assert_eq!(
            (paging.capacity, paging.host_limit, paging.duplex),
            (16 << 30, 5, false)
        );
        assert_eq!(
            (paging.to_device, paging.both_ways, paging.threshold),
            (41_700, 63_500, 1)
        );
        // A fault of 31,790 ns less the time of 64 KiB at 41.7 GB/s.
        assert_eq!((paging.fault_batch, paging.evict_block), (30_219, 77_000));
    }

    #[test]
    fn the_standard_calibration_is_the_default() {
        let mut named = parse("[device]\ncalibration = 'a100-like'").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            named.device.calibration.take().as_deref(),
            Some(simgpu_calibration::STANDARD)
        );
        assert_eq!(named, Config::default());
    }

    #[test]
    fn keys_and_values_are_checked() {
        assert!(parse("[device]\nslice = 5").is_err(), "unknown key");
        assert!(parse("[device]\nslice_ns = 0").is_err());
        assert!(parse("[device]\ndilation = 0.0").is_err());
        assert!(parse("[device]\njitter = 1.5").is_err());
        assert!(parse("[[kernel]]\nname = 'a'").is_err(), "neither ns nor quantiles");
        assert!(parse("[[kernel]]\nname = 'a'\nns = 1\nquantiles = [[0.0, 1], [1.0, 2]]").is_err());
        assert!(parse("[[kernel]]\nname = 'a'\nquantiles = [[0.0, 5], [1.0, 2]]").is_err());
        assert!(parse("[[kernel]]\nname = 'a'\nquantiles = []").is_err());
        let config = parse("[device]\nmode = 'mps'\n[[kernel]]\nname = 'a*'\ngrid = [1, 2, 3]\nns = 7").ok();
        let config = config.as_ref();
        assert_eq!(config.map(|config| config.device.mode), Some(Sharing::Mps));
        assert_eq!(
            config
                .and_then(|config| config.kernel.first())
                .and_then(|rule| rule.grid),
            Some([1, 2, 3])
        );
    }
}
