//! A database that can't be reached or does not let us in: a finding with the reason, never a crash and never a secret.

use super::patient::{Checked, Patient};
use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::{PrivatePostgres, free_port};
use crate::server::{Version, brokers};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Who gets in by what: `locked` by nothing, `carrier` by a password, everybody else is trusted.
const RULES: &str =
    "host all locked 127.0.0.1/32 reject\nhost all carrier 127.0.0.1/32 scram-sha-256";

fn only(checked: &Checked, id: &str) {
    assert_eq!(checked.code, Some(1), "{checked}");
    checked.expect(id, "error");
    assert!(!format!("{checked:?}").contains("hush-hush"), "{checked}");
}

#[tokio::test]
async fn a_refused_connection_is_explained() {
    let server = PrivatePostgres::start_with(Version::Pg17, "max_wal_senders = 2", RULES).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "check_refused").await;
    for role in [
        "carrier login password 'right'",
        "locked login",
        "stranger login",
        "few login connection limit 0",
    ] {
        pipeline.sql.batch(&format!("create role {role}")).await;
    }
    pipeline.sql.batch("create database closed; ").await;
    pipeline.sql.batch("revoke connect on database closed from public").await;
    let patient = Patient::new(&pipeline.config, &server.url());
    let with = |login: &str, database: &str| {
        let url = server.url().replace("postgres@", login);
        let url =
            url.strip_suffix("/postgres").map_or(url.clone(), |url| format!("{url}{database}"));
        patient.write(&pipeline.config.replace(&server.url(), &url));
        patient.check(&[])
    };
    only(&with("carrier:hush-hush@", "/postgres"), "source_password");
    only(&with("carrier@", "/postgres"), "source_password");
    only(&with("locked@", "/postgres"), "source_refused");
    only(&with("nobody@", "/postgres"), "source_refused");
    only(&with("few@", "/postgres"), "source_connections");
    only(&with("stranger@", "/closed"), "source_connect");
    // What is mended by one line, is.
    patient.fix(with("stranger@", "/closed").find("source_connect").expect("a finding")).await;
    assert!(with("stranger@", "/closed").find("source_connect").is_none());
    let checked = with("postgres@", "/absent");
    only(&checked, "source_database");
    patient.fix(checked.find("source_database").expect("a finding")).await;
    assert!(with("postgres@", "/absent").find("source_database").is_none());

    let nowhere = format!("postgresql://postgres:hush-hush@127.0.0.1:{}/postgres", free_port());
    patient.write(&pipeline.config.replace(&server.url(), &nowhere));
    only(&patient.check(&[]), "source_unreachable");
    let tls = format!("{}?sslmode=require", server.url());
    patient.write(&pipeline.config.replace(&server.url(), &tls));
    only(&patient.check(&[]), "source_tls");
}

/// An administrator looks before the relay's role is made.
#[tokio::test]
async fn another_login_sees_a_role_that_is_missing_and_mends_it() {
    let server = PrivatePostgres::start(Version::Pg15, "max_slot_wal_keep_size = 4GB").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "check_login").await;
    let patient =
        Patient::new(&pipeline.config.replace("//postgres@", "//carrier@"), &server.url());
    let checked = patient.check(&["--url", &server.url()]);
    checked.expect("source_refused", "error");
    patient.fix(checked.expect("role_missing", "error")).await;
    let checked = patient.check(&[]);
    assert_eq!(checked.ids(&["error", "warning"]), Vec::<&str>::new(), "{checked}");

    // What setup gave is taken away.
    for what in ["schema postrider", "table postrider.cursor", "table postrider.migration"] {
        pipeline.sql.batch(&format!("revoke all on {what} from carrier")).await;
    }
    let checked = patient.check(&[]);
    patient.fix(checked.expect("cursor_rights", "error")).await;
    let checked = patient.check(&[]);
    assert_eq!(checked.ids(&["error", "warning"]), Vec::<&str>::new(), "{checked}");
}

/// The superuser that `initdb` made can't be demoted: a role of our own takes its place in the file.
#[tokio::test]
async fn a_superuser_is_told_and_a_role_of_its_own_takes_its_place() {
    let conf = "max_slot_wal_keep_size = 4GB\nautovacuum = off";
    let server = PrivatePostgres::start(Version::Pg18, conf).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "check_super").await;
    let patient = Patient::new(&pipeline.config, &server.url());
    // Nobody else is there: who writes anything takes the next number.
    let next = "select pg_snapshot_xmax(pg_current_snapshot())::text";
    let before = pipeline.sql.text(next).await;
    assert_eq!(patient.check(&[]).code, Some(0));
    assert_eq!(pipeline.sql.text(next).await, before, "a look writes nothing");
    patient.fix(patient.check(&[]).expect("role_superuser", "warning")).await;
    let checked = patient.check(&[]);
    assert_eq!(checked.ids(&["error", "warning"]), Vec::<&str>::new(), "{checked}");
    assert!(patient.config().contains("postgresql://postrider@"), "{}", patient.config());
    pipeline.sql.batch("alter role postrider superuser").await;
    patient.fix(patient.check(&[]).expect("role_superuser", "warning")).await;
    let checked = patient.check(&[]);
    assert_eq!(checked.ids(&["error", "warning"]), Vec::<&str>::new(), "{checked}");
}

#[tokio::test]
async fn a_lost_slot_a_standby_and_slots_that_hold_up_are_told() {
    let conf = "max_slot_wal_keep_size = 1MB\nmin_wal_size = 32MB\nmax_wal_size = 32MB";
    let mut server = PrivatePostgres::start(Version::Pg18, conf).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "check_lost").await;
    let patient = Patient::new(&pipeline.config, &server.url());
    for _ in 0..4 {
        let switch = "select pg_logical_emit_message(false, 'x', repeat('x', 100)); \
                      select pg_switch_wal(); checkpoint";
        pipeline.sql(switch).await;
    }
    let checked = patient.check(&[]);
    checked.expect("max_slot_wal_keep_size", "warning");
    patient.fix(checked.expect("slot_lost", "error")).await;
    assert_eq!(patient.check(&[]).code, Some(0));

    // A standby's slot that nobody uses holds every failover slot up; and commits must not wait for the relay.
    pipeline.sql("select pg_create_physical_replication_slot('gone')").await;
    for setting in ["synchronized_standby_slots = 'gone'", "synchronous_standby_names = '*'"] {
        // A superuser's session that is itself asked to wait would never come back.
        pipeline.sql("set synchronous_commit = local").await;
        pipeline.sql.batch(&format!("alter system set {setting}")).await;
    }
    pipeline.sql("select pg_reload_conf()").await;
    let checked = patient.check(&[]);
    patient.fix(checked.expect("synchronous_standby_names", "warning")).await;
    patient.fix(checked.expect("synchronized_standby_slots", "error")).await;
    let well = patient.check(&[]);
    assert_eq!(well.ids(&["error"]), Vec::<&str>::new(), "{well}");

    server.stop_fast(SOON).await;
    let signal = server.data().join("standby.signal");
    std::fs::write(&signal, "").expect("a file");
    server.hand_over(&signal);
    server.restart().await;
    let checked = patient.check(&[]);
    only(&checked, "standby");
}

/// Somebody holds the table: the look ends, says so, and holds nobody up.
#[tokio::test]
async fn a_lock_on_the_table_is_not_waited_for() {
    let pipeline = Pipeline::shared(Version::Pg17, "check_lock").await;
    let patient = Patient::new(&pipeline.config, &pipeline.url);
    pipeline.sql("begin; lock table outbox in access exclusive mode").await;
    let checked = patient.check(&[]);
    pipeline.sql("rollback").await;
    let unread = checked.expect("unread", "error");
    assert!(unread["what"].as_str().is_some_and(|what| what.contains("55P03")), "{checked}");
    assert_eq!(patient.check(&[]).code, Some(0));
}

/// A relay goes on while it is looked at: the end of the WAL is not older than the cursor that it is held against.
#[tokio::test]
async fn a_cursor_that_moves_during_the_look_is_not_ahead_of_the_server() {
    let pipeline = Pipeline::shared(Version::Pg17, "check_moves").await;
    let relay = crate::relay::Relay::spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    relay.terminate(SOON).await;
    let patient = Patient::new(&pipeline.config, &pipeline.url);
    // The look comes as far as the cursor, and waits there for two seconds at most.
    pipeline.sql("begin; lock table postrider.cursor in access exclusive mode").await;
    let looking = tokio::task::spawn_blocking(move || patient.check(&[]));
    let waits = "select count(*)::text from pg_locks join pg_database on oid = database \
                 where not granted and datname = current_database()";
    await_that("the look to come to the cursor", SOON, || async {
        let waiting = pipeline.sql.text(waits).await.expect("a number");
        if waiting == "1" { Ok(()) } else { Err(waiting) }
    })
    .await;
    let moved = "with log as (select pg_logical_emit_message(false, 'elsewhere', repeat('x', 100000)) lsn) \
                 update postrider.cursor set watermark = lsn, flush_limit = lsn from log \
                 returning watermark::text";
    let at = pipeline.sql.text(moved).await.expect("a position");
    pipeline.sql("commit").await;
    let checked = looking.await.expect("a look");
    assert_eq!(checked.ids(&["error"]), Vec::<&str>::new(), "{checked}");
    assert!(
        checked.to_string().contains(&format!("everything below {at} is published")),
        "{checked}"
    );
}

/// A server that can't convert says so, and one without a slot's room.
#[tokio::test]
async fn an_encoding_that_converts_nothing_is_told() {
    let pipeline = Pipeline::shared(Version::Pg15, "check_ascii").await;
    let name = crate::server::unique("check_ascii");
    pipeline
        .sql
        .batch(&format!(
            "create database {name} encoding 'SQL_ASCII' template template0 locale 'C'"
        ))
        .await;
    let database = pipeline.url.split("dbname=").nth(1).expect("a database");
    let patient = Patient::new(&pipeline.config.replace(database, &name), &pipeline.url);
    let checked = patient.check(&[]);
    pipeline.sql.batch(&format!("drop database {name}")).await;
    checked.expect("encoding", "warning");
}

/// Something in between that takes turns: the two connections reach two servers.
#[tokio::test]
async fn a_balancer_in_between_is_told() {
    let pipeline = Pipeline::shared(Version::Pg17, "check_pooler").await;
    let database = pipeline.url.split("dbname=").nth(1).expect("a database");
    let other =
        crate::server::Client::connect(&Version::Pg18.variable("URL")).await.expect("a server");
    other.batch(&format!("create database {database}")).await;
    let ports = [Version::Pg17, Version::Pg18].map(|version| version.variable("PORT"));
    let balancer = balance(ports);
    let url = format!("postgresql://postgres@127.0.0.1:{balancer}/{database}");
    let patient = Patient::new(&pipeline.config.replace(&pipeline.url, &url), &pipeline.url);
    let checked = patient.check(&[]);
    other.batch(&format!("drop database {database} with (force)")).await;
    checked.expect("pooler", "error");
}

/// Hands the connections to one of its ports to these in turn. Ends with the process.
fn balance(ports: [String; 2]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for (client, to) in listener.incoming().zip(ports.iter().cycle()) {
            let client = client.expect("a connection");
            let server = TcpStream::connect(format!("127.0.0.1:{to}")).expect("a server");
            for (from, to) in [(&client, &server), (&server, &client)] {
                let ends = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                std::thread::spawn(move || {
                    let (mut from, mut to) = ends;
                    // Whichever side goes first, the other hears of it.
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    port
}
