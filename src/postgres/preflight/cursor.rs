//! Rules about Postrider's own schema and the cursor row, and whether row, slot and WAL belong together.

use super::Scene;
use crate::error::{Halt, HaltReason};
use crate::finding::Finding;
use crate::postgres::fence;
use crate::postgres::schema::{self, SchemaState};

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let setup = scene.lines.setup.clone();
    let known = schema::VERSION;
    match scene.schema {
        // It may not be read: `cursor_rights` says so.
        None => return,
        Some(SchemaState::Missing | SchemaState::Empty) => {
            out.push(
                Finding::error(
                    "schema",
                    format!(
                        "schema \"postrider\" is missing in database {:?}",
                        scene.server.database
                    ),
                )
                .why("Postrider cannot store its position")
                .shell(setup),
            );
            return;
        }
        Some(SchemaState::Version(number)) if number < known => {
            out.push(
                Finding::error(
                    "schema",
                    format!("schema \"postrider\" has version {number}, {known} is needed"),
                )
                .why("this program was upgraded, and the schema was not")
                .shell(setup),
            );
            return;
        }
        Some(SchemaState::Version(number)) if number > known => {
            out.push(
                Finding::error(
                    "schema",
                    format!("schema \"postrider\" has version {number}, this program knows versions up to {known}"),
                )
                .why("a newer program made it: run that one"),
            );
            return;
        }
        Some(SchemaState::Version(number)) => {
            out.push(Finding::ok("schema", format!("schema \"postrider\", version {number}")));
        }
    }
    // A slot that is lost or another's says nothing by its position.
    let slot_is_bad =
        ["slot_lost", "slot_plugin", "slot_database", "slot_temporary", "slot_two_phase"];
    if scene.ask.streams && !out.iter().any(|finding| slot_is_bad.contains(&finding.id)) {
        positions(scene, out);
    }
}

/// What `run` asks of positions before it starts, by the same rules.
fn positions(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    if let Some(Err(halt)) = scene.fence().map(|facts| fence::check_positions(&facts)) {
        out.push(of_halt(scene, halt));
    } else if let Some(cursor) = &scene.cursor {
        out.push(Finding::ok(
            "cursor",
            format!("everything below {} is published", cursor.watermark),
        ));
    } else if scene.slot.as_ref().is_some_and(|slot| slot.confirmed_flush_lsn.is_some()) {
        out.push(
            Finding::info("cursor", "the slot has no cursor row yet")
                .why("the first run adopts it where it stands"),
        );
    }
}

fn of_halt(scene: &Scene<'_>, halt: Halt) -> Finding {
    let id = match halt.reason {
        HaltReason::OtherHistory => "other_history",
        HaltReason::PositionAhead => "position_ahead",
        HaltReason::SlotMoved => "slot_moved",
        HaltReason::SlotLost
        | HaltReason::SlotMissing
        | HaltReason::SlotUnusable
        | HaltReason::PublicationMissing
        | HaltReason::PublicationUnfit
        | HaltReason::TableUnfit
        | HaltReason::MarksUnfit
        | HaltReason::SchemaUnfit
        | HaltReason::PoisonEvent
        | HaltReason::Protocol
        | HaltReason::ServerUnfit
        | HaltReason::AccessDenied
        | HaltReason::SinkUnfit
        | HaltReason::Wedged
        | HaltReason::WalBudget
        | HaltReason::RelayRunning
        | HaltReason::NotApplicable
        | HaltReason::AlreadySetUp => "cursor",
    };
    let why = format!("{} ({}); {}", halt.meaning, halt.reason.code(), halt.hint);
    let mut finding = Finding::error(id, halt.message).why(why);
    if halt.reason == HaltReason::PositionAhead {
        finding = finding.sql(scene.lines.drop_slot());
    }
    if let Some(forget) = scene.lines.forget() {
        finding = finding.sql(forget);
    }
    finding.shell(scene.lines.setup.clone())
}
