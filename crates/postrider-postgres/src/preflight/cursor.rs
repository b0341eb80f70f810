//! Rules about Postrider's own schema and the cursor row, and whether row, slot and WAL belong together.

use super::Scene;
use crate::fence;
use crate::schema::{self, SchemaState};
use postrider_core::error::{Halt, HaltReason};
use postrider_core::finding::Finding;

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
        Some(SchemaState::Untrusted) => {
            out.push(untrusted(scene));
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

/// The schema was not read: code of others would run with the rights of this login.
fn untrusted(scene: &Scene<'_>) -> Finding {
    let Some(ownership) = &scene.ownership else {
        return Finding::error("schema_untrusted", "schema \"postrider\" could not be looked at");
    };
    let code = HaltReason::SchemaUntrusted.code();
    let finding = Finding::error("schema_untrusted", ownership.words());
    if ownership.foreign.is_empty() {
        return finding
            .why(format!(
                "whoever owns these tables, or may add triggers to them, can have its code run with the rights of an \
                 administrator who uses them ({code}); they were not read, and setup takes them over"
            ))
            .shell(scene.lines.setup.clone());
    }
    let finding = finding.why(format!(
        "code in them would run with the rights of this login ({code}); nothing of it was run. Find out who made them, \
         and remove them as a superuser or as the owner"
    ));
    ownership.removals().fold(finding, |finding, line| finding.sql(line.to_owned()))
}

/// What `run` asks of positions before it starts, by the same rules.
fn positions(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    if let Some(Err(halt)) = scene.fence().map(|facts| fence::check_positions(&facts)) {
        out.push(of_halt(scene, &halt));
    } else if let Some(cursor) = &scene.cursor {
        out.push(Finding::ok(
            "cursor",
            format!("everything below {} is published", cursor.watermark),
        ));
    } else if scene.slot.as_ref().is_some_and(|slot| slot.confirmed_flush_lsn.is_some()) {
        out.push(Finding::info("cursor", "the slot has no cursor row yet").why(
            "`postrider run` makes the cursor row, and begins at the slot's confirmed position",
        ));
    }
}

fn of_halt(scene: &Scene<'_>, halt: &Halt) -> Finding {
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
        | HaltReason::AlreadySetUp
        | HaltReason::RowUpdated
        | HaltReason::SchemaUntrusted
        | HaltReason::PipelineChanged => "cursor",
    };
    let why = format!("{} ({}); {}", halt.meaning, halt.reason.code(), halt.hint);
    let finding = Finding::error(id, halt.message.clone()).why(why);
    let (lines, slot) = (&scene.lines, scene.slot.is_some());
    let Some(cursor) = &scene.cursor else { return finding };
    let other_cluster = cursor.system_identifier != scene.server.system_identifier;
    let is = |reason| halt.reason == reason;
    if is(HaltReason::PositionAhead) || is(HaltReason::OtherHistory) && other_cluster {
        lines.every_row(finding, slot)
    } else if is(HaltReason::OtherHistory) && scene.server.timeline < cursor.timeline {
        // The old primary: nothing is to be done here but to leave it.
        finding
    } else if is(HaltReason::SlotMoved) && cursor.slot != scene.ask.names.slot {
        finding.config(lines.config("source.slot", &cursor.slot))
    } else if scene.ask.names.table.is_none() {
        lines.every_row(finding, slot)
    } else if scene.ask.names.auto && slot {
        finding.sql(lines.drop_slot()).shell(lines.repair.clone())
    } else {
        finding.shell(lines.repair.clone())
    }
}
