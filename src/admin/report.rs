//! The body of `/status`: the snapshot of each pipeline, its sentence, and the way of its events as five stages.

use super::history::{Movement, Outlook};
use super::sentence::{self, SlotRoom, caught_up_in, room};
use crate::intake_status::IntakeSnapshot;
use crate::offset::Offset;
use crate::status::{InboxesSummary, PipelineState, Snapshot};
use serde::Serialize;

/// A position that is acknowledged and has not been confirmed for so long is named. The slot is queried every 5 s.
/// Unit: seconds.
const UNCONFIRMED_MAX: f64 = 30.0;

/// All pipelines at one moment: the body of `/status`.
#[derive(Serialize, Debug)]
pub struct StatusReport {
    /// The version of the running process.
    pub version: &'static str,
    /// The pipelines, in the order of the configuration file.
    pub pipelines: Vec<PipelineReport>,
    /// The intakes of `postrider inbox run`, in the same order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intakes: Vec<IntakeSnapshot>,
    /// The databases of these intakes whose inboxes the process maintains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub maintenance: Vec<IntakeMaintenanceReport>,
}

/// The inboxes of a database of intakes, as their maintenance last read them.
#[derive(Serialize, Debug)]
pub struct IntakeMaintenanceReport {
    /// The first intake that has the database.
    pub intake: String,
    /// What was read.
    #[serde(flatten)]
    pub summary: InboxesSummary,
}

/// One pipeline.
#[derive(Serialize, Debug)]
pub struct PipelineReport {
    /// Its status.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Its status in one sentence.
    pub sentence: String,
    /// The way of its events.
    pub flow: EventFlow,
}

impl PipelineReport {
    /// The report of a snapshot. `stuck`: why the pipeline is not live.
    pub fn new(snapshot: Snapshot, stuck: Option<&str>, outlook: &Outlook) -> Self {
        let sentence = sentence::sentence(&snapshot, stuck, outlook);
        let flow = EventFlow::of(&snapshot, stuck, outlook);
        Self { snapshot, sentence, flow }
    }
}

/// The way of a pipeline's events, from the commit to the confirmation.
#[derive(Serialize, Debug)]
pub struct EventFlow {
    /// The stages, in this order.
    pub stages: [Stage; 5],
    /// The stage at which events wait, if the state of the pipeline says so.
    pub blocked: Option<Blocked>,
    /// Seconds until the pipeline has caught up, at the speed of the last minute; `None` if it does not catch up.
    pub caught_up_in_seconds: Option<f64>,
    /// What the slot may still keep; `None` without a slot or without a limit.
    pub slot_room: Option<SlotRoom>,
    /// How fast the WAL of the slot has grown in the last ten minutes; negative if it shrinks. Unit: bytes a second.
    pub slot_growth_bytes_per_second: Option<f64>,
}

/// A stage on the way of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    /// The event is in the server's WAL.
    Committed,
    /// The pipeline has received it.
    Read,
    /// The sink has it, and has not answered.
    InFlight,
    /// The sink has answered for it and for all before it.
    Acknowledged,
    /// PostgreSQL may remove its WAL.
    Confirmed,
}

/// How far a stage is, and what it waits for.
#[derive(Serialize, Debug)]
pub struct Stage {
    /// The stage.
    pub stage: StageName,
    /// Its position; `None` if there is no such position, as while a table is polled.
    pub position: Option<String>,
    /// How the position moves.
    #[serde(flatten)]
    pub movement: Movement,
    /// The distance to the position of the stage before it. Unit: bytes of WAL.
    pub behind_bytes: Option<u64>,
    /// Events in the stage, of the stage in flight.
    pub events: Option<u64>,
    /// Their size, of the stage in flight.
    pub bytes: Option<u64>,
    /// Seconds since the commit of the oldest event that is not acknowledged, of the stage in flight; `None` if there
    /// is none.
    pub oldest_seconds: Option<f64>,
    /// Events a second in the last minute, of the stage acknowledged.
    pub events_per_second: Option<f64>,
    /// What the stage waits for.
    pub waits_for: Option<String>,
}

/// Where events wait, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Blocked {
    /// The stage that no event reaches.
    pub stage: StageName,
    /// The reason in one line.
    pub why: String,
}

impl EventFlow {
    fn of(snapshot: &Snapshot, stuck: Option<&str>, outlook: &Outlook) -> Self {
        // 0/0 is no position.
        let known = |text: &str| {
            let offset: Option<Offset> = text.parse().ok();
            offset.filter(|offset| *offset != Offset::ZERO)
        };
        let read = known(&snapshot.read.received);
        // The end of WAL was queried some seconds ago, and more may have been read since.
        let committed = snapshot.read.wal_end.as_deref().and_then(known);
        let committed = committed.map(|end| read.map_or(end, |read| end.max(read)));
        let acknowledged = known(&snapshot.watermark);
        let confirmed = snapshot.confirmed_flush_lsn.as_deref().and_then(known);
        let stage = |stage, position: Option<Offset>, before: Option<Offset>, movement| Stage {
            stage,
            position: position.map(|position| position.to_string()),
            movement,
            behind_bytes: before.zip(position).map(|(before, at)| before.distance_from(at)),
            events: None,
            bytes: None,
            oldest_seconds: None,
            events_per_second: None,
            waits_for: None,
        };
        let waiting = snapshot.in_flight_events > 0;
        let unconfirmed = acknowledged.zip(confirmed).is_some_and(|(to, at)| at < to);
        let late = outlook.confirmed.still_seconds.filter(|seconds| *seconds >= UNCONFIRMED_MAX);
        let late = late.filter(|_| unconfirmed).map(|seconds| {
            format!(
                "acknowledged events have not been confirmed for {}",
                sentence::duration(seconds)
            )
        });
        let stages = [
            stage(StageName::Committed, committed, None, outlook.committed),
            Stage {
                waits_for: snapshot.read.waits_for.map(str::to_owned),
                ..stage(StageName::Read, read, committed, outlook.read)
            },
            Stage {
                events: Some(snapshot.in_flight_events),
                bytes: Some(snapshot.in_flight_bytes),
                oldest_seconds: (waiting && snapshot.lag_seconds > 0.0)
                    .then_some(snapshot.lag_seconds),
                ..stage(StageName::InFlight, None, None, Movement::default())
            },
            Stage {
                events_per_second: outlook.events_per_second,
                ..stage(StageName::Acknowledged, acknowledged, read, outlook.acknowledged)
            },
            Stage {
                waits_for: late,
                ..stage(StageName::Confirmed, confirmed, acknowledged, outlook.confirmed)
            },
        ];
        Self {
            stages,
            blocked: blocked(snapshot, stuck),
            caught_up_in_seconds: caught_up_in(snapshot, outlook),
            slot_room: room(snapshot, outlook),
            slot_growth_bytes_per_second: outlook.slot_growth,
        }
    }
}

/// The stage that no event reaches, by the state.
fn blocked(snapshot: &Snapshot, stuck: Option<&str>) -> Option<Blocked> {
    let reason = |or: &str| snapshot.reason.clone().unwrap_or_else(|| or.to_owned());
    if let Some(why) = stuck {
        return Some(Blocked { stage: StageName::Read, why: why.to_owned() });
    }
    let (stage, why) = match snapshot.state {
        PipelineState::Streaming | PipelineState::Polling | PipelineState::CatchingUp => {
            return None;
        }
        PipelineState::Starting => (StageName::Read, reason("the pipeline is starting")),
        PipelineState::StandingBy => (StageName::Read, reason("another process owns the pipeline")),
        PipelineState::SourceDown => (StageName::Read, reason("the database does not answer")),
        PipelineState::ParkingFull => (StageName::Read, reason("parking.rows_max is reached")),
        PipelineState::Draining => (StageName::Read, reason("the pipeline is draining")),
        PipelineState::Paused => (StageName::Read, reason("the pipeline is paused")),
        PipelineState::Halted => (StageName::Read, reason("the pipeline has halted")),
        PipelineState::Stopped => (StageName::Read, reason("the pipeline has stopped")),
        PipelineState::BrokerDown => {
            (StageName::Acknowledged, reason("the broker does not answer"))
        }
    };
    Some(Blocked { stage, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot { state: PipelineState::Streaming, ..Snapshot::default() };
        snapshot.read.wal_end = Some("0/4000".to_owned());
        snapshot.read.received = "0/3000".to_owned();
        snapshot.watermark = "0/2000".to_owned();
        snapshot.confirmed_flush_lsn = Some("0/1800".to_owned());
        (snapshot.in_flight_events, snapshot.in_flight_bytes) = (7, 700);
        snapshot.lag_seconds = 2.5;
        snapshot
    }

    fn document(report: &PipelineReport) -> Value {
        serde_json::to_value(report).unwrap()
    }

    #[test]
    fn stages_have_positions_and_the_distance_to_the_stage_before() {
        let json = document(&PipelineReport::new(snapshot(), None, &Outlook::default()));
        let of = |key: &str| {
            let stages = json["flow"]["stages"].as_array().unwrap();
            stages.iter().map(|stage| stage[key].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("stage"), ["committed", "read", "in_flight", "acknowledged", "confirmed"]);
        let positions = json!(["0/4000", "0/3000", null, "0/2000", "0/1800"]);
        assert_eq!(Value::Array(of("position")), positions);
        let distances = json!([null, 0x1000, null, 0x1000, 0x800]);
        assert_eq!(Value::Array(of("behind_bytes")), distances);
        let stage = &json["flow"]["stages"][2];
        assert_eq!(stage["events"], 7);
        assert_eq!(stage["bytes"], 700);
        assert_eq!(stage["oldest_seconds"], 2.5);
        assert_eq!(json["sentence"], "streams, 2.5 s behind");
        assert_eq!(json["flow"]["blocked"], Value::Null);
        // The fields of the snapshot are beside them.
        assert_eq!(json["watermark"], "0/2000");
    }

    #[test]
    fn nothing_is_read_that_is_not_committed() {
        let mut snapshot = snapshot();
        snapshot.read.received = "0/5000".to_owned();
        let json = document(&PipelineReport::new(snapshot, None, &Outlook::default()));
        assert_eq!(json["flow"]["stages"][0]["position"], "0/5000");
        assert_eq!(json["flow"]["stages"][1]["behind_bytes"], 0);
    }

    #[test]
    fn blocked_stage_is_that_of_the_state() {
        let of = |state: PipelineState, reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            let snapshot = Snapshot { state, reason, ..snapshot() };
            blocked(&snapshot, None).map(|blocked| (blocked.stage, blocked.why))
        };
        assert_eq!(of(PipelineState::CatchingUp, Some("the intake waits for reports")), None);
        let down = of(PipelineState::BrokerDown, Some("no broker answers")).unwrap();
        assert_eq!(down, (StageName::Acknowledged, "no broker answers".to_owned()));
        let halted = of(PipelineState::Halted, None).unwrap();
        assert_eq!(halted, (StageName::Read, "the pipeline has halted".to_owned()));
        let stuck = blocked(&snapshot(), Some("the loop has not turned for 32 s")).unwrap();
        assert_eq!(stuck.why, "the loop has not turned for 32 s");
    }

    #[test]
    fn positions_that_are_not_confirmed_are_named_after_half_a_minute() {
        let waits = |seconds: f64, confirmed: &str| {
            let movement = Movement { still_seconds: Some(seconds), bytes_per_second: None };
            let outlook = Outlook { confirmed: movement, ..Outlook::default() };
            let mut snapshot = snapshot();
            snapshot.confirmed_flush_lsn = Some(confirmed.to_owned());
            let json = document(&PipelineReport::new(snapshot, None, &outlook));
            json["flow"]["stages"][4]["waits_for"].clone()
        };
        assert_eq!(waits(29.0, "0/1800"), Value::Null);
        assert_eq!(waits(300.0, "0/2000"), Value::Null);
        assert_eq!(waits(300.0, "0/1800"), "acknowledged events have not been confirmed for 5 min");
    }
}
