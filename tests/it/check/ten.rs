//! A database where more than ten things are wrong: as many findings, each mended by its own lines.

use super::patient::{Patient, fixes};
use crate::await_that::SOON;
use crate::private::PrivatePostgres;
use crate::server::{Version, brokers, unique};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// What is wrong with the server: neither its WAL nor its slots will do.
const CONF: &str = "wal_level = replica\nmax_replication_slots = 1\n\
                    idle_replication_slot_timeout = 60\nlogical_decoding_work_mem = 1MB";

/// What is wrong in the database.
const HURT: &str = "\
    create role carrier login connection limit 2; \
    alter role carrier set default_transaction_read_only = on; \
    alter role carrier valid until 'yesterday'; \
    select pg_create_physical_replication_slot('left_over'); \
    create schema app; \
    create unlogged table app.outbox (id bigint generated always as identity primary key, \
      aggregate_type text, aggregate_id text not null, kind text not null, payload json, \
      headers json, created_at timestamptz not null default now()); \
    alter table app.outbox enable row level security; \
    create function app.drop_it() returns trigger language plpgsql as 'begin return null;end'; \
    create trigger swallow before insert on app.outbox for each row execute function app.drop_it(); \
    create table app.orders (id int primary key); \
    create publication outbox for table app.orders with (publish = 'insert, delete')";

/// What is expected, and how much it matters.
const EXPECTED: &[(&str, &str)] = &[
    ("secret_file", "warning"),
    ("wal_level", "error"),
    ("max_replication_slots", "error"),
    ("max_slot_wal_keep_size", "warning"),
    ("idle_replication_slot_timeout", "warning"),
    ("logical_decoding_work_mem", "info"),
    ("role_replication", "error"),
    ("role_expired", "error"),
    ("role_connections", "error"),
    ("read_only", "error"),
    ("table_unlogged", "error"),
    ("table_trigger", "warning"),
    ("table_rls", "warning"),
    ("column_missing", "error"),
    ("column_null", "warning"),
    ("publication_table", "error"),
    ("publication_more", "warning"),
    ("publication_other_tables", "warning"),
    ("slot_missing", "error"),
    ("schema", "error"),
    ("table_select", "warning"),
    ("topic_missing", "error"),
];

#[tokio::test]
async fn ten_wrong_things_are_ten_findings_and_each_is_mended_by_its_own_lines() {
    let mut server = PrivatePostgres::start(Version::Pg18, CONF).await;
    for statement in HURT.split("; ") {
        server.connect().await.batch(statement).await;
    }
    let topic = unique("check_ten");
    let config = format!(
        "[pipelines.orders.source]\nurl = \"postgresql://carrier@127.0.0.1:{}/postgres\"\n\
         password_file = \"secret\"\npublication = \"outbox\"\n\
         [pipelines.orders.outbox]\ntable = \"app.outbox\"\n\
         [pipelines.orders.route]\ntopic = \"{topic}\"\n\
         [pipelines.orders.sink]\nkind = \"kafka\"\nbrokers = \"{}\"\n",
        server.port,
        brokers()
    );
    let patient = Patient::new(&config, &server.url());
    fs::write(patient.path("secret"), "hush-hush\n").unwrap();
    fs::set_permissions(patient.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    // The file names it relative to itself.
    patient
        .write(&config.replace("\"secret\"", &format!("\"{}\"", patient.path("secret").display())));

    let checked = patient.check(&[]);
    assert_eq!(checked.code, Some(1), "{checked}");
    for (id, severity) in EXPECTED {
        checked.expect(id, severity);
    }
    let errors = checked.ids(&["error"]);
    assert!(errors.len() >= 10, "{errors:?}");
    let told = checked.ids(&["error", "warning", "info"]);
    assert_eq!(told.len(), EXPECTED.len(), "nothing else, and nothing twice: {told:?}");

    let mapped = fixes(checked.find("column_missing").unwrap());
    assert_eq!(mapped[0]["table"], "pipelines.orders.outbox", "{mapped:?}");
    assert_eq!(mapped[0]["line"], "columns.event_type = \"kind\"", "{mapped:?}");

    for finding in checked.findings.iter().filter(|finding| finding["severity"] != "ok") {
        for fix in fixes(finding) {
            patient.execute(fix).await;
            if fix["restart"] == true {
                server.stop_fast(SOON).await;
                server.restart().await;
            }
        }
    }

    let well = patient.check(&[]);
    assert_eq!(well.ids(&["error", "warning", "info"]), Vec::<&str>::new(), "{well}");
    assert_eq!(well.code, Some(0));
    assert!(well.ids(&["ok"]).len() > 15, "{well}");
}
