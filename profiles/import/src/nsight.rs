// SPDX-License-Identifier: MIT OR Apache-2.0
//! SQLite exports of Nsight Systems (`nsys export --type sqlite`).
//!
//! Columns came and went with its versions, so each query asks for those that the table has. Rows
//! are read one by one. A value of another type counts as 0.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read, Write},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::Path,
};

use rusqlite::{Connection, OpenFlags, Row, types::ValueRef};
use weft_profiles::Ns;
use weft_trace_format::Direction;

use crate::{
    ImportError,
    error::quoted,
    input::{Content, ReadProgress, Watch},
    recording::{
        Awaits, CallClass, CallKey, DeviceWork, LaunchShape, MAX_EVENTS, MAX_LENGTH_NS, NO_CALL, NO_WORK, Note,
        ProfiledCall, ProfilerFile, SyncFact, WorkClass,
    },
};

/// Largest database that is unpacked to a temporary file, bytes.
const MAX_UNPACKED_BYTES: u64 = 8 << 30;

/// Rows between two reports of progress.
const PROGRESS_ROWS: u64 = 16_384;

/// Size of a step of unpacking, bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Place of a database's write and read versions, bytes from its begin. 1 is a journal, 2 a
/// write-ahead log.
const JOURNAL_BYTES: u64 = 18;

/// Bits of a global thread number that number the thread; the others number its process.
const THREAD_BITS: u32 = 24;

/// Kernels, which every export of use has.
const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";

/// Reads a database into `file`.
pub fn read(content: Content, path: &Path, file: &mut ProfilerFile, watch: Watch) -> Result<(), ImportError> {
    let unreadable = |source| ImportError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let size = content.size;
    let failed = |table: &'static str, error: &rusqlite::Error| ImportError::Table {
        path: path.to_owned(),
        table,
        why: quoted(error),
    };
    let open = |path: &Path, mode: &str| open(path, mode).map_err(|error| failed("sqlite_master", &error));
    let database = match content.packed || !content.stays {
        // It is not locked, and nothing is written beside it.
        false => open(path, "?immutable=1")?,
        true => {
            // SQLite reads nothing yet. The file has no name before it has content, so none stays.
            let (mut target, name) = in_temporary_folder(tempfile::NamedTempFile::new())
                .map_err(unreadable)?
                .into_parts();
            let database = open(&name, "")?;
            name.close().map_err(unreadable)?;
            unpack(content, &mut target, watch).map_err(unreadable)?;
            // No write-ahead log: SQLite would make one.
            target.write_all_at(&[1, 1], JOURNAL_BYTES).map_err(unreadable)?;
            database
        }
    };
    let mut reader = TableReader {
        database,
        path,
        columns: HashMap::new(),
        texts: HashMap::new(),
        rows: 0,
        size,
        watch,
    };
    // Exports of nvprof have other names for their strings.
    for table in [KERNELS, "StringIds"] {
        if reader.columns(table)?.is_empty() {
            return Err(ImportError::NoTable {
                path: path.to_owned(),
                table,
            });
        }
    }
    reader.all(file)
}

/// Opens a database to read it.
fn open(path: &Path, mode: &str) -> rusqlite::Result<Connection> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut address = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => address.push(char::from(*byte)),
            _ => address.push_str(&format!("%{byte:02X}")),
        }
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(address + mode, flags)
}

fn in_temporary_folder<T>(done: io::Result<T>) -> io::Result<T> {
    done.map_err(|error| {
        let folder = std::env::temp_dir();
        let why = format!("{error} in {}: TMPDIR names another folder", folder.display());
        io::Error::new(error.kind(), why)
    })
}

fn unpack(mut content: Content, target: &mut File, watch: Watch) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let read = content.read(&mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        bytes += read as u64;
        if bytes > MAX_UNPACKED_BYTES {
            return Err(io::Error::other("it unpacks to more than 8 GiB: unpack it first"));
        }
        in_temporary_folder(target.write_all(&chunk[..read]))?;
        watch(ReadProgress {
            read: content.read.get(),
            size: content.size,
        });
    }
}

/// Refuses more entries of a table than events.
fn bounded(entries: usize) -> Result<(), ImportError> {
    match entries < MAX_EVENTS {
        true => Ok(()),
        false => Err(ImportError::TooMuch("8 million rows of a table")),
    }
}

struct TableReader<'a> {
    database: Connection,
    path: &'a Path,
    columns: HashMap<&'static str, HashSet<String>>,
    /// Names by the database's number.
    texts: HashMap<i64, u32>,
    rows: u64,
    size: u64,
    watch: Watch<'a>,
}

/// A row's values in the order of the query's columns.
struct Fields<'a, 'b>(&'a Row<'b>);

impl Fields<'_, '_> {
    fn whole(&self, at: usize) -> Option<i64> {
        match self.0.get_ref(at).ok()? {
            ValueRef::Integer(value) => Some(value),
            ValueRef::Real(value) => Some(value as i64),
            _ => None,
        }
    }

    fn number(&self, at: usize) -> u64 {
        self.whole(at).unwrap_or(0).max(0) as u64
    }

    fn small(&self, at: usize) -> u32 {
        self.number(at).try_into().unwrap_or(u32::MAX)
    }

    /// A call by its process and number.
    fn call(&self, process_at: usize, number_at: usize, without: u64) -> CallKey {
        let number = self.whole(number_at).and_then(|number| number.try_into().ok());
        (process(self.number(process_at)), number.unwrap_or(without))
    }

    fn text(&self, at: usize) -> Option<String> {
        match self.0.get_ref(at).ok()? {
            ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// Start and end, if they are times and in order.
    fn span(&self) -> Option<(Ns, Ns)> {
        let (start, end) = (self.whole(0)?, self.whole(1)?);
        let (start, end) = (Ns::try_from(start).ok()?, Ns::try_from(end).ok()?);
        (start <= end && end < Ns::MAX / 8 && end - start <= MAX_LENGTH_NS).then_some((start, end))
    }
}

/// Number of the process in a global number of a process or thread.
fn process(global: u64) -> u64 {
    global >> THREAD_BITS
}

impl TableReader<'_> {
    fn failed(&self, table: &'static str, error: &rusqlite::Error) -> ImportError {
        ImportError::Table {
            path: self.path.to_owned(),
            table,
            why: quoted(error),
        }
    }

    /// Columns of a table; none if there is no such table.
    fn columns(&mut self, table: &'static str) -> Result<&HashSet<String>, ImportError> {
        if !self.columns.contains_key(table) {
            let found = (|| {
                // A view could run for ever, and a virtual table runs code: both have no root page.
                let mut is_table = self
                    .database
                    .prepare("select 1 from sqlite_master where type = 'table' and rootpage > 0 and name = ?")?;
                if !is_table.exists([table])? {
                    return Ok(HashSet::new());
                }
                let mut query = self.database.prepare(&format!("pragma table_info({table})"))?;
                let names = query.query_map([], |row| row.get::<_, String>(1))?;
                names.collect::<Result<HashSet<String>, _>>()
            })();
            let found = found.map_err(|error| self.failed(table, &error))?;
            self.columns.insert(table, found);
        }
        Ok(&self.columns[table])
    }

    /// Gives each row's values of these columns; a column that the table lacks is NULL.
    fn each(
        &mut self,
        table: &'static str,
        wanted: &[&str],
        mut take: impl FnMut(Fields, &HashMap<i64, u32>) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let there = self.columns(table)?;
        if there.is_empty() {
            return Ok(());
        }
        let columns: Vec<String> = wanted
            .iter()
            .map(|name| match there.contains(*name) {
                true => format!("\"{name}\""),
                false => "NULL".to_owned(),
            })
            .collect();
        let text = format!("select {} from {table}", columns.join(","));
        let (database, texts, size) = (&self.database, &self.texts, self.size);
        let failed = |error: rusqlite::Error| ImportError::Table {
            path: self.path.to_owned(),
            table,
            why: quoted(&error),
        };
        let mut query = database.prepare(&text).map_err(failed)?;
        let mut rows = query.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            take(Fields(row), texts)?;
            self.rows += 1;
            if self.rows.is_multiple_of(PROGRESS_ROWS) {
                // About 100 bytes a row.
                let read = (self.rows * 100).min(size);
                (self.watch)(ReadProgress { read, size });
            }
        }
        Ok(())
    }

    fn all(&mut self, file: &mut ProfilerFile) -> Result<(), ImportError> {
        let mut texts = HashMap::new();
        self.each("StringIds", &["id", "value"], |row, _| {
            if let (Some(id), Some(value)) = (row.whole(0), row.text(1)) {
                bounded(texts.len())?;
                texts.insert(id, file.names.number(&value)?);
            }
            Ok(())
        })?;
        self.texts = texts;
        // The second is of versions before the middle of 2021.
        for (table, columns) in [
            ("TARGET_INFO_GPU", ["id", "name", "totalMemory"]),
            ("TARGET_INFO_CUDA_GPU", ["deviceId", "name", "globalMemorySize"]),
        ] {
            self.each(table, &columns, |row, _| {
                file.gpu(row.small(0), &row.text(1).unwrap_or_default(), row.number(2));
                Ok(())
            })?;
        }
        // Old exports do not have the process of a kernel.
        let processes = self.columns(KERNELS)?.contains("globalPid");
        self.work(file)?;
        for table in ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"] {
            let columns = ["start", "end", "globalTid", "correlationId", "nameId"];
            self.each(table, &columns, |row, texts| {
                file.room()?;
                let Some((start, end)) = row.span() else {
                    file.malformed += 1;
                    return Ok(());
                };
                let function = row.whole(4).and_then(|id| texts.get(&id));
                match function.and_then(|name| CallClass::of(file.names.name(*name))) {
                    Some(class) => {
                        let thread = file.thread(&row.number(2).to_string());
                        let (process, number) = row.call(2, 3, NO_WORK);
                        file.calls.push(ProfiledCall {
                            start,
                            end,
                            key: (if processes { process } else { 0 }, number),
                            thread,
                            class,
                        });
                    }
                    None => file.skip("calls that ask for no work"),
                }
                Ok(())
            })?;
        }
        self.syncs(file)?;
        self.notes(file, processes)
    }

    fn work(&mut self, file: &mut ProfilerFile) -> Result<(), ImportError> {
        const COMMON: [&str; 6] = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"];
        let push = |file: &mut ProfilerFile, row: &Fields, class| {
            file.room()?;
            match row.span() {
                Some((start, end)) => file.works.push(DeviceWork {
                    start,
                    end,
                    key: row.call(5, 4, NO_CALL),
                    stream: row.small(3),
                    device: row.small(2),
                    class,
                }),
                None => file.malformed += 1,
            }
            Ok(())
        };
        let name = match self.columns(KERNELS)?.contains("demangledName") {
            true => "demangledName",
            false => "shortName",
        };
        let mut columns = COMMON.to_vec();
        columns.extend(["gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"]);
        columns.extend(["staticSharedMemory", "dynamicSharedMemory", name, "registersPerThread"]);
        self.each(KERNELS, &columns, |row, texts| {
            let name = row.whole(14).and_then(|id| texts.get(&id).copied());
            let span = row.span();
            if span.is_none_or(|(start, end)| start == end) {
                let time = |at| row.whole(at).map_or("no number".to_owned(), |time| time.to_string());
                let name = name.map_or("?", |name| file.names.name(name)).to_owned();
                file.untimed_kernel(&name, format_args!("start {} and end {}", time(0), time(1)));
            }
            if span.is_none() {
                file.malformed += 1;
                return Ok(());
            }
            file.room()?;
            let shape = LaunchShape {
                name: match name {
                    Some(name) => name,
                    None => file.names.number("?")?,
                },
                grid: [row.small(6), row.small(7), row.small(8)],
                block: [row.small(9), row.small(10), row.small(11)],
                shared: row.small(12).saturating_add(row.small(13)),
            };
            let class = WorkClass::Kernel(file.shape(shape, row.small(15)));
            push(file, &row, class)
        })?;
        let mut columns = COMMON.to_vec();
        columns.extend(["copyKind", "bytes", "srcKind", "dstKind"]);
        self.each("CUPTI_ACTIVITY_KIND_MEMCPY", &columns, |row, _| {
            let kind = row.number(6);
            // The host's side: 1 pageable, 2 page-locked.
            let (direction, host) = match kind {
                1 => (Direction::HostToDevice, row.number(8)),
                2 => (Direction::DeviceToHost, row.number(9)),
                _ => (Direction::DeviceToDevice, 0),
            };
            let class = WorkClass::Copy {
                direction,
                bytes: row.number(7),
                pinned: match host {
                    1 => Some(false),
                    2 => Some(true),
                    _ => None,
                },
            };
            push(file, &row, class)
        })?;
        let mut columns = COMMON.to_vec();
        columns.push("bytes");
        self.each("CUPTI_ACTIVITY_KIND_MEMSET", &columns, |row, _| {
            let class = WorkClass::Copy {
                direction: Direction::Fill,
                bytes: row.number(6),
                pinned: None,
            };
            push(file, &row, class)
        })?;
        let mut columns = COMMON.to_vec();
        columns.push("graphId");
        self.each("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", &columns, |row, _| {
            let class = WorkClass::Graph(row.number(6));
            push(file, &row, class)
        })
    }

    /// Target of each wait, if the file has it.
    fn syncs(&mut self, file: &mut ProfilerFile) -> Result<(), ImportError> {
        const TABLE: &str = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION";
        let known = |stream: u32| Some(stream).filter(|stream| *stream != u32::MAX);
        let mut recordings: HashMap<(u64, u64, u64), (u32, CallKey)> = HashMap::new();
        let columns = ["eventId", "eventSyncId", "streamId", "correlationId", "globalPid"];
        if self.columns("CUPTI_ACTIVITY_KIND_CUDA_EVENT")?.contains("eventSyncId") {
            self.each("CUPTI_ACTIVITY_KIND_CUDA_EVENT", &columns, |row, _| {
                bounded(recordings.len())?;
                let process = process(row.number(4));
                let call = (process, row.number(3));
                recordings.insert((process, row.number(0), row.number(1)), (row.small(2), call));
                Ok(())
            })?;
        }
        let classes: HashMap<CallKey, CallClass> = file.calls.iter().map(|call| (call.key, call.class)).collect();
        let columns = ["eventId", "eventSyncId", "streamId", "correlationId", "globalPid"];
        self.each(TABLE, &columns, |row, _| {
            file.room()?;
            let process = process(row.number(4));
            let key = (process, row.number(3));
            let recorded = recordings.get(&(process, row.number(0), row.number(1)));
            let stream = known(row.small(2));
            let fact = match classes.get(&key) {
                Some(CallClass::Wait(Awaits::Event)) => SyncFact {
                    stream: recorded.map(|(stream, _)| *stream),
                    recorded_by: recorded.map(|(_, call)| *call),
                    waiting: None,
                },
                Some(CallClass::StreamWait) => SyncFact {
                    stream: recorded.map(|(stream, _)| *stream),
                    recorded_by: recorded.map(|(_, call)| *call),
                    waiting: stream,
                },
                Some(CallClass::Wait(_)) => SyncFact {
                    stream,
                    ..SyncFact::default()
                },
                _ => return Ok(()),
            };
            file.syncs.insert(key, fact);
            Ok(())
        })
    }

    fn notes(&mut self, file: &mut ProfilerFile, processes: bool) -> Result<(), ImportError> {
        let columns = ["start", "end", "globalTid", "text", "textId"];
        self.each("NVTX_EVENTS", &columns, |row, texts| {
            file.room()?;
            let Some((start, end)) = row.span() else {
                file.skip("NVTX marks without a length");
                return Ok(());
            };
            let name = match row.text(3) {
                Some(text) => Some(file.names.number(&text)?),
                None => row.whole(4).and_then(|id| texts.get(&id).copied()),
            };
            let Some(name) = name else { return Ok(()) };
            let thread = file.thread(&row.number(2).to_string());
            file.notes.push(Note {
                start,
                end,
                name,
                process: if processes { process(row.number(2)) } else { 0 },
                thread,
                own: true,
            });
            Ok(())
        })
    }
}
