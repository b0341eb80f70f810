//! A sink that publishes in transactions: a file to which each commit appends its records and the pipeline's progress.
//!
//! Readers see the lines up to the last progress. What is behind it was appended by a process that has died, and is cut
//! off by the next one. A number in a second file says which producer may commit: a recovery raises it.

use crate::folder::line;
use postrider_core::record::{Outcome, OwnedRecord, Record, Ticket};
use postrider_core::sink::{
    Capabilities, Mailbox, NameRule, Needs, NotTaken, Order, Post, Shown, Sink, SinkCall,
    SinkConfig, SinkError, SinkProgress, TransactionLimits, Transactional,
};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// When a transaction is committed.
const LIMITS: TransactionLimits = TransactionLimits {
    records_max: 100,
    bytes_max: 1 << 20,
    interval: Duration::from_millis(5),
    whole_for: None,
};

/// Begins a line with the progress of a commit. Any other line is a record.
const PROGRESS: &str = "progress ";

/// The settings: the directory of the journal.
#[derive(Clone, Debug)]
pub struct JournalConfig(pub PathBuf);

impl SinkConfig for JournalConfig {
    fn kind(&self) -> &'static str {
        "journal"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Total,
            refuses_batches: false,
            transactions: Some(LIMITS),
            exactly_once: true,
            dedupe: false,
            headers: true,
            null_value: true,
            record_bytes_max: None,
            held_bytes: 0,
            clusters: false,
            remote: false,
        }
    }

    fn names(&self) -> NameRule {
        NameRule::ANY
    }

    fn place(&self) -> String {
        self.0.display().to_string()
    }

    fn values(&self) -> Vec<Shown> {
        vec![Shown::text("directory", &self.place())]
    }

    fn check(&self, _needs: &Needs) -> Vec<SinkError> {
        Vec::new()
    }

    fn open(&self, _needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        fs::create_dir_all(&self.0).map_err(|error| {
            SinkError::new("the directory can't be made", "name another one").caused_by(error)
        })?;
        let (owner, lines) = (0, Vec::new());
        Ok(Box::new(Journal { directory: self.0.clone(), mailbox, owner, lines }))
    }
}

/// The sink. Its calls write a short file each, so they need no thread.
#[derive(Debug)]
struct Journal {
    directory: PathBuf,
    mailbox: Mailbox,
    /// The number of this producer; 0 before it has recovered.
    owner: u64,
    /// The open transaction.
    lines: Vec<u8>,
}

impl Sink for Journal {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        let line = line(&OwnedRecord::of(record));
        self.lines.extend_from_slice(line.to_string().as_bytes());
        self.lines.push(b'\n');
        // The open transaction has the record: nothing is visible yet.
        self.mailbox.report(ticket, Outcome::Acked);
        Ok(())
    }

    fn transactional(&mut self) -> Option<&mut dyn Transactional> {
        Some(self)
    }

    fn reset(&mut self) {
        self.lines.clear();
    }

    fn close(&mut self, _grace: Duration) {
        self.lines.clear();
    }
}

impl Transactional for Journal {
    fn recover(&mut self, call: SinkCall) {
        self.lines.clear();
        let answer = match self.take_over() {
            Ok(progress) => Post::Recovered { call, progress },
            Err(error) => Post::Broken { reason: error.to_string() },
        };
        self.mailbox.post(answer);
    }

    fn commit(&mut self, call: SinkCall, progress: &SinkProgress) {
        let answer = match self.append(progress) {
            Ok(()) => Post::Committed { call },
            // What is in the file is not known: the next recovery reads it.
            Err(error) => Post::Broken { reason: error.to_string() },
        };
        self.mailbox.post(answer);
    }
}

impl Journal {
    /// Makes this producer the owner, and cuts off what a former one has not committed.
    fn take_over(&mut self) -> io::Result<Option<SinkProgress>> {
        let _lock = self.lock()?;
        self.owner = self.owner_on_disk()? + 1;
        replace(&self.directory.join("owner"), &self.owner.to_string())?;
        let (committed, progress) = committed(&self.directory)?;
        let path = self.directory.join("journal");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.set_len(committed.len().try_into().map_err(io::Error::other)?)?;
        file.sync_all()?;
        Ok(progress)
    }

    /// Appends the open transaction.
    fn append(&mut self, progress: &SinkProgress) -> io::Result<()> {
        let _lock = self.lock()?;
        if self.owner_on_disk()? != self.owner {
            return Err(io::Error::other("another producer has recovered"));
        }
        let mut file = OpenOptions::new().write(true).open(self.directory.join("journal"))?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(&std::mem::take(&mut self.lines))?;
        writeln!(file, "{PROGRESS}{progress}")?;
        file.sync_data()
    }

    /// Excludes other processes until the file is dropped, or the process dies.
    fn lock(&self) -> io::Result<File> {
        let path = self.directory.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn owner_on_disk(&self) -> io::Result<u64> {
        match fs::read_to_string(self.directory.join("owner")) {
            Ok(text) => text.parse().map_err(io::Error::other),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// Replaces a file: after a crash it has the old content or the new one.
fn replace(path: &Path, content: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// The lines up to the last commit, and its progress.
fn committed(directory: &Path) -> io::Result<(String, Option<SinkProgress>)> {
    let mut text = match fs::read(directory.join("journal")) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let (mut length, mut progress, mut at) = (0, None, 0);
    for line in text.split_inclusive('\n') {
        at += line.len();
        let whole = line.strip_prefix(PROGRESS).and_then(|line| line.strip_suffix('\n'));
        if let Some(stored) = whole {
            progress = Some(stored.parse().map_err(io::Error::other)?);
            length = at;
        }
    }
    text.truncate(length);
    Ok((text, progress))
}

/// The visible records, in their order.
///
/// # Errors
/// The file can't be read, or a line is not JSON.
pub fn read(directory: &Path) -> io::Result<Vec<Value>> {
    let (text, _) = committed(directory)?;
    let records = text.lines().filter(|line| !line.starts_with(PROGRESS));
    records.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
}

/// The number of commits.
///
/// # Errors
/// The file can't be read.
pub fn commits(directory: &Path) -> io::Result<usize> {
    let (text, _) = committed(directory)?;
    Ok(text.lines().filter(|line| line.starts_with(PROGRESS)).count())
}
