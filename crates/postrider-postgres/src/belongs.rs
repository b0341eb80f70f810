//! What a pipeline's position belongs to: the mode, the destination, the table and the layout under which its cursor
//! row was last used.
//!
//! Owns these columns of `postrider.cursor`. What a difference leads to is decided by `driver::change`.

use super::error::{SourceError, Statement};
use super::server::SYSTEM_IDENTIFIER_SQL;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

/// The settings that a position belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Belongs {
    /// `wal`, `poll` or `auto`.
    pub mode: String,
    /// Published rows got their layout's mark.
    pub marks: bool,
    /// `kafka`, `stdout` or `discard`.
    pub sink: String,
    /// Kafka's identifier of the cluster; `None` until a broker has answered, and for other sinks.
    pub cluster: Option<String>,
    /// `route.topic`, with `route.replace`.
    pub topic: String,
    /// `route.key`, with `route.partition`.
    pub key: String,
    /// The outbox table, as SQL writes it.
    pub table: Option<String>,
    /// Its OID.
    pub table_oid: Option<u32>,
    /// The layout.
    pub layout: String,
}

/// One setting that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The mode.
    Mode,
    /// The kind of sink.
    Sink,
    /// The cluster.
    Cluster,
    /// The topic.
    Topic,
    /// The key, or the partition.
    Key,
    /// The table is another one.
    Table,
    /// The same table has another name.
    Renamed,
    /// Another table has the same name.
    Recreated,
    /// The layout.
    Layout,
}

impl Belongs {
    /// What differs `now`. A cluster or an OID that is not known on one of the sides does not differ.
    pub fn differences(&self, now: &Self) -> Vec<Difference> {
        let both = |one: bool, other: bool| one && other;
        let oids = self.table_oid.zip(now.table_oid);
        let same_oid = oids.is_some_and(|(before, now)| before == now);
        let other_oid = oids.is_some_and(|(before, now)| before != now);
        let other_cluster = both(self.cluster.is_some(), now.cluster.is_some());
        let renamed = self.table != now.table;
        [
            (Difference::Mode, self.mode != now.mode),
            (Difference::Sink, self.sink != now.sink),
            (
                Difference::Cluster,
                self.sink == now.sink && other_cluster && self.cluster != now.cluster,
            ),
            (Difference::Topic, self.topic != now.topic),
            (Difference::Key, self.key != now.key),
            (Difference::Table, renamed && !same_oid),
            (Difference::Renamed, renamed && same_oid),
            (Difference::Recreated, !renamed && other_oid),
            (Difference::Layout, self.layout != now.layout),
        ]
        .into_iter()
        .filter_map(|(difference, differs)| differs.then_some(difference))
        .collect()
    }

    /// What is written where the row has `before`: a cluster that is not known now stays as it was.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before.filter(|before| before.sink == self.sink) {
            self.cluster = self.cluster.or_else(|| before.cluster.clone());
        }
        self
    }
}

/// The pipeline's row, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The row is of a stream: it has a slot.
    pub slot: Option<String>,
    /// Its position.
    pub watermark: String,
    /// The stream has moved the position since its slot was made, or the slot was made by a repair: something may have
    /// been published.
    pub advanced: bool,
    /// A new slot was made while the table was polled, and polling has not come to its end: the stream has not begun.
    pub polls_on: bool,
    /// A `pg_snapshot`: rows that it sees may be from before the slot was made. `None` where that is not known.
    pub before_slot: Option<String>,
    /// The row was written in this cluster: OIDs of tables mean the same.
    pub same_cluster: bool,
    /// `None` where no process of this version has used the row.
    pub belongs: Option<Belongs>,
}

const COLUMNS: &str =
    "of_mode, of_marks, of_sink, of_cluster, of_topic, of_key, of_table, of_table_oid, of_layout";

/// Reads it; `None` where there is no row.
///
/// # Errors
/// What the server says.
pub async fn read(client: &Client, pipeline: &str) -> Result<Option<Found>, SourceError> {
    let failed = |e| {
        SourceError::control(
            format!("read what the position of pipeline {pipeline:?} belongs to"),
            e,
        )
        .of(Statement::Cursor)
    };
    let sql = format!(
        "SELECT nullif(slot, ''), watermark::pg_catalog.text, watermark > slot_created_lsn \
           OR partial_commit_lsn IS NOT NULL OR EXISTS ( \
           SELECT FROM postrider.repair AS r WHERE r.pipeline = $1), polls_on, \
           before_slot::pg_catalog.text, {COLUMNS}, system_identifier = {SYSTEM_IDENTIFIER_SQL} \
         FROM postrider.cursor WHERE pipeline = $1"
    );
    let row = client.query_opt(&sql, &[&pipeline]).await.map_err(failed)?;
    row.map(|row| found(&row).map_err(failed)).transpose()
}

fn found(row: &Row) -> Result<Found, tokio_postgres::Error> {
    let mode: Option<String> = row.try_get(5)?;
    let belongs = match mode {
        None => None,
        Some(mode) => Some(Belongs {
            mode,
            marks: row.try_get::<_, Option<bool>>(6)?.unwrap_or_default(),
            sink: row.try_get::<_, Option<String>>(7)?.unwrap_or_default(),
            cluster: row.try_get(8)?,
            topic: row.try_get::<_, Option<String>>(9)?.unwrap_or_default(),
            key: row.try_get::<_, Option<String>>(10)?.unwrap_or_default(),
            table: row.try_get(11)?,
            table_oid: row.try_get(12)?,
            layout: row.try_get::<_, Option<String>>(13)?.unwrap_or_default(),
        }),
    };
    Ok(Found {
        slot: row.try_get(0)?,
        watermark: row.try_get(1)?,
        advanced: row.try_get(2)?,
        polls_on: row.try_get(3)?,
        before_slot: row.try_get(4)?,
        same_cluster: row.try_get(14)?,
        belongs,
    })
}

/// Writes it, for the owner of `epoch`; another's row is not touched. `other_table`: the table is another one than
/// before.
///
/// # Errors
/// What the server says.
pub async fn write(
    client: &Client,
    pipeline: &str,
    epoch: i64,
    belongs: &Belongs,
    other_table: bool,
) -> Result<(), SourceError> {
    let failed = |e| {
        SourceError::control(
            format!("write what the position of pipeline {pipeline:?} belongs to"),
            e,
        )
        .of(Statement::Cursor)
    };
    // What is known of transactions is known of the rows of the table before. Rows of another table may be published
    // by nobody, though their transactions are older: those that the table has now are noted as rows of before the
    // slot.
    let forgets = if other_table {
        ", resolved_snapshot = NULL, pending_snapshot = NULL, pending_lsn = NULL, \
           before_slot = pg_catalog.pg_current_snapshot()"
    } else {
        ""
    };
    let sql = format!(
        "UPDATE postrider.cursor SET ({COLUMNS}) = ($3, $4, $5, $6, $7, $8, $9, $10, $11){forgets} \
         WHERE pipeline = $1 AND owner_epoch = $2"
    );
    let Belongs { mode, marks, sink, cluster, topic, key, table, table_oid, layout } = belongs;
    let parameters: [&(dyn ToSql + Sync); 11] =
        [&pipeline, &epoch, mode, marks, sink, cluster, topic, key, table, table_oid, layout];
    client.execute(&sql, &parameters).await.map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belongs() -> Belongs {
        Belongs {
            mode: "wal".to_owned(),
            marks: false,
            sink: "kafka".to_owned(),
            cluster: Some("A".to_owned()),
            topic: "{aggregate_type}".to_owned(),
            key: "{aggregate_id}".to_owned(),
            table: Some("public.outbox".to_owned()),
            table_oid: Some(7),
            layout: "postrider".to_owned(),
        }
    }

    #[test]
    fn each_setting_differs_by_itself() {
        type Edit = fn(&mut Belongs);
        let cases: [(&[Difference], Edit); 13] = [
            (&[], |_| {}),
            (&[Difference::Mode], |b| b.mode = "poll".into()),
            (&[], |b| b.marks = true),
            (&[Difference::Sink], |b| {
                b.sink = "stdout".into();
                b.cluster = None;
            }),
            (&[Difference::Cluster], |b| b.cluster = Some("B".into())),
            // No broker has answered yet.
            (&[], |b| b.cluster = None),
            (&[Difference::Topic], |b| b.topic = "other".into()),
            (&[Difference::Key], |b| b.key = "{id}".into()),
            (&[Difference::Table], |b| {
                b.table = Some("public.other".into());
                b.table_oid = Some(8);
            }),
            (&[Difference::Table], |b| {
                b.table = None;
                b.table_oid = None;
            }),
            (&[Difference::Renamed], |b| b.table = Some("public.other".into())),
            (&[Difference::Recreated], |b| b.table_oid = Some(8)),
            (&[Difference::Layout], |b| b.layout = "gcx".into()),
        ];
        for (expected, edit) in cases {
            let mut now = belongs();
            edit(&mut now);
            assert_eq!(belongs().differences(&now), expected, "{now:?}");
        }
    }

    #[test]
    fn a_cluster_that_is_not_known_yet_stays_as_it_was() {
        let before = belongs();
        let unknown = Belongs { cluster: None, ..belongs() };
        assert_eq!(unknown.clone().after(Some(&before)).cluster.as_deref(), Some("A"));
        assert_eq!(unknown.clone().after(None).cluster, None);
        let other = Belongs { sink: "stdout".into(), ..unknown };
        assert_eq!(other.after(Some(&before)).cluster, None);
    }
}
