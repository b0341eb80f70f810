//! Rules about the slot (its kind, its WAL, its reader, and the WAL that it retains), the cursor row, failover, and
//! bookmarks.

use super::FactSnapshot;
use super::remediation::uri;
use crate::catalog::SlotRow;
use crate::names::{ident, literal};
use crate::schema::{self, SchemaState};
use crate::start;
use crate::store::bookmark::{Bookmark, BookmarkState};
use postrider_core::error::{Halt, HaltReason};
use postrider_core::finding::Finding;

/// A slot without a reader that retains more than this is reported, if the server has no limit. Unit: bytes.
const RETAINED_MAX: i64 = 8 << 30;

pub(super) fn rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let name = &snapshot.ask.names.slot;
    let Some(slot) = &snapshot.slot else {
        out.push(missing(snapshot));
        return;
    };
    let before = out.len();
    if let Some(what) = unusable(snapshot, slot) {
        out.push(what);
        return;
    }
    if slot.lost() {
        out.push(lost(snapshot, slot));
        return;
    }
    if slot.confirmed_flush_lsn.is_none() {
        out.push(
            Finding::error("slot_unfinished", format!("slot {name:?} is still being created"))
                .why("it waits for every transaction that was running when it was begun")
                .sql(
                    "SELECT pid, datname, state, xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL \
                     ORDER BY xact_start;",
                )
                .shell(snapshot.lines.setup.clone()),
        );
    }
    held(snapshot, slot, out);
    active(snapshot, slot, out);
    if out.len() == before {
        let at = slot.confirmed_flush_lsn;
        let at = at.map_or_else(String::new, |at| format!(", confirmed up to {at}"));
        let mib = retained(snapshot, slot) >> 20;
        out.push(Finding::ok(
            "slot",
            format!("slot {name:?} is well{at}, and holds {mib} MiB of WAL"),
        ));
    }
}

fn missing(snapshot: &FactSnapshot<'_>) -> Finding {
    let (lines, name) = (&snapshot.lines, &snapshot.ask.names.slot);
    let finding = Finding::error("slot_missing", format!("slot {name:?} does not exist"));
    match (&snapshot.cursor, lines.forget()) {
        (Some(cursor), Some(_)) => again(
            snapshot,
            finding.why(format!(
                "it was there before: events committed after {} that were not published are in no slot any more. After \
                 a failover go back to the server that has it; {}",
                cursor.watermark,
                unpublished_events(snapshot)
            )),
            false,
        ),
        _ => finding
            .why("events committed before it exists are not streamed")
            .shell(lines.setup.clone()),
    }
}

/// Where to find the events that no slot sends.
fn unpublished_events(snapshot: &FactSnapshot<'_>) -> &'static str {
    if snapshot.ask.names.captures() {
        "otherwise they are lost as events, all of them, and the tables have their result: load the consumers again \
         from the tables after these lines"
    } else if snapshot.ask.names.in_transactions && snapshot.ask.names.table.is_some() {
        "otherwise insert their rows again after these lines, and discard before the start the position that the sink \
         has stored: docs/operations/halts.md#begin-a-new-slot"
    } else if snapshot.ask.names.table.is_some() {
        "otherwise their rows are published from the table, and a new slot is created (--dry-run counts them first)"
    } else {
        "otherwise they are lost, all of them: logical messages leave no row to publish from"
    }
}

/// Adds the remediation that publishes the events the old slot would have sent, and creates a new slot.
fn again(snapshot: &FactSnapshot<'_>, finding: Finding, drop_slot: bool) -> Finding {
    let lines = &snapshot.lines;
    if snapshot.ask.names.repair_table().is_some() {
        return finding.shell(lines.repair.clone());
    }
    let finding = if drop_slot { finding.sql(lines.drop_slot()) } else { finding };
    let finding = match lines.forget() {
        Some(forget) => finding.sql(forget),
        None => finding,
    };
    finding.shell(lines.setup_again.clone())
}

/// The finding for a slot of the configured name that cannot be the pipeline's. The remediation gives the pipeline's
/// slot another name.
fn unusable(snapshot: &FactSnapshot<'_>, slot: &SlotRow) -> Option<Finding> {
    let name = &slot.name;
    let plugin = slot.plugin.as_deref().unwrap_or_default();
    let database = slot.database.as_deref().unwrap_or_default();
    let whose = if !slot.logical {
        Some("a standby, or a receiver of WAL")
    } else if plugin != "pgoutput" {
        Some("another program")
    } else if database != snapshot.server.database {
        Some("a pipeline of that database, or another program")
    } else {
        None
    };
    let (id, what) = if !slot.logical {
        ("slot_plugin", format!("slot {name:?} is a physical slot"))
    } else if plugin != "pgoutput" {
        ("slot_plugin", format!("slot {name:?} is of plugin {plugin:?}, not \"pgoutput\""))
    } else if database != snapshot.server.database {
        ("slot_database", format!("slot {name:?} belongs to database {database:?}"))
    } else if slot.temporary {
        (
            "slot_temporary",
            format!("slot {name:?} is temporary: it is dropped when its session ends"),
        )
    } else if slot.two_phase {
        ("slot_two_phase", format!("slot {name:?} has two_phase on"))
    } else {
        return None;
    };
    let free = (2..100)
        .map(|n| format!("{name}_{n}"))
        .find(|n| snapshot.slots.iter().all(|s| s.name != *n));
    let mut finding = Finding::error(id, what)
        .why(whose.map_or_else(
            || {
                "the stream can't be read from it; if nothing uses it, dropping it and running setup would do as well \
                 as another name"
                    .to_owned()
            },
            |whose| {
                format!(
                    "the stream can't be read from it; it belongs to {whose}: dropping it would lose what its reader \
                     has not read"
                )
            },
        ))
        .config(snapshot.lines.config("source.slot", &free.unwrap_or_default()));
    finding = if snapshot.cursor.is_some() {
        // The pipeline's own slot was dropped.
        again(snapshot, finding, false)
    } else {
        finding.shell(snapshot.lines.setup.clone())
    };
    Some(finding)
}

fn lost(snapshot: &FactSnapshot<'_>, slot: &SlotRow) -> Finding {
    let default_reason = if slot.conflicting { "conflict with recovery" } else { "wal_removed" };
    let why = slot.invalidation_reason.as_deref().unwrap_or(default_reason);
    let after =
        snapshot.cursor.as_ref().map_or_else(String::new, |c| format!(" after {}", c.watermark));
    let finding =
        Finding::error("slot_lost", format!("slot {:?} was invalidated ({why})", slot.name));
    if snapshot.cursor.is_none() {
        let finding = finding.why(
            "the WAL that it needs no longer exists, and no cursor row records what was published: then every \
             row of the \
             table is",
        );
        return snapshot.lines.every_row(finding, true);
    }
    again(
        snapshot,
        finding.why(format!(
            "the WAL that it needs no longer exists: events committed{after} that were not published can't be \
             streamed any \
             more; {}",
            unpublished_events(snapshot)
        )),
        true,
    )
}

/// Bytes of WAL that the slot retains.
fn retained(snapshot: &FactSnapshot<'_>, slot: &SlotRow) -> i64 {
    snapshot
        .slots
        .iter()
        .find(|other| other.name == slot.name)
        .and_then(|other| other.retained)
        .unwrap_or(0)
}

/// How much WAL the slot retains, and how near that is to the limit.
fn held(snapshot: &FactSnapshot<'_>, slot: &SlotRow, out: &mut Vec<Finding>) {
    let retained = retained(snapshot, slot);
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
                format!("slot {name:?} holds {mib} MiB of WAL, and no process reads it"),
            )
            .why("without a limit it fills the disk: start the relay, or drop the slot")
            .shell("postrider run"),
        );
    }
}

fn active(snapshot: &FactSnapshot<'_>, slot: &SlotRow, out: &mut Vec<Finding>) {
    let (Some(pid), Some((application, details))) = (slot.active_pid, &snapshot.holder) else {
        return;
    };
    let ours = format!("postrider {}", snapshot.ask.names.key.pipeline);
    let name = &slot.name;
    if *application == ours {
        out.push(Finding::ok(
            "slot",
            format!("slot {name:?} is read by a running relay (backend {pid}, {details})"),
        ));
    } else {
        let who = if application.is_empty() {
            "another process".to_owned()
        } else {
            format!("{application:?}")
        };
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

/// Whether a standby will have the slot. PostgreSQL 17 and later.
pub(super) fn failover(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let Some(slot) = snapshot.slot.as_ref().filter(|slot| slot.logical && !slot.lost()) else {
        return;
    };
    if !snapshot.ask.failover || snapshot.server.version < 170_000 || slot.failover {
        return;
    }
    let login = snapshot.ask.login.unwrap_or(snapshot.ask.conninfo);
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

pub(super) fn cursor_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let setup = snapshot.lines.setup.clone();
    let known = schema::VERSION;
    match snapshot.schema {
        // The schema may not be read, which `cursor_rights` reports.
        None => return,
        Some(SchemaState::Missing | SchemaState::Empty) => {
            out.push(
                Finding::error(
                    "schema",
                    format!(
                        "schema \"postrider\" is missing in database {:?}",
                        snapshot.server.database
                    ),
                )
                .why("Postrider cannot store its position")
                .shell(setup),
            );
            return;
        }
        Some(SchemaState::Untrusted) => {
            out.push(untrusted(snapshot));
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
                .why("a newer program created it: run that one"),
            );
            return;
        }
        Some(SchemaState::Version(number)) => {
            out.push(Finding::ok("schema", format!("schema \"postrider\", version {number}")));
        }
    }
    // The position of a slot that is lost, or that belongs to another program, has no meaning here.
    let slot_is_bad =
        ["slot_lost", "slot_plugin", "slot_database", "slot_temporary", "slot_two_phase"];
    if snapshot.ask.streams && !out.iter().any(|finding| slot_is_bad.contains(&finding.id)) {
        positions(snapshot, out);
    }
}

/// The schema was not read: code of other roles would run with the rights of this login.
fn untrusted(snapshot: &FactSnapshot<'_>) -> Finding {
    let Some(untrusted) = &snapshot.untrusted else {
        return Finding::error("schema_untrusted", "schema \"postrider\" could not be checked");
    };
    let code = HaltReason::SchemaUntrusted.code();
    let finding = Finding::error("schema_untrusted", untrusted.words());
    if untrusted.foreign.is_empty() {
        return finding
            .why(format!(
                "a role that owns these tables, or may add triggers to them, can have its code run with the rights of \
                 an administrator who uses them ({code}); they were not read, and setup takes them over"
            ))
            .shell(snapshot.lines.setup.clone());
    }
    let finding = finding.why(format!(
        "code in them would run with the rights of this login ({code}); nothing of it was run. Find out who made them, \
         and remove them as a superuser or as the owner"
    ));
    untrusted.removals().fold(finding, |finding, line| finding.sql(line.to_owned()))
}

/// The start check's rules about positions.
fn positions(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    if let Some(Err(halt)) = snapshot.fence().map(|facts| start::check_positions(&facts)) {
        out.push(of_halt(snapshot, &halt));
    } else if let Some(cursor) = &snapshot.cursor {
        out.push(Finding::ok(
            "cursor",
            format!("everything below {} is published", cursor.watermark),
        ));
    } else if snapshot.slot.as_ref().is_some_and(|slot| slot.confirmed_flush_lsn.is_some()) {
        out.push(Finding::info("cursor", "the slot has no cursor row yet").why(
            "`postrider run` creates the cursor row, and begins at the slot's confirmed position",
        ));
    }
}

fn of_halt(snapshot: &FactSnapshot<'_>, halt: &Halt) -> Finding {
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
    let (lines, slot) = (&snapshot.lines, snapshot.slot.is_some());
    let Some(cursor) = &snapshot.cursor else { return finding };
    let other_cluster = cursor.system_identifier != snapshot.server.system_identifier;
    let is = |reason| halt.reason == reason;
    if is(HaltReason::PositionAhead) || is(HaltReason::OtherHistory) && other_cluster {
        lines.every_row(finding, slot)
    } else if is(HaltReason::OtherHistory) && snapshot.server.timeline < cursor.timeline {
        // The old primary: nothing can be done here, except to use the new one.
        finding
    } else if is(HaltReason::SlotMoved) && cursor.slot != snapshot.ask.names.slot {
        finding.config(lines.config("source.slot", &cursor.slot))
    } else if snapshot.ask.names.repair_table().is_none() {
        lines.every_row(finding, slot)
    } else if snapshot.ask.names.auto && slot {
        finding.sql(lines.drop_slot()).shell(lines.repair.clone())
    } else {
        finding.shell(lines.repair.clone())
    }
}

pub(super) fn standby_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let before = out.len();
    stalled(snapshot, out);
    let physical: Vec<&str> =
        snapshot.slots.iter().filter(|s| !s.logical && s.active).map(|s| s.name.as_str()).collect();
    if snapshot.sessions.standbys.is_empty() && physical.is_empty() {
        return;
    }
    if snapshot.server.version < 170_000 {
        out.push(
            Finding::info("failover", "there are standbys, and PostgreSQL before 17 carries no slot over to them").why(
                "after a failover the slot is missing (PR002), unless Patroni (permanent slots), pg_failover_slots or \
                 the storage carries it over",
            ),
        );
        return;
    }
    if snapshot.ask.failover {
        carried_over(snapshot, &physical, out);
        if out.len() == before {
            out.push(Finding::ok(
                "failover",
                "standbys carry the slot over, as far as it is seen from here",
            ));
        }
    }
}

/// Names in `synchronized_standby_slots` without an active standby block all decoding.
fn stalled(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let names: Vec<String> = listed(snapshot);
    let is_active =
        |name: &String| snapshot.slots.iter().any(|s| s.name == *name && !s.logical && s.active);
    let (active, absent): (Vec<String>, Vec<String>) = names.into_iter().partition(is_active);
    if absent.is_empty() {
        return;
    }
    out.push(
        Finding::error(
            "synchronized_standby_slots",
            format!("synchronized_standby_slots names {}, which no standby is using", absent.join(", ")),
        )
        .why("the stream of a failover slot waits for these standbys without a time-out: nothing is published")
        .sql(format!("ALTER SYSTEM SET synchronized_standby_slots = {};", literal(&active.join(", "))))
        .sql("SELECT pg_reload_conf();"),
    );
}

/// The names in `synchronized_standby_slots`.
fn listed(snapshot: &FactSnapshot<'_>) -> Vec<String> {
    let list = snapshot.setting("synchronized_standby_slots");
    let names = list.split(',').map(|name| name.trim().trim_matches('"').to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

fn carried_over(snapshot: &FactSnapshot<'_>, physical: &[&str], out: &mut Vec<Finding>) {
    if listed(snapshot).is_empty() && !physical.is_empty() {
        out.push(
            Finding::warning(
                "synchronized_standby_slots",
                format!(
                    "events are published before the standbys of {} have them",
                    physical.join(", ")
                ),
            )
            .why("after a failover consumers can have events that the database has not")
            .sql(format!(
                "ALTER SYSTEM SET synchronized_standby_slots = {};",
                literal(&physical.join(", "))
            ))
            .sql("SELECT pg_reload_conf();"),
        );
    }
    let silent: Vec<&str> = snapshot
        .slots
        .iter()
        .filter(|slot| !slot.logical && slot.active && !slot.feedback)
        .map(|slot| slot.name.as_str())
        .collect();
    if !silent.is_empty() {
        out.push(
            Finding::warning(
                "hot_standby_feedback",
                format!("the standby of {} sends no feedback", silent.join(", ")),
            )
            .why("on that standby: without it the slot that is carried over is invalidated by vacuum")
            .sql("ALTER SYSTEM SET hot_standby_feedback = on;")
            .sql("SELECT pg_reload_conf();"),
        );
    }
    if snapshot.setting("sync_replication_slots") != "on" {
        out.push(
            Finding::info("sync_replication_slots", "sync_replication_slots is off on this server")
                .why(
                    "every standby needs it on, with primary_slot_name and a dbname in primary_conninfo, to carry the \
                     slot over; this server too, for when it is a standby",
                )
                .sql("ALTER SYSTEM SET sync_replication_slots = on;")
                .sql("SELECT pg_reload_conf();"),
        );
    }
}

pub(super) fn bookmark_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let standing = |bookmark: &&Bookmark| !matches!(bookmark.state, BookmarkState::Dropped { .. });
    let standing: Vec<&Bookmark> = snapshot.bookmarks.iter().filter(standing).collect();
    if standing.is_empty() {
        return;
    }
    let before = out.len();
    held_by_bookmarks(snapshot, &standing, out);
    for bookmark in standing.iter().filter(|bookmark| !bookmark.state.usable()) {
        out.push(
            Finding::warning(
                "bookmark_unusable",
                format!("bookmark {:?} can't be replayed from", bookmark.name),
            )
            .why(bookmark.state.to_string())
            .shell(drop_line(snapshot, bookmark)),
        );
    }
    if out.len() == before {
        let held = standing.iter().map(|bookmark| bookmark.held_bytes).max().unwrap_or(0);
        let (count, mib) = (standing.len(), held >> 20);
        let s = if count == 1 { "" } else { "s" };
        out.push(Finding::ok(
            "bookmarks",
            format!("{count} bookmark{s}, retaining {mib} MiB of WAL"),
        ));
    }
}

/// All bookmarks together retain as much as the oldest one, because WAL is kept from its position on.
fn held_by_bookmarks(snapshot: &FactSnapshot<'_>, standing: &[&Bookmark], out: &mut Vec<Finding>) {
    let max = snapshot.ask.bookmarks_retain_max;
    let oldest = standing.iter().max_by_key(|bookmark| bookmark.held_bytes);
    let Some(oldest) = oldest.filter(|oldest| oldest.held_bytes > max) else { return };
    let (held, max) = (oldest.held_bytes >> 20, max >> 20);
    out.push(
        Finding::warning(
            "bookmarks_held",
            format!("bookmarks retain {held} MiB of WAL, more than bookmarks.retain_max ({max} MiB)"),
        )
        .why(format!(
            "the running relay drops the oldest, {:?}, within a minute; while no relay runs the disk may fill",
            oldest.name
        ))
        .shell(drop_line(snapshot, oldest)),
    );
}

fn drop_line(snapshot: &FactSnapshot<'_>, bookmark: &Bookmark) -> String {
    format!("postrider bookmark drop {} -p {}", bookmark.name, snapshot.ask.names.key.pipeline)
}
