//! A wrong start that needs a server of its own: logins, certificates, WAL that is gone, `wal_level`.

use crate::answers::answer;
use crate::await_that::SOON;
use crate::halted::run_to_halt;
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, postrider};
use crate::server::{Version, brokers};
use crate::wal_connection::login::make_certificates;
use tempfile::TempDir;

#[tokio::test]
async fn wrong_password_halts_and_is_not_told() {
    let rule = "host all carrier 127.0.0.1/32 scram-sha-256";
    let server = PrivatePostgres::start_with(Version::Pg17, "", rule).await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "password").await;
    pipeline.sql.batch("create role carrier superuser login password 'the-right-one'").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    let with = |password: &str| {
        let user = format!("postgresql://carrier{password}@");
        pipeline.config.replace("postgresql://postgres@", &user)
    };
    let halted = run_to_halt(&with(":the-wrong-one")).await;
    halted.assert_says("PR014", &["carrier", "28P01"], &["password_file", "pg_hba.conf"]);
    assert!(!halted.ended.stderr.contains("the-wrong-one"), "{}", halted.ended.stderr);
    answer("wrong password", &pipeline, &halted);
    // None at all.
    let halted = run_to_halt(&with("")).await;
    halted.assert_says("PR014", &["password"], &["password_file"]);
    answer("no password", &pipeline, &halted);
    // `setup` says the same, and ends as a look that found something wrong.
    let setup = postrider(&with(":the-wrong-one"), &["setup"]);
    let told = String::from_utf8_lossy(&setup.stderr).into_owned();
    assert_eq!(setup.status.code(), Some(1), "{told}");
    assert!(told.contains("28P01") && !told.contains("the-wrong-one"), "{told}");

    assert_eq!(pipeline.confirmed_lsn().await, before);
    let relay = Relay::spawn(&with(":the-right-one"));
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A role that may log in and may not replicate.
#[tokio::test]
async fn role_without_replication_halts_with_the_grant() {
    let server = PrivatePostgres::start(Version::Pg18, "").await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "rights").await;
    pipeline.sql.batch("create role carrier login").await;
    let config = pipeline.config.replace("postgresql://postgres@", "postgresql://carrier@");
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR014", &["42501"], &["REPLICATION"]);
    answer("role without REPLICATION", &pipeline, &halted);
}

#[tokio::test]
async fn untrusted_certificate_halts_and_nothing_is_sent_in_the_clear() {
    let dir = TempDir::new().expect("a directory");
    make_certificates(dir.path());
    let mut server = PrivatePostgres::start(Version::Pg15, "").await;
    for name in ["server.crt", "server.key"] {
        let to = server.data().join(name);
        std::fs::copy(dir.path().join(name), &to).expect("a certificate");
        server.hand_over(&to);
    }
    server.connect().await.batch("alter system set ssl = on").await;
    server.stop_fast(SOON).await;
    server.restart().await;
    let pipeline = Pipeline::on(&server.url(), &brokers(), "chain").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    let with = |root: &str| {
        let root = dir.path().join(root).display().to_string();
        let more = format!("/postgres?sslmode=verify-full&sslrootcert={root}\"");
        pipeline.config.replace("/postgres\"", &more)
    };
    let halted = run_to_halt(&with("other.crt")).await;
    halted.assert_says("PR014", &["TLS", "127.0.0.1"], &["sslrootcert"]);
    answer("certificate of an authority that is not trusted", &pipeline, &halted);
    // A root that is not there.
    let halted = run_to_halt(&with("nothing.crt")).await;
    halted.assert_says("PR014", &["nothing.crt"], &["source.url"]);
    answer("sslrootcert that is not there", &pipeline, &halted);
    assert_eq!(pipeline.confirmed_lsn().await, before);
    let relay = Relay::spawn(&with("root.crt"));
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// WAL the slot needs is gone: before the start, and while the broker kept the slot back.
#[tokio::test]
async fn invalidated_slot_halts_with_what_it_means_and_the_way_out() {
    for version in Version::ALL {
        let conf = "max_slot_wal_keep_size = 1MB\nmin_wal_size = 32MB\nmax_wal_size = 32MB";
        let server = PrivatePostgres::start(version, conf).await;
        let pipeline = Pipeline::on(&server.socket_url(), &brokers(), "lost").await;
        pipeline.insert(10).await;
        for _ in 0..4 {
            let switch = "select pg_logical_emit_message(false, 'x', repeat('x', 100)); \
                          select pg_switch_wal(); checkpoint";
            pipeline.sql(switch).await;
        }
        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says(
            "PR001",
            &[&pipeline.slot(), "invalidated", "wal_removed"],
            &["postrider repair", "max_slot_wal_keep_size"],
        );
        assert!(halted.meaning.contains("their rows are still in"), "{halted:#?}");
        answer("slot invalidated: wal_removed", &pipeline, &halted);
        crate::refusals::follow(&pipeline, &halted).await;
    }
}

#[tokio::test]
async fn server_without_logical_wal_halts_with_the_setting() {
    let mut server = PrivatePostgres::start(Version::Pg18, "").await;
    let pipeline = Pipeline::on(&server.socket_url(), &brokers(), "level").await;
    // A server with a logical slot does not start below `logical`.
    pipeline.sql("select pg_drop_replication_slot('{slot}')").await;
    pipeline.sql("alter system set wal_level = 'replica'").await;
    server.stop_fast(SOON).await;
    server.restart().await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR013", &["wal_level", "replica"], &["ALTER SYSTEM SET wal_level"]);
    answer("wal_level = replica", &pipeline, &halted);
    let setup = postrider(&pipeline.config, &["setup"]);
    assert_eq!(setup.status.code(), Some(3), "{}", String::from_utf8_lossy(&setup.stderr));
}
