//! A sink: a folder with a file for each destination, to which records are appended as lines of JSON.
//!
//! A thread writes what has come together, file by file, and acknowledges the records of a file when they are on the
//! disk. So reports come in batches, and those of different destinations in another order than the records.

use postrider_core::record::{Outcome, OwnedRecord, Record, Refusal, RefusalKind, Ticket};
use postrider_core::sink::{
    Capabilities, Keys, Mailbox, NameRule, Needs, NotTaken, Order, Post, Shown, ShownValue, Sink,
    SinkConfig, SinkError, SinkKind,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Records that wait for the thread at most. Further ones are offered again.
const QUEUE_MAX: usize = 256;

/// Files that are open at the same time at most.
const FILES_MAX: usize = 64;

/// Bytes that the thread holds for a record beside its key, value and headers.
const HELD_BYTES: usize = 200;

/// The names of files that the folder takes.
const NAMES: NameRule = NameRule {
    allows: |name| {
        let letter =
            |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        (1..=100).contains(&name.len()) && name.iter().all(letter)
    },
    owner: "the folder",
    words: "1 to 100 of a-z 0-9 -",
};

/// `sink.kind = "folder"`.
#[derive(Debug)]
pub struct FolderKind;

impl SinkKind for FolderKind {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(FolderConfig {
            directory: keys.required("directory", "out").unwrap_or_default().into(),
            line_bytes_max: keys.number("line_bytes_max", 1 << 20, 100..=1 << 30),
        })
    }

    fn reference(&self) -> &'static str {
        "# Where the files are. No default.\ndirectory = \"out\"\n\
         # The largest record. Unit: bytes.\nline_bytes_max = 1048576\n"
    }
}

/// `[pipelines.NAME.sink]` of a folder.
#[derive(Clone, Debug)]
pub struct FolderConfig {
    /// Where the files are.
    pub directory: PathBuf,
    /// The largest record, in bytes of key, value and headers.
    pub line_bytes_max: u32,
}

impl SinkConfig for FolderConfig {
    fn kind(&self) -> &'static str {
        "folder"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Key,
            refuses_batches: false,
            transactions: None,
            exactly_once: false,
            dedupe: false,
            headers: true,
            null_value: true,
            record_bytes_max: usize::try_from(self.line_bytes_max).ok(),
            held_bytes: HELD_BYTES,
            clusters: false,
            remote: false,
        }
    }

    fn names(&self) -> NameRule {
        NAMES
    }

    fn place(&self) -> String {
        self.directory.display().to_string()
    }

    fn values(&self) -> Vec<Shown> {
        let bytes = ShownValue::Number(self.line_bytes_max.into());
        vec![
            Shown::text("directory", &self.place()),
            Shown { value: bytes, ..Shown::text("line_bytes_max", "") },
        ]
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        let named = needs.destinations.iter().filter(|name| !(NAMES.allows)(name.as_bytes()));
        let error = |name| SinkError::new(format!("{name:?} is no name of a file"), NAMES.words);
        named.map(error).collect()
    }

    fn open(&self, _needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        fs::create_dir_all(&self.directory).map_err(|error| {
            SinkError::new("the directory can't be made", "name another one")
                .at(&["directory"])
                .caused_by(error)
        })?;
        let config = self.clone();
        let writer = Writer::start(&config.directory, &mailbox).map_err(|error| {
            SinkError::new("no thread can be started", "see the limits of the system")
                .caused_by(error)
        })?;
        Ok(Box::new(Folder { config, mailbox, writer: Some(writer) }))
    }
}

/// The sink.
#[derive(Debug)]
struct Folder {
    config: FolderConfig,
    mailbox: Mailbox,
    /// `None` after a reset that could not start a thread, and after `close`.
    writer: Option<Writer>,
}

impl Sink for Folder {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        let limit = usize::try_from(self.config.line_bytes_max).unwrap_or(usize::MAX);
        if record.size_bytes() > limit {
            return Err(NotTaken::Refused(Refusal::too_large(record.size_bytes(), limit)));
        }
        let text = |bytes: Option<&[u8]>| bytes.is_none_or(|bytes| str::from_utf8(bytes).is_ok());
        if !text(record.key) || !text(record.value) {
            let kind = RefusalKind::Invalid;
            return Err(NotTaken::Refused(Refusal { kind, native: None, of_batch: false }));
        }
        let Some(writer) = &self.writer else { return Err(NotTaken::Full) };
        writer.take(ticket, OwnedRecord::of(record))
    }

    fn is_idle(&self) -> bool {
        self.writer.as_ref().is_none_or(|writer| writer.shared.waiting() == 0)
    }

    fn reset(&mut self) {
        // The old thread has ended before the new one begins: otherwise it could write behind it.
        drop(self.writer.take());
        match Writer::start(&self.config.directory, &self.mailbox) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => {
                let reason = format!("no thread can be started: {error}");
                let hint = "see the limits of the system".to_owned();
                self.mailbox.post(Post::Unfit { reason, hint });
            }
        }
    }

    fn close(&mut self, _grace: Duration) {
        self.writer = None;
    }
}

/// The thread that writes. Dropping it gives up what waits, and waits for the end of the thread.
#[derive(Debug)]
struct Writer {
    queue: Option<SyncSender<(Ticket, OwnedRecord)>>,
    shared: Arc<WriterState>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and its owner share.
#[derive(Default, Debug)]
struct WriterState {
    /// Records without a report.
    waiting: AtomicUsize,
    /// Nothing more is written.
    given_up: AtomicBool,
}

impl WriterState {
    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }
}

impl Writer {
    fn start(directory: &Path, mailbox: &Mailbox) -> io::Result<Self> {
        let (queue, records) = sync_channel(QUEUE_MAX);
        let shared = Arc::new(WriterState::default());
        let state = Arc::clone(&shared);
        let (directory, mailbox) = (directory.to_owned(), mailbox.clone());
        let thread = std::thread::Builder::new().name("folder".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = write(&directory, &mailbox, &records, &state) {
                // What is on the disk is not known: everything without a report is published again.
                mailbox.post(Post::Broken { reason: error.to_string() });
            }
        })?;
        Ok(Self { queue: Some(queue), shared, thread: Some(thread) })
    }

    fn take(&self, ticket: Ticket, record: OwnedRecord) -> Result<(), NotTaken> {
        let Some(queue) = &self.queue else { return Err(NotTaken::Full) };
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        queue.try_send((ticket, record)).map_err(|_full_or_ended| {
            // The next post says when to offer it again: a full queue has records that will be reported, and a thread
            // that has ended has posted why.
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            NotTaken::Full
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.given_up.store(true, Ordering::Release);
        // The end of the queue wakes the thread.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

/// Writes what comes, until the queue ends.
fn write(
    directory: &Path,
    mailbox: &Mailbox,
    records: &Receiver<(Ticket, OwnedRecord)>,
    state: &WriterState,
) -> io::Result<()> {
    let mut files = BTreeMap::new();
    while let Ok(first) = records.recv() {
        let mut batch: BTreeMap<String, (Vec<Ticket>, Vec<u8>)> = BTreeMap::new();
        for (ticket, record) in std::iter::once(first).chain(records.try_iter().take(QUEUE_MAX)) {
            let (tickets, lines) = batch.entry(record.topic.clone()).or_default();
            tickets.push(ticket);
            lines.extend_from_slice(line(&record).to_string().as_bytes());
            lines.push(b'\n');
        }
        // The last name first: in another order than the records have come.
        for (topic, (tickets, lines)) in batch.iter().rev() {
            if state.given_up.load(Ordering::Acquire) {
                return Ok(());
            }
            if files.len() == FILES_MAX {
                files.clear();
            }
            let file = match files.entry(topic.clone()) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(new) => new.insert(open(&directory.join(format!("{topic}.jsonl")))?),
            };
            file.write_all(lines)?;
            file.sync_data()?;
            state.waiting.fetch_sub(tickets.len(), Ordering::AcqRel);
            mailbox.report_all(tickets, Outcome::Acked);
        }
    }
    Ok(())
}

/// Opens a file at the end of its last whole line: a crash may have left a part of one, which was not
/// acknowledged.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let content = fs::read(path)?;
    let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    file.set_len(whole.try_into().map_err(io::Error::other)?)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// A record as it is written. Key and value are UTF-8.
pub(crate) fn line(record: &OwnedRecord) -> Value {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let headers: Map<String, Value> = record
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), json!(value.as_ref().map(text))))
        .collect();
    json!({
        "key": record.key.as_ref().map(text),
        "value": record.value.as_ref().map(text),
        "headers": headers,
    })
}

/// The records of a destination, without a line that is not written to its end; none if there is no file.
///
/// # Errors
/// The file can't be read, or a line is not JSON.
pub fn read(directory: &Path, topic: &str) -> io::Result<Vec<Value>> {
    let text = match fs::read_to_string(directory.join(format!("{topic}.jsonl"))) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let whole = text.rsplit_once('\n').map_or("", |(whole, _rest)| whole);
    let lines: Result<Vec<Value>, _> = whole.lines().map(serde_json::from_str).collect();
    lines.map_err(io::Error::other)
}
