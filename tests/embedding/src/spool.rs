//! A source: a directory with a file for each transaction, and in the file a line for each event.
//!
//! The number of a transaction is its commit offset. What is confirmed is removed.

use postrider_core::error::{Failure, HaltReason};
use postrider_core::event::HistoryId;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::row::{Column, Kind, Table, TableId, ValueType};
use postrider_core::row_buffer::RowBuffer;
use postrider_core::source::{Batch, Change, Source, Stream, Unreadable};
use postrider_core::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Interval;

/// The table that the rows are said to be of. The pipeline's `OutboxSpec` names it too.
pub const SCHEMA: &str = "spool";
/// See [`SCHEMA`].
pub const TABLE: &str = "events";

/// Pause between two looks at the directory, which reports nothing by itself. Other sources wait for a socket.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Transactions in one batch at most.
const BATCH_TRANSACTIONS_MAX: usize = 64;

/// The columns of the layout `postrider`, in the order of the cells of a row.
const COLUMNS: [(&str, Kind); 6] = [
    ("id", Kind::Text),
    ("aggregate_type", Kind::Text),
    ("aggregate_id", Kind::Text),
    ("event_type", Kind::Text),
    ("payload", Kind::Json),
    ("headers", Kind::Json),
];

/// An event as a line of a file has it. A part that is missing is NULL.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Identifies the event for consumers.
    pub id: Option<String>,
    /// The kind of the aggregate. The topic, unless the route says otherwise.
    pub aggregate_type: Option<String>,
    /// The aggregate, whose events are published in order.
    pub aggregate_id: Option<String>,
    /// What has happened.
    pub event_type: Option<String>,
    /// The text of a JSON value.
    pub payload: Option<String>,
    /// The text of a JSON object.
    pub headers: Option<String>,
}

/// The directory.
#[derive(Clone, Debug)]
pub struct Spool {
    directory: PathBuf,
    history: HistoryId,
}

impl Spool {
    /// Opens the directory, and makes it if there is none. A new directory begins a history of its own: its numbers
    /// begin at 1 again.
    ///
    /// # Errors
    /// The directory can't be read or made.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(&directory)?;
        let history = directory.join("history");
        if !history.exists() {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            replace(&history, since.as_secs().to_string().as_bytes())?;
        }
        let number = fs::read_to_string(&history)?.parse().map_err(io::Error::other)?;
        Ok(Self { directory, history: HistoryId(number) })
    }

    /// Commits a transaction, and returns its number when it is on the disk. One caller at a time.
    ///
    /// # Errors
    /// A file can't be written. Whether the transaction is committed is not known then: see whether its file is there.
    pub fn commit(&self, events: &[Event]) -> io::Result<u64> {
        let last = self.directory.join("last");
        let number = fs::read_to_string(&last).map_or(Ok(0), |text| text.parse::<u64>());
        let number = number.map_err(io::Error::other)? + 1;
        // Before the transaction: a number must never be used again, also if the file is removed by then.
        replace(&last, number.to_string().as_bytes())?;
        let lines: Result<Vec<String>, _> = events.iter().map(serde_json::to_string).collect();
        replace(&self.directory.join(format!("{number}.jsonl")), lines?.join("\n").as_bytes())?;
        Ok(number)
    }

    /// The transactions from `from` on that can be sent, the lowest first.
    fn transactions(&self, from: Offset) -> io::Result<Vec<u64>> {
        without_gaps(|| self.listed(from))
    }

    /// What one listing of the directory has from `from` on, the lowest first.
    fn listed(&self, from: Offset) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.retain(|number| *number >= from.get());
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads a transaction.
    fn read(&self, number: u64, into: &mut Transactions) -> io::Result<()> {
        let path = self.directory.join(format!("{number}.jsonl"));
        let time = fs::metadata(&path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let events: Result<Vec<Event>, _> =
            fs::read_to_string(path)?.lines().map(serde_json::from_str).collect();
        into.add(number, Timestamp { unix_micros }, &events?);
        Ok(())
    }
}

/// What two listings have for certain. A listing is not atomic: while files are added, it may have number 8 and lack 7;
/// then 7 would be skipped, and removed when 8 is confirmed.
///
/// Files are added in the order of their numbers. So everything up to the highest number of the first listing was there
/// before the second one has begun, and the second one has it.
///
/// A number may be missing for ever: that of a `commit` which has failed. So a gap is no error.
fn without_gaps(mut list: impl FnMut() -> io::Result<Vec<u64>>) -> io::Result<Vec<u64>> {
    let highest = list()?.into_iter().max().unwrap_or_default();
    let mut numbers = list()?;
    numbers.retain(|number| *number <= highest);
    Ok(numbers)
}

/// Writes a file that has the old content or the new one after a crash. Returns when the content is on the disk, under
/// its name.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(".".as_ref()))?.sync_all()
}

impl Source for Spool {
    type Stream = SpoolStream;

    fn name(&self) -> String {
        format!("spool {}", self.directory.display())
    }

    async fn connect(&mut self, from: Watermark) -> Result<SpoolStream, Failure> {
        let last = fs::read_to_string(self.directory.join("last")).unwrap_or_default();
        let last: u64 = last.parse().unwrap_or_default();
        if from.offset() > Offset::new(last + 1) {
            return Err(Failure::halt(
                HaltReason::PositionAhead,
                format!("the spool ends at {last}, and the stored cursor is at {from}"),
                "an older copy of the directory was restored: numbers that were published would be used again",
                "restore the newest copy; or move the directory away, so that a new history begins, and commit again \
                 what was committed since the copy and is not published",
            ));
        }
        let looks = tokio::time::interval(LOOK_INTERVAL);
        Ok(SpoolStream { spool: self.clone(), next: from.offset(), described: false, looks })
    }
}

/// What is read from the directory.
#[derive(Debug)]
pub struct SpoolStream {
    spool: Spool,
    /// The lowest transaction that is not sent yet.
    next: Offset,
    /// The table is described.
    described: bool,
    /// When the directory is looked at.
    looks: Interval,
}

impl SpoolStream {
    /// The transactions that are there; `None` if there is no new one.
    fn look(&mut self) -> Result<Option<Transactions>, Failure> {
        let numbers = self.spool.transactions(self.next).map_err(|e| Failure::temporary(&e))?;
        let mut batch = Transactions::default();
        for (index, number) in numbers.into_iter().take(BATCH_TRANSACTIONS_MAX).enumerate() {
            if !std::mem::replace(&mut self.described, true) {
                batch.describe_table();
            }
            match self.spool.read(number, &mut batch) {
                Ok(()) => {}
                // The transactions before it are sent first: the next look finds the error again.
                Err(_) if index > 0 => break,
                Err(error) => return Err(unreadable(number, &error)),
            }
            self.next = Offset::new(number + 1);
        }
        Ok((!batch.steps.is_empty()).then_some(batch))
    }
}

/// A file that can't be read does not get better by itself.
fn unreadable(number: u64, error: &io::Error) -> Failure {
    Failure::halt(
        HaltReason::Protocol,
        format!("transaction {number} of the spool can't be read: {error}"),
        "everything before it is published; it and all that follows wait in the spool",
        "correct the file, and start again",
    )
}

impl Stream for SpoolStream {
    fn history(&self) -> HistoryId {
        self.spool.history
    }

    async fn next(&mut self) -> Result<Box<dyn Batch>, Failure> {
        loop {
            // The only place where the future can be dropped: before anything is read.
            self.looks.tick().await;
            if let Some(batch) = self.look()? {
                return Ok(Box::new(batch));
            }
        }
    }

    fn confirm(&mut self, upto: Watermark) {
        for number in self.spool.listed(Offset::ZERO).unwrap_or_default() {
            if number < upto.offset().get() {
                // What can't be removed now is removed with the next confirmation.
                let path = self.spool.directory.join(format!("{number}.jsonl"));
                fs::remove_file(path).unwrap_or_default();
            }
        }
    }

    async fn close(self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The only table.
const TABLE_ID: TableId = TableId(1);

/// Transactions that were read, in the form in which they are lent out as [`Change`]s.
#[derive(Default, Debug)]
struct Transactions {
    /// What [`Step::Table`] describes.
    columns: Vec<Column>,
    rows: RowBuffer,
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Table,
    Begin(u64, Timestamp),
    /// The row with this index in the buffer.
    Row(usize),
    Commit(u64, Timestamp),
}

impl Transactions {
    fn describe_table(&mut self) {
        let column = |(name, kind)| Column { name: String::from(name), of: ValueType::of(kind) };
        self.columns.extend(COLUMNS.map(column));
        self.steps.push(Step::Table);
    }

    fn add(&mut self, number: u64, time: Timestamp, events: &[Event]) {
        self.steps.push(Step::Begin(number, time));
        for event in events {
            self.steps.push(Step::Row(self.rows.len()));
            let Event { id, aggregate_type, aggregate_id, event_type, payload, headers } = event;
            let mut row = self.rows.push_row(TABLE_ID);
            for cell in [id, aggregate_type, aggregate_id, event_type, payload, headers] {
                row.push_cell(cell.as_ref().map(String::as_bytes));
            }
        }
        self.steps.push(Step::Commit(number, time));
    }
}

impl Batch for Transactions {
    fn change_at(&mut self, place: usize) -> Result<Option<(Change<'_>, usize)>, Unreadable> {
        let Some(step) = self.steps.get(place) else { return Ok(None) };
        let change = match step {
            Step::Table => Change::Table(Table {
                id: TABLE_ID,
                schema: SCHEMA,
                name: TABLE,
                columns: &self.columns,
            }),
            Step::Begin(number, time) => Change::Begin {
                commit: Offset::new(*number),
                first: Offset::ZERO,
                time: *time,
                transaction: None,
            },
            Step::Row(index) => {
                let row = self.rows.row(*index);
                // Not `Change::Nothing`: it does not count, so every later change would get another place.
                Change::Row(row.ok_or_else(|| Unreadable::Protocol("a row is missing".into()))?)
            }
            Step::Commit(number, time) => Change::Commit {
                commit: Offset::new(*number),
                end: Offset::new(*number + 1),
                time: *time,
            },
        };
        Ok(Some((change, place + 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listings of a directory to which 7, 8 and 9 are being added.
    #[test]
    fn transaction_that_a_listing_lacks_is_not_skipped() {
        for (first, second, sent) in [
            (vec![5, 8], vec![5, 7, 8, 9], vec![5, 7, 8]),
            (vec![5], vec![5, 8], vec![5]),
            (vec![], vec![8], vec![]),
            // A commit has failed: 6 will never be there.
            (vec![5, 7], vec![5, 7], vec![5, 7]),
        ] {
            let mut listings = vec![second.clone(), first.clone()];
            let list = || listings.pop().ok_or_else(|| io::Error::other("a third listing"));
            let found = without_gaps(list).ok();
            assert_eq!(found, Some(sent), "{first:?}, {second:?}");
        }
    }

    #[test]
    fn row_that_is_missing_is_an_error() {
        let mut batch = Transactions { steps: vec![Step::Row(0)], ..Transactions::default() };
        assert!(matches!(batch.change_at(0), Err(Unreadable::Protocol(_))));
    }
}
