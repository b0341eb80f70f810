//! Lag, readiness and state are true whatever stops the flow, and so is a process whose pipelines have all halted.

use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::parking::Scene;
use crate::pipeline::Pipeline;
use crate::private::{PrivatePostgres, Signal};
use crate::relay::{Relay, postrider};
use crate::server::{Version, brokers};
use serde_json::Value;

fn first(status: &Value) -> &Value {
    &status["pipelines"][0]
}

fn lag(status: &Value) -> f64 {
    first(status)["lag_seconds"].as_f64().unwrap_or(-1.0)
}

/// Waits until the pipeline is in `state` and more than `seconds` behind; it is not ready then.
async fn behind(relay: &Relay, state: &str, seconds: f64) -> Value {
    let wanted = |status: &Value| first(status)["state"] == state && lag(status) > seconds;
    let status = relay.await_status(&format!("{state}, behind"), SOON, wanted).await;
    assert_eq!(first(&status)["ready"], false, "{status}");
    let (code, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!(code, 503, "{why}");
    let (_, metrics) = relay.get("/metrics").await.expect("the metrics");
    let series = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert!(series("postrider_lag_seconds") > Some(seconds), "{metrics}");
    assert!(series("postrider_source_contact_seconds").is_some(), "{metrics}");
    status
}

/// Waits until nothing is behind.
async fn caught_up(relay: &Relay, state: &str) {
    let wanted = |status: &Value| {
        first(status)["state"] == state && lag(status) == 0.0 && first(status)["ready"] == true
    };
    relay.await_status(&format!("{state}, not behind"), SOON, wanted).await;
}

#[tokio::test]
async fn a_full_parking_table_is_told_with_the_lag_behind_it() {
    let lines = "rows_max = 2\nbackoff = { step = \"300ms\", steps_max = 1 }\nattempts_max = 1000";
    let mut scene = Scene::set_with(Version::Pg17, "full", lines).await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    scene.insert(&["!a", "a"]).await;
    scene.await_rows("a waiting, a behind").await;
    scene.insert(&["b"]).await;
    let status = behind(&relay, "parking_full", 2.0).await;
    let reason = first(&status)["reason"].as_str().unwrap_or_default();
    assert_eq!(reason, "parking table full (2 of 2 rows): the pipeline is paused", "{status}");
    let (_, why) = relay.get("/ready").await.expect("an answer");
    assert!(why.contains(reason), "{why}");
    relay.await_log("parking table full (2 of 2 rows)", SOON).await;
    scene.raise_the_limit().await;
    scene.await_last("b", 3).await;
    caught_up(&relay, "streaming").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn a_database_that_is_down_is_as_far_behind_as_it_has_been_down() {
    for mode in ["wal", "poll"] {
        let mut server = PrivatePostgres::start(Version::Pg18, "").await;
        let pipeline = Pipeline::on(&server.url(), &brokers(), &format!("lag_{mode}")).await;
        let config = pipeline.config.replacen("]\n", &format!("]\nmode = \"{mode}\"\n"), 1);
        let relay = Relay::spawn(&config);
        let running = if mode == "wal" { "streaming" } else { "polling" };
        pipeline.insert(10).await;
        assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
        caught_up(&relay, running).await;
        server.stop_fast(SOON).await;
        behind(&relay, "source_down", 3.0).await;
        server.restart().await;
        caught_up(&relay, running).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The one that has the slot hangs: the other one, which waits for it, knows that nothing is published.
#[tokio::test]
async fn a_process_that_stands_by_tells_the_lag_of_the_one_that_hangs() {
    let pipeline = Pipeline::shared(Version::Pg17, "lag_standby").await;
    let active = pipeline.run();
    active.await_state("streaming", SOON).await;
    let waiting = pipeline.run();
    waiting.await_state("standing_by", SOON).await;
    active.signal(Signal::Stop);
    pipeline.insert(10).await;
    behind(&waiting, "standing_by", 3.0).await;
    active.kill().await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    caught_up(&waiting, "streaming").await;
    assert_eq!(waiting.terminate(SOON).await.code, Some(0));
}

/// Rows that wait in the table count, though no claim was made of them.
#[tokio::test]
async fn polling_is_as_far_behind_as_the_oldest_row_that_is_ready() {
    for layout in ["postrider", "adr30"] {
        let pipeline = Pipeline::in_layout(Version::Pg17, "lag_rows", layout).await;
        let config = pipeline.config.replacen("]\n", "]\nmode = \"poll\"\n", 1);
        let away = config.replace(&brokers(), "127.0.0.1:1");
        let relay = Relay::spawn(&away);
        relay.await_state("broker_down", SOON).await;
        let insert = match layout {
            "postrider" => {
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                 select 'order', '1', 'T', '{}', now() - interval '1 hour' from generate_series(1, 100)"
            }
            _ => {
                "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at) \
                 select gen_random_uuid(), 'order', gen_random_uuid(), 'T', '{}', now() - interval '1 hour' \
                 from generate_series(1, 100)"
            }
        };
        pipeline.sql.batch(insert).await;
        behind(&relay, "broker_down", 3_600.0).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let relay = Relay::spawn(&config);
        assert_eq!(pipeline.topic.await_records(100, SOON).await.len(), 100);
        caught_up(&relay, "polling").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A table without a column that tells when: since everything was published.
#[tokio::test]
async fn polling_a_table_without_times_is_behind_since_it_was_empty() {
    let pipeline = Pipeline::in_layout(Version::Pg17, "lag_timeless", "debezium").await;
    let config = pipeline.config.replacen("]\n", "]\nmode = \"poll\"\n", 1);
    let relay = Relay::spawn(&config.replace(&brokers(), "127.0.0.1:1"));
    relay.await_state("broker_down", SOON).await;
    caught_up_though_down(&relay).await;
    pipeline
        .sql
        .batch(
            "insert into outboxevent (id, aggregatetype, aggregateid, type, payload) \
             values (gen_random_uuid(), 'order', '1', 'T', '{}')",
        )
        .await;
    behind(&relay, "broker_down", 4.0).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A broker that is down behind an empty table is no lag.
async fn caught_up_though_down(relay: &Relay) {
    let wanted = |status: &Value| first(status)["state"] == "broker_down" && lag(status) == 0.0;
    relay.await_status("down, not behind", SOON, wanted).await;
}

/// Code, reason and remedy stay where people and machines look for them, and the slot is shown as it is.
#[tokio::test]
async fn a_halted_process_answers_until_it_is_stopped() {
    let pipeline = Pipeline::shared(Version::Pg17, "stays").await;
    let port = crate::private::free_port();
    let relay = Relay::spawn_at(&pipeline.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    let end = format!(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{0}'; \
         select pg_drop_replication_slot('{0}')",
        pipeline.slot()
    );
    crate::await_that::await_that("the slot's end", SOON, || async {
        pipeline.sql.batch_execute(&end).await.map_err(|error| error.to_string())
    })
    .await;
    behind(&relay, "halted", 0.0).await;
    let missing = |status: &Value| first(status)["slot_state"] == "missing";
    let before = lag(&relay.await_status("the slot is missing", SOON, missing).await);
    let status = behind(&relay, "halted", before).await;
    assert_eq!(first(&status)["halt_code"], "PR002", "{status}");
    assert!(first(&status)["slot_retained_bytes"].is_null(), "{status}");
    assert_eq!(relay.get("/live").await.expect("an answer").0, 200);

    let config = format!("{}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n", pipeline.config);
    let shown = postrider(&config, &["status"]);
    let table = String::from_utf8_lossy(&shown.stdout);
    assert_eq!(shown.status.code(), Some(1), "{table}");
    for word in ["halted", "missing", "PR002", "does not exist", "postrider repair"] {
        assert!(table.contains(word), "no {word:?} in\n{table}");
    }
    // While it answers, the pipeline is at rest for whoever repairs it.
    let repaired = postrider(&pipeline.config, &["repair"]);
    let errors = String::from_utf8_lossy(&repaired.stderr);
    assert_eq!(repaired.status.code(), Some(0), "{errors}");
    assert_eq!(relay.terminate(SOON).await.code, Some(3));
}

/// A closed terminal, or a service manager's reload, ends nothing.
#[tokio::test]
async fn a_hangup_is_logged_and_changes_nothing() {
    let pipeline = Pipeline::shared(Version::Pg17, "hangup").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let session = format!(
        "select active_pid::text from pg_replication_slots where slot_name = '{}'",
        pipeline.slot()
    );
    let streams_from = pipeline.sql.text(&session).await;
    let load = Load::start(&pipeline.plan(), 1);
    for times in 1..=5 {
        let wanted = load.committed() + 300;
        relay.signal(Signal::Hup);
        await_that("the signal in the log, and the load goes on", SOON, || async {
            let (seen, now) = (relay.stderr().matches("received SIGHUP").count(), load.committed());
            if seen >= times && now >= wanted { Ok(()) } else { Err(format!("{seen}, {now}")) }
        })
        .await;
    }
    let ledger = load.stop().await;
    ledger.arrived(&pipeline.topic).await;
    assert_eq!(pipeline.sql.text(&session).await, streams_from, "the same session of the server");
    let status = relay.status().await.expect("a status");
    assert_eq!(status["pipelines"][0]["source_reconnects_total"], 0, "{status}");
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("INFO streaming ").count(), 1, "{}", ended.stderr);
    // Nothing was lost, swapped or sent again.
    ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
}

/// The address of `admin.listen` is the default of every Postrider: what answers there may be another one.
#[tokio::test]
async fn status_of_another_configuration_is_refused() {
    let ours = Pipeline::shared(Version::Pg17, "ours").await;
    let other = Pipeline::shared(Version::Pg18, "other").await;
    let port = crate::private::free_port();
    let relay = Relay::spawn_at(&other.config, port, &[]);
    relay.await_state("streaming", SOON).await;
    let admin = format!("\n[admin]\nlisten = \"127.0.0.1:{port}\"\n");
    let ask = |config: &str, args: &[&str]| {
        let args: Vec<&str> = std::iter::once("status").chain(args.iter().copied()).collect();
        let output = postrider(&format!("{config}{admin}"), &args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, shown, errors) = ask(&other.config, &[]);
    assert_eq!(code, Some(0), "{shown}{errors}");
    // Another name, and the same name in another database and with another slot.
    let named = ours.config.replace(&ours.name, &other.name);
    let elsewhere = other.config.replace(&other.url, &ours.url);
    let both = format!("{}{}", other.config, ours.config);
    for (config, words) in [
        (&ours.config, format!("pipeline \"{}\" does not run there", ours.name)),
        (&named, "has source".to_owned()),
        (&elsewhere, "has source".to_owned()),
        (&both, format!("pipeline \"{}\" does not run there", ours.name)),
    ] {
        for args in [&[][..], &["--json"]] {
            let (code, shown, errors) = ask(config, args);
            assert_eq!((code, shown.as_str()), (Some(1), ""), "{errors}");
            assert!(errors.contains("does not run the configuration"), "{errors}");
            assert!(errors.contains(&words), "no {words:?} in {errors}");
        }
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
