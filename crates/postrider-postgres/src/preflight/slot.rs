//! Rules about the slot: that it is ours to read, that its WAL is there, who has it, and how much it holds.

use super::Scene;
use super::lines::uri;
use crate::names::ident;
use crate::slot::SlotRow;
use postrider_core::finding::Finding;

/// A slot that nobody reads and that holds more than this is told, where the server has no limit. Unit: bytes.
const RETAINED_MAX: i64 = 8 << 30;

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let name = &scene.ask.names.slot;
    let Some(slot) = &scene.slot else {
        out.push(missing(scene));
        return;
    };
    let before = out.len();
    if let Some(what) = unusable(scene, slot) {
        out.push(what);
        return;
    }
    if slot.lost() {
        out.push(lost(scene, slot));
        return;
    }
    if slot.confirmed_flush_lsn.is_none() {
        out.push(
            Finding::error("slot_unfinished", format!("slot {name:?} is still being made"))
                .why("it waits for every transaction that was running when it was begun")
                .sql(
                    "SELECT pid, datname, state, xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL \
                     ORDER BY xact_start;",
                )
                .shell(scene.lines.setup.clone()),
        );
    }
    held(scene, slot, out);
    active(scene, slot, out);
    if out.len() == before {
        let at = slot.confirmed_flush_lsn;
        let at = at.map_or_else(String::new, |at| format!(", confirmed up to {at}"));
        let mib = retained(scene, slot) >> 20;
        out.push(Finding::ok(
            "slot",
            format!("slot {name:?} is well{at}, and holds {mib} MiB of WAL"),
        ));
    }
}

fn missing(scene: &Scene<'_>) -> Finding {
    let (lines, name) = (&scene.lines, &scene.ask.names.slot);
    let finding = Finding::error("slot_missing", format!("slot {name:?} does not exist"));
    match (&scene.cursor, lines.forget()) {
        (Some(cursor), Some(_)) => again(
            scene,
            finding.why(format!(
                "it was there before: events committed after {} that were not published are in no slot any more. After \
                 a failover go back to the server that has it; {}",
                cursor.watermark,
                remains(scene)
            )),
            false,
        ),
        _ => finding
            .why("events committed before it exists are not streamed")
            .shell(lines.setup.clone()),
    }
}

/// What is left of events that no slot brings.
fn remains(scene: &Scene<'_>) -> &'static str {
    if scene.ask.names.table.is_some() {
        "otherwise their rows are published from the table, and a new slot is created (--dry-run counts them first)"
    } else {
        "otherwise they are lost, all of them: logical messages leave no row to publish from"
    }
}

/// A new slot, and before it what the old one would have brought.
fn again(scene: &Scene<'_>, finding: Finding, drop_slot: bool) -> Finding {
    let lines = &scene.lines;
    if scene.ask.names.table.is_some() {
        return finding.shell(lines.repair.clone());
    }
    let finding = if drop_slot { finding.sql(lines.drop_slot()) } else { finding };
    let finding = match lines.forget() {
        Some(forget) => finding.sql(forget),
        None => finding,
    };
    finding.shell(lines.setup.clone())
}

/// Another's slot under our name: ours gets another name.
fn unusable(scene: &Scene<'_>, slot: &SlotRow) -> Option<Finding> {
    let name = &slot.name;
    let plugin = slot.plugin.as_deref().unwrap_or_default();
    let database = slot.database.as_deref().unwrap_or_default();
    let whose = if !slot.logical {
        Some("a standby, or a receiver of WAL")
    } else if plugin != "pgoutput" {
        Some("another program")
    } else if database != scene.server.database {
        Some("a pipeline of that database, or another program")
    } else {
        None
    };
    let (id, what) = if !slot.logical {
        ("slot_plugin", format!("slot {name:?} is a physical slot"))
    } else if plugin != "pgoutput" {
        ("slot_plugin", format!("slot {name:?} is of plugin {plugin:?}, not \"pgoutput\""))
    } else if database != scene.server.database {
        ("slot_database", format!("slot {name:?} belongs to database {database:?}"))
    } else if slot.temporary {
        ("slot_temporary", format!("slot {name:?} is temporary: it goes with its session"))
    } else if slot.two_phase {
        ("slot_two_phase", format!("slot {name:?} has two_phase on"))
    } else {
        return None;
    };
    let free =
        (2..100).map(|n| format!("{name}_{n}")).find(|n| scene.slots.iter().all(|s| s.name != *n));
    let mut finding = Finding::error(id, what)
        .why(whose.map_or_else(
            || {
                "the stream can't be read from it; if nothing uses it, dropping it and running setup would do as well \
                 as another name"
                    .to_owned()
            },
            |whose| {
                format!(
                    "the stream can't be read from it; it belongs to {whose}: dropping it would lose what that one has \
                     not read"
                )
            },
        ))
        .config(scene.lines.config("source.slot", &free.unwrap_or_default()));
    finding = if scene.cursor.is_some() {
        // Its own slot is gone.
        again(scene, finding, false)
    } else {
        finding.shell(scene.lines.setup.clone())
    };
    Some(finding)
}

fn lost(scene: &Scene<'_>, slot: &SlotRow) -> Finding {
    let unsaid = if slot.conflicting { "conflict with recovery" } else { "wal_removed" };
    let why = slot.invalidation_reason.as_deref().unwrap_or(unsaid);
    let after =
        scene.cursor.as_ref().map_or_else(String::new, |c| format!(" after {}", c.watermark));
    let finding =
        Finding::error("slot_lost", format!("slot {:?} was invalidated ({why})", slot.name));
    if scene.cursor.is_none() {
        let finding = finding.why(
            "the WAL it needs is gone, and no cursor row says what was published: every row of the table is, then",
        );
        return scene.lines.every_row(finding, true);
    }
    again(
        scene,
        finding.why(format!(
            "the WAL it needs is gone: events committed{after} that were not published can't be streamed any more; {}",
            remains(scene)
        )),
        true,
    )
}

/// WAL it holds back, in bytes.
fn retained(scene: &Scene<'_>, slot: &SlotRow) -> i64 {
    scene
        .slots
        .iter()
        .find(|other| other.name == slot.name)
        .and_then(|other| other.retained)
        .unwrap_or(0)
}

/// How much WAL it holds, and how near it is to its end.
fn held(scene: &Scene<'_>, slot: &SlotRow, out: &mut Vec<Finding>) {
    let retained = retained(scene, slot);
    let name = &slot.name;
    let near = slot.safe_wal_size.is_some_and(|safe| safe < retained);
    let unreserved = slot.wal_status.as_deref() == Some("unreserved");
    let mib = retained >> 20;
    if near || unreserved {
        let left = slot.safe_wal_size.unwrap_or(0).max(0) >> 20;
        out.push(
            Finding::warning(
                "slot_wal",
                format!("slot {name:?} holds {mib} MiB of WAL, and is lost after {left} MiB more"),
            )
            .why("when max_slot_wal_keep_size is reached events are missed (PR001): start the relay, or raise it now")
            .sql("ALTER SYSTEM SET max_slot_wal_keep_size = -1;")
            .sql("SELECT pg_reload_conf();"),
        );
    } else if retained > RETAINED_MAX && slot.active_pid.is_none() {
        out.push(
            Finding::warning(
                "slot_wal",
                format!("slot {name:?} holds {mib} MiB of WAL, and nobody reads it"),
            )
            .why("without a limit it fills the disk: start the relay, or drop the slot")
            .shell("postrider run"),
        );
    }
}

fn active(scene: &Scene<'_>, slot: &SlotRow, out: &mut Vec<Finding>) {
    let (Some(pid), Some((application, details))) = (slot.active_pid, &scene.holder) else {
        return;
    };
    let ours = format!("postrider {}", scene.ask.names.pipeline);
    let name = &slot.name;
    if *application == ours {
        out.push(Finding::ok(
            "slot",
            format!("slot {name:?} is read by a running relay (backend {pid}, {details})"),
        ));
    } else {
        let who =
            if application.is_empty() { "somebody".to_owned() } else { format!("{application:?}") };
        out.push(
            Finding::warning("slot_active", format!("slot {name:?} is read by {who} (backend {pid}, {details})"))
                .why(
                    "only one process can read a slot: Postrider waits, and events that the other process confirms \
                     are not sent to Postrider",
                )
                .sql(format!("SELECT pg_terminate_backend({pid});")),
        );
    }
}

/// Whether a standby will have it. PostgreSQL 17 and later.
pub(super) fn failover(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let Some(slot) = scene.slot.as_ref().filter(|slot| slot.logical && !slot.lost()) else {
        return;
    };
    if !scene.ask.failover || scene.server.version < 170_000 || slot.failover {
        return;
    }
    let login = scene.ask.login.unwrap_or(scene.ask.conninfo);
    let replication = uri(login, login.user(), &[("replication", "database")]);
    out.push(
        Finding::warning("slot_failover", format!("slot {:?} is not a failover slot", slot.name))
            .why(
                "after a failover the new primary does not have it: events are missed (PR002). The command needs the \
                 relay to be stopped; or set source.failover = false",
            )
            .shell(format!(
                "psql '{replication}' -c 'ALTER_REPLICATION_SLOT {} (FAILOVER true);'",
                ident(&slot.name)
            )),
    );
}
