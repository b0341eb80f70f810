//! Times without a zone: refused where they decide, read alike by the stream and by polling, and nothing that expires
//! is silent.

use crate::await_that::{SOON, await_that};
use crate::check::Patient;
use crate::halted::run_to_halt;
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::{Client, Database, Version};
use postrider::postgres::times::{AmbiguousTime, TimeType, instant_sql};
use postrider::zone::Zone;
use std::collections::BTreeSet;

/// Zones: one behind UTC and one before it, both with summer time; one without; and UTC itself.
const ZONES: [&str; 5] =
    ["America/New_York", "Europe/Berlin", "Asia/Tokyo", "UTC", "Australia/Lord_Howe"];

/// A pipeline whose sessions are in `zone`, and whose column is of another type.
async fn in_zone(version: Version, layout: &str, zone: &str, alter: &str) -> Pipeline {
    let mut pipeline = Pipeline::in_layout(version, "times", layout).await;
    let database = pipeline.sql.text("select current_database()").await.expect("a name");
    pipeline.sql.batch(&format!("alter database {database} set timezone = '{zone}'")).await;
    pipeline.sql = Client::connect(&pipeline.url).await.expect("a session");
    assert_eq!(pipeline.sql.text("show timezone").await.as_deref(), Some(zone));
    pipeline.sql.batch(alter).await;
    pipeline
}

/// The configuration with this zone.
fn zoned(pipeline: &Pipeline, zone: &str) -> String {
    pipeline.with_line("source", &format!("time_zone = \"{zone}\""))
}

/// From streaming to polling: the slot goes, and the schema, which says that there was one.
async fn to_polling(pipeline: &mut Pipeline) {
    pipeline.sql("select pg_drop_replication_slot('{slot}'); drop schema postrider cascade").await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = "mode = \"poll\"\npoll = { interval = \"50ms\" }\n";
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{lines}"), 1);
    postrider_ok(&pipeline.config, &["setup"]);
}

/// A statement that inserts one event of layout gcx.
fn expiring(name: &str, expires_at: &str) -> String {
    format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, topic, expires_at) \
         values ('order', gen_random_uuid(), 'T', to_jsonb('{name}'::text), 't', {expires_at})"
    )
}

/// What the topic has, by the names in the payloads.
async fn published(pipeline: &Pipeline, count: usize) -> BTreeSet<String> {
    let records = pipeline.topic.await_records(count, SOON).await;
    let name = |value: &str| value.trim_matches('"').to_owned();
    records.iter().filter_map(|record| record.value_text().map(name)).collect()
}

/// The server computes what we compute, of each local time, both ways, in every version.
#[tokio::test]
async fn a_local_time_is_the_same_instant_for_the_server_and_for_us() {
    for version in Version::ALL {
        let database = Database::create(version, "instants").await;
        let session = database.connect().await;
        session.batch("set timezone = 'UTC'").await;
        for name in ZONES {
            let zone = Zone::named(name).expect("a zone");
            for (twice, is_later) in [(AmbiguousTime::Earlier, false), (AmbiguousTime::Later, true)]
            {
                let sql = instant_sql(TimeType::Local, Some(&zone), "g.at", twice);
                // Every quarter of an hour of two years, and times that are far away.
                let sql = format!(
                    "select (extract(epoch from g.at) * 1e6)::int8, (extract(epoch from {sql}) * 1e6)::int8 from ( \
                       select generate_series(timestamp '2025-01-01', '2027-01-01', '15 minutes') \
                       union all select unnest(array['0001-01-01', '0001-01-03', '1850-06-01', '1969-12-31 23:00', \
                         '9999-11-30', '9999-12-31', '20000-01-01', '290000-12-31', '4713-01-02 BC']::timestamp[]) \
                     ) as g(at)"
                );
                let rows = session.query(&sql, &[]).await.expect("instants");
                assert!(rows.len() > 70_000);
                for row in rows {
                    let (local, theirs): (i64, i64) = (row.get(0), row.get(1));
                    let (earlier, later) = zone.instants(local);
                    let ours = if is_later { later } else { earlier };
                    // Before zones had rules both guess, the server to the second.
                    if !(-62_135_510_400_000_000..=-2_208_988_800_000_000).contains(&local) {
                        assert_eq!(ours, theirs, "{version:?} {name} {twice:?} local {local}");
                    }
                }
                // Infinity has no number, and must not be an error.
                let sql = instant_sql(TimeType::Local, Some(&zone), "'infinity'::timestamp", twice);
                let text = session.text(&format!("select ({sql})::text")).await;
                assert_eq!(text.as_deref(), Some("infinity"));
            }
        }
    }
}

/// A text is a time for the server exactly where it is one for the mapper; both are told by `is_plain`'s own list.
#[tokio::test]
async fn a_text_that_holds_no_time_is_null_to_the_server() {
    let database = Database::create(Version::Pg15, "texts").await;
    let session = database.connect().await;
    session.batch("set timezone = 'UTC'").await;
    let zone = Zone::named("America/New_York");
    for (text, utc) in [
        ("2024-02-29", Some("2024-02-29 05:00:00+00")),
        ("2024-07-02 03:04:05.5", Some("2024-07-02 07:04:05.5+00")),
        ("2024-07-02T03:04:05Z", Some("2024-07-02 03:04:05+00")),
        ("2024-07-02 03:04:05+05:30", Some("2024-07-01 21:34:05+00")),
        ("2024-11-03 01:30:00", Some("2024-11-03 06:30:00+00")),
        ("2024-07-02   ", Some("2024-07-02 04:00:00+00")),
        ("infinity", Some("infinity")),
        ("-infinity", Some("-infinity")),
        ("2023-02-29", None),
        ("2000-02-29", Some("2000-02-29 05:00:00+00")),
        ("1900-02-29", None),
        ("2024-04-31", None),
        ("0000-01-01", None),
        ("2024-01-02 24:00:00", None),
        ("2024-01-02 03:04:05 America/New_York", None),
        ("2024-01-02 03:04:05+16", None),
        ("tomorrow", None),
        ("", None),
        ("it's", None),
    ] {
        let value = format!("'{}'::text", text.replace('\'', "''"));
        let sql = instant_sql(TimeType::Text, zone.as_ref(), &value, AmbiguousTime::Later);
        let got = session.text(&format!("select ({sql})::text")).await;
        assert_eq!(got.as_deref(), utc, "{text:?}");
    }
}

/// Before the first event: `check`, `setup` and the start refuse, in both modes, and the line they print mends it.
#[tokio::test]
async fn a_column_without_a_zone_that_decides_is_refused_until_its_zone_is_named() {
    for (layout, table, column, kind) in [
        ("gcx", "outbox", "expires_at", "timestamp"),
        ("gcx", "outbox", "expires_at", "date"),
        ("gcx", "outbox", "expires_at", "text"),
        ("commerce", "outbox_messages", "available_at", "timestamp"),
        ("sqlgarden", "outbox_events", "last_attempt_at", "timestamp"),
    ] {
        let mut pipeline = in_zone(
            Version::Pg17,
            layout,
            "America/New_York",
            &format!(
                "create domain local_{kind} as {kind}; alter table {table} alter column {column} drop default; \
                 alter table {table} alter column {column} type {kind} using {column}::{kind}"
            ),
        )
        .await;
        let alter = |kind: &str| format!("alter table {table} alter column {column} type {kind}");
        for domain in [false, true] {
            if domain {
                // What it is over decides.
                pipeline.sql.batch(&alter(&format!("local_{kind}"))).await;
            }
            if layout == "sqlgarden" && !domain {
                // The stream reads no such column.
                to_polling_unchecked(&mut pipeline).await;
            }
            refused(&pipeline, column).await;
            if !domain && layout != "sqlgarden" {
                let streaming = pipeline.config.clone();
                to_polling_unchecked(&mut pipeline).await;
                refused(&pipeline, column).await;
                pipeline.config = streaming;
                pipeline.sql("drop schema if exists postrider cascade").await;
                postrider_ok(&zoned(&pipeline, "America/New_York"), &["setup"]);
            }
        }
        // With the zone that `check` proposes all is well.
        let patient = Patient::new(&pipeline.config, &pipeline.url);
        let checked = patient.check(&[]);
        let finding = checked.expect("time_zone_missing", "error");
        assert!(finding["what"].as_str().expect("a text").contains(column), "{finding:#}");
        patient.fix(finding).await;
        assert!(patient.config().contains("America/New_York"), "{}", patient.config());
        assert!(patient.check(&[]).find("time_zone_missing").is_none());
    }
}

/// The same without `setup`, which refuses what is looked at here.
async fn to_polling_unchecked(pipeline: &mut Pipeline) {
    let config = pipeline.config.clone();
    pipeline.config = zoned(pipeline, "America/New_York");
    to_polling(pipeline).await;
    pipeline.config = config.replacen(
        &format!("[pipelines.{}]\n", pipeline.name),
        &format!(
            "[pipelines.{}]\nmode = \"poll\"\npoll = {{ interval = \"50ms\" }}\n",
            pipeline.name
        ),
        1,
    );
}

async fn refused(pipeline: &Pipeline, column: &str) {
    let setup = postrider(&pipeline.config, &["setup"]);
    assert_eq!(setup.status.code(), Some(3));
    let said = String::from_utf8_lossy(&setup.stderr).into_owned();
    assert!(said.contains("PR009") && said.contains("source.time_zone"), "{said}");
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR009", &[column, "no time zone"], &["source.time_zone"]);
}

/// The reported cases: events of New York that are not expired, and of Tokyo whose time has come.
#[tokio::test]
async fn events_of_another_zone_are_neither_dropped_nor_late() {
    for mode in ["wal", "poll"] {
        let mut pipeline = in_zone(
            Version::Pg18,
            "gcx",
            "America/New_York",
            "alter table outbox alter column expires_at type timestamp",
        )
        .await;
        pipeline.config = zoned(&pipeline, "America/New_York");
        if mode == "poll" {
            to_polling(&mut pipeline).await;
        }
        for at in 0..100 {
            pipeline.sql.batch(&expiring(&at.to_string(), "now() + interval '1 hour'")).await;
        }
        for at in 0..3 {
            pipeline.sql.batch(&expiring(&format!("late {at}"), "now() - interval '1 hour'")).await;
        }
        let relay = pipeline.run();
        assert_eq!(published(&pipeline, 100).await.len(), 100);
        // Nothing that is skipped is silent.
        let status = relay
            .await_status("three skipped", SOON, |status| {
                status["pipelines"][0]["skipped"]["expired"] == 3
            })
            .await;
        assert_eq!(status["pipelines"][0]["skipped_total"].as_u64().map(|n| n >= 3), Some(true));
        relay.await_log("expired before", SOON).await;
        let (_, metrics) = relay.get("/metrics").await.expect("metrics");
        assert!(
            metrics.contains("reason=\"expired\"} 3"),
            "{}",
            metrics.lines().filter(|line| line.contains("skipped")).collect::<Vec<_>>().join("\n")
        );
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.topic.read_all().await.len(), 100, "{mode}");

        let mut pipeline = in_zone(
            Version::Pg18,
            "commerce",
            "Asia/Tokyo",
            "alter table outbox_messages alter column available_at type timestamp",
        )
        .await;
        pipeline.config = zoned(&pipeline, "Asia/Tokyo");
        if mode == "poll" {
            to_polling(&mut pipeline).await;
        }
        let relay = pipeline.run();
        let insert = |name: &str, at: &str| {
            format!(
                "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, \
                   payload, occurred_at, available_at) \
                 values (1, 'order', hashtext('{name}'), 'T', 1, to_jsonb('{name}'::text), now(), {at})"
            )
        };
        pipeline.sql.batch(&insert("later", "now() + interval '1 hour'")).await;
        pipeline.sql.batch(&insert("now", "now()")).await;
        pipeline.sql.batch(&insert("past", "now() - interval '1 minute'")).await;
        let names = published(&pipeline, 2).await;
        assert_eq!(names, BTreeSet::from(["now".to_owned(), "past".to_owned()]), "{mode}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.topic.read_all().await.len(), 2, "{mode}");
    }
}

/// The same rows through the stream and through polling: each is published, skipped or parked by both alike.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the same rows through both ways, side by side")]
async fn stream_and_polling_judge_the_same_rows_alike() {
    for (zone, kind) in [
        ("America/New_York", "timestamp"),
        ("Asia/Tokyo", "text"),
        ("Europe/Berlin", "date"),
        ("UTC", "timestamptz"),
        ("America/New_York", "varchar"),
        ("Asia/Tokyo", "local"),
    ] {
        let is_text = matches!(kind, "text" | "varchar");
        let at = |shift: &str| match kind {
            "text" | "varchar" => {
                format!("to_char(now() + interval '{shift}', 'YYYY-MM-DD\"T\"HH24:MI:SS')")
            }
            "date" => format!("(now() + 40 * interval '{shift}')::date"),
            _ => format!("now() + interval '{shift}'"),
        };
        let mut rows = vec![
            ("live", at("90 minutes"), "published"),
            ("dead", at("-90 minutes"), "skipped"),
            ("none", "null".to_owned(), "published"),
            ("ever", "'infinity'".to_owned(), "published"),
            ("never", "'-infinity'".to_owned(), "skipped"),
        ];
        if is_text {
            let utc = |shift: &str| {
                format!(
                    "to_char((now() + interval '{shift}') at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00'"
                )
            };
            rows.push(("live with an offset", utc("90 minutes"), "published"));
            rows.push(("dead with an offset", utc("-90 minutes"), "skipped"));
            rows.push(("nonsense", "'next week'".to_owned(), "parked"));
        }
        let wanted = |what: &str| {
            let rows = rows.iter().filter(|(_, _, became)| *became == what);
            rows.map(|(name, ..)| (*name).to_owned()).collect::<BTreeSet<_>>()
        };
        for mode in ["wal", "poll"] {
            let mut pipeline = in_zone(
                Version::Pg15,
                "gcx",
                zone,
                &format!(
                    "create domain local as timestamp; alter table outbox alter column expires_at drop default; \
                     alter table outbox alter column expires_at drop not null; \
                     alter table outbox alter column expires_at type {kind}"
                ),
            )
            .await;
            pipeline.config = zoned(&pipeline, zone);
            if mode == "poll" {
                to_polling(&mut pipeline).await;
            }
            for (name, expires_at, _) in &rows {
                pipeline.sql.batch(&expiring(name, expires_at)).await;
            }
            let relay = pipeline.run();
            let names = published(&pipeline, wanted("published").len()).await;
            assert_eq!(names, wanted("published"), "{zone} {kind} {mode}");
            relay
                .await_status("what expired is counted", SOON, |status| {
                    let expired = &status["pipelines"][0]["skipped"]["expired"];
                    expired.as_u64() == Some(wanted("skipped").len() as u64)
                })
                .await;
            let parked = wanted("parked");
            let sql = "select coalesce(string_agg(convert_from(value, 'UTF8'), ','), '') from postrider.parked";
            let keeps = "select coalesce(string_agg(payload::text, ','), '') from outbox where retry_count > 0";
            await_that("what is parked", SOON, || async {
                // Polling keeps a failure in the row itself.
                let found = pipeline.sql.text(if mode == "wal" { sql } else { keeps }).await;
                let found = found.unwrap_or_default();
                let found: BTreeSet<String> = found
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(|name| name.trim_matches('"').to_owned())
                    .collect();
                if found == parked { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await;
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
            assert_eq!(pipeline.topic.read_all().await.len(), wanted("published").len());
        }
    }
}

/// `replay --since` of a table whose rows have no zone: refused without one, and right with it.
#[tokio::test]
async fn a_replay_by_time_reads_the_rows_in_their_zone() {
    let mut pipeline = in_zone(
        Version::Pg17,
        "postrider",
        "Asia/Tokyo",
        "alter table outbox alter column created_at type timestamp; \
         alter table outbox alter column created_at set default now()",
    )
    .await;
    pipeline.insert(3).await;
    pipeline.sql.batch("update outbox set created_at = now() - interval '2 hours'").await;
    pipeline.insert(4).await;
    let args = ["replay", "--source", "table", "--since", "1h", "--dry-run", "--json"];
    let refused = postrider(&pipeline.config, &args);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("source.time_zone"), "{said}");
    let checked = Patient::new(&pipeline.config, &pipeline.url).check(&[]);
    checked.expect("time_zone_assumed", "warning");

    pipeline.config = zoned(&pipeline, "Asia/Tokyo");
    let checked = Patient::new(&pipeline.config, &pipeline.url).check(&[]);
    assert!(checked.find("time_zone_assumed").is_none(), "{checked}");
    let counted = |args: &[&str]| {
        let said = postrider_ok(&pipeline.config, args);
        let value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        value["events"].as_u64().unwrap_or_else(|| panic!("{value:#}"))
    };
    assert_eq!(counted(&args), 4);
    // A time that is typed without a zone is one of that zone too; one with a zone is what it says.
    let local = "select to_char(now() - interval '1 hour', 'YYYY-MM-DD HH24:MI:SS')";
    let local = pipeline.sql.text(local).await.expect("a time");
    let utc = "select to_char(now() at time zone 'UTC' - interval '1 hour', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let utc = pipeline.sql.text(utc).await.expect("a time");
    for since in [local, utc] {
        let args = ["replay", "--source", "table", "--since", &since, "--dry-run", "--json"];
        assert_eq!(counted(&args), 4, "{since}");
        let args = [
            "replay",
            "--source",
            "table",
            "--aggregate",
            "order:1",
            "--until",
            &since,
            "--dry-run",
            "--json",
        ];
        assert_eq!(counted(&args), 1, "{since}");
    }
}

/// A zone that nobody knows, or that the server reads as an abbreviation, is a mistake of the file.
#[test]
fn a_zone_that_is_none_is_a_mistake_of_the_file() {
    for zone in ["Mars/Olympus", "CET", "EST5EDT", "+02:00"] {
        let file = format!(
            "[pipelines.a]\nsource.url = \"postgresql://u@db.invalid/app\"\nsource.time_zone = \"{zone}\"\n\
             outbox.table = \"outbox\"\nsink.kind = \"discard\"\n"
        );
        let output = postrider(&file, &["check", "--offline"]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("source.time_zone") && said.contains(zone), "{said}");
    }
}
