//! The outbox table as the source of a comparison.

use super::comparison::{Expectation, SourceEvent, SourceKey, TopicComparison};
use super::error::VerifyError;
use super::findings::VerifyFinding;
use super::request::{VerifyProgress, VerifyRequest};
use crate::event::Position;
use crate::outbox::{At, MapError, Mapped, Mapper, NullPayload, OutboxSpec, PartialEvent, Role};
use crate::pipeline::{Mode, PipelineSpec};
use crate::postgres::verify::{KnownEvent, VerifyQuery, VerifyReader, VerifyRow, VerifySnapshot};
use crate::timestamp::Timestamp;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider verify";

/// Adds the rows of the table to a comparison. Returns the state of the pipeline in the snapshot.
///
/// # Errors
/// The table can't be read, does not fit the layout, or does not fit into memory.
pub(super) async fn add_rows(
    comparison: &mut TopicComparison,
    spec: &PipelineSpec,
    request: &VerifyRequest,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifySnapshot, VerifyError> {
    let no_table = || VerifyError::NoTable { pipeline: spec.name().to_owned() };
    let table = spec.poll.table.clone().ok_or_else(no_table)?;
    let (name, outbox) = (table.table.to_string(), &spec.common.outbox);
    let is_ranged = request.since.is_some() || request.until.is_some();
    if is_ranged && table.time.is_none() {
        let why = format!("no column of table {name} is named as the time of its rows");
        return Err(VerifyError::NoTime { what: "the rows", why });
    }
    let query = VerifyQuery {
        table,
        polls_only: spec.common.mode == Mode::Poll,
        marked: spec.marks().is_some(),
        since: request.since,
        until: request.until,
        without: payload(outbox),
    };
    let mut reader = VerifyReader::open(&spec.conninfo, APPLICATION_NAME, &query).await?;
    let snapshot = reader.snapshot().clone();
    if snapshot.of_table.is_some_and(|of| of != snapshot.table) {
        return Err(VerifyError::OtherTable { pipeline: spec.name().to_owned(), table: name });
    }
    if is_ranged && !reader.has_time() {
        let why =
            format!("the time column of table {name} has no zone, and source.time_zone is not set");
        return Err(VerifyError::NoTime { what: "the rows", why });
    }
    let mut rows = OutboxEvents {
        mapper: mapper(spec, &reader)?,
        at: At { position: Position::default(), commit_time: snapshot.at },
        id_is_number: reader.id_is_number(),
        now: snapshot.at,
    };
    while reader.next().await? {
        for row in reader.rows() {
            rows.add(comparison, &row, request.memory_max)?;
        }
        progress(VerifyProgress { events: comparison.events(), records: 0 });
    }
    Ok(snapshot)
}

/// The column with the payload, if nothing but the value of a record is made of it.
fn payload(outbox: &OutboxSpec) -> Option<&str> {
    let column = outbox.column(Role::Payload)?;
    let names = [format!("{{{column}"), format!("{{{}", Role::Payload)];
    let headers = outbox.headers.iter().map(|(_, template)| template);
    let mut templates = [&outbox.topic, &outbox.key, &outbox.partition].into_iter().chain(headers);
    let in_template = templates.any(|text| names.iter().any(|name| text.contains(name)));
    let is_extra = outbox.extra.iter().any(|extra| extra.column == column);
    let is_other = outbox.roles().filter(|(_, name)| *name == column).count() > 1;
    (!in_template && !is_extra && !is_other).then_some(column)
}

/// What makes topic, key and headers of the rows. The payload is not read, so its NULL must not matter.
fn mapper(spec: &PipelineSpec, reader: &VerifyReader) -> Result<Mapper, VerifyError> {
    let outbox = OutboxSpec { null_payload: NullPayload::Tombstone, ..spec.common.outbox.clone() };
    let unsound = |errors: Vec<_>| match errors.into_iter().next() {
        Some(error) => VerifyError::Spec(error),
        None => VerifyError::NoTable { pipeline: spec.name().to_owned() },
    };
    let mut mapper = Mapper::new(outbox).map_err(unsound)?;
    mapper.set_names(spec.common.sink.names());
    mapper.clear_tables(Some(reader.description().id));
    mapper.table(&reader.description().as_table()).map_err(VerifyError::Unfit)?;
    Ok(mapper)
}

/// Makes events of rows.
struct OutboxEvents {
    mapper: Mapper,
    at: At,
    id_is_number: bool,
    now: Timestamp,
}

impl OutboxEvents {
    fn add(
        &mut self,
        comparison: &mut TopicComparison,
        row: &VerifyRow<'_>,
        memory_max: u64,
    ) -> Result<(), VerifyError> {
        let id_is_number = self.id_is_number;
        let order = |id: &str| place(id_is_number, id, row.time_micros);
        let added = match self.mapper.row(&row.row, self.at) {
            Ok(None) => Ok(()),
            Ok(Some(mapped)) => {
                let record = mapped.record();
                let header =
                    |name: &str| record.headers.iter().find(|header| header.name == name)?.value;
                // As the record has it: a layout may write ids in another way than the column.
                let id = header("id").and_then(|id| std::str::from_utf8(id).ok());
                let Some(id) = id else {
                    comparison.add_unidentified(VerifyFinding::Unpublishable);
                    return Ok(());
                };
                comparison.add_event(&SourceEvent {
                    id,
                    aggregate: (mapped.aggregate.kind, mapped.aggregate.id),
                    topic: record.topic,
                    key: SourceKey::Known(record.key),
                    origin: header("source"),
                    order: order(mapped.event_id),
                    expected: expected(row.known, &mapped, self.now),
                })
            }
            Err(MapError::Poison(poison)) => {
                let partial = &*poison.partial;
                let finding = unpublishable(row.known);
                let Some(id) = &partial.event_id else {
                    comparison.add_unidentified(finding);
                    return Ok(());
                };
                comparison.add_event(&of_poison(partial, id, order(id), finding))
            }
            Err(error) => return Err(VerifyError::Unfit(error)),
        };
        added.map_err(|full| VerifyError::Memory { events: full.events, memory_max })
    }
}

fn expected(known: KnownEvent, mapped: &Mapped<'_>, now: Timestamp) -> Expectation {
    let finding = match known {
        // The stream skips an event that has expired, and does not record that.
        KnownEvent::Published if mapped.expires_at.is_some_and(|at| at <= now) => {
            VerifyFinding::Expired
        }
        KnownEvent::Published => return Expectation::Record,
        KnownEvent::Parked => VerifyFinding::Parked,
        KnownEvent::Dead => VerifyFinding::Dead,
        KnownEvent::Skipped => VerifyFinding::Skipped,
        KnownEvent::Before => VerifyFinding::Before,
        KnownEvent::MayBeBefore => VerifyFinding::Unproven,
        KnownEvent::NotReached => VerifyFinding::NotReached,
    };
    Expectation::Nothing(finding)
}

/// What an event of which no record can be made counts as.
const fn unpublishable(known: KnownEvent) -> VerifyFinding {
    match known {
        KnownEvent::Parked => VerifyFinding::Parked,
        KnownEvent::Dead => VerifyFinding::Dead,
        KnownEvent::Skipped => VerifyFinding::Skipped,
        KnownEvent::Before => VerifyFinding::Before,
        KnownEvent::NotReached => VerifyFinding::NotReached,
        KnownEvent::Published | KnownEvent::MayBeBefore => VerifyFinding::Unpublishable,
    }
}

fn of_poison<'a>(
    partial: &'a PartialEvent,
    id: &'a str,
    order: Option<u64>,
    finding: VerifyFinding,
) -> SourceEvent<'a> {
    let aggregate = partial.aggregate.as_ref();
    SourceEvent {
        id,
        aggregate: aggregate.map_or(("", id), |(kind, id)| (kind.as_str(), id.as_str())),
        topic: &partial.record.topic,
        // An operator may have replaced the event.
        key: SourceKey::Unknown,
        origin: None,
        order,
        expected: Expectation::Nothing(finding),
    }
}

/// The place of a row in the order of the table: its number, or else its time.
fn place(id_is_number: bool, id: &str, time_micros: Option<i64>) -> Option<u64> {
    let number = if id_is_number { id.parse::<i64>().ok() } else { time_micros };
    // Negative numbers are below the others.
    number.map(|number| number.cast_unsigned() ^ (1 << 63))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Layout;

    #[test]
    fn payload_is_left_out_unless_a_part_of_the_record_is_made_of_it() {
        let spec = OutboxSpec::for_layout(Layout::Postrider);
        assert_eq!(payload(&spec), Some("payload"));
        let topic = OutboxSpec { topic: "a.{payload}".to_owned(), ..spec.clone() };
        assert_eq!(payload(&topic), None);
        let headers = vec![("x".to_owned(), "{payload}".to_owned())];
        assert_eq!(payload(&OutboxSpec { headers, ..spec.clone() }), None);
        let columns = vec![(Role::Payload, "body".to_owned())];
        assert_eq!(payload(&OutboxSpec { columns, ..spec }), Some("body"));
    }

    #[test]
    fn places_are_in_the_order_of_numbers_or_times() {
        let number = |id: &str| place(true, id, None).unwrap();
        assert!(number("-5") < number("-4") && number("-1") < number("0"));
        assert!(number("9") < number("10"));
        assert_eq!(place(true, "1.5", Some(3)), None);
        assert!(place(false, "x", Some(1)) < place(false, "a", Some(2)));
        assert_eq!(place(false, "x", None), None);
    }
}
