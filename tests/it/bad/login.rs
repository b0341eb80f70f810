//! Logins that are refused, certificates that are not to be trusted, rights that are missing, sessions with settings.

use super::{SOON, arrives_with};
use crate::answers::{Answer, answer};
use crate::await_that::await_that;
use crate::halted::{run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Version, brokers};
use crate::wal_connection::login::make_certificates;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What an authority of one's own needs in order to sign something that has expired.
const AUTHORITY: &str = "[ca]\ndefault_ca = d\n[d]\ndatabase = index\nnew_certs_dir = .\nserial = serial\n\
                         default_md = sha256\npolicy = p\ncertificate = root.crt\nprivate_key = root.key\n\
                         [p]\ncommonName = supplied\n";

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output();
    let output = output.expect("openssl");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Puts a certificate and its key into the server's data directory.
fn install(server: &PrivatePostgres, dir: &Path, certificate: &str) {
    for (from, to) in [(certificate, "server.crt"), ("server.key", "server.key")] {
        let to = server.data().join(to);
        fs::copy(dir.join(from), &to).expect("a certificate");
        server.hand_over(&to);
    }
}

#[tokio::test]
async fn private_key_that_others_may_read_is_not_used() {
    let dir = TempDir::new().expect("a directory");
    make_certificates(dir.path());
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    install(&server, dir.path(), "server.crt");
    server.connect().await.batch("alter system set ssl = on").await;
    server.connect().await.batch("select pg_reload_conf()").await;
    await_that("TLS", SOON, || async {
        let on = server.connect().await.text("show ssl").await;
        if on.as_deref() == Some("on") { Ok(()) } else { Err("off") }
    })
    .await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "exposed_key").await;
    let file = |name: &str| dir.path().join(name).display().to_string();
    let more = format!(
        "/postgres?sslmode=require&sslcert={}&sslkey={}\"",
        file("client.crt"),
        file("client.key")
    );
    let config = pipeline.config.replace("/postgres\"", &more);
    let allow = |bits| {
        let rights = fs::Permissions::from_mode(bits);
        fs::set_permissions(dir.path().join("client.key"), rights).expect("other rights");
    };
    allow(0o644);
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR014", &["private key", "client.key", "chmod 600"], &[]);
    answer("sslkey that others may read", &pipeline, &halted);
    let checked = postrider(&config, &["check"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("chmod 600"));
    allow(0o600);
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn certificate_of_another_name_or_day_halts_and_nothing_is_sent() {
    let dir = TempDir::new().expect("a directory");
    make_certificates(dir.path());
    fs::write(dir.path().join("ca.cnf"), AUTHORITY).expect("a file");
    fs::write(dir.path().join("index"), "").expect("a file");
    fs::write(dir.path().join("serial"), "01\n").expect("a file");
    openssl(
        dir.path(),
        "ca -batch -config ca.cnf -startdate 20200101000000Z -enddate 20200201000000Z -extfile server.ext \
         -in server.csr -out expired.crt -notext",
    );
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "certificate").await;
    pipeline.insert(10).await;
    let root = dir.path().join("root.crt").display().to_string();
    let with = |host: &str| {
        let more = format!("/postgres?sslmode=verify-full&sslrootcert={root}\"");
        pipeline.config.replace("/postgres\"", &more).replacen("127.0.0.1", host, 1)
    };
    let halted = run_to_halt(&with("127.0.0.1")).await;
    halted.assert_says("PR014", &["TLS"], &["may not offer TLS"]);
    answer("server without TLS where TLS is asked for", &pipeline, &halted);

    install(&server, dir.path(), "server.crt");
    pipeline.sql("alter system set ssl = on; select pg_reload_conf()").await;
    let before = pipeline.confirmed_lsn().await;
    // Once the server has read it, a client that insists on TLS is served.
    await_that("TLS", SOON, || async {
        let on = pipeline.sql.text("show ssl").await;
        if on.as_deref() == Some("on") { Ok(()) } else { Err("off") }
    })
    .await;
    let halted = run_to_halt(&with("localhost")).await;
    halted.assert_says("PR014", &["TLS", "localhost"], &["name and dates"]);
    answer("certificate of another name", &pipeline, &halted);

    install(&server, dir.path(), "expired.crt");
    pipeline.sql("select pg_reload_conf()").await;
    let halted = run_to_halt(&with("127.0.0.1")).await;
    halted.assert_says("PR014", &["TLS", "expired"], &["name and dates"]);
    answer("certificate that has expired", &pipeline, &halted);

    assert_eq!(pipeline.confirmed_lsn().await, before);
    install(&server, dir.path(), "server.crt");
    pipeline.sql("select pg_reload_conf()").await;
    arrives_with(&pipeline, &with("127.0.0.1"), 10).await;
}

/// A pipeline of the role `carrier`, with the rights that `setup` gives and no others.
async fn of_carrier(server: &PrivatePostgres, test: &str) -> (Pipeline, String) {
    let pipeline = Pipeline::on(&server.url(), &brokers(), test).await;
    pipeline.sql("create role carrier login replication password 'right'").await;
    let login = "postgresql://carrier:right@";
    let config = pipeline.config.replace("postgresql://postgres@", login);
    postrider_ok(&config, &["setup", "--url", &server.url()]);
    (pipeline, config)
}

#[tokio::test]
async fn login_that_is_refused_halts_and_goes_on_when_it_is_not() {
    let rules = "host all shut 127.0.0.1/32 reject\nhost all carrier 127.0.0.1/32 scram-sha-256";
    let server = PrivatePostgres::start_with(Version::Pg18, "", rules).await;
    let (pipeline, config) = of_carrier(&server, "refused").await;
    pipeline.insert(10).await;
    pipeline.sql("create role shut login replication").await;
    let halted = run_to_halt(&config.replace("carrier:right", "shut")).await;
    halted.assert_says("PR014", &["28000", "pg_hba.conf rejects"], &["pg_hba.conf"]);
    answer("login that pg_hba.conf rejects", &pipeline, &halted);

    pipeline.sql("alter role carrier valid until '2020-01-01'").await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR014", &["carrier", "28P01"], &["VALID UNTIL"]);
    answer("role that has expired", &pipeline, &halted);

    pipeline.sql("alter role carrier valid until 'infinity'; alter role carrier nologin").await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR014", &["carrier", "28000"], &[]);
    answer("role without LOGIN", &pipeline, &halted);
    pipeline.sql("alter role carrier login").await;

    pipeline.sql("revoke all on postrider.cursor from carrier").await;
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR014", &["42501", "cursor"], &["GRANTs"]);
    answer("role without rights on schema postrider", &pipeline, &halted);
    postrider_ok(&config, &["setup", "--url", &server.url()]);

    // WAL is read by the slot, not by a query.
    pipeline.sql("revoke all on outbox from carrier").await;
    arrives_with(&pipeline, &config, 10).await;
    let how = "published: WAL is read with REPLICATION, the table is not asked";
    answer("role without SELECT on the outbox", &pipeline, Answer::published(how));
}

/// Settings of role and database that would end a session, or write values in another way.
const SETTINGS: &[(&str, &str)] = &[
    ("statement_timeout", "'100ms'"),
    ("lock_timeout", "'10ms'"),
    ("idle_in_transaction_session_timeout", "'100ms'"),
    ("idle_session_timeout", "'200ms'"),
    ("wal_sender_timeout", "'1s'"),
    ("datestyle", "'German, DMY'"),
    ("intervalstyle", "'sql_standard'"),
    ("timezone", "'Asia/Kathmandu'"),
    ("bytea_output", "'escape'"),
    ("extra_float_digits", "-15"),
    ("client_encoding", "'LATIN1'"),
    ("search_path", "'nowhere'"),
    ("standard_conforming_strings", "off"),
    ("quote_all_identifiers", "on"),
    ("client_min_messages", "'error'"),
    ("synchronous_commit", "off"),
    ("default_transaction_isolation", "'serializable'"),
    ("default_transaction_deferrable", "on"),
    ("row_security", "on"),
    ("session_replication_role", "'replica'"),
    ("array_nulls", "off"),
    ("logical_decoding_work_mem", "'64kB'"),
];

#[tokio::test]
async fn settings_of_role_and_database_change_neither_values_nor_the_stream() {
    for version in [Version::Pg15, Version::Pg18] {
        let server = PrivatePostgres::start(version, "").await;
        let (pipeline, config) = of_carrier(&server, "settings").await;
        pipeline.sql("alter table outbox alter payload type bytea using '\\x'").await;
        for (name, value) in SETTINGS {
            pipeline.sql(&format!("alter role carrier set {name} = {value}")).await;
            if *name != "wal_sender_timeout" {
                pipeline.sql(&format!("alter database postgres set {name} = {value}")).await;
            }
        }
        if version == Version::Pg18 {
            pipeline.sql("alter role carrier set transaction_timeout = '300ms'").await;
        }
        let relay = spawn(&config);
        relay.await_state("streaming", SOON).await;
        idle_for_two_seconds(&pipeline).await;
        pipeline
            .sql
            .batch(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                 values ('order', 'a', 'T\u{f6}', '\\x00ff41', '2024-01-02 03:04:05.678Z')",
            )
            .await;
        let records = pipeline.topic.await_records(1, SOON).await;
        assert_eq!(records[0].value.as_deref(), Some(&b"\x00\xffA"[..]));
        assert_eq!(records[0].timestamp, Some(1_704_164_645_678));
        assert_eq!(records[0].header("type"), Some("T\u{f6}"));
        let status = relay.status().await.expect("a status");
        assert_eq!(status["pipelines"][0]["source_reconnects_total"], 0, "{status}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        marked_under_the_same(&pipeline, &config).await;
        let how = "published: the relay's sessions have their own";
        answer("time-outs set on role or database", &pipeline, Answer::published(how));
        answer(
            "DateStyle, bytea_output and the like set on role or database",
            &pipeline,
            Answer::published(how),
        );
    }
}

/// The other modes under the settings of [`SETTINGS`]: each publishes a row once, and marks it.
async fn marked_under_the_same(pipeline: &Pipeline, config: &str) {
    pipeline.sql.batch("delete from outbox; grant all on outbox to carrier").await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    for (mode, state, count) in [("auto", "streaming", 2), ("poll", "polling", 3)] {
        let lines = format!("mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
        let relay = spawn(&config.replacen(&head, &format!("{head}{lines}"), 1));
        relay.await_state(state, SOON).await;
        idle_for_two_seconds(pipeline).await;
        let row = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                   values ('order', 'a', 'T\u{f6}', '\\x00ff41')";
        pipeline.sql.batch(row).await;
        let records = pipeline.topic.await_records(count, SOON).await;
        let last = records.last().expect("a record");
        assert_eq!(last.value.as_deref(), Some(&b"\x00\xffA"[..]), "{mode}");
        assert_eq!((records.len(), last.header("type")), (count, Some("T\u{f6}")), "{mode}");
        await_that("a mark", SOON, || async {
            match pipeline.sql.text("select count(*)::text from outbox").await.as_deref() {
                Some("0") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let status = relay.status().await.expect("a status");
        assert_eq!(status["pipelines"][0]["source_reconnects_total"], 0, "{status}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Longer than any of the time-outs of [`SETTINGS`]: the sessions are those of two seconds ago.
async fn idle_for_two_seconds(pipeline: &Pipeline) {
    let sql = "select count(*)::text from pg_stat_activity where usename = 'carrier' \
               and backend_start < clock_timestamp() - interval '2 s'";
    await_that("two sessions of two seconds ago", SOON, || async {
        let old = pipeline.sql.text(sql).await.unwrap_or_default();
        if old.parse().is_ok_and(|count: u32| count >= 2) { Ok(()) } else { Err(old) }
    })
    .await;
}

#[tokio::test]
async fn role_that_may_only_read_is_told() {
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let (pipeline, config) = of_carrier(&server, "readonly").await;
    pipeline.insert(10).await;
    pipeline.sql("alter role carrier set default_transaction_read_only = on").await;
    let relay = Relay::spawn(&config);
    let status = relay
        .await_status("told", SOON, |status| {
            status["pipelines"][0]["reason"].as_str().unwrap_or_default().contains("25006")
        })
        .await;
    answer(
        "default_transaction_read_only set on role or database",
        &pipeline,
        Answer::waits(&status),
    );
    pipeline.sql("alter role carrier reset default_transaction_read_only").await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A standby takes no cursor row, and will perhaps be promoted: it is waited for, and told at every start.
#[tokio::test]
async fn read_only_standby_is_waited_for_until_it_is_promoted() {
    // From 17 on a slot that was not synchronised, as this one, is not taken for a promoted standby's.
    let mut server = PrivatePostgres::start(Version::Pg15, "").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "standby").await;
    pipeline.insert(10).await;
    server.stop_fast(SOON).await;
    let signal = server.data().join("standby.signal");
    fs::write(&signal, "").expect("a file");
    server.hand_over(&signal);
    server.restart().await;
    let setup = postrider(&pipeline.config, &["setup"]);
    assert_eq!(setup.status.code(), Some(3), "{}", String::from_utf8_lossy(&setup.stderr));
    answer("setup on a standby", &pipeline, &setup);
    let relay = pipeline.run();
    let status = relay.await_state("source_down", SOON).await;
    let reason = status["pipelines"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("standby"), "{status}");
    answer("a read-only standby", &pipeline, Answer::waits(&status));
    server.connect().await.batch("select pg_promote()").await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
