//! The commands of an installation that has intakes and no pipeline.

use super::*;
use crate::relay::{pipeline, postrider, postrider_ok};
use crate::server::brokers;
use crate::topic::Topics;
use std::process::Output;

/// Fails unless the command ended with this code, and wrote all of these.
#[track_caller]
fn has(output: &Output, code: i32, parts: &[&str]) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?}: {said}");
    }
}

#[tokio::test]
async fn inbox_commands_use_the_database_of_the_intake_that_stores_in_the_inbox() {
    let database = Database::create(Version::Pg18, "intake_commands").await;
    install_toolkit(&database.connect().await, "postgres").await;
    let jobs = config(&database.url(), "localhost:9092", "numbers", "");
    let letters = jobs.replace("[inboxes.jobs]\n", "[inboxes.jobs]\ninbox = \"letters\"\n");
    // By the name of the table, and by that of the inbox.
    postrider_ok(&jobs, &["inbox", "create", "jobs"]);
    postrider_ok(&letters, &["inbox", "create", "letters"]);
    for args in [
        &["inbox", "list"][..],
        &["inbox", "status"],
        &["inbox", "dead", "letters"],
        &["inbox", "gaps", "letters"],
    ] {
        let output = postrider(&letters, args);
        assert!(
            !String::from_utf8_lossy(&output.stderr).contains("pipeline"),
            "{args:?}: {output:?}"
        );
    }
    has(&postrider(&letters, &["inbox", "list"]), 0, &["jobs", "letters"]);
    // A pipeline beside it has another database, which is not asked.
    let unreachable = "postgresql://nobody@127.0.0.1:1/none";
    let both = format!("{letters}{}", pipeline("orders", unreachable, "public.o", "o", "k:9092"));
    has(&postrider(&both, &["inbox", "dead", "letters"]), 0, &[]);
    has(&postrider(&both, &["inbox", "list"]), 1, &["127.0.0.1:1"]);
    has(&postrider(&both, &["inbox", "dead", "letters", "-p", "orders"]), 1, &["127.0.0.1:1"]);
    has(
        &postrider(&letters, &["inbox", "dead", "other"]),
        2,
        &["stores in inbox \"other\"", "letters", "--url"],
    );
    let second = jobs.replace("inboxes.jobs", "inboxes.more").replace("/intake", "/other_intake");
    assert!(second.contains("/other_intake"), "{second}");
    let two = format!("{letters}\n{second}");
    has(&postrider(&two, &["inbox", "list"]), 2, &["[inboxes.jobs], [inboxes.more]", "--url"]);
}

#[tokio::test]
async fn commands_for_pipelines_say_that_there_is_none() {
    let intakes = config("postgresql://worker@127.0.0.1:1/none", "localhost:9092", "numbers", "");
    has(&postrider(&intakes, &["run"]), 2, &["has no pipeline", "postrider inbox run"]);
    for args in [
        &["setup"][..],
        &["bookmark", "list"],
        &["bookmark", "create", "a"],
        &["parked", "list"],
        &["parked", "retry", "--all"],
        &["repair"],
        &["adopt"],
        &["replay", "--since", "1h"],
    ] {
        has(&postrider(&intakes, args), 2, &["has no pipeline", "[pipelines.NAME]"]);
    }
    for args in [&["groups", "list"][..], &["sql", "--version"]] {
        has(&postrider(&intakes, args), 2, &["has no pipeline", "--url"]);
    }
    has(&postrider(&intakes, &["status", "-p", "orders"]), 2, &["\"orders\"; it has none"]);
    let pipelines =
        pipeline("orders", "postgresql://a@127.0.0.1:1/none", "public.o", "o", "k:9092");
    has(
        &postrider(&pipelines, &["inbox", "run"]),
        2,
        &["no table [inboxes.NAME]", "postrider run"],
    );
}

#[test]
fn run_and_seek_do_not_offer_the_database_of_others_and_refuse_it() {
    let intakes = config("postgresql://worker@127.0.0.1:1/none", "localhost:9092", "numbers", "");
    let seek = ["inbox", "seek", "jobs", "--topic", "a", "--partition", "0", "--to", "latest"];
    for command in [&["inbox", "run"][..], &seek] {
        for flag in [["--url", "postgresql://b@c/d"], ["-p", "orders"]] {
            let output = postrider(&intakes, &[command, &flag].concat());
            has(&output, 2, &["is not for it", "leave it out"]);
        }
        let help = postrider("", &[command[0], command[1], "--help"]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(!help.contains("--url") && !help.contains("--pipeline"), "{help}");
    }
    let early = postrider(&intakes, &["inbox", "--url", "postgresql://b@c/d", "run"]);
    has(&early, 2, &["--url is not for it"]);
    has(&postrider("", &["inbox", "--help"]), 0, &["webhooks", "seek", "run"]);
}

/// There is no pipeline in this process, and the line claims none.
#[tokio::test]
async fn maintenance_that_fails_says_that_storing_is_not_affected() {
    let world = World::create(Version::Pg17, "intake_fails").await;
    let topics = Topics::new(&brokers(), "intake_fails");
    let topic = topics.create("numbers", 1).await;
    world
        .sql
        .batch(
            "create table public.webhook (event_id text primary key, processed_at timestamptz, received_at timestamptz,
               retry_count int, error text, event_type text);
             select postrider.enable_inbox_tracking('webhook', 'public.webhook', p_retention_hours => 1);
             alter table public.webhook rename column processed_at to done_at",
        )
        .await;
    let quick = "[maintenance]\ninbox_drain_interval = \"1s\"\n";
    let relay = Relay::spawn_intake(&format!("{quick}{}", world.config(&topic, "")));
    let words = "maintenance of inboxes failed, and is repeated; storing is not affected";
    relay.await_log(words, SOON).await;
    write_numbers(&topic, 1..=3, |_| "k".to_owned()).await;
    await_answer(&world.sql, COUNT, "3", &relay).await;
    let log = relay.kill().await.stderr;
    assert!(!log.contains("pipeline is not affected"), "{log}");
}

#[tokio::test]
async fn status_shows_intakes_and_the_maintenance_of_their_database() {
    let world = World::create(Version::Pg18, "intake_status").await;
    world
        .sql
        .batch("insert into postrider_inbox.jobs (event_id, event_type, dead_at) values ('d', 'x', now())")
        .await;
    let topics = Topics::new(&brokers(), "intake_status");
    let topic = topics.create("numbers", 1).await;
    let text = world.config(&topic, "");
    let relay = Relay::spawn_intake(&text);
    await_intake_state(&relay, "storing").await;
    let read = |status: &serde_json::Value| status["maintenance"][0]["inboxes"][0]["dead"] == 1;
    let status = relay.await_status("the inbox is read", SOON, read).await;
    assert_eq!(status["maintenance"][0]["intake"], "jobs", "{status}");
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    let labels = "{pipeline=\"jobs\",shard=\"0\",database=\"inbox\"";
    for line in [
        format!("postrider_inbox_dead_messages{labels},inbox=\"jobs\"}} 1"),
        format!("postrider_inbox_maintenance_last_run_seconds{labels}}} "),
        format!("postrider_inbox_maintenance_failures_total{labels}}} 0"),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert!(!metrics.contains("postrider_state{"), "{metrics}");
    let (_, port) = relay.admin_address();
    let at = |text: &str| format!("{text}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n");
    let shown = ["INTAKE", "jobs", "kafka", "storing", "inbox jobs: ", "1 message dead"];
    let output = postrider(&at(&text), &["status"]);
    has(&output, 0, &shown);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("PIPELINE"), "{output:?}");
    // A file with a pipeline too: that is another process's.
    let orders = pipeline("orders", "postgresql://a@127.0.0.1:1/none", "public.o", "o", "k:9092");
    let both = at(&format!("{text}\n{orders}"));
    has(&postrider(&both, &["status"]), 0, &shown);
    let named = postrider(&both, &["status", "-p", "orders"]);
    has(&named, 1, &["pipeline \"orders\" does not run there"]);
    has(&postrider(&at(&orders), &["status"]), 1, &["intake \"jobs\" runs only there"]);
    // The address is one process's.
    has(
        &postrider(&both, &["run"]),
        2,
        &["another Postrider listens", "intake \"jobs\"", "POSTRIDER_LISTEN"],
    );
    topics.create("later", 1).await;
    relay.terminate(END).await;
    has(&postrider(&at(&text), &["status"]), 1, &["no Postrider answers"]);
}

#[tokio::test]
async fn status_of_an_intake_that_waits_has_reason_and_hint_and_exits_1() {
    let text = config("postgresql://worker@127.0.0.1:1/none", "127.0.0.1:1", "numbers", "");
    let relay = Relay::spawn_intake(&text);
    await_intake_state(&relay, "broker_down").await;
    let (_, admin) = relay.admin_address();
    let file = format!("{text}\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n");
    has(
        &postrider(&file, &["status"]),
        1,
        &["broker_down", "jobs: 1/1 brokers", "check `brokers`"],
    );
}

#[tokio::test]
async fn check_looks_at_database_rights_topics_and_secrets_of_each_intake() {
    let database = Database::create(Version::Pg15, "intake_check").await;
    let sql = database.connect().await;
    let topics = Topics::new(&brokers(), "intake_check");
    let topic = topics.create("numbers", 1).await;
    let text = config(&database.url(), &topic.brokers, &topic.name, "");
    let check = |text: &str| postrider(text, &["check"]);
    has(&check(&text), 1, &["error: inbox_toolkit", "sql --install", "--worker"]);
    install_toolkit(&sql, "postgres").await;
    has(
        &check(&text),
        1,
        &["error: inbox: there is no inbox", "inbox create jobs --url ADMIN_URL"],
    );
    sql.batch("select postrider.create_inbox('jobs')").await;
    has(
        &check(&text),
        0,
        &["ok: inbox: ", "ok: inbox_rights", "ok: inbox_broker", "ok: inbox_topics", "0 errors"],
    );
    // A worker whose rights are older than the inbox.
    let role = crate::server::unique("intake_check");
    sql.batch(&format!("create role {role} login")).await;
    let url = database.url().replace("postgres@", &format!("{role}@"));
    let of_role = config(&url, &topic.brokers, &format!("{}, missing", topic.name), "");
    has(&check(&of_role), 1, &["error: inbox_rights"]);
    postrider_ok("", &["sql", "--install", "--url", &database.url(), "--worker", &role]);
    has(&check(&of_role), 0, &["ok: inbox_rights", "warning: inbox_topics", "missing"]);
    sql.batch(&format!("revoke insert on postrider_inbox.jobs from {role}")).await;
    has(&check(&of_role), 1, &["lacks INSERT on postrider_inbox.jobs", "inbox_grant('jobs')"]);
    sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
    let hooks = |listen: &str, file: &str| {
        format!(
            "[inboxes.jobs.database]\nurl = \"{}\"\n[inboxes.jobs.source]\nkind = \"webhook\"\n\
             listen = \"{listen}\"\nscheme = \"github\"\nsecret_file = \"{file}\"\n",
            database.url()
        )
    };
    let secrets = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secrets.path(), "choose-one\n").expect("a secret");
    let file = secrets.path().display().to_string();
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = held.local_addr().expect("its address").to_string();
    has(&check(&hooks(&taken, &file)), 0, &["ok: inbox_secrets", "warning: inbox_listen"]);
    drop(held);
    has(&check(&hooks(&taken, &file)), 0, &["ok: inbox_listen"]);
    let json = postrider_ok(&text, &["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[0]["intake"], "jobs", "{json}");
    let down = config("postgresql://worker@127.0.0.1:1/none", "127.0.0.1:1", "numbers", "");
    has(&check(&down), 1, &["error: inbox_database", "error: inbox_broker"]);
}

/// The owner of the toolkit is no superuser, and the inbox belongs to another role: only that one may grant rights.
#[tokio::test]
async fn a_right_that_only_the_owner_of_the_inbox_can_give_is_in_the_hint() {
    let database = Database::create(Version::Pg18, "intake_owner").await;
    let sql = database.connect().await;
    let [admin, leader, worker] =
        ["admin", "leader", "worker"].map(|name| crate::server::unique(&format!("intake_{name}")));
    for role in [&admin, &leader, &worker] {
        sql.batch(&format!("create role {role} login")).await;
    }
    let name = sql.text("select current_database()").await.expect("a name");
    sql.batch(&format!("grant create on database {name} to {admin}")).await;
    let url = |role: &str| database.url().replace("postgres@", &format!("{role}@"));
    let install = |kind: &str, role: &str| {
        postrider_ok("", &["sql", "--install", "--url", &url(&admin), kind, role])
    };
    install("--administrator", &leader);
    let topics = Topics::new(&brokers(), "intake_owner");
    let topic = topics.create("numbers", 1).await;
    let text = config(&url(&leader), &topic.brokers, &topic.name, "");
    postrider_ok(&text, &["inbox", "create", "jobs"]);
    assert!(install("--worker", &worker).contains("inbox_grant('jobs')"));
    write_numbers(&topic, 1..=10, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&config(&url(&worker), &topic.brokers, &topic.name, ""));
    let named = |it: &serde_json::Value| {
        it["hint"].as_str().is_some_and(|hint| hint.contains("inbox_grant('jobs')"))
    };
    await_intake(&relay, "the second statement", named).await;
    let as_leader = Client::connect(&url(&leader)).await.expect("a session");
    as_leader.batch("select postrider.inbox_grant('jobs')").await;
    await_answer(&sql, COUNT, "10", &relay).await;
    let as_worker = Client::connect(&url(&worker)).await.expect("a session");
    let done = "select postrider.inbox_done('jobs', array_agg(event_id))::text \
                from postrider.inbox_next('jobs', 'one')";
    assert_eq!(as_worker.text(done).await.as_deref(), Some("10"));
    drop((as_leader, as_worker));
    relay.kill().await;
    for role in [&worker, &leader, &admin] {
        sql.batch(&format!("drop owned by {role} cascade; drop role {role}")).await;
    }
}
