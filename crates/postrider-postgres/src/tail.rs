//! What is in the WAL or in the table now, read without moving anything.
//!
//! A slot that nobody uses is peeked: its `confirmed_flush_lsn` stays where it is. A slot that is in use can't be
//! peeked, so a temporary slot sees what is committed from its creation on; it is dropped with its session. A table is
//! read with a plain query: no row is locked.

use crate::capture::Frames;
use crate::decoder::Decoder;
use crate::poll::PollSpec;
use crate::poll::by_id::{FetchedPage, IdLookup, OutboxTable};
use pg_replication::Frame;
use pg_replication::error::SourceError;
use pg_replication::lsn::Lsn;
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::row::OwnedTable;
use postrider_core::source::{Batch, Change, Unreadable};
use postrider_core::store::PipelineKey;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

/// Changes after which a query of a slot ends, at the end of their transaction.
const CHANGES_MAX: i32 = 10_000;

/// How long a statement may take: the server reads WAL from the slot's `restart_lsn` on.
const LIMITS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '2s'";

/// How the stream of a pipeline is decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeOptions<'a> {
    /// The publication.
    pub publication: &'a str,
    /// Logical messages are sent too.
    pub messages: bool,
}

/// The messages of pgoutput that a query of a slot has returned, as the frames of a stream. A place is the number of a
/// message.
#[derive(Default)]
pub struct PeekedFrames(Vec<(Lsn, Vec<u8>)>);

impl std::fmt::Debug for PeekedFrames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeekedFrames({})", self.0.len())
    }
}

impl PeekedFrames {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the query has ended at its limit: the slot may have more.
    pub fn is_full(&self) -> bool {
        i32::try_from(self.0.len()).is_ok_and(|count| count >= CHANGES_MAX)
    }

    /// The changes of the frames, as the stream has them.
    pub fn decoded<'a>(&'a self, decoder: &'a mut Decoder) -> PeekedBatch<'a> {
        PeekedBatch { frames: self, decoder }
    }

    fn read(rows: &[Row]) -> Result<Self, tokio_postgres::Error> {
        let frame = |row: &Row| {
            let lsn: PgLsn = row.try_get(0)?;
            Ok((Lsn::from_wire(u64::from(lsn)), row.try_get(1)?))
        };
        rows.iter().map(frame).collect::<Result<_, _>>().map(Self)
    }
}

impl Frames for PeekedFrames {
    fn frame_at(&self, offset: usize) -> Option<(Frame<'_>, usize)> {
        let (lsn, data) = self.0.get(offset)?;
        Some((Frame::XLogData { wal_start: *lsn, wal_end: *lsn, data }, offset + 1))
    }
}

/// The changes of [`PeekedFrames`].
#[derive(Debug)]
pub struct PeekedBatch<'a> {
    frames: &'a PeekedFrames,
    decoder: &'a mut Decoder,
}

impl Batch for PeekedBatch<'_> {
    fn change_at(&mut self, place: usize) -> Result<Option<(Change<'_>, usize)>, Unreadable> {
        let Some((frame, next)) = self.frames.frame_at(place) else { return Ok(None) };
        Ok(Some((self.decoder.change(&frame)?, next)))
    }
}

/// Limits the statements of the session.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn limit(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("begin to read without moving anything", e);
    client.batch_execute(LIMITS).await.map_err(failed)
}

/// The position up to which a pipeline has resolved everything: events below it are published, parked or skipped.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn resolved(client: &Client, key: &PipelineKey) -> Result<Position, SourceError> {
    let failed = |e| SourceError::control(format!("read the position of pipeline {key}"), e);
    let sql = "SELECT coalesce(partial_commit_lsn, watermark), coalesce(partial_ordinal, 0) \
               FROM postrider.cursor WHERE pipeline = $1 AND shard = $2";
    let row = client.query_opt(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(Position::default()) };
    let (commit, ordinal): (PgLsn, i64) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    Ok(Position { commit: Offset::new(u64::from(commit)), ordinal: ordinal.unsigned_abs() })
}

/// What a slot would send next. The slot must not be in use.
///
/// # Errors
/// An error of the server or of the connection: 55006 if the slot is in use, 42501 without the right to replicate.
pub async fn peek(
    client: &Client,
    slot: &str,
    options: DecodeOptions<'_>,
) -> Result<PeekedFrames, SourceError> {
    changes(client, "pg_logical_slot_peek_binary_changes", slot, options).await
}

async fn changes(
    client: &Client,
    function: &str,
    slot: &str,
    options: DecodeOptions<'_>,
) -> Result<PeekedFrames, SourceError> {
    let failed = |e| SourceError::control(format!("read slot \"{slot}\""), e);
    let sql = format!(
        "SELECT lsn, data FROM pg_catalog.{function}($1::pg_catalog.text::pg_catalog.name, NULL, $2, \
           'proto_version', '1', 'publication_names', pg_catalog.quote_ident($3::pg_catalog.text), \
           'messages', $4::pg_catalog.text)"
    );
    let messages = if options.messages { "true" } else { "false" };
    let rows = client.query(&sql, &[&slot, &CHANGES_MAX, &options.publication, &messages]).await;
    PeekedFrames::read(&rows.map_err(failed)?).map_err(failed)
}

/// A temporary slot. The server drops it at the end of the session, whatever ends the session.
#[derive(Debug)]
pub struct TemporarySlot<'a> {
    client: &'a Client,
    name: String,
}

impl<'a> TemporarySlot<'a> {
    /// Creates it. That waits until every transaction that is open now has ended.
    ///
    /// # Errors
    /// An error of the server or of the connection: 53400 if `max_replication_slots` is reached, 57014 if an open
    /// transaction has not ended within 30 s.
    pub async fn create(client: &'a Client) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control("create a temporary slot", e);
        let sql = "SELECT slot_name::pg_catalog.text FROM pg_catalog.pg_create_logical_replication_slot( \
                     ('postrider_tail_' || pg_catalog.pg_backend_pid())::pg_catalog.name, 'pgoutput', true)";
        let row = client.query_one(sql, &[]).await.map_err(failed)?;
        Ok(Self { client, name: row.try_get(0).map_err(failed)? })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was committed since the last call. The slot retains no WAL of what it has returned.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn next(&self, options: DecodeOptions<'_>) -> Result<PeekedFrames, SourceError> {
        changes(self.client, "pg_logical_slot_get_binary_changes", &self.name, options).await
    }

    /// Drops it.
    ///
    /// # Errors
    /// An error of the server or of the connection; the slot is dropped at the end of the session then.
    pub async fn drop_now(self) -> Result<(), SourceError> {
        let failed = |e| SourceError::control("drop the temporary slot", e);
        let sql =
            "SELECT pg_catalog.pg_drop_replication_slot($1::pg_catalog.text::pg_catalog.name)";
        self.client.execute(sql, &[&self.name]).await.map(drop).map_err(failed)
    }
}

/// The rows of a polled table that are still to be published.
#[derive(Debug)]
pub struct WaitingPage {
    /// The description of the table.
    pub table: OwnedTable,
    /// The rows, in the order of polling.
    pub page: FetchedPage,
    /// There are more rows.
    pub more: bool,
}

/// Reads the first rows that polling would publish, at most `most`.
///
/// # Errors
/// An error of the server or of the connection; 42501 without the right to read the table.
pub async fn waiting_rows(
    client: &Client,
    spec: PollSpec,
    most: u32,
) -> Result<WaitingPage, SourceError> {
    let doing = format!("read the rows of table {} that wait", spec.table);
    let table = OutboxTable::read(client, spec).await?;
    let sql = format!(
        "SELECT {id} FROM {source} ORDER BY {order} LIMIT {limit}",
        id = table.id(),
        source = table.source(&table.to_publish()),
        order = table.order().join(", "),
        limit = u64::from(most) + 1,
    );
    let failed = |e| SourceError::control(doing.clone(), e);
    let rows = client.query(&sql, &[]).await.map_err(failed)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let ids: Vec<String> = rows
        .iter()
        .take(most)
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()
        .map_err(|e| SourceError::control(doing.clone(), e))?;
    let page = table.fetch(client, &ids, IdLookup::Value).await?;
    let more = rows.len() > most || page.looked_at < ids.len();
    Ok(WaitingPage { table: table.description(), page, more })
}
