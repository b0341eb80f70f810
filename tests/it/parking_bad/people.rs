//! The operators' words with a relay that runs, and hands on the table.

use super::{OFTEN, SELDOM, said};
use crate::await_that::await_that;
use crate::halted::spawn;
use crate::parking::{SECRET, SOON, Scene};
use crate::server::Version;
use serde_json::Value;
use std::fs;

#[tokio::test]
async fn retry_skip_and_replace_while_the_relay_runs() {
    let mut scene = Scene::set_with(Version::Pg18, "words", SELDOM).await;
    let relay = scene.run();
    scene.insert(&["a", "!a", "a", "!b", "b", "!c", "c", "d"]).await;
    scene.await_last("d", 8).await;
    scene.await_rows("a waiting, a behind, b waiting, b behind, c waiting, c behind").await;
    scene.await_passed().await;
    let mut told = String::new();

    // Of another pipeline's, or long gone: named, exit 1, nothing else happens.
    let unknown = scene.parked(&["retry", "0/1:7", "--yes"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", said(&unknown));
    assert!(said(&unknown).contains("0/1:7"), "{}", said(&unknown));

    // Too large again: refused, and named.
    let sql = "select commit_lsn || ':' || ordinal from postrider.parked \
               where state = 'waiting' and aggregate_id = ";
    let position = scene.value(&format!("{sql}'a'")).await;
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("payload.json");
    let name = file.to_str().expect("a name");
    let noise: String = std::iter::repeat_with(fastrand::alphanumeric).take(9_000).collect();
    fs::write(&file, format!("{{\"n\":2,\"c\":\"{SECRET}\",\"x\":\"{noise}\"}}")).expect("a file");
    let large = scene.parked(&["replace", &position, "--payload-file", name, "--yes"]);
    told += &said(&large);
    assert_eq!(large.status.code(), Some(1), "{}", said(&large));
    assert!(said(&large).contains("too_large"), "{}", said(&large));
    scene.await_rows("a waiting, a behind, b waiting, b behind, c waiting, c behind").await;
    assert_eq!(scene.delivered().await["a"], [1]);

    fs::write(&file, format!("{{\"n\":2,\"c\":\"{SECRET}\"}}")).expect("a file");
    told += &scene.parked_ok(&["replace", &position, "--payload-file", name, "--yes"]);
    scene.await_last("a", 3).await;
    let skipped = scene.value(&format!("{sql}'b'")).await;
    told += &scene.parked_ok(&["skip", &skipped, "--yes", "--reason", "test data"]);
    scene.await_last("b", 5).await;
    scene.raise_the_limit().await;
    // What the sink knows of a topic may be some seconds old.
    told += &await_that("retry --all", SOON, || async {
        let output = scene.parked(&["retry", "--all", "--yes"]);
        if output.status.success() { Ok(said(&output)) } else { Err(said(&output)) }
    })
    .await;
    scene.await_last("c", 7).await;
    scene.await_rows("").await;
    let acted = "select string_agg(aggregate_id || ' ' || acted_action || ' ' || coalesce(acted_reason, '-'), ', ' \
                 order by ordinal) from postrider.parked where acted_action is not null";
    assert_eq!(scene.value(acted).await, "a replace -, b skip test data, c retry -");
    scene.end(relay).await;
    let delivered = scene.delivered().await;
    assert_eq!(delivered["a"], [1, 2, 3], "in order, none twice");
    assert_eq!(delivered["b"], [5]);
    assert_eq!(delivered["c"], [6, 7]);
    assert!(!told.contains(SECRET), "{told}");
    for again in ["retry", "skip"] {
        let resolved = scene.parked(&[again, &position, "--yes"]);
        assert_eq!(resolved.status.code(), Some(1), "{}", said(&resolved));
    }
}

/// What became of each request is in the log: once, with the event it is about, and in the words for people.
#[tokio::test]
async fn what_became_of_a_request_is_logged() {
    let mut scene = Scene::set_with(Version::Pg18, "answers", SELDOM).await;
    let relay = spawn(&scene.config);
    scene.insert(&["!a", "!b", "!c", "d"]).await;
    scene.await_last("d", 4).await;
    scene.await_rows("a waiting, b waiting, c waiting").await;
    scene.await_passed().await;
    let of = |aggregate: &str| {
        format!(
            "select commit_lsn || ':' || ordinal from postrider.parked where aggregate_id = '{aggregate}'"
        )
    };
    let (a, b) = (scene.value(&of("a")).await, scene.value(&of("b")).await);
    assert_eq!(scene.parked(&["retry", &a]).status.code(), Some(1), "it is too large again");
    scene.parked_ok(&["skip", &b, "--yes"]);
    // No event of the relay's is at that position: somebody has changed the row.
    let moved = "update postrider.parked set ordinal = 1000000 where aggregate_id = 'c'";
    scene.pipeline.sql.batch(moved).await;
    let c = scene.value(&of("c")).await;
    let declined = scene.parked(&["retry", &c]);
    assert_eq!(declined.status.code(), Some(1), "{}", said(&declined));
    assert!(said(&declined).contains("declined by the relay"), "{}", said(&declined));
    let ended = scene.end(relay).await;

    let lines = ended.stderr.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines.collect();
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let answers: Vec<_> = lines
        .iter()
        .filter(|line| line["event"] == "parked_answered")
        .map(|line| (text(line, "answer"), text(line, "position"), text(line, "message")))
        .collect();
    let expected = [
        ("retry", &a, "retry or replace requested: event queued"),
        ("skip", &b, "skip requested: event given up"),
        ("declined", &c, "request declined: it cannot be carried out where the event is"),
    ];
    let expected = expected.map(|(answer, at, words)| (answer.into(), at.clone(), words.into()));
    assert_eq!(answers, expected, "{}", ended.stderr);
    let again: Vec<_> =
        lines.iter().filter(|line| line["event"] == "parked_refused_again").collect();
    let [again] = again[..] else { panic!("one refusal: {}", ended.stderr) };
    assert_eq!((text(again, "position"), &again["attempts"]), (a.clone(), &Value::from(1)));
    assert_eq!(text(again, "hint"), format!("postrider parked show {a}"));
    assert_eq!(again["level"], "WARN", "{again}");
    // The reason is that of the first refusal, which `parked show` has.
    let (reason, message) = (text(again, "reason"), text(again, "message"));
    assert!(reason.contains("3000"), "what the topic takes: {again}");
    assert_eq!(message, format!("retry requested: refused again: {reason}"));
    assert!(scene.parked_ok(&["show", &a]).contains(&reason), "{again}");
}

/// A head that is deleted, or resolved by hand, is passed over at its next try: its followers go on, in order.
#[tokio::test]
async fn rows_that_are_deleted_or_resolved_by_hand_free_their_aggregates() {
    let mut scene = Scene::set_with(Version::Pg15, "hands", OFTEN).await;
    let relay = scene.run();
    scene.insert(&["!a", "a", "a", "!b", "b", "b", "!c", "c", "d"]).await;
    scene.await_last("d", 9).await;
    scene.await_passed().await;
    let edits = "delete from postrider.parked where aggregate_id = 'a' and state = 'waiting'; \
                 update postrider.parked set state = 'skipped', resolved_at = now() \
                   where aggregate_id = 'b' and state = 'waiting'; \
                 update postrider.parked set ordinal = 1000000 where aggregate_id = 'c' and state = 'waiting'";
    scene.pipeline.sql(edits).await;
    for (aggregate, last) in [("a", 3), ("b", 6), ("c", 8)] {
        scene.await_last(aggregate, last).await;
    }
    // The one that was moved is what its row says it is: an event of that position.
    scene.await_rows("c waiting").await;
    scene.end(relay).await;
    scene.raise_the_limit().await;
    let relay = scene.run();
    scene.await_rows("").await;
    scene.insert(&["a", "b", "c"]).await;
    scene.await_last("c", 12).await;
    scene.await_passed().await;
    scene.end(relay).await;
    let delivered = scene.delivered().await;
    assert_eq!(delivered["a"], [2, 3, 10]);
    assert_eq!(delivered["b"], [5, 6, 11]);
    assert_eq!(delivered["c"], [8, 7, 12], "late, as it was asked for by hand, and not lost");
}

/// A state that is changed by hand is read at the next start; until then the relay goes by what it knows.
#[tokio::test]
async fn state_that_is_set_by_hand_holds_from_the_next_start() {
    let mut scene = Scene::set_with(Version::Pg17, "state", SELDOM).await;
    let relay = scene.run();
    scene.insert(&["!a", "a", "b"]).await;
    scene.await_rows("a waiting, a behind").await;
    scene.pipeline.sql("update postrider.parked set state = 'dead' where state = 'waiting'").await;
    scene.end(relay).await;
    scene.raise_the_limit().await;
    let relay = scene.run();
    let dead = |status: &serde_json::Value| status["pipelines"][0]["parked"]["dead"] == 1;
    relay.await_status("one dead", SOON, dead).await;
    scene.insert(&["a", "b"]).await;
    scene.await_last("b", 5).await;
    scene.await_rows("a dead, a behind, a behind").await;
    scene.parked_ok(&["retry", &scene.position("dead").await, "--yes"]);
    scene.await_last("a", 4).await;
    scene.await_rows("").await;
    scene.end(relay).await;
    assert_eq!(scene.delivered().await["a"], [1, 2, 4]);
}
