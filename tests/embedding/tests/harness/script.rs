//! A source that sends given changes, also those that a spool does not have.

use super::{Known, event};
use embedding::spool;
use postrider_core::error::Failure;
use postrider_core::event::HistoryId;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::row::{Column, Kind, Table, TableId, ValueType};
use postrider_core::row_buffer::RowBuffer;
use postrider_core::source::{Batch, Change, Source, Stream, Unreadable};
use postrider_core::timestamp::Timestamp;
use std::sync::{Arc, Mutex};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// A table with this number and name, in the spool's schema.
    Table(u32, &'static str),
    Begin(u64),
    /// A row of the table with this number: the event with this number.
    Row(u32, u64),
    Other,
    Blocked,
    Heartbeat(u64),
    Commit(u64),
    /// The source panics.
    Panic,
}

/// Sends these changes in one batch on each stream, and nothing more.
pub(super) struct Script {
    pub(super) changes: Vec<Sent>,
    pub(super) known: Arc<Mutex<Known>>,
}

impl Source for Script {
    type Stream = ScriptStream;

    fn name(&self) -> String {
        "script".to_owned()
    }

    async fn connect(&mut self, _from: Watermark) -> Result<ScriptStream, Failure> {
        let mut rows = RowBuffer::default();
        for sent in &self.changes {
            // A row for each change, so that both have the same index.
            let Sent::Row(table, number) = *sent else {
                rows.push_row(TableId(0));
                continue;
            };
            let event = event(number);
            let mut row = rows.push_row(TableId(table));
            for cell in [event.id, event.aggregate_type, event.aggregate_id, event.event_type] {
                row.push_cell(cell.as_deref().map(str::as_bytes));
            }
            row.push_cell(event.payload.as_deref().map(str::as_bytes));
            row.push_cell(None);
        }
        let names = ["id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"];
        let column = |name: &str| Column { name: name.to_owned(), of: ValueType::of(Kind::Text) };
        let columns = names.map(column).to_vec();
        let batch = ScriptBatch { changes: self.changes.clone(), columns, rows };
        Ok(ScriptStream { batch: Some(batch), known: Arc::clone(&self.known) })
    }
}

pub(super) struct ScriptStream {
    batch: Option<ScriptBatch>,
    known: Arc<Mutex<Known>>,
}

impl Stream for ScriptStream {
    fn history(&self) -> HistoryId {
        HistoryId(1)
    }

    async fn next(&mut self) -> Result<Box<dyn Batch>, Failure> {
        match self.batch.take() {
            Some(batch) => Ok(Box::new(batch)),
            None => std::future::pending().await,
        }
    }

    fn confirm(&mut self, upto: Watermark) {
        self.known.lock().unwrap().calls.confirmed.push(upto.offset().get());
    }

    async fn close(self) -> Result<(), Failure> {
        Ok(())
    }
}

struct ScriptBatch {
    changes: Vec<Sent>,
    columns: Vec<Column>,
    rows: RowBuffer,
}

impl Batch for ScriptBatch {
    fn change_at(&mut self, place: usize) -> Result<Option<(Change<'_>, usize)>, Unreadable> {
        let Some(sent) = self.changes.get(place) else { return Ok(None) };
        let time = Timestamp::default();
        let change = match *sent {
            Sent::Table(id, name) => Change::Table(Table {
                id: TableId(id),
                schema: spool::SCHEMA,
                name,
                columns: &self.columns,
            }),
            Sent::Begin(number) => Change::Begin {
                commit: Offset::new(number),
                first: Offset::ZERO,
                time,
                transaction: None,
            },
            Sent::Row(..) => Change::Row(self.rows.row(place).unwrap()),
            Sent::Other => Change::Other,
            Sent::Blocked => Change::Blocked,
            Sent::Heartbeat(upto) => Change::Heartbeat(Offset::new(upto)),
            Sent::Commit(number) => {
                Change::Commit { commit: Offset::new(number), end: Offset::new(number + 1), time }
            }
            Sent::Panic => unreachable!("the source panics"),
        };
        Ok(Some((change, place + 1)))
    }
}
