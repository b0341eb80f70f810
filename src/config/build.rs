//! Turns the values of a pipeline into its specification, and checks the rules of the adapters.
//!
//! This is the last step of reading a file, so that an invalid template or an unknown property of librdkafka is
//! reported like any other mistake of the file, with its position.

use super::section::{Context, quoted};
use super::types::{Mark, Ordering, PipelineConfig, SizeMax};
use crate::error::Chain;
use crate::outbox::{Mapper, OnUpdate, OutboxSpec, Role, StandardHeaders, TimestampSource};
use crate::pipeline::{
    CommonSpec, MaintenanceSettings, Mode, OnSlotLost, PipelineSpec, PollSettings, RepairRequest,
    poll_spec,
};
use crate::postgres::Conninfo;
use crate::postgres::names::{DecidingColumn, Names, TableName, Times};
use crate::postgres::poll::{Backoff, PollSpec};
use crate::postgres::retention::{KeepFrom, RetentionRule};
use crate::relay::{Limits, OnPoison, ParkingRules};
use crate::secret_file::SecretFile;
use crate::sink::{Needs, Purpose};
use crate::store::PipelineKey;
use crate::zone::Zone;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The specification of a pipeline; `None` if it has a mistake, which is then among the findings.
pub(super) fn spec(
    context: &Context<'_>,
    pipeline: &PipelineConfig,
    shutdown_grace: Duration,
    maintenance: &MaintenanceSettings,
) -> Option<PipelineSpec> {
    let path = format!("pipelines.{}", pipeline.name);
    let is_broken = |key: &str| context.has_error_under(&format!("{path}.{key}"));
    let outbox = outbox(pipeline);
    // A mistake is reported together with those of the other keys, unless it may be the consequence of one of them.
    let of_mapper =
        ["outbox.layout", "outbox.table", "outbox.columns", "outbox.extra", "route", "payload"];
    if !of_mapper.into_iter().any(is_broken)
        && let Err(errors) = Mapper::new(outbox.clone())
    {
        for error in errors {
            context.error_at(&format!("{path}.{}", error.key()), Chain(&error));
        }
    }
    check_sink(context, &path, pipeline, &outbox);
    let capture = pipeline.outbox.capture.as_ref();
    for (key, why) in capture.map_or_else(Vec::new, |of| super::capture::conflicts(pipeline, of)) {
        context.error_at(&format!("{path}.{key}"), why);
    }
    let is_given = !pipeline.source.url.reveal().is_empty() && !is_broken("source.url");
    let conninfo = if is_given { conninfo(context, &path, pipeline) } else { None };
    let conninfo = conninfo.filter(|_| !context.has_error_under(&path))?;
    let sink = pipeline.sink.for_source(&conninfo).unwrap_or_else(|| Arc::clone(&pipeline.sink));
    let poll = poll(pipeline, &outbox);
    if outbox.on_update == OnUpdate::Halt
        && let Some(why) = sees_no_update(pipeline, &poll)
    {
        context.error_at(&format!("{path}.outbox.on_update"), why);
    }
    let marked = (pipeline.mode != Mode::Wal || poll.mark_streamed) && poll.table.is_some();
    let retention = self::retention(context, &path, pipeline, (&outbox, &poll), marked);
    (!context.has_error_under(&path)).then_some(PipelineSpec {
        names: Names {
            key: PipelineKey::first(&pipeline.name),
            slot: pipeline.source.slot.clone(),
            publication: pipeline.source.publication.clone(),
            table: pipeline
                .outbox
                .table
                .as_ref()
                .map(|t| TableName::new(t.schema.clone(), t.name.clone())),
            captured: capture.map(|capture| capture.tables.clone()).unwrap_or_default(),
            times: times(&outbox, &poll, pipeline.mode != Mode::Wal),
            auto: pipeline.mode == Mode::Auto,
            in_transactions: sink.capabilities().transactions.is_some(),
            updates: outbox.on_update == OnUpdate::Halt,
        },
        common: CommonSpec {
            name: pipeline.name.clone(),
            mode: pipeline.mode,
            outbox,
            sink,
            size_max: size_max(pipeline),
            limits: limits(pipeline),
            parking: rules(pipeline),
            dead_topic: pipeline.parking.dead_topic.clone(),
            park_after: pipeline.parking.park_after,
            cursor_interval: pipeline.flow.cursor_interval,
            shutdown_grace,
        },
        conninfo,
        failover: pipeline.source.failover,
        wal_retain_max: pipeline.source.wal_retain_max,
        on_slot_lost: pipeline.source.on_slot_lost,
        repair: RepairRequest::default(),
        poll,
        capture: capture.cloned(),
        bookmarks_retain_max: pipeline.kept.bookmarks.retain_max,
        confirm_interval: pipeline.flow.confirm_interval,
        maintenance: MaintenanceSettings { retention, ..maintenance.clone() },
    })
}

/// Reports the mistakes of the sink and of the format, and what does not go with them.
fn check_sink(context: &Context<'_>, path: &str, pipeline: &PipelineConfig, outbox: &OutboxSpec) {
    // A value that was not read is not checked.
    let is_read = !context.has_unread_under(&format!("{path}.sink"));
    let found = if is_read { pipeline.sink.check(&needs(pipeline, outbox)) } else { Vec::new() };
    if let Some((key, why)) = without_stream(pipeline) {
        context.error_at(&format!("{path}.{key}"), why);
    }
    for error in found {
        let parts: Vec<_> = error.key().iter().map(|part| format!(".{}", quoted(part))).collect();
        let key = format!("{path}.sink{}", parts.concat());
        context.error_at(&key, format_args!("{}; {}", Chain(&error), error.hint()));
    }
    for (key, why) in pipeline.payload.format.check(&*pipeline.sink) {
        context.error_at(&format!("{path}.{key}"), why);
    }
}

/// The key that does not go with a sink that publishes in transactions, and why; `None` if all do.
fn without_stream(pipeline: &PipelineConfig) -> Option<(&'static str, String)> {
    pipeline.sink.capabilities().transactions?;
    let kind = pipeline.sink.kind();
    if pipeline.mode != Mode::Wal {
        let why = format!(
            "a sink of kind \"{kind}\" publishes in transactions and needs mode = \"wal\": a row that is polled has no \
             position that it could store; set mode = \"wal\""
        );
        Some(("mode", why))
    } else if pipeline.source.on_slot_lost == OnSlotLost::Repair {
        let why = format!(
            "a sink of kind \"{kind}\" publishes in transactions, and a repair reads rows that have no position which \
             it could store; set on_slot_lost = \"halt\""
        );
        Some(("source.on_slot_lost", why))
    } else {
        None
    }
}

/// Why an UPDATE of an application cannot be seen, or not be distinguished from one of Postrider; `None` if it can.
fn sees_no_update(pipeline: &PipelineConfig, poll: &PollSettings) -> Option<&'static str> {
    let has_status = poll.table.as_ref().is_none_or(|table| table.row_state.has_status());
    if pipeline.outbox.table.is_none() {
        Some("\"halt\" needs outbox.table: logical messages are never updated; leave it out")
    } else if pipeline.mode != Mode::Wal {
        Some(
            "\"halt\" needs mode = \"wal\": polling sees rows as they are, and no UPDATE; leave it out",
        )
    } else if poll.mark_streamed && has_status {
        Some(
            "\"halt\" does not go with poll.mark_streamed, whose marks are UPDATEs of the table too; leave one of them \
             out",
        )
    } else {
        None
    }
}

/// Which columns hold times, and what depends on them.
fn times(outbox: &OutboxSpec, poll: &PollSettings, polls: bool) -> Times {
    let mut deciding = Vec::new();
    for (role, what) in [
        (Role::AvailableAt, "when an event may be published"),
        (Role::ExpiresAt, "whether an event has expired"),
    ] {
        if let Some(column) = outbox.column(role) {
            deciding.push(DecidingColumn { column: column.to_owned(), what });
        }
    }
    let table = poll.table.as_ref().filter(|_| polls);
    if let Some(last_attempt) = table.and_then(|table| table.row_state.last_attempt()) {
        let what = "when a refused event is tried again";
        deciding.push(DecidingColumn { column: last_attempt.to_owned(), what });
    }
    let stamps = outbox.timestamp == TimestampSource::Event || polls;
    let stamp = outbox.column(Role::Time).filter(|_| stamps).map(str::to_owned);
    Times { zone: outbox.zone.clone(), deciding, stamp }
}

fn poll(pipeline: &PipelineConfig, outbox: &OutboxSpec) -> PollSettings {
    let (from, parking) = (&pipeline.poll, &pipeline.parking);
    // The table of documents of captured tables is in no database.
    let table = match pipeline.outbox.capture {
        Some(_) => None,
        None => poll_spec(&pipeline.name, outbox, from.mark == Mark::Delete),
    };
    PollSettings {
        table: table.map(|table| PollSpec {
            block_key: parking.on_poison != OnPoison::SkipEvent,
            attempts_max: parking.attempts_max,
            backoff: Backoff { step: parking.backoff.step, steps_max: parking.backoff.steps_max },
            ..table
        }),
        interval: from.interval,
        batch: usize::try_from(from.batch).unwrap_or(usize::MAX),
        mark_streamed: from.mark_streamed,
    }
}

fn rules(pipeline: &PipelineConfig) -> ParkingRules {
    let parking = &pipeline.parking;
    ParkingRules {
        on_poison: parking.on_poison,
        attempts_max: parking.attempts_max,
        step: parking.backoff.step,
        steps_max: parking.backoff.steps_max,
        rows_max: parking.rows_max,
        strict: pipeline.flow.ordering == Ordering::Strict,
        dead_letters: parking.dead_topic.is_some(),
    }
}

fn conninfo(context: &Context<'_>, path: &str, pipeline: &PipelineConfig) -> Option<Conninfo> {
    match Conninfo::parse(pipeline.source.url.reveal(), context.env) {
        Ok(mut conninfo) => {
            if let Some(file) = &pipeline.source.password {
                conninfo.set_password_file(file.clone());
            }
            Some(conninfo)
        }
        Err(error) => {
            context.error_at(&format!("{path}.source.url"), Chain(&error));
            None
        }
    }
}

/// The bounds of these keys fit a usize on every platform we build for.
fn fit(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn limits(pipeline: &PipelineConfig) -> Limits {
    Limits { events_max: pipeline.flow.in_flight_events, bytes_max: pipeline.flow.in_flight_bytes }
}

fn size_max(pipeline: &PipelineConfig) -> Option<usize> {
    match pipeline.payload.size_max {
        SizeMax::Auto => None,
        SizeMax::Bytes(bytes) => Some(fit(bytes)),
    }
}

/// What the sink is checked with: the same that [`PipelineSpec::needs`] gives, before there is such a thing.
fn needs(pipeline: &PipelineConfig, outbox: &OutboxSpec) -> Needs {
    let Limits { events_max, bytes_max } = limits(pipeline);
    let dead = pipeline.parking.dead_topic.clone();
    Needs {
        pipeline: pipeline.name.clone(),
        in_flight_events: fit(events_max),
        in_flight_bytes: fit(bytes_max),
        size_max: size_max(pipeline),
        destinations: outbox.constant_topic().into_iter().chain(dead).collect(),
        purpose: Purpose::Live,
    }
}

fn outbox(pipeline: &PipelineConfig) -> OutboxSpec {
    let from = &pipeline.outbox;
    if from.capture.is_some() {
        return routed(pipeline, OutboxSpec::for_deltas());
    }
    let layout = OutboxSpec::for_layout(from.layout);
    let mut extra = layout.extra.clone();
    extra.extend(from.extra.iter().cloned());
    let rows = OutboxSpec {
        table: from.table.clone(),
        columns: from.columns.clone(),
        extra,
        message_prefix: from.message_prefix.clone(),
        on_update: from.on_update,
        ..layout
    };
    routed(pipeline, rows)
}

/// How records are made of the rows of `rows`.
fn routed(pipeline: &PipelineConfig, rows: OutboxSpec) -> OutboxSpec {
    let route = &pipeline.route;
    let needed = pipeline.sink.record_headers();
    let headers = route.headers.iter().map(|(name, template)| (name.clone(), template.clone()));
    let mut spec = OutboxSpec {
        topic: route.topic.clone().unwrap_or_else(|| rows.topic.clone()),
        key: route.key.clone().unwrap_or_else(|| rows.key.clone()),
        partition: route.partition.clone().unwrap_or_default(),
        replace: route.replace.clone(),
        timestamp: route.timestamp,
        zone: Zone::named(&pipeline.source.time_zone),
        headers: headers.chain(needed.templates).collect(),
        standard_headers: route.standard_headers.unwrap_or(rows.standard_headers),
        source: pipeline.name.clone(),
        null_payload: pipeline.payload.null,
        blank_is_tombstone: pipeline.payload.blank_is_tombstone,
        expand_json: pipeline.payload.expand_json,
        envelope: pipeline.payload.envelope.clone(),
        ..rows
    };
    let event_type = spec.column(Role::EventType).is_some();
    spec.standard_headers.event_type |= event_type && needed.event_type;
    if needed.standard {
        spec.standard_headers = StandardHeaders { event_type, position: true, source: false };
    }
    spec
}

/// Checks rules across pipelines, even if they have other mistakes.
pub(super) fn across(context: &Context<'_>, pipelines: &[PipelineConfig]) {
    // Slots belong to the server, not to a database.
    let hosts = |pipeline: &PipelineConfig| {
        let parsed = Conninfo::parse(pipeline.source.url.reveal(), context.env).ok();
        parsed.map(|conninfo| conninfo.hosts())
    };
    let servers: Vec<_> = pipelines.iter().map(hosts).collect();
    for (index, (pipeline, server)) in pipelines.iter().zip(&servers).enumerate() {
        let (name, slot) = (&pipeline.name, &pipeline.source.slot);
        let mut earlier = pipelines.iter().zip(&servers).take(index);
        let shares = earlier.find(|(other, there)| {
            other.source.slot == *slot && there.is_some() && *there == server
        });
        if let Some((other, _)) = shares {
            let message = format!(
                "the pipelines \"{}\" and \"{name}\" would share the slot \"{slot}\" of one server: \
                 give each a slot of its own",
                other.name
            );
            context.error_at(&format!("pipelines.{name}.source.slot"), message);
        }
    }
}

/// The rule of a pipeline, and the mistakes that need several of its keys. `None` if nothing is to be removed.
fn retention(
    context: &Context<'_>,
    path: &str,
    pipeline: &PipelineConfig,
    (outbox, poll): (&OutboxSpec, &PollSettings),
    marked: bool,
) -> Option<RetentionRule> {
    let settings = &pipeline.kept.retention;
    let is_off = settings.keep.is_none() && settings.processed_events.is_none();
    // Retention of captured tables is a mistake that has been reported.
    if is_off || pipeline.outbox.capture.is_some() {
        return None;
    }
    let mistake = |key: &str, why: &str| {
        context.error_at(&format!("{path}.retention.{key}"), why);
    };
    let Some(table) = &poll.table else {
        mistake("keep", "needs outbox.table: logical messages leave no rows; remove it");
        return None;
    };
    let expiry = outbox.column(Role::ExpiresAt).map(str::to_owned);
    if settings.keep.is_some() {
        if marked && table.deletes_published() {
            mistake(
                "keep",
                "has no effect: published rows are deleted at once, as poll.mark and the layout say; remove it",
            );
        }
        if table.time.is_none() {
            mistake(
                "keep",
                "needs the time of a row: name its column with [outbox.columns] time = \"created_at\"",
            );
        }
        if settings.keep_from == KeepFrom::Expiry && expiry.is_none() {
            mistake(
                "keep_from",
                "\"expiry\" needs a layout with a time of expiry, such as gcx; use \"published\"",
            );
        }
    }
    Some(RetentionRule {
        table: table.clone(),
        mode: pipeline.mode.name(),
        layout: outbox.layout.name().to_owned(),
        marked,
        expiry,
        settings: settings.clone(),
    })
}

impl Context<'_> {
    /// A secret file and its content. Warns where others may read the file.
    pub(super) fn secret_file(&self, key: &str, file: &str) -> Option<(SecretFile, String)> {
        let file = SecretFile::new(self.directory.join(file));
        if !self.secrets {
            self.unread(key);
            return Some((file, String::new()));
        }
        let secret = match file.read() {
            Ok(secret) => secret,
            Err(error) => {
                self.error_at(key, error);
                return None;
            }
        };
        self.warn_where_others_read(key, file.path());
        Some((file, secret))
    }

    /// The text of a file that is no secret.
    pub(super) fn file(&self, key: &str, file: &str, bytes_max: usize) -> Option<String> {
        if !self.secrets {
            self.unread(key);
            return Some(String::new());
        }
        let path = self.directory.join(file);
        let shown = path.display();
        match std::fs::read_to_string(&path) {
            Ok(text) if text.len() <= bytes_max => return Some(text),
            Ok(_) => {
                self.error_at(key, format_args!("\"{shown}\" has more than {bytes_max} bytes"));
            }
            Err(error) => self.error_at(key, format_args!("could not read \"{shown}\": {error}")),
        }
        None
    }

    /// Warns where everybody may read a file that holds a secret.
    pub(super) fn warn_where_others_read(&self, key: &str, path: &Path) {
        if self.secrets && others_may_read(path) {
            let path = path.display();
            self.warn_at(
                key,
                format_args!("everybody can read \"{path}\"; fix it with: chmod o-rwx '{path}'"),
            );
        }
    }
}

#[cfg(unix)]
fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn others_may_read(_: &Path) -> bool {
    false
}
