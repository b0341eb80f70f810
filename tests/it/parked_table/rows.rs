//! Rows: what goes in comes out, once.

use super::{PIPELINE, Table, at, key, row};
use crate::server::Version;
use postrider::event::Position;
use postrider::parked::{Parked, ParkedOutcome, ParkedUpdate, State};
use postrider::postgres::store::parked;
use postrider::record::OwnedRecord;
use postrider::store::PipelineKey;
use std::time::{Duration, Instant};

/// The versions these run on: the oldest and the newest.
const VERSIONS: [Version; 2] = [Version::Pg15, Version::Pg18];

#[tokio::test]
async fn what_is_written_is_loaded_in_order_and_fetched_whole() {
    for version in VERSIONS {
        let table = Table::new(version, "parked_rows").await;
        let mut first = row("0/200:7", "1", State::Waiting);
        first.entry.wait = Duration::from_hours(1);
        first.entry.overtaken_by = Some(at("0/300:0"));
        first.record = OwnedRecord {
            topic: "orders".to_owned(),
            partition: Some(3),
            key: Some(vec![0, 0xff]),
            value: Some(vec![b'x'; 3 << 20]),
            timestamp_ms: Some(-1),
            headers: vec![
                ("a".to_owned(), Some(vec![0, 1, 0xfe])),
                ("a".to_owned(), None),
                ("\"{,\\".to_owned(), Some(Vec::new())),
            ],
        };
        let mut bare = row("0/200:0", "1", State::Dead);
        bare.entry.lane = None;
        (bare.aggregate, bare.event_id, bare.event_type) = (None, None, None);
        bare.record = OwnedRecord::default();
        bare.error = Some("a zero\0byte".to_owned());
        let behind = row("0/100:1", "2", State::Behind);
        let rows = [first.clone(), bare.clone(), behind.clone()];
        table.write(&rows, &[]).await;

        let loaded = table.load().await;
        let positions: Vec<Position> = loaded.iter().map(|row| row.entry.position).collect();
        assert_eq!(positions, [at("0/100:1"), at("0/200:0"), at("0/200:7")]);
        assert_eq!(loaded[0].entry, behind.entry);
        assert_eq!(loaded[1].entry, bare.entry);
        assert!(loaded[1].dead_unsent && !loaded[0].dead_unsent);
        let wait = loaded[2].entry.wait;
        assert!(wait > Duration::from_mins(50) && wait <= Duration::from_hours(1), "{wait:?}");
        let mut same = loaded[2].entry;
        same.wait = first.entry.wait;
        assert_eq!(same, first.entry);
        assert_eq!(
            table.value(at("0/200:0"), "error").await.as_deref(),
            Some("a zero\u{fffd}byte")
        );
        let commit = table.value(at("0/200:7"), "commit_time at time zone 'utc'").await;
        assert_eq!(commit.as_deref(), Some("2025-11-21 00:26:40.123456"));

        let wanted = [at("0/200:7"), at("0/200:0"), at("0/999:0")];
        let fetched = parked::fetch(table.client(), key(), &wanted, u32::MAX).await.unwrap();
        let keeps: Vec<bool> = fetched.iter().map(|row| row.keeps_order).collect();
        assert_eq!(keeps, [false, false], "one holds nothing back, the other was overtaken");
        let fetched: Vec<_> = fetched.into_iter().map(|row| (row.position, row.record)).collect();
        let expected = [(at("0/200:0"), bare.record), (at("0/200:7"), first.record)];
        assert!(fetched == expected, "{fetched:?}");
        // As large as it may be: the first always, and what begins below the bound.
        let both = [at("0/100:1"), at("0/200:7")];
        for (bytes, count) in [(1, 1), (1 << 20, 2)] {
            let found = parked::fetch(table.client(), key(), &both, bytes).await.unwrap();
            assert!(found[0].keeps_order, "all later events of its aggregate have waited for it");
            assert_eq!(found.len(), count, "{bytes} bytes");
        }
        assert_eq!(
            parked::fetch(table.client(), &PipelineKey::first("another"), &wanted, u32::MAX)
                .await
                .unwrap(),
            []
        );
    }
}

#[tokio::test]
async fn an_event_that_is_parked_again_stays_as_it_was() {
    for version in VERSIONS {
        let table = Table::new(version, "parked_again").await;
        table.write(&[row("0/100:0", "1", State::Waiting)], &[]).await;
        let done = ParkedUpdate { position: at("0/100:0"), became: ParkedOutcome::Done };
        table.write(&[row("0/200:0", "1", State::Behind)], &[done]).await;
        // What the log sends again after a crash, with something new behind it.
        let again = ["0/100:0", "0/200:0", "0/300:0"].map(|at| row(at, "1", State::Dead));
        table.write(&again, &[]).await;
        let states: Vec<State> = table.load().await.iter().map(|row| row.entry.state).collect();
        assert_eq!(states, [State::Done, State::Behind, State::Dead]);
    }
}

/// A row that is left out in silence would count as parked, and its event would be lost.
#[tokio::test]
async fn row_that_a_unique_index_of_somebody_else_refuses_is_an_error() {
    let table = Table::new(Version::Pg17, "parked_index").await;
    let sql = "create unique index on postrider.parked (event_id)";
    table.client().batch_execute(sql).await.unwrap();
    let one = row("0/100:0", "1", State::Dead);
    let two = Parked { event_id: one.event_id.clone(), ..row("0/200:0", "2", State::Dead) };
    table.write(&[one], &[]).await;
    let written = parked::write(table.client(), key(), table.epoch, &[two], &[]).await;
    assert_eq!(written.unwrap_err().sqlstate().unwrap().as_str(), "23505");
}

#[tokio::test]
async fn tombstones_are_loaded_from_where_the_log_is_read_again() {
    let table = Table::new(Version::Pg18, "parked_tombstones").await;
    let rows = ["0/100:0", "0/200:0", "0/200:1", "0/300:0"];
    table.write(&rows.map(|at| row(at, at, State::Waiting)), &[]).await;
    let done = ["0/100:0", "0/200:0", "0/200:1"];
    let done =
        done.map(|position| ParkedUpdate { position: at(position), became: ParkedOutcome::Done });
    table.write(&[], &done).await;
    for (from, expected) in [("0/100", 4), ("0/101", 3), ("0/200", 3), ("0/201", 1), ("0/999", 1)] {
        assert_eq!(table.load_from(from).await.len(), expected, "{from}");
    }
    let within = parked::load(table.client(), key(), at("0/200:1")).await.unwrap();
    assert_eq!(within.len(), 2);
}

#[tokio::test]
async fn rows_edited_by_hand_are_still_read() {
    for version in VERSIONS {
        let table = Table::new(version, "parked_by_hand").await;
        table.write(&["0/1:0", "0/2:0"].map(|at| row(at, at, State::Waiting)), &[]).await;
        let person = table.person().await;
        for statement in [
            "update postrider.parked set next_attempt_at = 'infinity' where ordinal = 0 and commit_lsn = '0/1'",
            "update postrider.parked set next_attempt_at = '-infinity' where commit_lsn = '0/2'",
        ] {
            person.batch(statement).await;
        }
        let loaded = table.load().await;
        assert!(loaded[0].entry.wait > Duration::from_hours(8760));
        assert_eq!(loaded[1].entry.wait, Duration::ZERO);
        // A row that is gone is no error: nothing is fetched, and a mark changes nothing.
        person.batch("delete from postrider.parked where commit_lsn = '0/1'").await;
        let gone = at("0/1:0");
        assert_eq!(parked::fetch(table.client(), key(), &[gone], 1).await.unwrap(), []);
        table.write(&[], &[ParkedUpdate { position: gone, became: ParkedOutcome::Done }]).await;
        assert_eq!(table.load().await.len(), 1);
    }
}

/// Claims' positions are odd. The watermark is 0/503; the stream brings 0/510 and 0/600 of aggregate 2 again.
#[tokio::test]
async fn what_claims_have_parked_goes_before_the_stream_and_behind_what_it_is_known_to_bring() {
    for version in VERSIONS {
        let table = Table::new(version, "parked_before").await;
        let rows = [
            row("0/301:9", "1", State::Waiting),
            row("0/400:0", "1", State::Behind),
            row("0/510:0", "2", State::Waiting),
            row("0/521:3", "2", State::Behind),
            row("0/521:4", "1", State::Behind),
            row("0/600:0", "2", State::Behind),
            row("0/701:0", "1", State::Behind),
            row("0/701:1", "2", State::Behind),
            row("0/701:2", "3", State::Waiting),
        ];
        table.write(&rows, &[]).await;
        table
            .person()
            .await
            .batch("update postrider.cursor set watermark = '0/503', flush_limit = '0/503'")
            .await;
        let order = |aggregate: &'static str| {
            let sql = format!(
                "select string_agg(commit_lsn || ':' || ordinal || ' ' || event_id, ', ' order by commit_lsn, ordinal) \
                 from postrider.parked where aggregate_id = '{aggregate}'"
            );
            let table = &table;
            async move { table.person().await.text(&sql).await.expect("rows") }
        };
        let moves = |epoch| {
            postrider::postgres::store::requeue::put_before_stream(table.client(), key(), epoch)
        };
        assert_eq!(moves(table.epoch - 1).await.expect("no move"), 0, "not the owner");
        assert_eq!(moves(table.epoch).await.expect("moves"), 5);
        let wanted = [
            ("1", "0/301:9 id-0/301:9, 0/400:0 id-0/400:0, 0/4F9:2 id-0/521:4, 0/4F9:3 id-0/701:0"),
            ("2", "0/510:0 id-0/510:0, 0/511:1 id-0/521:3, 0/600:0 id-0/600:0, 0/601:4 id-0/701:1"),
            ("3", "0/4F9:5 id-0/701:2"),
        ];
        for (aggregate, wanted) in wanted {
            assert_eq!(order(aggregate).await, wanted);
        }
        // Nothing is left to move, and what comes later goes behind.
        assert_eq!(moves(table.epoch).await.expect("no move"), 0);
        table.write(&[row("0/801:0", "1", State::Behind)], &[]).await;
        assert_eq!(moves(table.epoch).await.expect("a move"), 1);
        assert!(order("1").await.ends_with("0/4F9:3 id-0/701:0, 0/4F9:8 id-0/801:0"));
    }
}

/// Run one at a time, because they measure.
mod alone {
    use super::*;

    #[tokio::test]
    async fn a_hundred_thousand_rows_are_loaded_in_seconds() {
        const ROWS: usize = 100_000;
        let table = Table::new(Version::Pg18, "parked_many").await;
        let sql = format!(
            "insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, aggregate_type, \
             aggregate_id, blocks, topic, key, value, header_names, header_values, state, attempts) \
             select '{PIPELINE}', ('0/' || to_hex(n / 10 + 1))::pg_lsn, n % 10, now(), 'order', n::text, true, \
             'orders', 'k', repeat('x', 1000)::bytea, '{{id}}', '{{x}}', 'waiting', 3 \
             from generate_series(0, {ROWS} - 1) n"
        );
        table.person().await.batch(&sql).await;
        let start = Instant::now();
        let loaded = table.load().await;
        crate::pipeline::show(&format!("{ROWS} parked events loaded in {:?}", start.elapsed()));
        assert_eq!(loaded.len(), ROWS);
        assert!(loaded.is_sorted_by_key(|row| row.entry.position));
        let lanes: std::collections::HashSet<_> = loaded.iter().map(|row| row.entry.lane).collect();
        assert_eq!(lanes.len(), ROWS);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());

        let counts = parked::counts(table.client(), key()).await.unwrap();
        assert_eq!(counts.of(State::Waiting), 100_000);
        assert_eq!(counts.of(State::Dead), 0);
        assert!(counts.oldest.is_some_and(|age| age < Duration::from_mins(10)), "{counts:?}");
    }

    /// More than one statement takes: 12,000 rows, then as many marks.
    #[tokio::test]
    async fn thousands_are_written_and_marked_in_seconds() {
        const ROWS: u64 = 12_000;
        let table = Table::new(Version::Pg15, "parked_thousands").await;
        let place = |number: u64| format!("0/{:X}:{}", number / 100 + 1, number % 100);
        let rows: Vec<_> =
            (0..ROWS).map(|number| row(&place(number), "1", State::Waiting)).collect();
        let refused = ParkedOutcome::Refused {
            state: State::Waiting,
            attempts: 2,
            wait: Duration::ZERO,
            reason: postrider::record::Refusal::of_broker(
                postrider::record::RefusalKind::TooLarge(None),
                10,
            ),
        };
        let start = Instant::now();
        table.write(&rows, &[]).await;
        let written = start.elapsed();
        for became in [refused, ParkedOutcome::Done] {
            let mark = |row: &postrider::parked::Parked| ParkedUpdate {
                position: row.entry.position,
                became,
            };
            let marks: Vec<ParkedUpdate> = rows.iter().map(mark).collect();
            table.write(&[], &marks).await;
        }
        let marked = start.elapsed().saturating_sub(written);
        crate::pipeline::show(&format!(
            "{ROWS} rows written in {written:?}, marked twice in {marked:?}"
        ));
        let loaded = table.load().await;
        assert_eq!(loaded.len(), 12_000);
        assert!(loaded.iter().all(|row| row.entry.state == State::Done && row.entry.attempts == 2));
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
}
