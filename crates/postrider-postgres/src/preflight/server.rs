//! Rules about the server as a whole: version, settings, free slots and walsenders, clocks, TLS, encoding, and the
//! relay's role.

use super::facts::RoleFacts;
use super::remediation::{ADMIN, is_local, password_note, uri};
use super::{FactSnapshot, replication_refused, senders_full};
use crate::names::{OWN_TABLES, grant_rows, ident, literal};
use crate::schema::SchemaState;
use crate::start;
use pg_replication::conninfo::Conninfo;
use postrider_core::finding::Finding;
use std::time::{SystemTime, UNIX_EPOCH};

/// A larger clock difference is reported. Unit: seconds.
const SKEW_MAX: f64 = 2.0;

/// Bugs of older minor releases, from the release notes: the first release of 15, 16, 17 and 18 without the bug, and
/// the bug. For a major version that never had it, the first release.
const BUGS: &[([u32; 4], &str)] = &[
    ([150_018, 160_014, 170_010, 180_004], "a fast shutdown may wait for the stream without end"),
    ([150_016, 160_012, 170_008, 180_002], "a new slot can be invalidated by a checkpoint"),
    (
        [150_014, 160_010, 170_006, 180_000],
        "after a crash decoding can wait without end, and WAL can be removed too early",
    ),
    ([150_011, 160_007, 170_003, 180_000], "the walsender leaks memory"),
    ([150_010, 160_006, 170_002, 180_000], "a slot's restart_lsn can go backwards"),
    (
        [150_008, 160_004, 170_000, 180_000],
        "a slot can start inside a transaction, and decode it wrongly",
    ),
];

pub(super) fn rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    version(snapshot, out);
    tls(snapshot, out);
    encoding(snapshot, out);
    clock(snapshot, out);
}

/// What logical decoding requires.
pub(super) fn decoding(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    wal_level(snapshot, out);
    slots(snapshot, out);
    senders(snapshot, out);
    slot_limits(snapshot, out);
    informative(snapshot, out);
    synchronous(snapshot, out);
    transactions(snapshot, out);
}

fn version(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let version = snapshot.server.version;
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

fn wal_level(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let (level, needed) = (&snapshot.server.wal_level, snapshot.server.wal_level_needed());
    out.push(if level == "logical" {
        Finding::ok("wal_level", "logical")
    } else if snapshot.server.decodes() {
        // The creation of the first slot requests a checkpoint, and waits for it.
        Finding::ok("wal_level", format!("{level}: the first logical slot raises it to logical"))
    } else {
        Finding::error("wal_level", format!("wal_level is {level:?}, logical decoding needs {needed:?}"))
            .why(
                "no slot can be created, and WAL written until it is changed can't be decoded (RDS: parameter \
                 rds.logical_replication = 1; Cloud SQL: flag cloudsql.logical_decoding = on)",
            )
            .sql_and_restart(format!("ALTER SYSTEM SET wal_level = '{needed}';"))
    });
}

fn slots(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let max = snapshot.number("max_replication_slots");
    let used = i64::try_from(snapshot.slots.len()).unwrap_or(i64::MAX);
    if snapshot.slot.is_some() {
        return;
    }
    let idle: Vec<&str> =
        snapshot.slots.iter().filter(|s| !s.active).map(|s| s.name.as_str()).collect();
    out.push(if used < max {
        Finding::ok("max_replication_slots", format!("{used} of {max} replication slots are taken"))
    } else {
        let unused = if idle.is_empty() {
            String::new()
        } else {
            format!(
                "; no process reads {} at the moment: dropping one that is no longer needed is enough too",
                idle.join(", ")
            )
        };
        Finding::error("max_replication_slots", format!("all {max} replication slots are taken"))
            .why(format!("the pipeline's own can't be created{unused}"))
            .sql_and_restart(format!("ALTER SYSTEM SET max_replication_slots = {};", max + 10))
    });
}

fn senders(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let (max, used) = (snapshot.number("max_wal_senders"), snapshot.sessions.walsenders);
    let ours = snapshot.slot.as_ref().is_some_and(|slot| slot.active_pid.is_some());
    if used < max || ours {
        out.push(Finding::ok("max_wal_senders", format!("{used} of {max} walsenders are at work")));
    } else {
        out.push(senders_full(format!("all {max} walsenders are at work")));
    }
}

fn slot_limits(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let keep = snapshot.number("max_slot_wal_keep_size");
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
    let idle = snapshot.number("idle_replication_slot_timeout");
    if idle > 0 {
        out.push(
            Finding::warning(
                "idle_replication_slot_timeout",
                format!("a slot without a reader is invalidated after {idle} s"),
            )
            .why("a stop of the relay that lasts longer loses the slot, and events with it (PR001)")
            .sql("ALTER SYSTEM SET idle_replication_slot_timeout = 0;")
            .sql("SELECT pg_reload_conf();"),
        );
    }
}

/// Settings that the relay does not depend on; they help to explain other problems.
fn informative(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let timeout = snapshot.number("wal_sender_timeout");
    out.push(Finding::ok(
        "wal_sender_timeout",
        format!("{} s; the relay's own session has 15 s whatever it is", timeout / 1000),
    ));
    let memory = snapshot.number("logical_decoding_work_mem");
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

/// Commits must not wait for the stream.
fn synchronous(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let names = snapshot.setting("synchronous_standby_names");
    let ours = format!("postrider {}", snapshot.ask.names.key.pipeline);
    if !names.contains('*') && !names.contains(&ours) {
        return;
    }
    let standbys: Vec<String> = snapshot
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

/// What delays the creation of a slot, and later retains WAL.
fn transactions(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let why = "a slot is created only after every running transaction has ended, and WAL is kept from the \
        oldest one on";
    for (gid, database) in &snapshot.sessions.prepared {
        out.push(
            Finding::warning(
                "prepared_transaction",
                format!("transaction {gid:?} in database {database:?} has been prepared for more than an hour"),
            )
            .why(format!("{why}; COMMIT PREPARED where its work is wanted"))
            .sql(format!("ROLLBACK PREPARED {};", literal(gid))),
        );
    }
    for pid in &snapshot.sessions.long {
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

fn tls(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let conninfo = snapshot.ask.conninfo;
    if let Some(version) = &snapshot.sessions.tls {
        out.push(Finding::ok("tls", version.clone()));
    } else if is_local(conninfo) {
        out.push(Finding::ok("tls", "none; the server is this machine"));
    } else {
        let verified = [("sslmode", "verify-full"), ("sslrootcert", "system")];
        out.push(
            Finding::warning("tls", format!("the connection to {} is not encrypted", conninfo.hosts()))
                .why(format!(
                    "an attacker on the network can read every event and take the server's place; if you have your \
                     own certificate authority, set sslrootcert to its file{}",
                    password_note(conninfo)
                ))
                .sql("ALTER SYSTEM SET ssl = on;")
                .sql("SELECT pg_reload_conf();")
                .config(snapshot.lines.config("source.url", &uri(conninfo, conninfo.user(), &verified))),
        );
    }
}

fn encoding(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let (encoding, database) = (&snapshot.server.encoding, &snapshot.server.database);
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

fn clock(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let Some(ours) = snapshot.our_clock else { return };
    let skew = snapshot.sessions.clock - ours;
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

/// A server that is too old for any further check.
pub(super) fn too_old(version: u32) -> Option<Finding> {
    (version < start::VERSION_MIN).then(|| {
        Finding::error(
            "server_version",
            format!("the server is PostgreSQL {}, 15 or later is needed", version / 10_000),
        )
        .why("row filters, column lists and the views that show them do not exist")
    })
}

/// The role that is proposed instead of a superuser.
const OWN_ROLE: &str = "postrider";

/// Sessions of a running pipeline: stream and control, briefly a third one while it reconnects or creates a slot, and
/// briefly one for maintenance.
const SESSIONS: i32 = 4;

pub(super) fn role_rules(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let user = snapshot.ask.conninfo.user();
    let name = ident(user);
    let Some(role) = &snapshot.role else {
        out.push(
            Finding::error("role_missing", format!("role {user:?} of source.url does not exist"))
                .why("the relay logs in by it; setup then gives it what it needs, and nothing else")
                .sql(format!("CREATE ROLE {name} LOGIN REPLICATION;"))
                .shell(snapshot.lines.setup.clone()),
        );
        return;
    };
    let mut found = Vec::new();
    if !role.can_login {
        found.push(
            Finding::error("role_login", format!("role {user:?} may not log in"))
                .why("the relay logs in by it")
                .sql(format!("ALTER ROLE {name} LOGIN;")),
        );
    }
    if !role.replication && snapshot.ask.streams {
        found.push(replication_refused(user, role.rds));
    }
    if !role.may_connect {
        let database = ident(&snapshot.server.database);
        found.push(
            Finding::error(
                "source_connect",
                format!("role {user:?} may not connect to database {database}"),
            )
            .why("the relay logs in by it")
            .sql(format!("GRANT CONNECT ON DATABASE {database} TO {name};")),
        );
    }
    limits(snapshot, role, &name, &mut found);
    if found.is_empty() {
        found.push(Finding::ok(
            "role",
            format!(
                "role {user:?} may log in{}",
                if snapshot.ask.streams { " and stream" } else { "" }
            ),
        ));
    }
    out.append(&mut found);
}

fn limits(snapshot: &FactSnapshot<'_>, role: &RoleFacts, name: &str, out: &mut Vec<Finding>) {
    let user = &role.name;
    let until = role.valid_until.as_deref().unwrap_or_default();
    let forever = format!("ALTER ROLE {name} VALID UNTIL 'infinity';");
    if role.expired {
        out.push(
            Finding::error(
                "role_expired",
                format!("the password of role {user:?} expired on {until}"),
            )
            .why("a login by password is refused")
            .sql(forever),
        );
    } else if role.expires_soon {
        out.push(
            Finding::warning("role_expired", format!("the password of role {user:?} expires on {until}"))
                .why("from then on a login by password is refused: the pipeline stops at its next reconnect")
                .sql(forever),
        );
    }
    if (0..SESSIONS).contains(&role.connections) {
        out.push(
            Finding::error(
                "role_connections",
                format!(
                    "role {user:?} may have {} sessions, a pipeline needs {SESSIONS}",
                    role.connections
                ),
            )
            .why("some connections of the relay are refused (53300)")
            .sql(format!("ALTER ROLE {name} CONNECTION LIMIT -1;")),
        );
    }
    if role.read_only {
        let database = ident(&snapshot.server.database);
        out.push(
            Finding::error(
                "read_only",
                format!("default_transaction_read_only is on for role {user:?} or its database"),
            )
            .why("the relay can't write its cursor row, and so can't confirm anything")
            .sql(format!(
                "ALTER ROLE {name} IN DATABASE {database} SET default_transaction_read_only = off;"
            )),
        );
    }
}

/// Late in the order: its remediation runs `setup`, which requires the other rules to pass.
pub(super) fn superuser(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let Some(role) = snapshot.role.as_ref().filter(|role| role.superuser) else { return };
    let user = &role.name;
    let finding = Finding::warning("role_superuser", format!("role {user:?} is a superuser"))
        .why(
            "the relay's password gives access to the whole cluster; the relay needs only REPLICATION and four \
             grants",
        );
    out.push(if role.bootstrap {
        let conninfo = snapshot.ask.conninfo;
        let verb = if snapshot.own_role_exists { "ALTER" } else { "CREATE" };
        let finding = finding
            .sql(format!("{verb} ROLE {OWN_ROLE} LOGIN REPLICATION;"))
            .config(snapshot.lines.config("source.url", &uri(conninfo, OWN_ROLE, &[])));
        let finding = if conninfo.has_password() {
            finding.shell(format!("psql '{}' -c '\\password {OWN_ROLE}'", uri(conninfo, user, &[])))
        } else {
            finding
        };
        finding.shell(format!(
            "postrider setup -p {} --url '{}'",
            snapshot.lines.pipeline,
            uri(conninfo, user, &[])
        ))
    } else {
        finding.sql(format!("ALTER ROLE {} NOSUPERUSER LOGIN REPLICATION;", ident(user))).shell(
            format!(
                "postrider setup -p {} --url '{}'",
                snapshot.lines.pipeline,
                uri(
                    snapshot.ask.login.unwrap_or(snapshot.ask.conninfo),
                    snapshot.ask.login.map_or(ADMIN, Conninfo::user),
                    &[]
                )
            ),
        )
    });
}

/// The name to search for.
pub(super) const fn own_role() -> &'static str {
    OWN_ROLE
}

/// What the role must be able to read and write.
pub(super) fn rights(snapshot: &FactSnapshot<'_>, out: &mut Vec<Finding>) {
    let Some(role) = &snapshot.role else { return };
    let name = ident(&role.name);
    if let (Some(table), Some(around), Some(_)) =
        (&snapshot.ask.names.table, &snapshot.around, &snapshot.table)
    {
        if around.readable {
            out.push(Finding::ok("table_select", format!("role {:?} may read {table}", role.name)));
        } else {
            out.push(
                Finding::warning("table_select", format!("role {:?} may not read {table}", role.name))
                    .why(
                        "Streaming does not need SELECT, but `repair`, `replay --source table` and the topic check do",
                    )
                    .sql(format!("GRANT USAGE ON SCHEMA {} TO {name};", ident(&table.schema)))
                    .sql(format!("GRANT SELECT ON TABLE {table} TO {name};")),
            );
        }
    }
    if snapshot.relay_owns && snapshot.untrusted.is_none() {
        let login = snapshot.ask.login.unwrap_or(snapshot.ask.conninfo);
        let admin = snapshot.ask.login.map_or(ADMIN, Conninfo::user);
        out.push(
            Finding::warning(
                "schema_owner",
                format!("role {:?} owns schema \"postrider\" or tables in it", role.name),
            )
            .why(
                "A user with its login can add a trigger to these tables, which runs with the rights of an \
                 administrator who uses the tables by hand (Postrider refuses to use them as an administrator). setup \
                 by an administrator takes the tables over, and the relay keeps its rights on rows",
            )
            .shell(format!(
                "postrider setup -p {} --url '{}'",
                snapshot.lines.pipeline,
                uri(login, admin, &[])
            )),
        );
    }
    let has_tables = !matches!(snapshot.schema, Some(SchemaState::Missing | SchemaState::Empty));
    if has_tables && !snapshot.cursor_usable {
        out.push(
            Finding::error(
                "cursor_rights",
                format!("role {:?} may not use the tables of schema \"postrider\"", role.name),
            )
            .why("Postrider cannot store its position: nothing is ever confirmed")
            .sql(format!("GRANT USAGE ON SCHEMA postrider TO {name};"))
            .sql(grant_rows(&OWN_TABLES, &name)),
        );
    }
}
