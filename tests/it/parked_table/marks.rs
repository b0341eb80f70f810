//! Marks: what becomes of a row, and of the request in it.

use super::{PIPELINE, SOON, Table, at, key, row, session};
use crate::server::Version;
use postrider::parked::{ParkedOutcome, ParkedUpdate, Request, State};
use postrider::postgres::store::parked::{self, Stored};
use postrider::record::Refusal;
use std::time::Duration;

fn mark(position: &str, became: ParkedOutcome) -> ParkedUpdate {
    ParkedUpdate { position: at(position), became }
}

fn refused(state: State, attempts: u32) -> ParkedOutcome {
    let reason = Refusal::too_large(20, 10);
    ParkedOutcome::Refused { state, attempts, wait: Duration::from_mins(10), reason }
}

/// As a person would, by SQL: what the command line writes is tested with it.
fn ask(position: &str, action: &str) -> String {
    let (commit_lsn, ordinal) = position.split_once(':').unwrap();
    let value = if action == "replace" { "'\\x6e6577'::bytea" } else { "null" };
    format!(
        "update postrider.parked set requested_action = '{action}', requested_by = 'ada', \
         requested_at = now(), requested_reason = 'why not', requested_value = {value} \
         where commit_lsn = '{commit_lsn}' and ordinal = {ordinal}; \
         select pg_notify('postrider_parked', '{PIPELINE}')"
    )
}

const RECORD: &str = "coalesce(key::text, '-') || ' ' || coalesce(encode(value, 'escape'), '-') || ' ' \
                      || header_names::text || ' ' || header_values::text";
const REQUEST: &str = "concat_ws(' ', requested_action, requested_by, requested_at, requested_reason, \
                       requested_value)";
const ACTED: &str = "concat_ws(' ', acted_action, acted_by, acted_reason, acted_declined, \
                     acted_at > now() - interval '1 hour')";

#[tokio::test]
async fn what_is_published_or_skipped_keeps_no_record() {
    for version in [Version::Pg15, Version::Pg18] {
        let table = Table::new(version, "marks_resolved").await;
        table.write(&["0/1:0", "0/2:0"].map(|at| row(at, at, State::Waiting)), &[]).await;
        table.person().await.batch(&ask("0/2:0", "skip")).await;
        let marks = [mark("0/1:0", ParkedOutcome::Done), mark("0/2:0", ParkedOutcome::Skipped)];
        table.write(&[], &marks).await;
        for (position, state, acted) in
            [("0/1:0", "done", "f"), ("0/2:0", "skipped", "skip ada why not f t")]
        {
            let value = async |what| table.value(at(position), what).await;
            assert_eq!(value("state").await.as_deref(), Some(state));
            assert_eq!(value("resolved_at <= now()").await.as_deref(), Some("true"));
            assert_eq!(value("next_attempt_at").await, None);
            assert_eq!(value(RECORD).await.as_deref(), Some("- - {} {}"));
            assert_eq!(value(REQUEST).await.as_deref(), Some(""));
            assert_eq!(value(ACTED).await.as_deref(), Some(acted));
        }
        // What is resolved stays resolved.
        let late = [mark("0/1:0", refused(State::Waiting, 3)), mark("0/2:0", ParkedOutcome::Again)];
        table.write(&[], &late).await;
        let states: Vec<State> = table.load().await.iter().map(|row| row.entry.state).collect();
        assert_eq!(states, [State::Done, State::Skipped]);
    }
}

#[tokio::test]
async fn a_refusal_sets_the_next_try_and_the_last_one_none() {
    for version in [Version::Pg15, Version::Pg18] {
        let table = Table::new(version, "marks_refused").await;
        table.write(&["0/1:0", "0/2:0"].map(|at| row(at, at, State::Behind)), &[]).await;
        let marks =
            [mark("0/1:0", refused(State::Waiting, 2)), mark("0/2:0", refused(State::Dead, 10))];
        table.write(&[], &marks).await;
        let [waiting, dead] = table.load().await.try_into().unwrap();
        assert_eq!((waiting.entry.state, waiting.entry.attempts), (State::Waiting, 2));
        assert!(waiting.entry.wait > Duration::from_secs(500), "{waiting:?}");
        assert_eq!((dead.entry.state, dead.entry.attempts), (State::Dead, 10));
        assert!(dead.dead_unsent && dead.entry.wait.is_zero());
        let why = table.value(at("0/2:0"), "error_code || ': ' || error").await.unwrap();
        assert_eq!(why, "too_large: the record has 20 bytes, the destination takes 10");
        assert_eq!(table.value(at("0/2:0"), "next_attempt_at").await, None);
        let record = table.value(at("0/2:0"), RECORD).await.unwrap();
        assert!(record.ends_with("{\"total\": 9.5} {id} {\"\\\\x31\"}"), "{record}");

        table.write(&[], &[mark("0/2:0", ParkedOutcome::DeadSent)]).await;
        assert!(!table.load().await[1].dead_unsent);
        // Tried again, it may die again, and is told again.
        let twice = [mark("0/2:0", ParkedOutcome::Again), mark("0/2:0", refused(State::Dead, 1))];
        table.write(&[], &twice).await;
        let dead = table.load().await[1].clone();
        assert!(dead.dead_unsent && dead.entry.attempts == 1, "{dead:?}");
    }
}

#[tokio::test]
async fn requests_are_seen_and_each_is_taken_off_once() {
    for version in [Version::Pg15, Version::Pg18] {
        let table = Table::new(version, "marks_requests").await;
        let positions = ["0/1:0", "0/2:0", "0/3:0", "0/4:0"];
        table.write(&positions.map(|at| row(at, at, State::Dead)), &[]).await;
        let person = table.person().await;
        for (position, action) in positions.iter().zip(["retry", "replace", "skip", "retry"]) {
            person.batch(&ask(position, action)).await;
        }
        let requests = [Request::Retry, Request::Replace, Request::Skip, Request::Retry];
        let expected: Vec<_> = positions.map(at).into_iter().zip(requests).collect();
        let seen = parked::requests(table.client(), key()).await.unwrap();
        assert_eq!(seen, expected);
        let loaded = table.load().await;
        assert_eq!(loaded.iter().filter_map(|row| row.request).collect::<Vec<_>>(), requests);

        let marks = [
            mark("0/1:0", ParkedOutcome::Again),
            mark("0/2:0", ParkedOutcome::Again),
            mark("0/3:0", ParkedOutcome::Declined),
            mark("0/4:0", ParkedOutcome::Done),
        ];
        table.write(&[], &marks).await;
        assert_eq!(parked::requests(table.client(), key()).await.unwrap(), []);
        for (position, acted, state) in [
            ("0/1:0", "retry ada why not f t", "waiting"),
            ("0/2:0", "replace ada why not f t", "waiting"),
            ("0/3:0", "skip ada why not t t", "dead"),
            ("0/4:0", "retry ada why not t t", "done"),
        ] {
            let value = async |what| table.value(at(position), what).await;
            assert_eq!(value(ACTED).await.as_deref(), Some(acted), "{position}");
            assert_eq!(value(REQUEST).await.as_deref(), Some(""), "{position}");
            assert_eq!(value("state").await.as_deref(), Some(state), "{position}");
        }
        let loaded = table.load().await;
        let (first, second) = (loaded[0].clone(), loaded[1].clone());
        assert_eq!((first.entry.attempts, first.entry.wait), (0, Duration::ZERO));
        assert_eq!(second.entry.state, State::Waiting);
        let two = [at("0/1:0"), at("0/2:0")];
        let records = parked::fetch(table.client(), key(), &two, u32::MAX).await.unwrap();
        let values = records.iter().map(|row| row.record.value.as_deref().unwrap());
        assert_eq!(values.collect::<Vec<_>>(), [&b"{\"total\": 9.5}"[..], b"new"]);
    }
}

#[tokio::test]
async fn an_overtaking_is_noted_and_the_first_one_stays() {
    let table = Table::new(Version::Pg15, "marks_overtaken").await;
    table.write(&[row("0/1:0", "1", State::Waiting)], &[]).await;
    for by in ["0/2:3", "0/3:0"] {
        table.write(&[], &[mark("0/1:0", ParkedOutcome::Overtaken { by: at(by) })]).await;
        assert_eq!(table.load().await[0].entry.overtaken_by, Some(at("0/2:3")));
    }
}

#[tokio::test]
async fn a_position_that_comes_twice_is_written_in_order() {
    let table = Table::new(Version::Pg18, "marks_twice").await;
    let marks = [
        mark("0/1:0", refused(State::Waiting, 1)),
        mark("0/1:0", refused(State::Waiting, 2)),
        mark("0/2:0", ParkedOutcome::Done),
        mark("0/1:0", refused(State::Dead, 3)),
    ];
    table.write(&["0/1:0", "0/2:0"].map(|at| row(at, at, State::Waiting)), &marks).await;
    let [first, second] = table.load().await.try_into().unwrap();
    assert_eq!((first.entry.state, first.entry.attempts), (State::Dead, 3));
    assert_eq!(second.entry.state, State::Done);
}

#[tokio::test]
async fn a_session_is_told_of_requests_for_its_pipeline_alone() {
    let table = Table::new(Version::Pg18, "marks_told").await;
    let told = async || {
        tokio::time::timeout(SOON, table.control.notified()).await.expect("a notification");
    };
    let listener = session(&table.url).await;
    table.control.listen(PIPELINE).await.unwrap();
    listener.listen("another").await.unwrap();
    let person = table.person().await;
    // Before anybody waits, and twice: one call to look, and none after it.
    let notify = format!("select pg_notify('postrider_parked', '{PIPELINE}')");
    person.batch(&format!("{notify}; {notify}; select pg_notify('postrider_parked', 'x')")).await;
    told().await;
    person.batch("notify postrider_other, 'orders'").await;
    // The answer comes behind whatever was sent before it.
    table.client().batch_execute("SELECT 1").await.unwrap();
    listener.client().batch_execute("SELECT 1").await.unwrap();
    for control in [&table.control, &listener] {
        let waited = tokio::time::timeout(Duration::from_millis(50), control.notified()).await;
        assert!(waited.is_err(), "told of something else");
    }
    person.batch(&notify).await;
    told().await;
}

/// Rows that others hold are left out, with the later ones of their aggregates; all others are marked without waiting.
#[tokio::test]
async fn marks_of_locked_rows_are_left_out_with_the_later_ones_of_their_aggregates() {
    const HOLDS: [&str; 4] = [
        "select from postrider.parked where event_id = 'id-0/2:0' for update",
        // Two holders: a multixact.
        "select from postrider.parked where event_id = 'id-0/2:0' for share",
        "update postrider.parked set requested_reason = 'why' where event_id = 'id-0/2:0'",
        "delete from postrider.parked where event_id = 'id-0/2:0'",
    ];
    for version in Version::ALL {
        let table = Table::new(version, "marks_locked").await;
        for hold in HOLDS {
            let aggregates = ["a", "b", "c", "b", "a"];
            let rows: Vec<_> = (1..)
                .zip(aggregates)
                .map(|(number, of)| row(&format!("0/{number}:0"), of, State::Waiting))
                .collect();
            table.write(&rows, &[]).await;
            let (one, other) = (table.person().await, table.person().await);
            one.batch(&format!("set application_name = 'a person'; begin; {hold}")).await;
            if hold.contains("for share") {
                other.batch(&format!("begin; {hold}")).await;
            }
            let marks: Vec<ParkedUpdate> =
                (1..6).map(|number| mark(&format!("0/{number}:0"), ParkedOutcome::Done)).collect();
            let write = async |rows, marks| {
                let stored = parked::write(table.client(), key(), table.epoch, rows, marks).await;
                stored.expect("a write that waits for nobody")
            };
            // The same rows once more, as after a lost connection: not one is waited for.
            assert_eq!(write(&rows, &[]).await, Stored::Yes, "{version:?}: {hold}");
            let left = vec![at("0/2:0"), at("0/4:0")];
            assert_eq!(
                write(&[], &marks).await,
                Stored::Except(left.clone()),
                "{version:?}: {hold}"
            );
            let states: Vec<State> = table.load().await.iter().map(|row| row.entry.state).collect();
            let (done, waiting) = (State::Done, State::Waiting);
            assert_eq!(states, [done, waiting, done, waiting, done], "{hold}");
            let holders = postrider::postgres::lock_holders::lockers(table.client(), key(), &left)
                .await
                .expect("holders");
            let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
            assert!(
                names.iter().any(|name| name.contains("application \"a person\"")),
                "{names:?}"
            );
            one.batch("commit").await;
            other.batch("rollback").await;
            assert_eq!(write(&[], &marks).await, Stored::Yes, "{hold}");
            let states: Vec<State> = table.load().await.iter().map(|row| row.entry.state).collect();
            assert!(states.iter().all(|state| *state == done), "{states:?}");
            table.person().await.batch("delete from postrider.parked").await;
        }
    }
}

/// A row that another transaction changes and commits while the statement is under way gets its mark, at once or by the
/// next try: a mark that is not among those left out is there.
#[tokio::test]
async fn mark_reaches_a_row_that_was_changed_behind_its_snapshot() {
    for version in Version::ALL {
        let table = Table::new(version, "marks_changed").await;
        table.write(&[row("0/1:0", "1", State::Waiting)], &[]).await;
        let person = table.person().await;
        // The write takes its snapshot, and waits for the cursor row.
        person.batch("begin; select from postrider.cursor for update").await;
        let marks = [mark("0/1:0", ParkedOutcome::Done)];
        let pid: i32 = {
            let row = table.client().query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await;
            row.expect("a process").get(0)
        };
        let write = parked::write(table.client(), key(), table.epoch, &[], &marks);
        let change = async {
            super::fence::blocked(&table, pid).await;
            let other = table.person().await;
            other.batch("update postrider.parked set error = 'why'").await;
            person.batch("commit").await;
        };
        let (written, ()) = tokio::join!(write, change);
        let mut written = written.expect("a write");
        if written == Stored::Except(vec![at("0/1:0")]) {
            written = parked::write(table.client(), key(), table.epoch, &[], &marks)
                .await
                .expect("a second write");
        }
        assert_eq!(written, Stored::Yes, "{version:?}");
        let state = table.value(at("0/1:0"), "state || ' ' || error").await;
        assert_eq!(state.as_deref(), Some("done why"), "{version:?}");
    }
}
