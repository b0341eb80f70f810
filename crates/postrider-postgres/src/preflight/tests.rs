//! Rules whose cause cannot be produced on a server in a test. Each finding follows from one change to a snapshot that
//! passes all rules.

use super::facts::{AnySlot, RoleFacts, Sessions, TableSurroundings};
use super::remediation::Remediation;
use super::{FactSnapshot, *};
use crate::catalog::ChangesSince;
use crate::start;
use crate::start::tests::good;
use expect_test::{Expect, expect};

const URL: &str = "postgresql://postrider@127.0.0.1/shop";

/// The findings after `change`.
fn found(url: &str, change: impl FnOnce(&mut FactSnapshot<'_>)) -> Vec<Finding> {
    let facts = good();
    let conninfo = Conninfo::parse(url, &|_| None).unwrap();
    let ask = PreflightQuery {
        names: &facts.names,
        conninfo: &conninfo,
        login: None,
        columns: &facts.columns,
        streams: true,
        poll: None,
        polls: false,
        reads: None,
        messages: false,
        failover: true,
        bookmarks_retain_max: 10 << 30,
        topic: None,
    };
    let mut snapshot = healthy(ask, &facts);
    change(&mut snapshot);
    let mut found = Vec::new();
    rules(&snapshot, None, &mut found);
    found
}

/// Compares the findings after `change` that are not `ok`.
fn findings_are(url: &str, change: impl FnOnce(&mut FactSnapshot<'_>), expected: &Expect) {
    let mut found = found(url, change);
    found.retain(|finding| finding.severity != Severity::Ok);
    let text: Vec<String> = found.iter().map(shown).collect();
    expected.assert_eq(&text.join("\n"));
}

fn shown(finding: &Finding) -> String {
    let fixes: Vec<String> =
        finding.fix.iter().map(|fix| format!("\n  {} {}", fix.kind.name(), fix.line)).collect();
    format!("{} {}: {}{}", finding.severity.name(), finding.id, finding.what, fixes.concat())
}

#[expect(clippy::too_many_lines, reason = "a field for each fact")]
fn healthy<'a>(ask: PreflightQuery<'a>, facts: &start::Facts) -> FactSnapshot<'a> {
    let settings = [
        ("max_replication_slots", "10"),
        ("max_wal_senders", "10"),
        ("max_slot_wal_keep_size", "65536"),
        ("idle_replication_slot_timeout", "0"),
        ("wal_sender_timeout", "60000"),
        ("logical_decoding_work_mem", "65536"),
        ("sync_replication_slots", "on"),
    ];
    let slot = |name: &str, logical| AnySlot {
        name: name.to_owned(),
        logical,
        active: !logical,
        feedback: true,
        retained: Some(1 << 20),
    };
    FactSnapshot {
        lines: Remediation::new(&ask, true, true),
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        sessions: Sessions {
            walsenders: 1,
            standbys: Vec::new(),
            tls: None,
            clock: 1000.0,
            prepared: Vec::new(),
            long: Vec::new(),
            emit: Vec::new(),
        },
        our_clock: Some(1000.5),
        slots: vec![slot("postrider_orders", true)],
        role: Some(RoleFacts {
            name: "postrider".to_owned(),
            superuser: false,
            bootstrap: false,
            replication: true,
            can_login: true,
            bypasses_rls: false,
            connections: -1,
            valid_until: None,
            expired: false,
            expires_soon: false,
            may_connect: true,
            may_create: false,
            rds: false,
            read_only: false,
        }),
        own_role_exists: true,
        table: facts.table.clone(),
        times: facts.times.clone(),
        session_zones: Vec::new(),
        around: Some(TableSurroundings {
            readable: true,
            has_identity: true,
            ..TableSurroundings::default()
        }),
        namesakes: Vec::new(),
        claim_index: None,
        unrecorded: None,
        publication: facts.publication.clone(),
        since: ChangesSince::default(),
        slot: facts.slot.clone(),
        holder: None,
        schema: Some(facts.schema),
        untrusted: None,
        relay_owns: false,
        cursor: facts.cursor.clone(),
        cursor_usable: true,
        marks: None,
        bookmarks: Vec::new(),
        server: facts.server.clone(),
        ask,
    }
}

#[test]
fn healthy_pipeline_has_no_findings() {
    findings_are(URL, |_| {}, &expect![""]);
}

#[test]
fn old_minors_are_reported_with_their_bugs() {
    findings_are(
        URL,
        |snapshot| snapshot.server.version = 170_007,
        &expect![[r#"
        warning server_version: PostgreSQL 17.7 has bugs in logical decoding that 17.10 has not
          shell apt-get install --only-upgrade postgresql-17"#]],
    );
    findings_are(URL, |snapshot| snapshot.server.version = 160_014, &expect![""]);
}

/// From PostgreSQL 19 on `wal_level` is a minimum, which the first logical slot raises.
#[test]
fn the_wal_level_is_asked_for_by_the_servers_version() {
    for (version, level, needed) in [
        (150_018, "logical", None),
        (180_004, "logical", None),
        (180_004, "replica", Some("logical")),
        (180_004, "minimal", Some("logical")),
        (190_000, "logical", None),
        (190_000, "replica", None),
        (190_001, "minimal", Some("replica")),
        (200_000, "replica", None),
    ] {
        let change = |snapshot: &mut FactSnapshot<'_>| {
            (snapshot.server.version, snapshot.server.wal_level) = (version, level.to_owned());
        };
        let found = found(URL, change);
        let found = found.iter().find(|finding| finding.id == "wal_level").unwrap();
        let lines: Vec<&str> = found.fix.iter().map(|fix| fix.line.as_str()).collect();
        let line = needed.map(|needed| format!("ALTER SYSTEM SET wal_level = '{needed}';"));
        assert_eq!(lines, line.as_slice(), "{version} {level}");
        assert_eq!(found.severity == Severity::Ok, needed.is_none(), "{version} {level}");
    }
}

#[test]
fn long_transactions_are_reported() {
    let change = |snapshot: &mut FactSnapshot<'_>| {
        snapshot.sessions.prepared = vec![("it's".to_owned(), "other".to_owned())];
        snapshot.sessions.long = vec![4711];
    };
    findings_are(
        URL,
        change,
        &expect![[r#"
        warning prepared_transaction: transaction "it's" in database "other" has been prepared for more than an hour
          sql ROLLBACK PREPARED 'it''s';
        warning long_transaction: backend 4711 has been writing in one transaction for more than an hour
          sql SELECT pg_terminate_backend(4711);"#]],
    );
}

#[test]
fn clocks_that_differ_are_reported() {
    findings_are(
        URL,
        |snapshot| snapshot.sessions.clock += 90.0,
        &expect![[r#"
        warning clock: the server's clock is 90 s ahead of this machine's
          shell timedatectl set-ntp true"#]],
    );
}

#[test]
fn a_network_without_tls_is_reported() {
    findings_are(
        "postgresql://postrider@db.internal/shop",
        |_| {},
        &expect![[r#"
        warning tls: the connection to db.internal:5432 is not encrypted
          sql ALTER SYSTEM SET ssl = on;
          sql SELECT pg_reload_conf();
          config pipelines.orders.source.url = "postgresql://postrider@db.internal:5432/shop?sslmode=verify-full&sslrootcert=system""#]],
    );
}

#[test]
fn a_slot_near_its_limit_is_reported() {
    let near = |snapshot: &mut FactSnapshot<'_>| {
        snapshot.slots[0].retained = Some(6 << 30);
        snapshot.slot.as_mut().unwrap().safe_wal_size = Some(1 << 30);
    };
    findings_are(
        URL,
        near,
        &expect![[r#"
        warning slot_wal: slot "postrider_orders" holds 6144 MiB of WAL, and is lost after 1024 MiB more
          sql ALTER SYSTEM SET max_slot_wal_keep_size = -1;
          sql SELECT pg_reload_conf();"#]],
    );
    let full = |snapshot: &mut FactSnapshot<'_>| snapshot.slots[0].retained = Some(90 << 30);
    findings_are(
        URL,
        full,
        &expect![[r#"
        warning slot_wal: slot "postrider_orders" holds 92160 MiB of WAL, and no process reads it
          shell postrider run"#]],
    );
}

#[test]
fn standbys_that_would_not_have_the_slot_are_reported() {
    let change = |snapshot: &mut FactSnapshot<'_>| {
        snapshot.sessions.standbys = vec!["walreceiver".to_owned()];
        snapshot.settings.insert("sync_replication_slots".to_owned(), "off".to_owned());
        let standby =
            AnySlot { logical: false, active: true, feedback: false, ..snapshot.slots[0].clone() };
        snapshot.slots.push(AnySlot { name: "standby_1".to_owned(), ..standby });
    };
    findings_are(
        URL,
        change,
        &expect![[r#"
        warning synchronized_standby_slots: events are published before the standbys of standby_1 have them
          sql ALTER SYSTEM SET synchronized_standby_slots = 'standby_1';
          sql SELECT pg_reload_conf();
        warning hot_standby_feedback: the standby of standby_1 sends no feedback
          sql ALTER SYSTEM SET hot_standby_feedback = on;
          sql SELECT pg_reload_conf();
        info sync_replication_slots: sync_replication_slots is off on this server
          sql ALTER SYSTEM SET sync_replication_slots = on;
          sql SELECT pg_reload_conf();"#]],
    );
    let old = |snapshot: &mut FactSnapshot<'_>| {
        change(snapshot);
        snapshot.server.version = 150_018;
    };
    findings_are(
        URL,
        old,
        &expect![
            "info failover: there are standbys, and PostgreSQL before 17 carries no slot over to them"
        ],
    );
}

#[test]
fn a_lack_of_walsenders_is_reported() {
    findings_are(
        URL,
        |snapshot| snapshot.sessions.walsenders = 10,
        &expect![[r#"
        error max_wal_senders: all 10 walsenders are at work
          sql ALTER SYSTEM SET max_wal_senders = 20;"#]],
    );
}
