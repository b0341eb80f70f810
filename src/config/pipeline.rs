//! `[pipelines.NAME]`: source, route, payload, flow, parking and poll.

use super::kind::Kind;
use super::outbox;
use super::secret::Url;
use super::section::{Section, wrong_kind};
use super::sink;
use super::types::{
    BackoffConfig, BookmarksConfig, FlowConfig, Mark, Ordering, ParkingConfig, PayloadConfig,
    PipelineConfig, PollConfig, RouteConfig, SizeMax, SourceConfig,
};
use crate::driver::{Mode, OnSlotLost};
use crate::outbox::{NullPayload, Replace, StandardHeaders, TimestampSource};
use crate::record::is_topic_name;
use crate::relay::OnPoison;
use crate::zone::Zone;
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `source.wal_retain_max`: two segments of WAL, below which a slot always stands somewhere; to 1 PiB. Unit: bytes.
const WAL_RETAIN_MAX: std::ops::RangeInclusive<u64> = 32 * MIB..=(1 << 30) * MIB;

/// Bytes of a slot's and a publication's name: `NAMEDATALEN - 1`.
pub(super) const NAME_BYTES_MAX: usize = 63;
/// What the names of slot and publication begin with when they are not given.
const NAME_PREFIX: &str = "postrider_";

pub(super) fn all(pipelines: &Section<'_>) -> Vec<PipelineConfig> {
    let mut all = Vec::new();
    for entry in pipelines.entries(Kind::Table) {
        if !is_pipeline_name(entry.name) {
            let max = NAME_BYTES_MAX - NAME_PREFIX.len();
            let rule = format!(
                "a pipeline's name has 1 to {max} of the characters a-z, 0-9 and _: \
                 slot and publication are named after it"
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
    if all.is_empty() && pipelines.is_whole() {
        pipelines
            .context
            .error_at(&pipelines.path, "no pipeline is configured; write [pipelines.NAME]");
    }
    all
}

fn is_pipeline_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX - NAME_PREFIX.len()).contains(&name.len()) && is_plain(name)
}

/// Whether all characters are those a slot's name may have.
pub(super) fn is_plain(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn one(name: &str, section: Section<'_>) -> PipelineConfig {
    let config = PipelineConfig {
        name: name.to_owned(),
        mode: section.one_of(
            "mode",
            &[("wal", Mode::Wal), ("poll", Mode::Poll), ("auto", Mode::Auto)],
            &[],
            Mode::Wal,
        ),
        source: source(name, section.section("source")),
        outbox: outbox::read(section.section("outbox")),
        route: route(section.section("route")),
        payload: payload(section.section("payload")),
        sink: sink::read(section.section("sink")),
        flow: flow(section.section("flow")),
        parking: parking(section.section("parking")),
        poll: poll(section.section("poll")),
        bookmarks: bookmarks(section.section("bookmarks")),
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
            "is not the name of a time zone that is known"
        } else {
            "is refused: PostgreSQL reads a name without a slash as a fixed offset, without summer time"
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
        let rule = "a slot's name has 1 to 63 of the characters a-z, 0-9 and _";
        section.error("slot", rule);
    }
    let publication = section.text("publication").unwrap_or(default);
    let fits = (1..=NAME_BYTES_MAX).contains(&publication.len());
    if section.has("publication") && !fits || publication.contains('\0') {
        section.error("publication", "a publication's name has 1 to 63 bytes");
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
    }
    let words = [("type", Header::Type), ("position", Header::Position)];
    let headers = section.some_of("standard_headers", &words)?;
    Some(StandardHeaders {
        event_type: headers.contains(&Header::Type),
        position: headers.contains(&Header::Position),
    })
}

fn replace(section: Section<'_>) -> Option<Replace> {
    // Asked for in any case, so that the keys are known.
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

fn payload(section: Section<'_>) -> PayloadConfig {
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

fn parking(section: Section<'_>) -> ParkingConfig {
    let poisons = [
        ("block_key", OnPoison::BlockKey),
        ("skip_event", OnPoison::SkipEvent),
        ("stop", OnPoison::Stop),
    ];
    let on_poison = section.one_of("on_poison", &poisons, &[], OnPoison::BlockKey);
    let dead_topic = section.optional("dead_topic");
    if dead_topic.as_ref().is_some_and(|topic| !is_topic_name(topic.as_bytes())) {
        section.error("dead_topic", "expected the name of a topic: 1 to 249 of A-Z a-z 0-9 . _ -");
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
