//! `[pipelines.NAME]`: source, route, payload, flow, parking and poll.

use super::file::Url;
use super::section::{Entry, Kind, Section, SinkKeys, nearest, quoted, wrong_kind};
use super::types::{
    BackoffConfig, BookmarksConfig, FlowConfig, KeptConfig, Mark, Ordering, OutboxConfig,
    ParkingConfig, PayloadConfig, PipelineConfig, PollConfig, RouteConfig, SizeMax, SourceConfig,
};
use crate::formats::{FormatConfig, FormattedConfig};
use crate::outbox::{
    Extra, Layout, NullPayload, OnUpdate, Placement, Replace, Role, StandardHeaders, TableName,
    TimestampSource,
};
use crate::pipeline::{Mode, OnSlotLost};
use crate::postgres::capture::CaptureSpec;
use crate::postgres::names::TableName as PostgresTable;
use crate::postgres::retention::{KeepFrom, RetentionAction, RetentionSettings, Width};
use crate::relay::OnPoison;
use crate::sink::{DEFAULT_KIND, DiscardConfig, NameRule, SinkConfig};
use crate::zone::Zone;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `source.wal_retain_max`: from two segments of WAL, which a slot may always retain, to 1 PiB. Unit: bytes.
const WAL_RETAIN_MAX: std::ops::RangeInclusive<u64> = 32 * MIB..=(1 << 30) * MIB;

/// Bytes of a slot's and a publication's name: `NAMEDATALEN - 1`.
pub(super) const NAME_BYTES_MAX: usize = 63;
/// Prefix of the default names of slot and publication.
const NAME_PREFIX: &str = "postrider_";

/// Reads all pipelines. `is_needed`: one has to be configured.
pub(super) fn all(pipelines: &Section<'_>, is_needed: bool) -> Vec<PipelineConfig> {
    let mut all = Vec::new();
    for entry in pipelines.entries(Kind::Table) {
        if !is_pipeline_name(entry.name) {
            let max = NAME_BYTES_MAX - NAME_PREFIX.len();
            let rule = format!(
                "expected 1 to {max} of the characters a-z, 0-9 and _ in a pipeline's name, which slot and \
                 publication are named after"
            );
            pipelines.context.error(entry.place, &entry.path, rule);
        }
        if let Some(section) = pipelines.inner(&entry) {
            all.push(one(entry.name, section));
        } else {
            let (context, value) = (pipelines.context, entry.value.get_ref());
            wrong_kind(context, entry.place, &entry.path, "a table", value);
        }
    }
    if is_needed && all.is_empty() && pipelines.is_whole() {
        pipelines
            .context
            .error_at(&pipelines.path, "no pipeline is configured; write [pipelines.NAME]");
    }
    all
}

fn is_pipeline_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX - NAME_PREFIX.len()).contains(&name.len()) && is_plain(name)
}

/// Whether all characters are allowed in the name of a slot.
pub(super) fn is_plain(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn one(name: &str, section: Section<'_>) -> PipelineConfig {
    let mode = section.one_of(
        "mode",
        &[("wal", Mode::Wal), ("poll", Mode::Poll), ("auto", Mode::Auto)],
        &[],
        Mode::Wal,
    );
    let source = source(name, section.section("source"));
    let capture = super::capture::read(section.section("capture"));
    let outbox = read_outbox(section.section("outbox"), capture);
    let route = route(section.section("route"));
    let payload = payload(section.section("payload"), &keys(section.section("format")));
    let (sink, other_sinks) = read_sink(section.section("sink"));
    let sink = FormattedConfig::wrap(&payload.format, sink);
    let config = PipelineConfig {
        name: name.to_owned(),
        mode,
        source,
        outbox,
        route,
        payload,
        flow: flow(section.section("flow")),
        parking: parking(section.section("parking"), sink.names()),
        poll: poll(section.section("poll")),
        kept: KeptConfig {
            bookmarks: bookmarks(section.section("bookmarks")),
            retention: retention(section.section("retention")),
        },
        sink,
        other_sinks,
    };
    section.finish();
    config
}

fn source(pipeline: &str, section: Section<'_>) -> SourceConfig {
    let url = section.required("url", "postgresql://postrider@localhost/app").unwrap_or_default();
    let password_file = section.text("password_file");
    let password = password_file
        .as_deref()
        .and_then(|file| section.context.secret_file(&section.path_of("password_file"), file))
        .map(|(file, _)| file);
    let time_zone = section.text("time_zone").unwrap_or_default();
    if !time_zone.is_empty() && Zone::named(&time_zone).is_none() {
        let why = if time_zone.contains('/') {
            "is not the name of a known time zone"
        } else {
            "is refused: PostgreSQL reads a name without a slash as a fixed offset without daylight saving time"
        };
        section.error(
            "time_zone",
            format_args!(
                "{time_zone:?} {why}; write a name of pg_timezone_names with a slash in it, such as \"Europe/Paris\" \
                 or \"America/New_York\", or \"UTC\""
            ),
        );
    }
    let default = format!("{NAME_PREFIX}{pipeline}");
    let slot = section.text("slot").unwrap_or_else(|| default.clone());
    if section.has("slot") && !((1..=NAME_BYTES_MAX).contains(&slot.len()) && is_plain(&slot)) {
        let rule = "expected 1 to 63 of the characters a-z, 0-9 and _";
        section.error("slot", rule);
    }
    let publication = section.text("publication").unwrap_or(default);
    let fits = (1..=NAME_BYTES_MAX).contains(&publication.len());
    if section.has("publication") && !fits || publication.contains('\0') {
        section.error("publication", "expected a name of 1 to 63 bytes");
    }
    let failover = section.boolean("failover", true);
    let wal_retain_max = section
        .text("wal_retain_max")
        .filter(|text| text != "off")
        .and_then(|text| section.size_of("wal_retain_max", &text, &WAL_RETAIN_MAX));
    let losses = [("halt", OnSlotLost::Halt), ("repair", OnSlotLost::Repair)];
    let on_slot_lost = section.one_of("on_slot_lost", &losses, &[], OnSlotLost::Halt);
    section.finish();
    SourceConfig {
        url: Url::new(url),
        password_file,
        password,
        time_zone,
        slot,
        publication,
        failover,
        wal_retain_max,
        on_slot_lost,
    }
}

fn route(section: Section<'_>) -> RouteConfig {
    let timestamps = [
        ("event", TimestampSource::Event),
        ("commit", TimestampSource::Commit),
        ("broker", TimestampSource::Broker),
    ];
    let config = RouteConfig {
        topic: section.text("topic"),
        key: section.text("key"),
        partition: section.optional("partition"),
        timestamp: section.one_of("timestamp", &timestamps, &[], TimestampSource::Event),
        replace: replace(section.section("replace")),
        standard_headers: standard_headers(&section),
        headers: texts(&section.section("headers")),
    };
    section.finish();
    config
}

fn standard_headers(section: &Section<'_>) -> Option<StandardHeaders> {
    #[derive(Clone, Copy, PartialEq)]
    enum Header {
        Type,
        Position,
        Source,
    }
    let words =
        [("type", Header::Type), ("position", Header::Position), ("source", Header::Source)];
    let headers = section.some_of("standard_headers", &words)?;
    Some(StandardHeaders {
        event_type: headers.contains(&Header::Type),
        position: headers.contains(&Header::Position),
        source: headers.contains(&Header::Source),
    })
}

fn replace(section: Section<'_>) -> Option<Replace> {
    // The keys are read in any case, so that they are known.
    if !section.is_present() {
        section.text("pattern");
        section.text("with");
        return None;
    }
    let pattern = section.required("pattern", "(.*)\\\\.v\\\\d+");
    if let Some(Err(error)) = pattern.as_deref().map(regex::Regex::new) {
        let error = error.to_string();
        let last = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        section.error("pattern", format_args!("not a regular expression: {last}"));
    }
    let with = section.text("with");
    if !section.has("with") {
        section.error("with", "is missing; for example with = \"$1\"");
    }
    section.finish();
    Some(Replace { pattern: pattern?, with: with? })
}

/// A table of strings.
pub(super) fn texts(section: &Section<'_>) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for entry in section.entries(Kind::Text) {
        let value = entry.value.get_ref();
        match value.as_str() {
            Some(text) => {
                if let Some(text) = section.context.fill(entry.place, &entry.path, text) {
                    texts.insert(entry.name.to_owned(), text);
                }
            }
            None => wrong_kind(section.context, entry.place, &entry.path, "a string", value),
        }
    }
    texts
}

fn payload(section: Section<'_>, format: &SinkKeys<'_>) -> PayloadConfig {
    let nulls = [
        ("tombstone", NullPayload::Tombstone),
        ("empty", NullPayload::Empty),
        ("park", NullPayload::Park),
    ];
    let size_max = match section.text("size_max") {
        None => SizeMax::Auto,
        Some(text) if text == "auto" => SizeMax::Auto,
        Some(text) => section
            .size_of("size_max", &text, &(1..=1024 * MIB))
            .map_or(SizeMax::Auto, SizeMax::Bytes),
    };
    let blanks = [("keep", false), ("tombstone", true)];
    let config = PayloadConfig {
        format: FormatConfig::read(format, &keys(section.section("claim_check"))),
        blank_is_tombstone: section.one_of("empty", &blanks, &[], false),
        expand_json: section.boolean("expand_json", false),
        null: section.one_of("null", &nulls, &[], NullPayload::Tombstone),
        size_max,
        envelope: section.optional("envelope"),
    };
    section.finish();
    config
}

fn flow(section: Section<'_>) -> FlowConfig {
    let config = FlowConfig {
        in_flight_bytes: section.size("in_flight_bytes", 32 * MIB, &(64 << 10..=4096 * MIB)),
        in_flight_events: section.integer("in_flight_events", 50_000, 1..=10_000_000),
        confirm_interval: section.duration(
            "confirm_interval",
            Duration::from_millis(200),
            Duration::from_millis(10)..=Duration::from_secs(10),
        ),
        cursor_interval: section.duration(
            "cursor_interval",
            Duration::from_secs(1),
            Duration::from_millis(50)..=Duration::from_mins(5),
        ),
        ordering: section.one_of(
            "ordering",
            &[("pipelined", Ordering::Pipelined), ("strict", Ordering::Strict)],
            &[],
            Ordering::Pipelined,
        ),
    };
    section.finish();
    config
}

fn parking(section: Section<'_>, names: NameRule) -> ParkingConfig {
    let poisons = [
        ("block_key", OnPoison::BlockKey),
        ("skip_event", OnPoison::SkipEvent),
        ("stop", OnPoison::Stop),
    ];
    let on_poison = section.one_of("on_poison", &poisons, &[], OnPoison::BlockKey);
    let dead_topic = section.optional("dead_topic");
    if dead_topic.as_ref().is_some_and(|topic| !(names.allows)(topic.as_bytes())) {
        let words = names.words;
        section.error("dead_topic", format_args!("expected the name of a topic: {words}"));
    }
    let backoff = section.section("backoff");
    let config = ParkingConfig {
        on_poison,
        attempts_max: section.small("attempts_max", 10, 1..=1000),
        backoff: BackoffConfig {
            step: backoff.duration(
                "step",
                Duration::from_secs(30),
                Duration::from_millis(10)..=Duration::from_hours(24),
            ),
            steps_max: backoff.small("steps_max", 8, 1..=1000),
        },
        rows_max: section.integer("rows_max", 100_000, 1..=10_000_000),
        dead_topic,
        park_after: section.duration_or_never(
            "park_after",
            Duration::from_secs(1)..=Duration::from_hours(24 * 365),
        ),
    };
    backoff.finish();
    section.finish();
    config
}

fn poll(section: Section<'_>) -> PollConfig {
    let config = PollConfig {
        interval: section.duration(
            "interval",
            Duration::from_secs(1),
            Duration::from_millis(10)..=Duration::from_hours(1),
        ),
        batch: section.small("batch", 100, 1..=100_000),
        mark: section.one_of(
            "mark",
            &[("layout", Mark::Layout), ("delete", Mark::Delete)],
            &[],
            Mark::Layout,
        ),
        mark_streamed: section.boolean("mark_streamed", false),
    };
    section.finish();
    config
}

fn bookmarks(section: Section<'_>) -> BookmarksConfig {
    let range = MIB..=(1 << 20) * GIB;
    let config = BookmarksConfig { retain_max: section.size("retain_max", 10 * GIB, &range) };
    section.finish();
    config
}

/// The longest times of retention: a hundred years.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// `[pipelines.NAME.retention]`
fn retention(section: Section<'_>) -> RetentionSettings {
    let default = RetentionSettings::default();
    let times = [
        ("published", KeepFrom::Published),
        ("time", KeepFrom::Time),
        ("expiry", KeepFrom::Expiry),
    ];
    let actions = [
        ("delete", RetentionAction::Delete),
        ("archive", RetentionAction::Archive),
        ("drop", RetentionAction::Drop),
    ];
    let partitions = section.section("partitions");
    let settings = RetentionSettings {
        keep: section.duration_or_never("keep", Duration::from_secs(1)..=LONGEST),
        keep_from: section.one_of("keep_from", &times, &[], default.keep_from),
        action: section.one_of("action", &actions, &[], default.action),
        archive: retained_table(&section, "archive"),
        archive_keep: section.duration_or_never("archive_keep", Duration::from_secs(1)..=LONGEST),
        width: width(&partitions),
        ahead: partitions.small("ahead", default.ahead, 0..=50),
        interval: section.duration(
            "interval",
            default.interval,
            Duration::from_secs(1)..=Duration::from_hours(24),
        ),
        rate: section.small("rate", default.rate, 1..=1_000_000),
        processed_events: retained_table(&section, "processed_events"),
    };
    partitions.finish();
    match (settings.action, &settings.archive) {
        (RetentionAction::Archive, None) if !section.has_failed("archive") => {
            let why = "is missing; action = \"archive\" needs the table to which rows are moved, such as archive = \
                       \"public.outbox_archive\"";
            section.error("archive", why);
        }
        (RetentionAction::Delete | RetentionAction::Drop, Some(_)) => {
            section.error("archive", "needs action = \"archive\"; set it, or remove the archive");
        }
        (RetentionAction::Archive, _) | (RetentionAction::Delete | RetentionAction::Drop, None) => {
        }
    }
    if settings.archive_keep.is_some() && settings.archive.is_none() {
        section.error("archive_keep", "needs an archive; set archive, or remove archive_keep");
    }
    section.finish();
    settings
}

fn retained_table(section: &Section<'_>, key: &'static str) -> Option<PostgresTable> {
    let text = section.optional(key)?;
    let name = table_name(&text);
    if name.is_none() {
        section.error(key, "expected a table's name, such as \"public.outbox_archive\"");
    }
    name.map(|name| PostgresTable::new(name.schema, name.name))
}

fn width(partitions: &Section<'_>) -> Option<Width> {
    let text = partitions.optional("by")?;
    let width = Width::parse(&text);
    if width.is_none() {
        let units: Vec<String> =
            Width::UNITS.iter().map(|(unit, _)| format!("\"{unit}\"")).collect();
        let expected = format!(
            "expected one of {}, or a number such as \"1000000\" for a key of numbers",
            units.join(", ")
        );
        partitions.error("by", expected);
    }
    width
}

/// `[pipelines.NAME.outbox]`
///
/// `capture`: `[pipelines.NAME.capture]`, which takes its place.
fn read_outbox(section: Section<'_>, capture: Option<CaptureSpec>) -> OutboxConfig {
    let table = section.optional("table");
    let message_prefix = section.optional("message_prefix");
    for key in ["table", "layout", "message_prefix", "on_update", "columns", "extra"] {
        if capture.is_some() && section.has(key) {
            let why = format!(
                "outbox.{key} and capture.tables exclude each other: a pipeline publishes either the rows of an outbox \
                 or the changes of tables; remove one of them, or give each a pipeline of its own"
            );
            section.error(key, why);
        }
    }
    let nothing = table.is_none() && message_prefix.is_none() && capture.is_none();
    let reported = section.has_failed("table") || section.has_failed("message_prefix");
    if nothing && !reported && section.is_whole() {
        section
            .error("table", "set table or message_prefix; for example table = \"public.outbox\"");
    }
    let name = table.as_deref().and_then(table_name);
    if table.is_some() && name.is_none() {
        section.error("table", "expected a table's name, such as \"public.outbox\"");
    }
    let layouts: Vec<_> = Layout::ALL.iter().map(|layout| (layout.name(), *layout)).collect();
    let layout = section.one_of("layout", &layouts, &["pgtrickle"], Layout::Postrider);
    let on_update = section.one_of(
        "on_update",
        &[("skip", OnUpdate::Skip), ("halt", OnUpdate::Halt)],
        &[],
        OnUpdate::Skip,
    );
    let config = OutboxConfig {
        table: name,
        layout,
        message_prefix,
        on_update,
        columns: columns(&section.section("columns"), layout),
        extra: extra(&section.section("extra")),
        capture,
    };
    section.finish();
    config
}

fn columns(section: &Section<'_>, layout: Layout) -> Vec<(Role, String)> {
    let mut columns: Vec<(Role, String)> = Vec::new();
    for (name, column) in texts(section) {
        let Some(role) = layout.role(&name) else {
            let roles = Role::ALL.iter().map(|role| role.name());
            let near = nearest(&name, roles.clone());
            let hint = near.map_or_else(
                || format!("the fields are {}", roles.collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            section.error(&quoted(&name), format_args!("an event has no such field; {hint}"));
            continue;
        };
        // An empty name means that the table has no such column.
        if !column.is_empty() && !is_column(&column) {
            section.error(&quoted(&name), "expected a column's name of 1 to 63 bytes");
        }
        if columns.iter().any(|(of, _)| *of == role) {
            section.error(&quoted(&name), format_args!("{role} is given twice; delete one"));
        }
        columns.push((role, column));
    }
    columns
}

fn extra(section: &Section<'_>) -> Vec<Extra> {
    let mut columns = Vec::new();
    for entry in section.entries(Kind::Table) {
        if !is_column(entry.name) {
            section.context.error(
                entry.place,
                &entry.path,
                "expected a column's name of 1 to 63 bytes",
            );
        }
        if let Some((placement, may_lack)) = extra_column(section, &entry) {
            columns.push(Extra { column: entry.name.to_owned(), placement, may_lack });
        }
    }
    columns
}

fn extra_column<'a>(section: &Section<'a>, entry: &Entry<'a>) -> Option<(Placement, bool)> {
    const WAYS: &str = "expected one of { header = \"NAME\" }, { envelope = \"NAME\" }, \
                        { partition = true }, { ignore = true }";
    let Some(inner) = section.inner(entry) else {
        let (context, value) = (section.context, entry.value.get_ref());
        wrong_kind(context, entry.place, &entry.path, "a table", value);
        return None;
    };
    let keys = ["header", "envelope", "partition", "ignore"];
    let count = keys.iter().filter(|key| inner.has(key)).count();
    let name = |key| inner.text(key).filter(|name| !name.is_empty());
    let ways = [
        name("header").map(Placement::Header),
        name("envelope").map(Placement::Envelope),
        inner.boolean("partition", false).then_some(Placement::Partition),
        inner.boolean("ignore", false).then_some(Placement::Ignore),
    ];
    let found = ways.into_iter().flatten().next();
    if count != 1 || found.is_none() {
        section.context.error(entry.place, &entry.path, WAYS);
    }
    let may_lack = inner.boolean("optional", false);
    inner.finish();
    Some((found?, may_lack))
}

fn is_column(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0')
}

/// Reads `name` or `schema.name` as PostgreSQL does: folded to lower case unless in double quotes. The default schema
/// is `public`.
pub fn table_name(text: &str) -> Option<TableName> {
    let (first, rest) = identifier(text)?;
    if rest.is_empty() {
        return Some(TableName { schema: "public".to_owned(), name: first });
    }
    let (name, rest) = identifier(rest.strip_prefix('.')?)?;
    rest.is_empty().then_some(TableName { schema: first, name })
}

/// Splits the first identifier off.
fn identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = if let Some(quoted) = text.strip_prefix('"') {
        quoted_identifier(quoted)?
    } else {
        let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let end = text.find(|c| !fits(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at_checked(end)?;
        let digit = name.starts_with(|c: char| c.is_ascii_digit() || c == '$');
        if digit {
            return None;
        }
        (name.to_ascii_lowercase(), rest)
    };
    is_column(&name).then_some((name, rest))
}

fn quoted_identifier(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Some((name, after)),
        }
    }
}

// `[pipelines.NAME.sink]`: the broker and its settings.

/// The keys of a table that is read by the crate which it belongs to.
fn keys(section: Section<'_>) -> SinkKeys<'_> {
    SinkKeys { section, is_chosen: true, taken: Vec::new() }
}

/// The sink of the pipeline, and what the keys of the other kinds say that the table has beside its own.
fn read_sink(section: Section<'_>) -> (Arc<dyn SinkConfig>, Vec<Arc<dyn SinkConfig>>) {
    let kinds = section.context.kinds;
    let words: Vec<_> = kinds.iter().zip(0..).map(|(kind, index)| (kind.name(), index)).collect();
    let default = kinds.iter().position(|kind| kind.name() == DEFAULT_KIND);
    let index = section.one_of("kind", &words, &[], default.unwrap_or(0));
    if default.is_none() && !section.has("kind") && section.is_whole() {
        let all: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        section.error("kind", format_args!("is missing; there is {}", all.join(", ")));
    }
    let mut keys = keys(section);
    let chosen = kinds.get(index).map(|kind| kind.read(&keys));
    keys.taken = keys.section.known();
    keys.is_chosen = false;
    let others = kinds.iter().zip(0..).filter(|(_, other)| *other != index);
    let others = others.map(|(kind, _)| kind.read(&keys)).collect();
    keys.section.finish();
    (chosen.unwrap_or_else(|| Arc::new(DiscardConfig::default())), others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, String)> {
        table_name(text).map(|table| (table.schema, table.name))
    }

    #[test]
    fn table_names_are_read_as_postgresql_reads_them() {
        let pair = |schema: &str, name: &str| Some((schema.to_owned(), name.to_owned()));
        assert_eq!(read("outbox"), pair("public", "outbox"));
        assert_eq!(read("App.OutBox"), pair("app", "outbox"));
        assert_eq!(read("\"App\".\"a.\"\"b\""), pair("App", "a.\"b"));
        for text in ["", ".", "a.", ".a", "a.b.c", "a b", "\"a", "1a", "a.\"\"", "a-b"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
