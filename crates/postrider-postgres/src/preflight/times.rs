//! Rules about columns without a time zone: where one decides when an event is published, `source.time_zone` must say
//! which zone its values are of.

use super::Scene;
use crate::names::ident;
use crate::times::{ServerZone, TimeType, with_zone};
use postrider_core::finding::Finding;

/// A zone's name that no server has: a line with it is refused until somebody fills it in.
const ANY_ZONE: &str = "Area/City";

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let names = scene.ask.names;
    let (Some(table), times) = (&names.table, &names.times) else { return };
    zone(scene, out);
    if times.zone.is_some() {
        return;
    }
    let known = scene.session_zones.as_slice();
    let (proposed, asked) = match known {
        [only] => (
            only.as_str(),
            format!("sessions here have {only:?} by the settings of a role or database"),
        ),
        [] => (ANY_ZONE, "SHOW TimeZone in a session of the application".to_owned()),
        several => (
            ANY_ZONE,
            format!(
                "sessions here have several, by the settings of roles and databases: {}",
                several.join(", ")
            ),
        ),
    };
    for column in scene.times.columns.iter().filter(|column| column.kind.lacks_zone()) {
        let (name, kind) = (ident(&column.name), &column.type_name);
        let line = scene.lines.config("source.time_zone", proposed);
        if let Some(deciding) = times.deciding.iter().find(|d| d.column == column.name) {
            let alter = match column.kind {
                TimeType::Local => format!(
                    ". Or give the column a zone, which rewrites the table under a lock: {};",
                    with_zone(table, &column.name, proposed)
                ),
                TimeType::Text | TimeType::Absolute | TimeType::Other => String::new(),
            };
            out.push(
                Finding::error(
                    "time_zone_missing",
                    format!("column {name} ({kind}) of {table} has no time zone, and decides {}", deciding.what),
                )
                .why(format!(
                    "read in another zone than it was written in, events are dropped, or hours late. Name the zone of \
                     the sessions that insert ({asked}){alter}"
                ))
                .config(line),
            );
        } else if times.stamp.as_ref() == Some(&column.name) && column.kind == TimeType::Local {
            out.push(
                Finding::warning(
                    "time_zone_assumed",
                    format!("column {name} ({kind}) of {table} has no time zone: it is read as UTC"),
                )
                .why(format!(
                    "timestamps of records are off by the zone of the sessions that insert ({asked}); where rows are \
                     ordered by this column, those of the hour that comes twice in autumn may be swapped"
                ))
                .config(line),
            );
        }
    }
}

fn zone(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let name = scene.ask.names.times.zone.as_ref().map_or("", |zone| zone.name());
    match &scene.times.zone {
        ServerZone::None | ServerZone::Same => {}
        ServerZone::Unknown => out.push(
            Finding::error("time_zone_unknown", format!("the server has no time zone {name:?}"))
                .why("polling has the server compute with it; its zones: SELECT name FROM pg_timezone_names"),
        ),
        ServerZone::Differs(day) => out.push(
            Finding::warning(
                "time_zone_differs",
                format!("the server and this program read {day} in {name:?} differently"),
            )
            .why(
                "one of their time zone databases is older: update it on the server or here (package tzdata); until \
                 then streaming and polling judge times of that zone differently",
            ),
        ),
    }
}
