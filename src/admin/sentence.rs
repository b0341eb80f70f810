//! One sentence about a pipeline: whether events flow, how far it is behind, when it will have caught up, and when its
//! slot is full. The page shows it on top, and `/status` has it as `sentence`.

use super::history::Outlook;
use crate::health::grouped;
use crate::status::{PipelineState, Snapshot};

/// A slot that is full only after this time is not worth a clause. Unit: seconds.
const FULL_IN_MAX: f64 = 366.0 * 86_400.0;

/// A time to catch up above this is not shown: the speed of a minute says nothing about months. Unit: seconds.
const CAUGHT_UP_IN_MAX: f64 = 30.0 * 86_400.0;

/// The sentence about a pipeline. `stuck`: why the pipeline is not live.
pub fn sentence(snapshot: &Snapshot, stuck: Option<&str>, outlook: &Outlook) -> String {
    let mut clauses = vec![match stuck {
        Some(why) => format!("is stuck: {}", one_line(why)),
        None => state(snapshot),
    }];
    if let Some(seconds) = caught_up_in(snapshot, outlook) {
        clauses.push(format!("at this rate caught up in {}", duration(seconds)));
    }
    clauses.extend(slot(snapshot, outlook));
    clauses.extend(parked(snapshot));
    clauses.join("; ")
}

/// What the pipeline does, and how far it is behind.
fn state(snapshot: &Snapshot) -> String {
    let because = |what: &str| match snapshot.reason.as_deref() {
        Some(reason) => format!("{what}: {}", one_line(reason)),
        None => what.to_owned(),
    };
    let behind = |what: &str| {
        let lag = snapshot.lag_seconds;
        if lag > 0.0 {
            format!("{what}, {} behind", duration(lag))
        } else {
            format!("{what}, nothing waits")
        }
    };
    match snapshot.state {
        PipelineState::Streaming => behind("streams"),
        PipelineState::Polling => behind("polls the table"),
        PipelineState::CatchingUp => match snapshot.reason.as_deref() {
            Some(reason) => format!("{}; {}", behind("catches up"), one_line(reason)),
            None => behind("catches up"),
        },
        PipelineState::Starting => because("starts"),
        PipelineState::StandingBy => because("is a standby"),
        PipelineState::BrokerDown => behind(&because("publishes nothing")),
        PipelineState::SourceDown | PipelineState::ParkingFull => behind(&because("reads nothing")),
        PipelineState::Draining => because("finishes what is in flight"),
        PipelineState::Paused => behind(&because("is paused")),
        PipelineState::Halted => match snapshot.halt_code {
            Some(code) => because(&format!("halted with {code}")),
            None => because("halted"),
        },
        PipelineState::Stopped => "stopped".to_owned(),
    }
}

/// Seconds until a pipeline that catches up has read and published everything, if it becomes faster than the writers by
/// what it was in the last minute.
pub(super) fn caught_up_in(snapshot: &Snapshot, outlook: &Outlook) -> Option<f64> {
    if snapshot.state != PipelineState::CatchingUp {
        return None;
    }
    let published = outlook.acknowledged.bytes_per_second?;
    let gain = published - outlook.committed.bytes_per_second?;
    let seconds = real(snapshot.lag_bytes) / gain;
    (gain > 0.0 && seconds <= CAUGHT_UP_IN_MAX).then_some(seconds)
}

/// The WAL that the slot may still keep, and which limit that is.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct SlotRoom {
    /// The bytes; 0 if the limit is reached.
    pub bytes: u64,
    /// The setting with the limit.
    pub limit: &'static str,
    /// Seconds until the slot has reached the limit at the rate of the last ten minutes; `None` if it does not grow.
    pub full_in_seconds: Option<f64>,
}

/// What the slot may still keep by the limit that is reached first; `None` without a slot, and without a limit.
pub(super) fn room(snapshot: &Snapshot, outlook: &Outlook) -> Option<SlotRoom> {
    let retained = snapshot.slot_retained_bytes?;
    let server = snapshot.slot_safe_bytes.map(|bytes| u64::try_from(bytes).unwrap_or(0));
    // Not enforced during a pause.
    let own = snapshot.slot_retain_max_bytes.filter(|_| snapshot.state != PipelineState::Paused);
    let own = own.map(|most| most.saturating_sub(retained));
    let limits = [
        server.map(|bytes| (bytes, "max_slot_wal_keep_size")),
        own.map(|bytes| (bytes, "source.wal_retain_max")),
    ];
    let (bytes, limit) = limits.into_iter().flatten().min()?;
    let growth = outlook.slot_growth.filter(|growth| *growth > 0.0);
    let full_in_seconds = growth.map(|growth| real(bytes) / growth);
    Some(SlotRoom { bytes, limit, full_in_seconds })
}

fn slot(snapshot: &Snapshot, outlook: &Outlook) -> Option<String> {
    match snapshot.slot_state.as_deref() {
        Some("lost") => return Some("the slot is lost".to_owned()),
        Some("missing") => return Some("the slot does not exist".to_owned()),
        Some(_) | None => {}
    }
    let retained = snapshot.slot_retained_bytes?;
    let Some(room) = room(snapshot, outlook) else {
        return Some(format!("the slot keeps {} and has no limit", size(retained)));
    };
    if room.bytes == 0 {
        return Some(format!("the slot has reached {}", room.limit));
    }
    let full = room.full_in_seconds.filter(|seconds| *seconds <= FULL_IN_MAX);
    let full = full.map(|seconds| format!(", at this rate full in {}", duration(seconds)));
    let (more, full) = (size(room.bytes), full.unwrap_or_default());
    Some(format!("the slot may keep {more} more{full}"))
}

fn parked(snapshot: &Snapshot) -> Option<String> {
    let parked = &snapshot.parked;
    let events = parked.waiting + parked.behind + parked.dead;
    if events == 0 {
        return None;
    }
    let plural = |count: u64, one: &str, many: &str| {
        format!("{} {}", grouped(count), if count == 1 { one } else { many })
    };
    let mut text = format!("{} parked", plural(events, "event is", "events are"));
    if parked.dead > 0 {
        let count = if parked.dead == events { "all".to_owned() } else { grouped(parked.dead) };
        let count = if events == 1 { "which is".to_owned() } else { format!("{count} of them") };
        text = format!("{text}, {count} dead");
    }
    Some(text)
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[expect(clippy::cast_precision_loss, reason = "a figure of two digits")]
fn real(value: u64) -> f64 {
    value as f64
}

/// A duration in its largest unit that is not too coarse: `12 ms`, `1.4 s`, `85 s`, `12 min`, `41 h`, `3 days`.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        0.0..0.000_5 => "less than 1 ms".to_owned(),
        0.000_5..0.999_5 => format!("{:.0} ms", seconds * 1000.0),
        0.999_5..9.95 => format!("{seconds:.1} s"),
        9.95..119.5 => format!("{seconds:.0} s"),
        119.5..7_170.0 => format!("{:.0} min", seconds / 60.0),
        7_170.0..171_000.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// A size in its largest binary unit: `512 B`, `9.2 GiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = real(bytes) / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"KiB");
    while value >= 1023.95 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1024.0, next);
    }
    if value < 99.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::history::Movement;
    use PipelineState as Doing;

    const GIB: f64 = 1_073_741_824.0;

    fn of(state: Doing, change: impl FnOnce(&mut Snapshot)) -> String {
        let mut snapshot = Snapshot { state, ..Snapshot::default() };
        change(&mut snapshot);
        sentence(&snapshot, None, &Outlook::default())
    }

    fn reason(text: &str) -> impl FnOnce(&mut Snapshot) {
        let text = text.to_owned();
        move |snapshot| {
            snapshot.reason = Some(text);
            snapshot.lag_seconds = 90.0;
        }
    }

    #[test]
    fn each_state_has_its_sentence() {
        assert_eq!(of(Doing::Streaming, |_| {}), "streams, nothing waits");
        assert_eq!(of(Doing::Streaming, |s| s.lag_seconds = 0.012), "streams, 12 ms behind");
        assert_eq!(of(Doing::Polling, |s| s.lag_seconds = 1.43), "polls the table, 1.4 s behind");
        assert_eq!(
            of(Doing::CatchingUp, reason("the intake waits for reports")),
            "catches up, 90 s behind; the intake waits for reports"
        );
        assert_eq!(of(Doing::Starting, |_| {}), "starts");
        assert_eq!(
            of(Doing::StandingBy, reason("another process owns the slot")),
            "is a standby: another process owns the slot"
        );
        assert_eq!(
            of(Doing::BrokerDown, reason("no broker answers")),
            "publishes nothing: no broker answers, 90 s behind"
        );
        assert_eq!(
            of(Doing::SourceDown, reason("connection refused")),
            "reads nothing: connection refused, 90 s behind"
        );
        assert_eq!(
            of(Doing::ParkingFull, reason("parking table full")),
            "reads nothing: parking table full, 90 s behind"
        );
        assert_eq!(
            of(Doing::Draining, reason("received a signal to stop")),
            "finishes what is in flight: received a signal to stop"
        );
        assert_eq!(
            of(Doing::Paused, reason("requested by ann")),
            "is paused: requested by ann, 90 s behind"
        );
        assert_eq!(
            of(Doing::Halted, |s| {
                s.halt_code = Some("PR002");
                s.reason = Some("slot \"a\"\ndoes not exist".to_owned());
                s.slot_state = Some("missing".to_owned());
            }),
            "halted with PR002: slot \"a\" does not exist; the slot does not exist"
        );
        assert_eq!(of(Doing::Stopped, |_| {}), "stopped");
        let snapshot = Snapshot { state: Doing::Streaming, ..Snapshot::default() };
        let stuck =
            sentence(&snapshot, Some("the loop has not turned for 32 s"), &Outlook::default());
        assert_eq!(stuck, "is stuck: the loop has not turned for 32 s");
    }

    #[test]
    fn slot_is_full_by_the_limit_that_is_reached_first() {
        let mut snapshot =
            Snapshot { state: Doing::Streaming, lag_seconds: 0.012, ..Snapshot::default() };
        snapshot.slot_retained_bytes = Some(8 << 30);
        let growing =
            Outlook { slot_growth: Some(9.2 * GIB / (41.0 * 3600.0)), ..Outlook::default() };
        let end = |snapshot: &Snapshot, outlook: &Outlook| {
            let text = sentence(snapshot, None, outlook);
            text.split_once("; ").unwrap().1.to_owned()
        };
        assert_eq!(end(&snapshot, &growing), "the slot keeps 8.0 GiB and has no limit");
        #[expect(clippy::cast_possible_truncation, reason = "small")]
        let safe = (9.2 * GIB) as i64;
        snapshot.slot_safe_bytes = Some(safe);
        assert_eq!(
            sentence(&snapshot, None, &growing),
            "streams, 12 ms behind; the slot may keep 9.2 GiB more, at this rate full in 41 h"
        );
        assert_eq!(room(&snapshot, &growing).unwrap().limit, "max_slot_wal_keep_size");
        for growth in [None, Some(0.0), Some(-5.0), Some(0.001)] {
            let outlook = Outlook { slot_growth: growth, ..Outlook::default() };
            assert_eq!(end(&snapshot, &outlook), "the slot may keep 9.2 GiB more");
        }
        snapshot.slot_retain_max_bytes = Some(10 << 30);
        assert_eq!(end(&snapshot, &Outlook::default()), "the slot may keep 2.0 GiB more");
        assert_eq!(room(&snapshot, &growing).unwrap().limit, "source.wal_retain_max");
        snapshot.slot_retain_max_bytes = Some(1 << 30);
        assert_eq!(end(&snapshot, &growing), "the slot has reached source.wal_retain_max");
        // A paused pipeline is not held to it.
        snapshot.state = Doing::Paused;
        assert_eq!(room(&snapshot, &growing).unwrap().limit, "max_slot_wal_keep_size");
        snapshot.state = Doing::Streaming;
        snapshot.slot_safe_bytes = Some(-1);
        snapshot.slot_retain_max_bytes = None;
        assert_eq!(end(&snapshot, &growing), "the slot has reached max_slot_wal_keep_size");
        snapshot.slot_state = Some("lost".to_owned());
        assert_eq!(end(&snapshot, &growing), "the slot is lost");
    }

    #[test]
    fn pipeline_that_catches_up_says_when_it_will_have() {
        let mut snapshot =
            Snapshot { state: Doing::CatchingUp, lag_seconds: 600.0, ..Snapshot::default() };
        snapshot.lag_bytes = 3_000_000;
        let moves = |committed: f64, acknowledged: f64| {
            let at = |speed| Movement { still_seconds: Some(0.0), bytes_per_second: Some(speed) };
            Outlook {
                committed: at(committed),
                acknowledged: at(acknowledged),
                ..Outlook::default()
            }
        };
        assert_eq!(
            sentence(&snapshot, None, &moves(5_000.0, 15_000.0)),
            "catches up, 10 min behind; at this rate caught up in 5 min"
        );
        for outlook in [
            moves(5_000.0, 5_000.0),
            moves(5_000.0, 0.0),
            moves(5_000.0, 5_001.0),
            Outlook::default(),
        ] {
            assert_eq!(sentence(&snapshot, None, &outlook), "catches up, 10 min behind");
        }
        snapshot.state = Doing::Streaming;
        assert_eq!(caught_up_in(&snapshot, &moves(0.0, 10.0)), None);
    }

    #[test]
    fn parked_events_are_counted() {
        let with = |waiting, behind, dead| {
            let text = of(Doing::Streaming, |snapshot| {
                (snapshot.parked.waiting, snapshot.parked.behind) = (waiting, behind);
                snapshot.parked.dead = dead;
                // Events that are due later are not in the way.
                snapshot.parked.due = 5;
            });
            text.split_once("; ").map(|(_, parked)| parked.to_owned())
        };
        assert_eq!(with(0, 0, 0), None);
        assert_eq!(with(1, 0, 0).unwrap(), "1 event is parked");
        assert_eq!(with(0, 0, 1).unwrap(), "1 event is parked, which is dead");
        assert_eq!(with(1, 1_200, 2).unwrap(), "1,203 events are parked, 2 of them dead");
        assert_eq!(with(0, 0, 2).unwrap(), "2 events are parked, all of them dead");
    }

    #[test]
    fn figures_are_short() {
        for (seconds, text) in [
            (0.000_1, "less than 1 ms"),
            (0.012, "12 ms"),
            (0.999_6, "1.0 s"),
            (9.94, "9.9 s"),
            (9.96, "10 s"),
            (119.0, "119 s"),
            (120.0, "2 min"),
            (7_200.0, "2 h"),
            (147_600.0, "41 h"),
            (259_200.0, "3 days"),
        ] {
            assert_eq!(duration(seconds), text);
        }
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (150 << 20, "150 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
