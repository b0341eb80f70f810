//! What a changed configuration leads to: whether a pipeline may go on at a position that it reached with other
//! settings.
//!
//! The cursor row says what its position belongs to (`postgres::belongs`). Each start compares it with the
//! configuration, under the pipeline's lock and before anything is published; `postrider check` does the same and says
//! the same. What could lose events, or repeat a whole table, is a halt that names the ways out. What an operator
//! should only know is a note.

use super::connect::Failure;
use super::repair::repair_table;
use super::say;
use super::spec::{Mode, PipelineSpec};
use crate::error::{Halt, HaltReason};
use crate::postgres::action::Phase;
use crate::postgres::belongs::{self, Belongs, Difference, Found};
use crate::postgres::names::literal;
use crate::postgres::poll::listed::Table;
use crate::postgres::repair::{self, Method, Selection, Unmarked};
use crate::postgres::table::{self, TableFacts};
use crate::postgres::{SourceError, slot};
use crate::sink::SinkSpec;
use std::time::Duration;
use tokio_postgres::Client;

/// Rows that are counted: there may be a whole table of them.
const COUNTED_MAX: u32 = 10_000;

/// How the rest of the table of before is published.
const OLD_WAY: &str = " To publish the rest of the old table, set the old values, stop the writers, and wait until \
                       postrider status shows no lag for a few seconds.";

/// How settings that do not change the position are logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeNote {
    /// What has changed, or is left behind: a fragment.
    pub message: String,
    /// What it means.
    pub why: String,
    /// A statement for an administrator.
    pub sql: Option<String>,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What the position belongs to; `None` where that is not known.
    pub before: Option<Belongs>,
    /// What it belongs to from here on.
    pub now: Belongs,
    /// Why the pipeline may not go on.
    pub halt: Option<Halt>,
    /// What should be known.
    pub notes: Vec<ChangeNote>,
    /// Mode `poll` before, and now `auto`: what is in the table is polled first, and then the slot is created again.
    pub hands_over: bool,
}

/// The slot of a pipeline that polls: nobody reads it, and it retains WAL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftBehind {
    /// The slot.
    pub slot: String,
    /// Bytes of WAL that it retains.
    pub retained: u64,
}

impl LeftBehind {
    /// What it is: a fragment.
    pub fn message(&self) -> String {
        format!(
            "slot {:?} is left behind: mode = \"poll\" does not read it, and it retains {} MiB of WAL",
            self.slot,
            self.retained >> 20
        )
    }

    /// The line that drops it.
    pub fn line(&self) -> String {
        format!("SELECT pg_drop_replication_slot({});", literal(&self.slot))
    }

    /// When that is safe.
    pub const WHY: &str = "drop it once the pipeline polls: what is unpublished is in the table, and mode = \"auto\" \
                           makes a new slot. Only rows that were deleted before they were published, and logical \
                           messages, are in the slot alone";
}

/// The slot that a pipeline of mode `poll` has left behind.
///
/// # Errors
/// What the server says.
pub async fn left_behind(
    client: &Client,
    spec: &PipelineSpec,
) -> Result<Option<LeftBehind>, SourceError> {
    if spec.mode != Mode::Poll {
        return Ok(None);
    }
    slot::retained(client, &spec.names.slot).await.map(|retained| {
        retained.map(|retained| LeftBehind { slot: spec.names.slot.clone(), retained })
    })
}

/// The settings of a configuration.
fn belongs(spec: &PipelineSpec, cluster: Option<&str>, table_oid: Option<u32>) -> Belongs {
    let sink = match spec.sink {
        SinkSpec::Kafka(_) => "kafka",
        SinkSpec::Stdout => "stdout",
        SinkSpec::Discard => "discard",
    };
    let outbox = &spec.outbox;
    let mut topic = outbox.topic.clone();
    if let Some(replace) = &outbox.replace {
        topic = format!("{topic} {:?} -> {:?}", replace.pattern, replace.with);
    }
    let mut key = outbox.key.clone();
    if !outbox.partition.is_empty() {
        key = format!("{key} partition {}", outbox.partition);
    }
    Belongs {
        mode: word(spec.mode).to_owned(),
        marks: spec.marks().is_some(),
        sink: sink.to_owned(),
        cluster: cluster.map(str::to_owned),
        topic,
        key,
        table: spec.names.table.as_ref().map(ToString::to_string),
        table_oid,
        layout: outbox.layout.name().to_owned(),
    }
}

/// What a pipeline's position belongs to, in words.
pub(super) fn words(spec: &PipelineSpec, cluster: Option<&str>) -> String {
    let Belongs { mode, sink, cluster, topic, table, layout, .. } = belongs(spec, cluster, None);
    let cluster = cluster.map_or_else(String::new, |cluster| format!(" cluster {cluster}"));
    let table = table.unwrap_or_else(|| "no table".to_owned());
    format!("mode {mode}, {sink}{cluster}, topic {topic}, {table}, layout {layout}")
}

const fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::Wal => "wal",
        Mode::Poll => "poll",
        Mode::Auto => "auto",
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The pipeline.
    pub spec: &'a PipelineSpec,
    /// The cluster whose brokers answer, where one did.
    pub cluster: Option<&'a str>,
    /// The outbox table's OID, where it exists.
    pub table_oid: Option<u32>,
    /// A repair or a backfill publishes from a list, in every mode.
    pub repairs: bool,
    /// The table is polled now: in mode `auto` too, since there is no slot to stream from.
    pub polls: bool,
    /// Also what has not changed since the last start, and should be known.
    pub thorough: bool,
}

/// Compares the configuration with what the pipeline's position belongs to.
///
/// # Errors
/// What the server says.
pub async fn look(client: &Client, settings: Settings<'_>) -> Result<Change, SourceError> {
    let Settings { spec, cluster, table_oid, repairs, polls, thorough } = settings;
    let now = belongs(spec, cluster, table_oid);
    let mut change = Change { before: None, now, halt: None, notes: Vec::new(), hands_over: false };
    let Some(found) = belongs::read(client, spec.name()).await? else { return Ok(change) };
    change.before.clone_from(&found.belongs);
    change.now = change.now.after(found.belongs.as_ref());
    // A row of before the upgrade that a stream has moved: it was not polling.
    let before = found.belongs.clone().or_else(|| {
        let streamed = found.slot.is_some() && found.advanced && spec.mode == Mode::Poll;
        streamed.then(|| Belongs { mode: "wal".to_owned(), marks: true, ..change.now.clone() })
    });
    let Some(before) = before else { return Ok(change) };
    let look = Look { client, spec, found: &found, before: &before };
    let differences = before.differences(&change.now);
    // Nothing was published under the settings of before.
    let unused = found.slot.is_some() && !found.advanced && before.mode == "wal";
    if !unused {
        change.halt = look.elsewhere(&differences, &change.now).await?;
    }
    let of_mode = differences.contains(&Difference::Mode) && !repairs && !unused;
    if of_mode {
        let of_mode = match (before.mode.as_str(), spec.mode) {
            // Until the new slot is bound to the row, the position stays one of polling.
            ("poll", Mode::Auto) if spec.polls_in_its_stead() => {
                change.hands_over = true;
                "poll".clone_into(&mut change.now.mode);
                None
            }
            ("poll", Mode::Wal | Mode::Auto) => look.ends_polling().await?,
            // The stream has not begun: all that is in the table is still to be polled.
            ("auto", Mode::Poll) if found.polls_on => None,
            (_, Mode::Poll) => look.begins_polling().await?,
            ("wal", Mode::Auto) if polls || !slot::stands(client, &spec.names.slot).await? => {
                look.polls_at_once().await?
            }
            (_, Mode::Auto | Mode::Wal) => None,
        };
        change.halt = both(change.halt, of_mode);
    }
    let newly_auto = differences.contains(&Difference::Mode) && before.mode == "wal";
    if spec.mode == Mode::Auto && before.mode != "poll" && !repairs && (newly_auto || thorough) {
        change.notes.extend(look.may_poll().await?);
    }
    change.notes.extend(differences.iter().filter_map(|of| look.note(*of, &change.now)));
    Ok(change)
}

/// Two reasons in one: whoever adopts the settings adopts all of them.
fn both(one: Option<Halt>, other: Option<Halt>) -> Option<Halt> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Halt {
            reason: one.reason,
            message: format!("{}. {}", one.message, other.message),
            meaning: format!("{}. {}", one.meaning, other.meaning),
            hint: format!("For the one: {}. For the other: {}", one.hint, other.hint),
        }),
        (one, other) => one.or(other),
    }
}

/// Rows of the table.
struct Counts {
    rows: Unmarked,
    /// The statement that marks those that are known to be published.
    mark_sql: Option<String>,
}

struct Look<'a> {
    client: &'a Client,
    spec: &'a PipelineSpec,
    found: &'a Found,
    before: &'a Belongs,
}

impl Look<'_> {
    /// `marks`: by the layout's marks; else every row is without.
    async fn count(&self, marks: bool) -> Result<Option<Counts>, SourceError> {
        let Some(table) = repair_table(self.spec, marks) else { return Ok(None) };
        let (client, before) = (self.client, self.found.before_slot.as_deref());
        let table = Table::read(client, table).await?;
        let method = self.method().await?;
        Ok(Some(Counts {
            rows: method.count_unmarked(client, &table, before, COUNTED_MAX).await?,
            mark_sql: before.and_then(|before| method.mark_passed_sql(&table, before)),
        }))
    }

    async fn method(&self) -> Result<Method, SourceError> {
        let ledger = repair::ledger(self.client, self.name(), None, Duration::ZERO).await?;
        Method::of(self.client, Selection::Both, ledger.known.as_deref()).await
    }

    fn name(&self) -> &str {
        self.spec.name()
    }

    fn table(&self) -> String {
        self.spec.names.table.as_ref().map_or_else(String::new, ToString::to_string)
    }

    /// Mode `wal` or `auto` before, and now `poll`: polling publishes every row without a mark, and nothing that is in
    /// the slot alone.
    async fn begins_polling(&self) -> Result<Option<Halt>, SourceError> {
        let Some(Counts { rows, mark_sql }) = self.count(true).await? else { return Ok(None) };
        let passed = rows.passed.is_some_and(|passed| passed > 0);
        let needs_a_word = if self.found.belongs.is_none() {
            // A pipeline of an older version may have polled for long: then no row is passed.
            passed
        } else {
            // Without marks, what was published since that was noted last is among the others.
            !self.before.marks
                || passed
                || rows.passed.is_none() && rows.all > 0
                || rows.before > Some(0)
        };
        if !needs_a_word {
            return Ok(None);
        }
        let (name, table, mode) = (self.name(), self.table(), &self.before.mode);
        let (all, published) = (figure(rows.all), published(rows));
        let watermark = &self.found.watermark;
        let in_slot = format!(
            "events after {watermark} whose rows are deleted already, and logical messages,"
        );
        let (slot, ways) = match self.found.slot.as_deref() {
            Some(slot) if slot::stands(self.client, slot).await? => (
                format!(
                    "Slot {slot:?} stays and retains WAL until it is dropped; {in_slot} are in it alone, and polling \
                     does not publish them"
                ),
                self.ways_to_polling(rows, mark_sql.as_deref().filter(|_| passed)),
            ),
            slot => {
                let slot =
                    slot.map_or_else(|| "The slot".to_owned(), |slot| format!("Slot {slot:?}"));
                let first = if mode == "wal" {
                    format!("set mode = \"wal\", run postrider repair -p {name}, and start")
                } else {
                    format!(
                        "set mode = \"{mode}\" and start: it polls the table and makes a new slot"
                    )
                };
                (
                    format!(
                        "{slot} is lost or does not exist: {in_slot} can't be published any more"
                    ),
                    format!(
                        "(a) to publish first what is not known to be published: {first}. When the log says streaming, \
                         stop, set mode = \"poll\" again, and follow what is printed then"
                    ),
                )
            }
        };
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "mode is \"poll\", and the position of pipeline {name:?} belongs to mode \"{mode}\": polling would \
                 publish the {all} rows of {table} that have no mark, and nothing else"
            ),
            meaning: format!("nothing was published. {published}. {slot}"),
            hint: format!(
                "{ways}. (b) to publish all {all} rows, some of them again, and nothing that is in the slot alone: \
                 postrider adopt -p {name}. (c) to stay: mode = \"{mode}\". Then start again"
            ),
        }))
    }

    /// How nothing that is in the slot is lost, and with the statement nothing comes again.
    fn ways_to_polling(&self, rows: Unmarked, mark_sql: Option<&str>) -> String {
        let (name, mode) = (self.name(), &self.before.mode);
        let (repeats, mark) = match (mark_sql, rows.passed) {
            (Some(sql), _) => (
                "and repeat nothing",
                format!(
                    "mark what is known to be published: {sql} (postrider check prints it again: a statement that \
                     was printed earlier leaves out rows that were published since); "
                ),
            ),
            (None, Some(0)) => ("and repeat nothing", String::new()),
            (None, _) => ("nothing", String::new()),
        };
        let left = match (rows.before, mark_sql) {
            (Some(before), Some(_)) if before > 0 => format!(
                ". The statement leaves out the {} rows that may be from before the slot was made: polling publishes \
                 them. Without its last condition it marks them too, and they are never published",
                figure(before)
            ),
            (Some(_), _) => String::new(),
            (None, _) => format!(
                ". No statement is printed that marks what is published: rows of before the slot was made would be \
                 marked too, and never be published. Polling publishes all {} rows that have no mark",
                figure(rows.all)
            ),
        };
        format!(
            "(a) to lose {repeats}: go back to mode = \"{mode}\" and stop the writers until postrider status shows no \
             lag for a few seconds; stop Postrider and set mode = \"poll\" again; {mark}run postrider adopt -p {name}, \
             which says how many rows are left{left}"
        )
    }

    /// Mode `wal` before, and now `auto`, without a slot to stream from: it would poll at once.
    async fn polls_at_once(&self) -> Result<Option<Halt>, SourceError> {
        let Some(Counts { rows, .. }) = self.count(true).await? else { return Ok(None) };
        if self.before.marks || rows.all == 0 {
            return Ok(None);
        }
        let (name, table, all) = (self.name(), self.table(), figure(rows.all));
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "mode is \"auto\", the slot can't be used, and the position of pipeline {name:?} belongs to mode \
                 \"wal\": the table would be polled, with the {all} rows of {table} that have no mark"
            ),
            meaning: format!("nothing was published. {}", published(rows)),
            hint: format!(
                "(a) to publish only what is not known to be published: set mode = \"wal\", run postrider repair -p \
                 {name} (--dry-run counts), and then set mode = \"auto\" again. (b) to publish all {all} rows, some of \
                 them again: postrider adopt -p {name}. Then start again"
            ),
        }))
    }

    /// Mode `poll` before, and now a stream, from a slot that was made meanwhile or left behind.
    async fn ends_polling(&self) -> Result<Option<Halt>, SourceError> {
        let left = match self.count(true).await? {
            None => 0,
            Some(Counts { rows, .. }) => rows.not_streamed.unwrap_or(rows.all),
        };
        let (name, table, slot) = (self.name(), self.table(), &self.spec.names.slot);
        let left = figure(left);
        // With logical messages the slot is not created again by itself.
        let by_auto = if self.spec.mode == Mode::Auto {
            ""
        } else {
            "(a) to lose and repeat nothing: start once with mode = \"auto\" until the log says streaming, and stop \
             it; then mode = \"wal\". "
        };
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "mode is \"{}\", and the position of pipeline {name:?} belongs to mode \"poll\"",
                word(self.spec.mode)
            ),
            meaning: format!(
                "nothing was published. {left} rows of {table} have no mark and may be from before slot {slot:?}, \
                 which does not bring them; what polling has published since {} comes by the slot again",
                self.found.watermark
            ),
            hint: format!(
                "{by_auto}(b) to begin at the slot as it is, without those {left} rows: \
                 postrider adopt -p {name}. (c) to stay: mode = \"poll\". Then start again"
            ),
        }))
    }

    /// Mode `wal` before, and now `auto`: nothing happens until the slot is lost.
    async fn may_poll(&self) -> Result<Option<ChangeNote>, SourceError> {
        let Some(Counts { rows, mark_sql }) = self.count(true).await? else { return Ok(None) };
        let Some(passed) = rows.passed.filter(|passed| *passed > 0) else { return Ok(None) };
        let statement = match (&mark_sql, rows.before) {
            (None, _) => "",
            (Some(_), Some(0)) => ". The statement marks them",
            (Some(_), _) => {
                ". The statement marks them, and leaves out rows that may be from before the slot was made"
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

    /// Another destination, table or layout.
    async fn elsewhere(
        &self,
        differences: &[Difference],
        now: &Belongs,
    ) -> Result<Option<Halt>, SourceError> {
        let before = self.before;
        let name = |cluster: &Option<String>| cluster.clone().unwrap_or_default();
        let none = || "none".to_owned();
        let changed: Vec<String> = differences
            .iter()
            .filter_map(|difference| {
                let (setting, was, is) = match difference {
                    Difference::Sink => ("sink.kind", before.sink.clone(), now.sink.clone()),
                    Difference::Cluster => {
                        ("the Kafka cluster", name(&before.cluster), name(&now.cluster))
                    }
                    Difference::Topic => ("route.topic", before.topic.clone(), now.topic.clone()),
                    Difference::Table => (
                        "outbox.table",
                        before.table.clone().unwrap_or_else(none),
                        now.table.clone().unwrap_or_else(none),
                    ),
                    Difference::Layout => {
                        ("outbox.layout", before.layout.clone(), now.layout.clone())
                    }
                    Difference::Mode
                    | Difference::Key
                    | Difference::Renamed
                    | Difference::Recreated => return None,
                };
                Some(format!("{setting} is {is:?}, and was {was:?}"))
            })
            .collect();
        if changed.is_empty() {
            return Ok(None);
        }
        let pipeline = self.name();
        let other_table = differences.contains(&Difference::Table);
        let rows = self.lacking(other_table).await;
        let again = match &self.spec.poll.table {
            Some(table) if table.time.is_some() => format!(
                "(a) to publish there what the table still has: postrider replay -p {pipeline} --since 1970-01-02 \
                 --source table --include-parked, then postrider adopt -p {pipeline}; what was committed since the \
                 position comes twice"
            ),
            Some(_) => format!(
                "(a) to publish there what the table still has: postrider replay -p {pipeline} --source table with \
                 --id or --aggregate (the table has no time column), then postrider adopt -p {pipeline}; what was \
                 committed since the position comes twice"
            ),
            None => "(a) logical messages leave no rows: what came before can't be published again"
                .to_owned(),
        };
        let (old_rows, old_way) = match before.table.as_ref().filter(|_| other_table) {
            Some(table) => (self.old_rows(table, now).await, OLD_WAY),
            None => (String::new(), ""),
        };
        Ok(Some(Halt {
            reason: HaltReason::PipelineChanged,
            message: format!(
                "the position of pipeline {pipeline:?} belongs to other settings: {}",
                changed.join("; ")
            ),
            meaning: format!("nothing was published. {rows}{old_rows}"),
            hint: format!(
                "{again}. (b) to begin there with the next event: postrider adopt -p {pipeline}.{old_way} (c) to go \
                 on as before: set the old values again. Then start again"
            ),
        }))
    }

    /// What the table of before has unpublished, in words.
    async fn old_rows(&self, table: &str, now: &Belongs) -> String {
        let rows = self.unpublished(now).await.map_or_else(
            || "an unknown number of rows".to_owned(),
            |rows| format!("up to {} rows", figure(rows)),
        );
        format!(
            ". Of {table}, {rows} are not known to be published, and these settings do not publish them"
        )
    }

    /// How many rows of the table of before are not known to be published; `None` where they can't be counted.
    async fn unpublished(&self, now: &Belongs) -> Option<u64> {
        let (client, before) = (self.client, self.before);
        let method = self.method().await.ok()?;
        let name = table::name_of(client, before.table_oid?).await.ok()??;
        if before.mode != "poll" {
            return method.count_unresolved(client, &name, COUNTED_MAX).await.ok()?;
        }
        // Its marks are those of the layout.
        let mut table = repair_table(self.spec, true).filter(|_| before.layout == now.layout)?;
        table.table = name;
        let table = Table::read(client, table).await.ok()?;
        let rows = method.count_unmarked(client, &table, None, COUNTED_MAX);
        Some(rows.await.ok()?.all)
    }

    /// What the new place lacks, in words. The stream needs no right to read the table, so it may not be counted.
    async fn lacking(&self, other_table: bool) -> String {
        let table = self.table();
        let polled = self.before.mode == "poll";
        let counted = async {
            if polled {
                let Some(of) = repair_table(self.spec, true) else { return Ok(None) };
                let of = Table::read(self.client, of).await?;
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
            Ok(Some(rows)) if other_table => {
                format!(
                    "{} rows of {table} are from before the position, and no stream brings them",
                    figure(rows)
                )
            }
            Ok(Some(rows)) => {
                format!(
                    "the new place lacks it: {} rows that {table} still has, and rows deleted since",
                    figure(rows)
                )
            }
            Ok(None) | Err(_) => {
                "the new place lacks it: how much of it the table still has could not be counted"
                    .to_owned()
            }
        };
        if other_table { rows } else { format!("{at} went to the old place alone; {rows}") }
    }

    fn note(&self, difference: Difference, now: &Belongs) -> Option<ChangeNote> {
        let quoted = |value: &Option<String>| value.clone().unwrap_or_default();
        let (message, why) = match difference {
            Difference::Key => (
                format!(
                    "route.key or route.partition is {:?}, and was {:?}",
                    now.key, self.before.key
                ),
                "events of an aggregate may go to another partition from here on: consumers may read them before the \
                 ones that were published with the old key",
            ),
            Difference::Renamed => (
                format!(
                    "outbox.table is {:?}, and was {:?}",
                    quoted(&now.table),
                    quoted(&self.before.table)
                ),
                "it is the same table with another name: nothing is lost or repeated",
            ),
            Difference::Recreated => (
                format!("table {} was dropped and created again, or restored", self.table()),
                "what was unpublished in the table of before is only in the slot",
            ),
            Difference::Mode
            | Difference::Sink
            | Difference::Cluster
            | Difference::Topic
            | Difference::Table
            | Difference::Layout => return None,
        };
        Some(ChangeNote { message, why: why.to_owned(), sql: None })
    }
}

/// How many of the rows without a mark are published, in words.
fn published(rows: Unmarked) -> String {
    match (rows.passed, rows.before) {
        (_, None) => "How many of these rows are published is not known, since it is not known which are from before \
                      the slot was made: an older version made the cursor row"
            .to_owned(),
        (None, Some(_)) => "How many of these rows are published is not known yet".to_owned(),
        (Some(passed), Some(before)) => {
            let before = match before {
                0 => String::new(),
                rows => format!(
                    "; {} may be from before the slot was made, so that the stream has not published them",
                    figure(rows)
                ),
            };
            format!(
                "Of these rows {} are known to be published, and would be published again behind newer events of their \
                 aggregates{before}",
                figure(passed)
            )
        }
    }
}

/// A number of rows, of which no more than [`COUNTED_MAX`] are counted.
fn figure(rows: u64) -> String {
    if rows >= u64::from(COUNTED_MAX) { format!("{rows} or more") } else { rows.to_string() }
}

/// What starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The stream.
    Stream,
    /// Polling, in mode `poll` or in the stream's stead.
    Polling,
    /// A repair or a backfill.
    Repair,
}

/// At a start: a halt where the pipeline may not go on.
pub(super) async fn check(
    client: &Client,
    spec: &PipelineSpec,
    (cluster, table): (Option<&str>, Option<&TableFacts>),
    by: By,
) -> Result<Change, Failure> {
    let table_oid = table.map(|table| table.oid);
    let (repairs, polls) = (by == By::Repair, by == By::Polling);
    let settings = Settings { spec, cluster, table_oid, repairs, polls, thorough: false };
    let looked = look(client, settings).await;
    let mut change = looked.map_err(|error| Failure::Source(error, Phase::Handshake))?;
    match change.halt.take() {
        Some(halt) => Err(Failure::Halt(Box::new(halt))),
        None => Ok(change),
    }
}

/// The same for a stream, which a pipeline that polled comes to by way of the table.
pub(super) async fn check_stream(
    client: &Client,
    spec: &PipelineSpec,
    known: (Option<&str>, Option<&TableFacts>),
) -> Result<Change, Failure> {
    let change = check(client, spec, known, By::Stream).await?;
    if change.hands_over { Err(Failure::HandsOver) } else { Ok(change) }
}

/// Writes what the position belongs to from here on, where that differs, and reports it. `epoch`: the owner's.
pub(super) async fn record(
    client: &Client,
    spec: &PipelineSpec,
    epoch: i64,
    change: &Change,
) -> Result<(), Failure> {
    for note in &change.notes {
        say::setting_changed(spec, note);
    }
    if change.before.as_ref() == Some(&change.now) {
        return Ok(());
    }
    belongs::write(client, spec.name(), epoch, &change.now, change.before.as_ref())
        .await
        .map_err(|error| Failure::Source(error, Phase::Control))?;
    say::position_belongs(spec, &change.now, change.before.is_none());
    Ok(())
}
