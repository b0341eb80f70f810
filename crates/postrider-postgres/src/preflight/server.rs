//! Rules about the server as a whole: version, settings, room for a slot and a stream, clocks, TLS, encoding.

use super::Scene;
use super::lines::{is_local, password_note, uri};
use super::refused::senders_full;
use crate::fence;
use crate::names::literal;
use postrider_core::finding::Finding;
use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that is further off than this is told. Unit: seconds.
const SKEW_MAX: f64 = 2.0;

/// What older minors get wrong, from the release notes: the first release of 15, 16, 17 and 18 without it, and what
/// it is. A major that never had it has its first release here.
const BUGS: &[([u32; 4], &str)] = &[
    ([150_018, 160_014, 170_010, 180_004], "a fast shutdown may wait for the stream for ever"),
    ([150_016, 160_012, 170_008, 180_002], "a slot just made can be invalidated by a checkpoint"),
    (
        [150_014, 160_010, 170_006, 180_000],
        "after a crash decoding can wait for ever, and WAL be removed too early",
    ),
    ([150_011, 160_007, 170_003, 180_000], "the walsender leaks memory"),
    ([150_010, 160_006, 170_002, 180_000], "a slot's restart_lsn can go backwards"),
    (
        [150_008, 160_004, 170_000, 180_000],
        "a slot can start inside a transaction, and decode it wrongly",
    ),
];

pub(super) fn rules(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    version(scene, out);
    tls(scene, out);
    encoding(scene, out);
    clock(scene, out);
}

/// What logical decoding wants.
pub(super) fn decoding(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    wal_level(scene, out);
    slots(scene, out);
    senders(scene, out);
    slot_limits(scene, out);
    informative(scene, out);
    synchronous(scene, out);
    transactions(scene, out);
}

fn version(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let version = scene.server.version;
    let (major, minor) = (version / 10_000, version % 10_000);
    let place = usize::try_from(major).unwrap_or(0).checked_sub(15);
    let fixed_in =
        |releases: &[u32; 4]| place.and_then(|place| releases.get(place)).copied().unwrap_or(0);
    let known: Vec<&str> = BUGS
        .iter()
        .filter(|(releases, _)| version < fixed_in(releases))
        .map(|(_, bug)| *bug)
        .collect();
    out.push(if known.is_empty() {
        Finding::ok("server_version", format!("PostgreSQL {major}.{minor}"))
    } else {
        let newest = BUGS.iter().map(|(releases, _)| fixed_in(releases)).max().unwrap_or_default() % 10_000;
        Finding::warning(
            "server_version",
            format!("PostgreSQL {major}.{minor} has bugs in logical decoding that {major}.{newest} has not"),
        )
        .why(known.join("; "))
        .shell(format!("apt-get install --only-upgrade postgresql-{major}"))
    });
}

fn wal_level(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let (level, needed) = (&scene.server.wal_level, scene.server.wal_level_needed());
    out.push(if level == "logical" {
        Finding::ok("wal_level", "logical")
    } else if scene.server.decodes() {
        // Making the first slot asks for a checkpoint, and waits for it.
        Finding::ok("wal_level", format!("{level}: the first logical slot raises it to logical"))
    } else {
        Finding::error("wal_level", format!("wal_level is {level:?}, logical decoding needs {needed:?}"))
            .why(
                "no slot can be made, and WAL written until it is changed can't be decoded (RDS: parameter \
                 rds.logical_replication = 1; Cloud SQL: flag cloudsql.logical_decoding = on)",
            )
            .sql_and_restart(format!("ALTER SYSTEM SET wal_level = '{needed}';"))
    });
}

fn slots(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let max = scene.number("max_replication_slots");
    let used = i64::try_from(scene.slots.len()).unwrap_or(i64::MAX);
    if scene.slot.is_some() {
        return;
    }
    let idle: Vec<&str> =
        scene.slots.iter().filter(|s| !s.active).map(|s| s.name.as_str()).collect();
    out.push(if used < max {
        Finding::ok("max_replication_slots", format!("{used} of {max} replication slots are taken"))
    } else {
        let unused = if idle.is_empty() {
            String::new()
        } else {
            format!(
                "; nobody reads {} at the moment: dropping one that is left over would do too",
                idle.join(", ")
            )
        };
        Finding::error("max_replication_slots", format!("all {max} replication slots are taken"))
            .why(format!("the pipeline's own can't be made{unused}"))
            .sql_and_restart(format!("ALTER SYSTEM SET max_replication_slots = {};", max + 10))
    });
}

fn senders(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let (max, used) = (scene.number("max_wal_senders"), scene.sessions.walsenders);
    let ours = scene.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some());
    if used < max || ours {
        out.push(Finding::ok("max_wal_senders", format!("{used} of {max} walsenders are at work")));
    } else {
        out.push(senders_full(format!("all {max} walsenders are at work")));
    }
}

fn slot_limits(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let keep = scene.number("max_slot_wal_keep_size");
    out.push(match keep {
        ..0 => Finding::warning("max_slot_wal_keep_size", "a slot may retain WAL without a limit")
            .why(
                "a slot retains WAL while Postrider or Kafka is unavailable; without a limit the disk can fill and the \
                 database stops. Set the limit below the free disk space, and above the WAL that is written in the \
                 longest outage that you expect",
            )
            .sql("ALTER SYSTEM SET max_slot_wal_keep_size = '32GB';")
            .sql("SELECT pg_reload_conf();"),
        0..1024 => Finding::warning(
            "max_slot_wal_keep_size",
            format!("PostgreSQL invalidates a slot that retains more than {keep} MB of WAL"),
        )
        .why("a short outage of the relay or the broker loses the slot, and events with it (PR001)")
        .sql("ALTER SYSTEM SET max_slot_wal_keep_size = '32GB';")
        .sql("SELECT pg_reload_conf();"),
        _ => Finding::ok("max_slot_wal_keep_size", format!("{} GB", keep / 1024)),
    });
    let idle = scene.number("idle_replication_slot_timeout");
    if idle > 0 {
        out.push(
            Finding::warning(
                "idle_replication_slot_timeout",
                format!("a slot that nobody reads is given up after {idle} s"),
            )
            .why("a stop of the relay that lasts longer loses the slot, and events with it (PR001)")
            .sql("ALTER SYSTEM SET idle_replication_slot_timeout = 0;")
            .sql("SELECT pg_reload_conf();"),
        );
    }
}

/// Settings that the relay does not depend on, for whoever looks for the reason of something else.
fn informative(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let timeout = scene.number("wal_sender_timeout");
    out.push(Finding::ok(
        "wal_sender_timeout",
        format!("{} s; the relay's own session has 15 s whatever it is", timeout / 1000),
    ));
    let memory = scene.number("logical_decoding_work_mem");
    out.push(if memory < 16 * 1024 {
        Finding::info(
            "logical_decoding_work_mem",
            format!("{memory} kB: larger transactions are spilt to disk"),
        )
        .why("decoding a transaction that does not fit costs disk and time")
        .sql("ALTER SYSTEM SET logical_decoding_work_mem = '64MB';")
        .sql("SELECT pg_reload_conf();")
    } else {
        Finding::ok("logical_decoding_work_mem", format!("{} MB", memory / 1024))
    });
}

/// The stream must not be what commits wait for.
fn synchronous(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let names = scene.setting("synchronous_standby_names");
    let ours = format!("postrider {}", scene.ask.names.pipeline);
    if !names.contains('*') && !names.contains(&ours) {
        return;
    }
    let standbys: Vec<String> = scene
        .sessions
        .standbys
        .iter()
        .filter(|name| !name.is_empty())
        .map(|name| format!("\"{}\"", name.replace('"', "\"\"")))
        .collect();
    let wanted = if standbys.is_empty() {
        String::new()
    } else {
        format!("ANY 1 ({})", standbys.join(", "))
    };
    out.push(
        Finding::warning(
            "synchronous_standby_names",
            format!("synchronous_standby_names is {names:?}, which takes the relay for a standby"),
        )
        .why("commits of the application could wait for the relay, and so for the broker")
        .sql(format!("ALTER SYSTEM SET synchronous_standby_names = {};", literal(&wanted)))
        .sql("SELECT pg_reload_conf();"),
    );
}

/// What holds back the making of a slot, and then WAL.
fn transactions(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let why = "a slot is made only when every transaction that runs has ended, and WAL is kept since the oldest";
    for (gid, database) in &scene.sessions.prepared {
        out.push(
            Finding::warning(
                "prepared_transaction",
                format!("transaction {gid:?} in database {database:?} has been prepared for more than an hour"),
            )
            .why(format!("{why}; COMMIT PREPARED where its work is wanted"))
            .sql(format!("ROLLBACK PREPARED {};", literal(gid))),
        );
    }
    for pid in &scene.sessions.long {
        out.push(
            Finding::warning(
                "long_transaction",
                format!("backend {pid} has been writing in one transaction for more than an hour"),
            )
            .why(why)
            .sql(format!("SELECT pg_terminate_backend({pid});")),
        );
    }
}

fn tls(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let conninfo = scene.ask.conninfo;
    if let Some(version) = &scene.sessions.tls {
        out.push(Finding::ok("tls", version.clone()));
    } else if is_local(conninfo) {
        out.push(Finding::ok("tls", "none; the server is this machine"));
    } else {
        let verified = [("sslmode", "verify-full"), ("sslrootcert", "system")];
        out.push(
            Finding::warning("tls", format!("the connection to {} is not encrypted", conninfo.hosts()))
                .why(format!(
                    "whoever is on the way reads every event, and can take the server's place; sslrootcert names the \
                     file of your own certificate authority, where you have one{}",
                    password_note(conninfo)
                ))
                .sql("ALTER SYSTEM SET ssl = on;")
                .sql("SELECT pg_reload_conf();")
                .config(scene.lines.config("source.url", &uri(conninfo, conninfo.user(), &verified))),
        );
    }
}

fn encoding(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let (encoding, database) = (&scene.server.encoding, &scene.server.database);
    out.push(if encoding == "SQL_ASCII" {
        Finding::warning("encoding", format!("database {database:?} has encoding SQL_ASCII"))
            .why(
                "the server converts nothing: a row that is not valid UTF-8 stops the stream (PR016). Copy the \
                 database into one with encoding UTF8",
            )
            .sql(format!(
                "CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0;",
                crate::names::ident(&format!("{database}_utf8"))
            ))
    } else {
        Finding::ok("encoding", encoding.clone())
    });
}

fn clock(scene: &Scene<'_>, out: &mut Vec<Finding>) {
    let Some(ours) = scene.our_clock else { return };
    let skew = scene.sessions.clock - ours;
    out.push(if skew.abs() > SKEW_MAX {
        Finding::warning(
            "clock",
            format!(
                "the server's clock is {:.0} s {} this machine's",
                skew.abs(),
                if skew > 0.0 { "ahead of" } else { "behind" }
            ),
        )
        .why("lag is computed from commit times: it is wrong by as much, and /ready with it")
        .shell("timedatectl set-ntp true")
    } else {
        Finding::ok("clock", "the server's clock agrees with this machine's")
    });
}

/// This machine's clock, in seconds since 1970.
pub(super) fn our_clock() -> Option<f64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

/// A server that is too old for anything else to be asked.
pub(super) fn too_old(version: u32) -> Option<Finding> {
    (version < fence::VERSION_MIN).then(|| {
        Finding::error(
            "server_version",
            format!("the server is PostgreSQL {}, 15 or later is needed", version / 10_000),
        )
        .why("row filters, column lists and the views that tell of them are not there")
    })
}
