//! Changed settings: whether a pipeline may continue at a position that it reached with other settings.
//!
//! The cursor row records the settings that its position belongs to (`postgres::store::cursor`). Each start compares
//! them with the configuration, under the pipeline's lock and before anything is published; `postrider check` makes the
//! same comparison. A change that could lose events, or repeat a whole table, is a halt that names the ways out. Other
//! changes are notes for the operator.

use super::capture_change;
use super::failure::{Failure, polling_helps};
use super::history::identity;
use super::mode::Mode;
use super::spec::{PipelineSpec, repair_table, topic_rule};
use crate::error::{Halt, HaltReason};
use crate::parked::State;
use crate::postgres::SourceError;
use crate::postgres::catalog::{self, TableFacts};
use crate::postgres::error_policy::{Action, Phase, action};
use crate::postgres::names::{TableName, literal};
use crate::postgres::poll::PollSpec;
use crate::postgres::poll::by_id::OutboxTable;
use crate::postgres::repair::{self, Method, Selection, UnmarkedRows};
use crate::postgres::start::{self, Facts};
use crate::postgres::store::cursor::{self, Difference, PositionSettings, SettingsRow};
use crate::postgres::store::parked;
use std::time::Duration;
use tokio_postgres::Client;
use tracing::{info, warn};

/// Rows that are counted at most: the whole table may match.
const COUNTED_MAX: u32 = 10_000;

/// A changed setting that does not change the position, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeNote {
    /// What has changed, or is left behind: a fragment.
    pub message: String,
    /// What the change means.
    pub why: String,
    /// A statement for an administrator.
    pub sql: Option<String>,
}

/// The result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The settings that the position belongs to; `None` if they are not recorded.
    pub before: Option<PositionSettings>,
    /// The settings that it belongs to from here on.
    pub now: PositionSettings,
    /// Why the pipeline may not continue.
    pub halt: Option<Halt>,
    /// A statement among the steps of the halt's hint, for an administrator.
    pub sql: Option<String>,
    /// The outbox table is another one than before: the resolved transactions say nothing about its rows.
    pub other_table: bool,
    /// Changes that the operator should know of.
    pub notes: Vec<ChangeNote>,
    /// The mode was `poll` and is now `auto`: the table is polled first, and then the slot is created again.
    pub hands_over: bool,
}

/// An unused slot of a polling pipeline: nothing reads it, and it retains WAL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftBehind {
    /// The name of the slot.
    pub slot: String,
    /// WAL that it retains. Unit: bytes.
    pub retained: u64,
}

impl LeftBehind {
    /// The finding: a fragment.
    pub fn message(&self) -> String {
        format!(
            "slot {:?} is left behind: mode = \"poll\" does not read it, and it retains {} MiB of WAL",
            self.slot,
            self.retained >> 20
        )
    }

    /// The statement that drops the slot.
    pub fn line(&self) -> String {
        format!("SELECT pg_drop_replication_slot({});", literal(&self.slot))
    }

    /// When dropping it is safe.
    pub const WHY: &str = "drop it once the pipeline polls: what is unpublished is in the table, and mode = \"auto\" \
                           creates a new slot. Only rows that were deleted before they were published, and logical \
                           messages, are in the slot alone";
}

/// The unused slot of a pipeline with mode `poll`, if there is one.
///
/// # Errors
/// Errors of the server.
pub async fn left_behind(
    client: &Client,
    spec: &PipelineSpec,
) -> Result<Option<LeftBehind>, SourceError> {
    if spec.common.mode != Mode::Poll {
        return Ok(None);
    }
    catalog::retained(client, &spec.names.slot).await.map(|retained| {
        retained.map(|retained| LeftBehind { slot: spec.names.slot.clone(), retained })
    })
}

/// The settings of a configuration that a position belongs to.
fn belongs(spec: &PipelineSpec, cluster: Option<&str>, table_oid: Option<u32>) -> PositionSettings {
    let outbox = &spec.common.outbox;
    let mut key = outbox.key.clone();
    if !outbox.partition.is_empty() {
        key = format!("{key} partition {}", outbox.partition);
    }
    PositionSettings {
        mode: spec.common.mode.name().to_owned(),
        marks: spec.marks().is_some(),
        sink: spec.common.sink.kind().to_owned(),
        cluster: cluster.map(str::to_owned),
        topic: topic_rule(outbox),
        key,
        table: if spec.names.captures() {
            Some(capture_change::stored_tables(spec))
        } else {
            spec.names.table.as_ref().map(ToString::to_string)
        },
        table_oid,
        layout: if spec.names.captures() {
            capture_change::LAYOUT.to_owned()
        } else {
            outbox.layout.name().to_owned()
        },
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The pipeline.
    pub spec: &'a PipelineSpec,
    /// The cluster of the brokers that answer, if any did.
    pub cluster: Option<&'a str>,
    /// OID of the outbox table, if it exists.
    pub table_oid: Option<u32>,
    /// A repair or a backfill publishes from a list, in every mode.
    pub repairs: bool,
    /// The table is polled now; in mode `auto` because no stream can be started ([`polls_now`]).
    pub polls: bool,
    /// Also report what has not changed since the last start but should be known.
    pub thorough: bool,
}

/// Whether `run` would poll the table: in mode `auto`, whether no stream can be started for a reason that leads to
/// polling. `application_name` is that of the session that tries to log in.
///
/// Reasons that appear only when the stream starts, or while it is read, are not found here.
pub async fn polls_now(spec: &PipelineSpec, facts: &Facts, application_name: &str) -> bool {
    if spec.common.mode != Mode::Auto {
        return spec.common.mode == Mode::Poll;
    }
    let refused = match identity(&spec.conninfo, application_name).await {
        Ok(_) => start::decide(facts).err().map(|halt| halt.reason),
        Err(error) => match action(&error, Phase::Connect, false) {
            Action::Halt(reason) | Action::Recheck(reason) => Some(reason),
            Action::Reconnect(_) | Action::Later(_) | Action::StandBy => None,
        },
    };
    refused.is_some_and(polling_helps)
}

/// Compares the configuration with the settings that the pipeline's position belongs to.
///
/// # Errors
/// Errors of the server.
pub async fn compare(client: &Client, settings: Settings<'_>) -> Result<Change, SourceError> {
    let Settings { spec, cluster, table_oid, repairs, polls, thorough } = settings;
    let mut change = Change {
        before: None,
        now: belongs(spec, cluster, table_oid),
        halt: None,
        sql: None,
        other_table: false,
        notes: Vec::new(),
        hands_over: false,
    };
    let Some(found) = cursor::read_settings(client, spec.key()).await? else { return Ok(change) };
    change.before.clone_from(&found.belongs);
    change.now = change.now.after(found.belongs.as_ref());
    // A row from before the upgrade that a stream has moved: the pipeline was not polling.
    let before = found.belongs.clone().or_else(|| {
        let streamed = found.slot.is_some() && found.advanced && spec.common.mode == Mode::Poll;
        streamed.then(|| PositionSettings {
            mode: "wal".to_owned(),
            marks: true,
            ..change.now.clone()
        })
    });
    let Some(before) = before else { return Ok(change) };
    let differences = before.differences(&change.now);
    // The table is polled to its end before a stream begins.
    let hands_over = before.mode == "poll" && spec.polls_instead_of_slot();
    let polls = polls || spec.common.mode == Mode::Poll || hands_over;
    // Another table, even if it has the same name.
    let other_rows =
        differences.iter().any(|of| matches!(of, Difference::Table | Difference::Recreated));
    let comparison = Comparison { client, spec, found: &found, before: &before, polls, other_rows };
    if spec.names.captures() || before.layout == capture_change::LAYOUT {
        return comparison.captured(differences, change).await;
    }
    let old = comparison.old_table(&differences).await?;
    change.other_table = old.is_some();
    // Nothing was published under the previous settings.
    let unused = found.slot.is_some() && !found.advanced && before.mode == "wal";
    let of_mode = if !differences.contains(&Difference::Mode) || repairs || unused {
        None
    } else if hands_over {
        // Until the new slot is bound to the row, the position stays one of polling.
        change.hands_over = true;
        "poll".clone_into(&mut change.now.mode);
        None
    } else {
        comparison.of_mode().await?
    };
    let elsewhere = if unused {
        None
    } else {
        comparison.elsewhere(&differences, &change.now, old.as_ref(), of_mode.is_some()).await?
    };
    (change.halt, change.sql) = both(elsewhere, of_mode);
    let newly_auto = differences.contains(&Difference::Mode) && before.mode == "wal";
    // Beside another halt, its statement could mark rows that the ways of that halt need.
    let may_poll = spec.common.mode == Mode::Auto && before.mode != "poll" && !repairs;
    if may_poll && (newly_auto || thorough) && !other_rows && change.halt.is_none() {
        change.notes.extend(comparison.may_poll().await?);
    }
    for difference in differences {
        change.notes.extend(comparison.note(difference, &change.now, old.is_some()).await?);
    }
    Ok(change)
}

/// Combines two halts: to adopt the settings means to adopt all of them. The ways are those of the first halt, and the
/// statement of the second one is not printed.
fn both(elsewhere: Option<Halt>, of_mode: Option<OfMode>) -> OfBoth {
    match (elsewhere, of_mode) {
        (Some(elsewhere), Some((mode, _))) => {
            let of_mode = mode.meaning.trim_start_matches("nothing was published. ");
            let halt = Halt {
                message: format!("{}. {}", elsewhere.message, mode.message),
                meaning: format!("{}. {of_mode}", elsewhere.meaning),
                ..elsewhere
            };
            (Some(halt), None)
        }
        (None, Some((halt, sql))) => (Some(halt), sql),
        (elsewhere, None) => (elsewhere, None),
    }
}

/// A halt, and the statement among the steps of its hint.
type OfMode = (Halt, Option<String>);

/// The same, if there is a halt.
type OfBoth = (Option<Halt>, Option<String>);

/// The warning about a printed statement.
const PRINTED_AGAIN: &str = "postrider check prints it again: a statement that was printed earlier leaves out rows \
                             that were published since";

/// Rows without a mark.
struct UnmarkedCounts {
    /// How many rows.
    rows: UnmarkedRows,
    /// The statement that marks those that are known to be published.
    mark_sql: Option<String>,
}

/// The table that the position belongs to, if the configuration names another one.
enum OldTable {
    /// There was no table.
    None,
    /// The table exists under this name.
    Is(TableName),
    /// No table has its OID any more. This was its name in SQL.
    Gone(String),
}

#[derive(Clone, Copy)]
struct Comparison<'a> {
    /// A session.
    client: &'a Client,
    /// The configuration.
    spec: &'a PipelineSpec,
    /// The recorded position and settings.
    found: &'a SettingsRow,
    /// The settings that the position belongs to.
    before: &'a PositionSettings,
    /// The table is polled from here on, whether or not a stream follows.
    polls: bool,
    /// The table is another one: the resolved transactions say nothing about its rows.
    other_rows: bool,
}

impl Comparison<'_> {
    /// The comparison of a pipeline that captures tables, or captured some before.
    async fn captured(
        &self,
        differences: Vec<Difference>,
        mut change: Change,
    ) -> Result<Change, SourceError> {
        // Nothing was published under the previous settings.
        if self.found.slot.is_some() && !self.found.advanced {
            return Ok(change);
        }
        let tables =
            capture_change::compare(self.client, self.spec, self.found, self.before).await?;
        let of_place = [Difference::Sink, Difference::Cluster, Difference::Topic];
        let place: Vec<Difference> =
            differences.iter().copied().filter(|of| of_place.contains(of)).collect();
        change.halt = match tables.halt {
            Some(halt) => Some(halt),
            None => self.elsewhere(&place, &change.now, None, false).await?,
        };
        if !tables.added.is_empty() {
            change.notes.push(ChangeNote {
                message: format!("capture.tables has {} from here on", tables.added.join(", ")),
                why: "changes of a table from before the publication had it are in no stream: load its consumers from \
                      the table"
                    .to_owned(),
                sql: None,
            });
        }
        for difference in differences.into_iter().filter(|of| *of == Difference::Key) {
            change.notes.extend(self.note(difference, &change.now, false).await?);
        }
        Ok(change)
    }

    /// The halt of another mode, without a hand-over.
    async fn of_mode(&self) -> Result<Option<OfMode>, SourceError> {
        let halt = match (self.before.mode.as_str(), self.spec.common.mode) {
            ("poll", Mode::Wal | Mode::Auto) => self.ends_polling().await?,
            // The stream has not begun: everything in the table is still to be polled.
            ("auto", Mode::Poll) if self.found.polls_on => None,
            (_, Mode::Poll) => return self.begins_polling().await,
            ("wal", Mode::Auto) if self.polls => self.polls_at_once().await?,
            (_, Mode::Auto | Mode::Wal | Mode::Embedded) => None,
        };
        Ok(halt.map(|halt| (halt, None)))
    }

    /// `marks`: rows without the layout's mark; otherwise all rows.
    async fn count(&self, marks: bool) -> Result<Option<UnmarkedCounts>, SourceError> {
        let Some(table) = repair_table(self.spec, marks) else { return Ok(None) };
        let (client, before) = (self.client, self.found.before_slot.as_deref());
        let before = before.filter(|_| !self.other_rows);
        let table = OutboxTable::read(client, table).await?;
        let method = if self.other_rows {
            Method::of(client, Selection::Both, None).await?
        } else {
            self.method().await?
        };
        Ok(Some(UnmarkedCounts {
            rows: method.count_unmarked(client, &table, before, COUNTED_MAX).await?,
            mark_sql: before.and_then(|before| method.mark_passed_sql(&table, before)),
        }))
    }

    async fn method(&self) -> Result<Method, SourceError> {
        let ledger =
            repair::resolved_baseline(self.client, self.spec.key(), None, Duration::ZERO).await?;
        Method::of(self.client, Selection::Both, ledger.known.as_deref()).await
    }

    fn name(&self) -> &str {
        self.spec.name()
    }

    fn table(&self) -> String {
        self.spec.names.table.as_ref().map_or_else(String::new, ToString::to_string)
    }

    /// The mode was `wal` or `auto` and is now `poll`: polling publishes every row without a mark, and nothing that is
    /// only in the slot.
    async fn begins_polling(&self) -> Result<Option<OfMode>, SourceError> {
        let Some(UnmarkedCounts { rows, mark_sql }) = self.count(true).await? else {
            return Ok(None);
        };
        let passed = rows.passed.is_some_and(|passed| passed > 0);
        let needs_a_word = if self.found.belongs.is_none() {
            // A pipeline of an older version may have polled for a long time: then no row is passed.
            passed
        } else {
            // Without marks, rows that were published since the last record are among the others.
            !self.before.marks
                || passed
                || rows.passed.is_none() && rows.all > 0
                || rows.before > Some(0)
        };
        if !needs_a_word {
            return Ok(None);
        }
        let (name, table, mode) = (self.name(), self.table(), &self.before.mode);
        let (all, published) = (figure(rows.all), self.published(rows));
        let watermark = &self.found.watermark;
        let in_slot = format!(
            "events after {watermark} whose rows are deleted already, and logical messages,"
        );
        let sql = mark_sql.filter(|_| passed);
        let (slot, (ways, sql)) = match self.found.slot.as_deref() {
            Some(slot) if catalog::slot_usable(self.client, slot).await? => (
                format!(
                    "Slot {slot:?} stays and retains WAL until it is dropped; {in_slot} are only in the slot, and \
                     polling does not publish them"
                ),
                (self.ways_to_polling(rows, sql.as_deref()), sql),
            ),
            slot => {
                let slot =
                    slot.map_or_else(|| "The slot".to_owned(), |slot| format!("Slot {slot:?}"));
                (
                    format!(
                        "{slot} is lost or does not exist: {in_slot} can't be published any more"
                    ),
                    self.ways_without_slot(rows, sql),
                )
            }
        };
        let halt = Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "mode is \"poll\", and the position of pipeline {name:?} belongs to mode \"{mode}\": polling would \
                 publish the {all} rows of {table} that have no mark, and nothing else"
            ),
            meaning: format!("nothing was published. {published}. {slot}"),
            hint: format!(
                "{ways}. (b) to publish all {all} rows, some of them again, and nothing that is only in the slot: \
                 postrider adopt -p {name}. (c) to stay: mode = \"{mode}\". Then start again"
            ),
        };
        Ok(Some((halt, sql.map(|sql| format!("{sql};")))))
    }

    /// Way (a) without a slot, and the statement among its steps: mode `auto` polls every row without a mark.
    fn ways_without_slot(
        &self,
        rows: UnmarkedRows,
        mark_sql: Option<String>,
    ) -> (String, Option<String>) {
        let (name, mode) = (self.name(), &self.before.mode);
        let (first, sql) = if mode == "auto" && !self.spec.messages() {
            let again = if mark_sql.is_some() || rows.passed == Some(0) {
                "the table".to_owned()
            } else {
                format!(
                    "all {} rows that have no mark, possibly some of them again,",
                    figure(rows.all)
                )
            };
            let mark = mark_sql.as_ref().map_or_else(String::new, |sql| {
                format!("mark what is known to be published: {sql} ({PRINTED_AGAIN}); ")
            });
            (
                format!(
                    "{mark}set mode = \"auto\" and start: it polls {again} and creates a new slot"
                ),
                mark_sql,
            )
        } else {
            (format!("set mode = \"{mode}\", run postrider repair -p {name}, and start"), None)
        };
        let way = format!(
            "(a) to publish first what is not known to be published: {first}. When the log says streaming, stop, set \
             mode = \"poll\" again, and follow what is printed then"
        );
        (way, sql)
    }

    /// Way (a) with a slot: nothing in the slot is lost, and with the statement nothing is repeated.
    fn ways_to_polling(&self, rows: UnmarkedRows, mark_sql: Option<&str>) -> String {
        let (name, mode) = (self.name(), &self.before.mode);
        let (repeats, mark) = match (mark_sql, rows.passed) {
            (Some(sql), _) => (
                "and repeat nothing",
                format!("mark what is known to be published: {sql} ({PRINTED_AGAIN}); "),
            ),
            (None, Some(0)) => ("and repeat nothing", String::new()),
            (None, _) => ("nothing", String::new()),
        };
        let left = match (rows.before, mark_sql) {
            (Some(before), Some(_)) if before > 0 => format!(
                ". The statement leaves out the {} rows that may be from before the slot was created: polling \
                 publishes them. Without its last condition it marks them too, and they are never published",
                figure(before)
            ),
            (Some(_), _) => String::new(),
            (None, _) if self.other_rows => format!(
                ". No statement is printed that marks what is published: the table was created again, and what is \
                 known of transactions says nothing of its rows. Polling publishes all {} rows that have no mark",
                figure(rows.all)
            ),
            (None, _) => format!(
                ". No statement is printed that marks what is published: rows from before the slot was created would \
                 be marked too, and never be published. Polling publishes all {} rows that have no mark",
                figure(rows.all)
            ),
        };
        format!(
            "(a) to lose {repeats}: go back to mode = \"{mode}\" and stop the writers until postrider status shows no \
             lag for a few seconds; stop Postrider and set mode = \"poll\" again; {mark}run postrider adopt -p {name}, \
             which shows how many rows are left{left}"
        )
    }

    /// The sentence about how many rows without a mark are published.
    fn published(&self, rows: UnmarkedRows) -> String {
        if self.other_rows {
            return format!(
                "How many of these rows are published is not known: what is known of transactions says nothing of the \
                 rows of {}, which is another table than before",
                self.table()
            );
        }
        published(rows)
    }

    /// The mode was `wal` and is now `auto`, while no stream can be started: the table would be polled at once.
    ///
    /// That rows are marked now says nothing about rows that the stream published before marks were turned on. And a
    /// row that is not known to be published is not known to be unpublished either.
    async fn polls_at_once(&self) -> Result<Option<Halt>, SourceError> {
        let Some(UnmarkedCounts { rows, .. }) = self.count(true).await? else { return Ok(None) };
        if rows.all == 0 {
            return Ok(None);
        }
        let (name, table, all) = (self.name(), self.table(), figure(rows.all));
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "mode is \"auto\", no stream can be started, and the position of pipeline {name:?} belongs to mode \
                 \"wal\": the table would be polled, with the {all} rows of {table} that have no mark"
            ),
            meaning: format!("nothing was published. {}", self.published(rows)),
            hint: format!(
                "(a) to publish only what is not known to be published: set mode = \"wal\"; if the slot is lost or \
                 does not exist, run postrider repair -p {name} (--dry-run counts), otherwise correct what postrider \
                 check names; start, and when the log says streaming set mode = \"auto\" again. (b) to publish all \
                 {all} rows, some of them possibly again: postrider adopt -p {name}. Then start again"
            ),
        }))
    }

    /// The mode was `poll`, and now a stream begins, from a slot that was created meanwhile or left behind.
    async fn ends_polling(&self) -> Result<Option<Halt>, SourceError> {
        let left = match self.count(true).await? {
            None => 0,
            Some(UnmarkedCounts { rows, .. }) => rows.not_streamed.unwrap_or(rows.all),
        };
        let (name, table, slot) = (self.name(), self.table(), &self.spec.names.slot);
        let (left, mode) = (figure(left), self.spec.common.mode.name());
        // With logical messages the slot is not created automatically.
        let first = if self.spec.messages() {
            format!(
                "(a) to lose nothing (with outbox.message_prefix mode = \"auto\" does not create the slot again): set \
                 mode = \"poll\" again, stop the writers, start, and wait until postrider status shows no lag for a \
                 few seconds; stop, set mode = \"{mode}\" again, and (b). "
            )
        } else {
            "(a) to lose and repeat nothing: start once with mode = \"auto\" until the log says streaming, and stop \
             it; then mode = \"wal\". "
                .to_owned()
        };
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "mode is \"{mode}\", and the position of pipeline {name:?} belongs to mode \"poll\""
            ),
            meaning: format!(
                "nothing was published. {left} rows of {table} have no mark and may be from before slot {slot:?}, \
                 which does not stream them; what polling has published since {} is streamed again from the slot",
                self.found.watermark
            ),
            hint: format!(
                "{first}(b) to begin at the slot as it is, without those {left} rows: \
                 postrider adopt -p {name}. (c) to stay: mode = \"poll\". Then start again"
            ),
        }))
    }

    /// The mode was `wal` and is now `auto`: nothing happens until the slot is lost.
    async fn may_poll(&self) -> Result<Option<ChangeNote>, SourceError> {
        let Some(UnmarkedCounts { rows, mark_sql }) = self.count(true).await? else {
            return Ok(None);
        };
        let Some(passed) = rows.passed.filter(|passed| *passed > 0) else { return Ok(None) };
        let statement = match (&mark_sql, rows.before) {
            (None, _) => "",
            (Some(_), Some(0)) => ". The statement marks them",
            (Some(_), _) => {
                ". The statement marks them, and leaves out rows that may be from before the slot was created"
            }
        };
        Ok(Some(ChangeNote {
            message: format!(
                "the stream has passed {} rows of {} that have no mark",
                figure(passed),
                self.table()
            ),
            why: format!(
                "mode = \"auto\" polls the table when the slot is lost, and publishes them again then{statement}"
            ),
            sql: mark_sql.map(|sql| format!("{sql};")),
        }))
    }

    /// The table that the position belongs to, if it is another one. A table that was dropped and created again under
    /// its name is the same table to a stream, because the slot has what was unpublished in it. To polling it is
    /// another table.
    async fn old_table(&self, differences: &[Difference]) -> Result<Option<OldTable>, SourceError> {
        let recreated = differences.contains(&Difference::Recreated);
        if !recreated && !differences.contains(&Difference::Table) {
            return Ok(None);
        }
        let Some(name) = self.before.table.clone() else { return Ok(Some(OldTable::None)) };
        let exists = match self.before.table_oid.filter(|_| self.found.same_cluster) {
            Some(oid) => catalog::name_of(self.client, oid).await?,
            None => None,
        };
        Ok(match exists {
            Some(exists) => Some(OldTable::Is(exists)),
            None if recreated && self.before.mode != "poll" => None,
            None => Some(OldTable::Gone(name)),
        })
    }

    /// The halt of another destination, table or layout. `mode_too`: the mode has changed too, in a way that halts.
    async fn elsewhere(
        &self,
        differences: &[Difference],
        now: &PositionSettings,
        old: Option<&OldTable>,
        mode_too: bool,
    ) -> Result<Option<Halt>, SourceError> {
        let changed: Vec<String> =
            differences.iter().filter_map(|of| self.changed(*of, now, old)).collect();
        if changed.is_empty() {
            return Ok(None);
        }
        let place = [Difference::Sink, Difference::Cluster, Difference::Topic];
        let place = differences.iter().any(|difference| place.contains(difference));
        let keeps = place || differences.contains(&Difference::Layout);
        let parked = if keeps { self.parked().await? } else { 0 };
        // The ways are those of one changed setting, with the previous mode.
        let polls = if mode_too { self.before.mode == "poll" } else { self.polls };
        let first = Comparison { polls, ..*self };
        let (rows, of, ways) = match old {
            Some(old) => {
                let recreated = differences.contains(&Difference::Recreated);
                let (new_rows, old_rows) = (self.of_new_table().await, self.of_old(old, now).await);
                let rows = format!("{new_rows}{old_rows}");
                (rows, "the table", first.ways_to_table(old, recreated))
            }
            None if place => (
                self.lacking(now).await,
                "the destination",
                format!("{}{}", first.parked_first(parked), first.ways_to_place()),
            ),
            None => (self.of_layout(now).await, "outbox.layout", first.ways_to_layout(now)),
        };
        // A new table may have a layout of its own.
        let mut others = Vec::new();
        if old.is_some() && place {
            others.push("sink and route.topic".to_owned());
        }
        others.extend(mode_too.then(|| format!("mode = {:?}", self.before.mode)));
        let one_by_one = if others.is_empty() {
            String::new()
        } else {
            format!(
                "Change one setting at a time. First set back: {}. Then change {of} in one of these ways, and after \
                 that the rest, by what is printed then: ",
                others.join(", ")
            )
        };
        let of_parked = if parked == 0 {
            String::new()
        } else {
            format!(
                ". Parked events that are not resolved: {parked}. Each keeps the topic and the record with which it \
                 was parked, and a retry publishes it to that topic, of whatever sink is configured then"
            )
        };
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "the position of pipeline {:?} belongs to other settings: {}",
                self.name(),
                changed.join("; ")
            ),
            meaning: format!("nothing was published. {rows}{of_parked}"),
            hint: format!("{one_by_one}{ways}. Then start again"),
        }))
    }

    /// The sentence about another layout of the same table, with the same destination.
    async fn of_layout(&self, now: &PositionSettings) -> String {
        if self.polls {
            return self.lacking(now).await;
        }
        format!(
            "What was committed up to {} was published by layout {:?}, and what follows is published by layout {:?}: \
             no event is lost or repeated by that",
            self.found.watermark, self.before.layout, now.layout
        )
    }

    /// The steps for parked events before the destination changes.
    fn parked_first(&self, parked: u64) -> String {
        if parked == 0 {
            return String::new();
        }
        let pipeline = self.name();
        let skipped = if self.replays() {
            ". The replay of (a) publishes skipped events too, at the new place; by (b) they are not published"
        } else {
            ""
        };
        format!(
            "For (a) or (b), first resolve the parked events, with the old values and Postrider running: postrider \
             parked list -p {pipeline}; postrider parked retry -p {pipeline} --all publishes them to the old topic; \
             where that topic does not take them, postrider parked skip -p {pipeline} --all gives them up{skipped}. "
        )
    }

    /// What a setting is and was; `None` for a setting that does not change the destination, the table or the layout.
    fn changed(
        &self,
        difference: Difference,
        now: &PositionSettings,
        old: Option<&OldTable>,
    ) -> Option<String> {
        let before = self.before;
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let table = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".to_owned());
        let (setting, was, is) = match difference {
            Difference::Sink => ("sink.kind", before.sink.clone(), now.sink.clone()),
            Difference::Cluster => ("the Kafka cluster", name(&before.cluster), name(&now.cluster)),
            Difference::Topic => ("route.topic", before.topic.clone(), now.topic.clone()),
            Difference::Table => {
                return Some(format!(
                    "outbox.table is {}, and was {}",
                    table(&now.table),
                    table(&before.table)
                ));
            }
            Difference::Layout => ("outbox.layout", before.layout.clone(), now.layout.clone()),
            Difference::Recreated => {
                let table = self.table();
                return Some(match old? {
                    OldTable::Is(renamed) => format!(
                        "table {table} is another table, and the previous one is now named {renamed}"
                    ),
                    OldTable::None | OldTable::Gone(_) => format!(
                        "table {table} is another table: the previous one was dropped, or this database was restored"
                    ),
                });
            }
            Difference::Mode | Difference::Key | Difference::Renamed => return None,
        };
        Some(format!("{setting} is {is:?}, and was {was:?}"))
    }

    /// Whether published rows are still in the table.
    fn replays(&self) -> bool {
        let deletes = self.spec.poll.table.as_ref().is_some_and(PollSpec::deletes_published);
        self.before.mode != "poll" || !deletes
    }

    /// The ways to another layout of the same table, with the same destination.
    fn ways_to_layout(&self, now: &PositionSettings) -> String {
        let pipeline = self.name();
        if !self.polls {
            return format!(
                "(a) to continue with the new layout: postrider adopt -p {pipeline}. (b) to continue as before: set \
                 the old values again"
            );
        }
        format!(
            "(a) to publish none again: give the rows that layout {:?} has marked as published the mark that layout \
             {:?} has for it, or delete them where it has none; then postrider adopt -p {pipeline}. (b) to publish all \
             rows that have no mark, some of them possibly again: postrider adopt -p {pipeline}. (c) to continue as \
             before: set the old values again",
            self.before.layout, now.layout
        )
    }

    /// The ways to another destination.
    fn ways_to_place(&self) -> String {
        let pipeline = self.name();
        let (twice, begin) = if self.polls {
            ("rows that have no mark are published twice", "with the rows that have no mark")
        } else {
            (
                "what was committed since the position is published twice",
                "with what was committed since the position",
            )
        };
        let replay = if self.replays() {
            self.replay("there what the table still has", twice)
        } else {
            "(a) rows that polling has published are deleted, and can't be published again"
                .to_owned()
        };
        format!(
            "{replay}. (b) to begin there {begin}: postrider adopt -p {pipeline}. (c) to continue as before: set the \
             old values again"
        )
    }

    /// Way (a) as a replay. It publishes `what`; `twice` names what is repeated.
    fn replay(&self, what: &str, twice: &str) -> String {
        let pipeline = self.name();
        match &self.spec.poll.table {
            Some(table) if table.time.is_some() => format!(
                "(a) to publish {what}: postrider replay -p {pipeline} --since 1970-01-02 --source table \
                 --include-parked, then postrider adopt -p {pipeline}; {twice}"
            ),
            Some(_) => format!(
                "(a) to publish {what}: postrider replay -p {pipeline} --source table with --id or --aggregate (the \
                 table has no time column), then postrider adopt -p {pipeline}; {twice}"
            ),
            None if self.spec.names.captures() => {
                "(a) what came before can't be published again: load the consumers there from the tables, after (b)"
                    .to_owned()
            }
            None => "(a) logical messages leave no rows: what came before can't be published again"
                .to_owned(),
        }
    }

    /// The ways to another table. `recreated`: it has the name of the previous one.
    fn ways_to_table(&self, old: &OldTable, recreated: bool) -> String {
        let (pipeline, table) = (self.name(), self.table());
        let back = match (old, recreated) {
            (OldTable::Is(renamed), true) => {
                let twice = if self.polls {
                    ""
                } else {
                    "; those that are in the slot are published twice, and with another id if it is a number"
                };
                format!(
                    ". (c) to continue as before: in one transaction, lock both tables, insert the rows of {table} \
                     into {renamed} (ids that are numbers begin again in a new table: leave them out, and sort by \
                     them), drop {table}, and rename {renamed} to {table}{twice}"
                )
            }
            (OldTable::None | OldTable::Gone(_), true) => String::new(),
            (_, false) => ". (c) to continue as before: set the old values again".to_owned(),
        };
        let publish_rest = |name: &TableName| {
            let config = format!("{}.{}", name.schema, name.name);
            let set = if recreated {
                format!("set outbox.table = {config:?}")
            } else {
                format!("set the old values again, with outbox.table = {config:?}")
            };
            format!(
                "let nothing write to {name} any more; {set}, start, and wait until postrider status shows no lag for \
                 a few seconds; stop, and set the new values again"
            )
        };
        if self.polls {
            let rest = match old {
                OldTable::Is(name) => format!(
                    "(a) to publish the rest of {name} first: {}; then (b). ",
                    publish_rest(name)
                ),
                OldTable::Gone(_) => format!(
                    "(a) to publish what was unpublished in the previous table: insert from a backup the rows that \
                     have no mark in it into {table}; those that were published after the backup are published again; \
                     then (b). If this database was restored, {table} has them already, and (b) publishes again what \
                     was published after the backup. "
                ),
                OldTable::None => String::new(),
            };
            return format!(
                "{rest}(b) to publish all rows of {table} that have no mark, and nothing else: postrider adopt -p \
                 {pipeline}{back}"
            );
        }
        let rest = match (old, recreated) {
            (OldTable::Is(renamed), true) => format!(
                "For (a) or (b), rows that were inserted into {renamed} since it was renamed are in no stream: first \
                 insert them into {table} too. "
            ),
            (OldTable::Is(name), false) => {
                format!(
                    "For (a) or (b), first publish the rest of {name}: {}. ",
                    publish_rest(name)
                )
            }
            (OldTable::None | OldTable::Gone(_), _) => String::new(),
        };
        let twice = "what was committed since the position is published twice, and so is what the statement of \
                     PR008 has written again: after that statement take (b)";
        format!(
            "{rest}{}. (b) to begin there with what was committed since the position: postrider adopt -p \
             {pipeline}{back}",
            self.replay("the rows of the new table", twice)
        )
    }

    /// The sentence about unpublished rows of the previous table.
    async fn of_old(&self, old: &OldTable, now: &PositionSettings) -> String {
        let name = match old {
            OldTable::None => return String::new(),
            OldTable::Gone(name) => {
                return format!(
                    ". What was unpublished in the previous {name} can't be counted: that table is not in this \
                     database any more"
                );
            }
            OldTable::Is(name) => name,
        };
        let rows = self.unpublished(name, now).await.map_or_else(
            || "an unknown number of rows".to_owned(),
            |rows| format!("{} rows", up_to(rows)),
        );
        // A stream uses the name that the table had at the time.
        let brings = if !self.polls && self.before.table == now.table {
            "the slot contains only those that were committed before the table was renamed"
        } else {
            "these settings do not publish them"
        };
        format!(". Of {name}, {rows} are not known to be published, and {brings}")
    }

    /// How many rows of the previous table are not known to be published; `None` if they can't be counted.
    async fn unpublished(&self, name: &TableName, now: &PositionSettings) -> Option<u64> {
        let (client, before) = (self.client, self.before);
        let method = self.method().await.ok()?;
        if before.mode != "poll" {
            return method.count_unresolved(client, name, COUNTED_MAX).await.ok()?;
        }
        // Its marks are those of the layout.
        let mut table = repair_table(self.spec, true).filter(|_| before.layout == now.layout)?;
        table.table = name.clone();
        let table = OutboxTable::read(client, table).await.ok()?;
        let rows = method.count_unmarked(client, &table, None, COUNTED_MAX);
        Some(rows.await.ok()?.all)
    }

    /// The sentence about the rows of another table.
    async fn of_new_table(&self) -> String {
        if self.spec.names.table.is_none() {
            return "Events are logical messages alone from here on".to_owned();
        }
        let table = self.table();
        // Streaming does not need SELECT on the table, so its rows may not be countable.
        let rows = match self.count(self.polls).await {
            Ok(Some(UnmarkedCounts { rows, .. })) => Some(rows.all),
            Ok(None) | Err(_) => None,
        };
        match (rows, self.polls) {
            (Some(rows), true) => {
                format!("Polling publishes all {} rows of {table} that have no mark", figure(rows))
            }
            (None, true) => format!("Polling publishes all rows of {table} that have no mark"),
            // A row does not show when the table was added to the publication.
            (rows, false) => format!(
                "No stream contains rows of {table} from before the position, or from before publication {:?} had the \
                 table: {} rows",
                self.spec.names.publication,
                rows.map_or_else(|| "an unknown number of".to_owned(), up_to),
            ),
        }
    }

    /// The sentence about what a new destination lacks. Streaming does not need SELECT on the table, so its rows may
    /// not be countable.
    async fn lacking(&self, now: &PositionSettings) -> String {
        if self.spec.names.captures() {
            return format!(
                "Everything below {} went only to the old destination; the new destination lacks it, and captured \
                 tables do not show what it was",
                self.found.watermark
            );
        }
        let table = self.table();
        let polled = self.before.mode == "poll";
        let unmarked = async {
            let counts = if self.polls { self.count(true).await? } else { None };
            Ok::<_, SourceError>(counts.map(|counts| figure(counts.rows.all)))
        };
        let unmarked = unmarked.await.unwrap_or_default();
        let polls = unmarked.as_ref().map_or_else(String::new, |rows| {
            format!(". Polling publishes there the {rows} rows that have no mark")
        });
        // The marks of the previous layout show what was published, and are no longer read.
        if self.polls && self.before.layout != now.layout {
            let rows = unmarked.unwrap_or_else(|| "unknown number of".to_owned());
            return format!(
                "Polling goes by the marks of layout {:?}: it publishes the {rows} rows of {table} that have none, \
                 those too that layout {:?} has marked as published",
                now.layout, self.before.layout
            );
        }
        let counted = async {
            if polled {
                let Some(of) = repair_table(self.spec, true) else { return Ok(None) };
                let of = OutboxTable::read(self.client, of).await?;
                return Method::count_marked(self.client, &of, COUNTED_MAX).await.map(Some);
            }
            let rows = self.count(false).await?.map(|counts| counts.rows);
            Ok::<_, SourceError>(rows.and_then(|rows| rows.not_streamed.or(rows.passed)))
        };
        let at = if polled {
            "What polling has published".to_owned()
        } else {
            format!("Everything below {}", self.found.watermark)
        };
        let rows = match counted.await {
            Ok(Some(rows)) => {
                format!(
                    "the new destination lacks it: {} rows that {table} still has, and rows deleted since",
                    figure(rows)
                )
            }
            Ok(None) | Err(_) => {
                "the new destination lacks it: how much of it the table still has could not be counted"
                    .to_owned()
            }
        };
        format!("{at} went only to the old destination; {rows}{polls}")
    }

    /// Number of parked events that are not resolved.
    async fn parked(&self) -> Result<u64, SourceError> {
        let counts = parked::counts(self.client, self.spec.key()).await?;
        let open = State::ALL.iter().filter(|state| !state.resolved());
        Ok(open.map(|state| counts.of(*state)).sum())
    }

    /// The note about a difference. `halts`: the difference is part of a halt already.
    async fn note(
        &self,
        difference: Difference,
        now: &PositionSettings,
        halts: bool,
    ) -> Result<Option<ChangeNote>, SourceError> {
        let name = |value: &Option<String>| value.clone().unwrap_or_default();
        let (message, why) = match difference {
            Difference::Key => {
                let parked = match self.parked().await? {
                    0 => String::new(),
                    rows => format!("; parked events that keep the old key and partition: {rows}"),
                };
                (
                    format!(
                        "route.key or route.partition is {:?}, and was {:?}",
                        now.key, self.before.key
                    ),
                    format!(
                        "events of an aggregate may go to another partition from here on: consumers may read them \
                         before the ones that were published with the old key{parked}"
                    ),
                )
            }
            Difference::Renamed => (
                format!(
                    "outbox.table is {}, and was {}",
                    name(&now.table),
                    name(&self.before.table)
                ),
                "it is the same table with another name: nothing is lost or repeated".to_owned(),
            ),
            Difference::Recreated if !halts => (
                format!("table {} was dropped and created again, or restored", self.table()),
                if self.polls {
                    "what was unpublished in the previous table was only in the slot, and no stream can be started"
                } else {
                    "what was unpublished in the previous table is only in the slot"
                }
                .to_owned(),
            ),
            Difference::Mode
            | Difference::Sink
            | Difference::Cluster
            | Difference::Topic
            | Difference::Table
            | Difference::Recreated
            | Difference::Layout => return Ok(None),
        };
        Ok(Some(ChangeNote { message, why, sql: None }))
    }
}

/// The sentence about how many of the rows without a mark are published.
fn published(rows: UnmarkedRows) -> String {
    match (rows.passed, rows.before) {
        (_, None) => "How many of these rows are published is not known, since it is not known which are from before \
        the slot was created: an older version made the cursor row"
            .to_owned(),
        (None, Some(_)) => "How many of these rows are published is not known yet".to_owned(),
        (Some(passed), Some(before)) => {
            let before = match before {
                0 => String::new(),
                rows => format!(
                    "; {} may be from before the slot was created, or from before this table was adopted, so that the \
                     stream has not published them",
                    figure(rows)
                ),
            };
            format!(
                "Of these rows {} are known to be published, and would be published again after newer events of their \
                 aggregates{before}",
                figure(passed)
            )
        }
    }
}

/// A number of rows, of which at most [`COUNTED_MAX`] are counted.
fn figure(rows: u64) -> String {
    if rows >= u64::from(COUNTED_MAX) { format!("{rows} or more") } else { rows.to_string() }
}

/// An upper bound, of which at most [`COUNTED_MAX`] are counted.
fn up_to(rows: u64) -> String {
    if rows >= u64::from(COUNTED_MAX) { figure(rows) } else { format!("up to {rows}") }
}

/// What starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The stream.
    Stream,
    /// Polling, in mode `poll` or instead of the stream.
    Polling,
    /// A repair or a backfill.
    Repair,
}

/// Compares the settings at a start.
///
/// # Errors
/// The halt, if the pipeline may not continue; errors of the server.
pub(super) async fn check(
    client: &Client,
    spec: &PipelineSpec,
    (cluster, table): (Option<&str>, Option<&TableFacts>),
    by: By,
) -> Result<Change, Failure> {
    let table_oid = table.map(|table| table.oid);
    let (repairs, polls) = (by == By::Repair, by == By::Polling);
    let settings = Settings { spec, cluster, table_oid, repairs, polls, thorough: false };
    let compared = compare(client, settings).await;
    let mut change = compared.map_err(|error| Failure::Source(error, Phase::Handshake))?;
    match change.halt.take() {
        Some(halt) => Err(Failure::Halt(Box::new(halt))),
        None => Ok(change),
    }
}

/// Compares the settings at the start of a stream. A pipeline that polled before comes to the stream by a hand-over.
pub(super) async fn check_stream(
    client: &Client,
    spec: &PipelineSpec,
    known: (Option<&str>, Option<&TableFacts>),
) -> Result<Change, Failure> {
    let change = check(client, spec, known, By::Stream).await?;
    if change.hands_over { Err(Failure::HandOver) } else { Ok(change) }
}

/// Records the settings that the position belongs to from here on, if they differ, and logs them. `epoch`: that of the
/// owner.
pub(super) async fn record(
    client: &Client,
    spec: &PipelineSpec,
    epoch: i64,
    change: &Change,
) -> Result<(), Failure> {
    for note in &change.notes {
        setting_changed(spec, note);
    }
    if change.before.as_ref() == Some(&change.now) {
        return Ok(());
    }
    cursor::write_settings(client, spec.key(), epoch, &change.now, change.other_table)
        .await
        .map_err(|error| Failure::Source(error, Phase::Control))?;
    position_belongs(spec, &change.now, change.before.is_none());
    Ok(())
}

/// From here on the position belongs to these settings. `first`: nothing was recorded before.
fn position_belongs(spec: &PipelineSpec, belongs: &PositionSettings, first: bool) {
    let PositionSettings { mode, sink, cluster, topic, table, layout, .. } = belongs;
    info!(
        event = "position_belongs",
        pipeline = spec.name(),
        mode,
        sink,
        cluster,
        topic,
        table,
        layout,
        first,
        "the position belongs to these settings from here on; others are compared with them at each start"
    );
}

/// A setting differs, and the pipeline continues.
fn setting_changed(spec: &PipelineSpec, note: &ChangeNote) {
    let ChangeNote { message, why, sql } = note;
    warn!(
        event = "setting_changed",
        pipeline = spec.name(),
        reason = message,
        hint = sql,
        "{message}: {why}"
    );
}
