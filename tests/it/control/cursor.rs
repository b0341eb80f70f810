//! The cursor row on real servers.

use super::Pipeline;
use crate::private::PrivatePostgres;
use crate::server::Version;
use postrider::event::{HistoryId, Position};
use postrider::offset::{Offset, Watermark};
use postrider::postgres::TimelineSwitch;
use postrider::postgres::control::Control;
use postrider::postgres::store::cursor::{
    self, Cursor, CursorWrite, ServerHistory, SettledHistories,
};
use postrider::store::PipelineKey;

fn at(text: &str) -> Offset {
    text.parse().expect("a position")
}

fn moved(cursor: &Cursor, to: &str) -> Cursor {
    Cursor { watermark: Watermark::resumed(at(to)), flush_limit: at(to), ..cursor.clone() }
}

#[tokio::test]
async fn the_row_goes_forward_and_never_back() {
    for version in Version::ALL {
        let pipeline = Pipeline::ready(version, "cursor_forward").await;
        let client = pipeline.control.client();
        let first = pipeline.facts().await.cursor.unwrap();

        let mut next = moved(&first, "FFFF/100");
        next.flush_limit = at("FFFF/200");
        next.partial = Some(Position { commit: at("FFFF/180"), ordinal: 42 });
        next.messages = true;
        next.timeline += 1;
        assert_eq!(
            cursor::write(client, &next, &cursor::SnapshotPolicy::Always).await.unwrap(),
            CursorWrite::Stored
        );
        let read = cursor::read(client, &pipeline.names.key).await.unwrap();
        assert_eq!(read.as_ref(), Some(&next));

        // A lower limit is not a lower limit: what may have been confirmed may have been confirmed.
        let same = moved(&first, "FFFF/100");
        assert_eq!(
            cursor::write(client, &same, &cursor::SnapshotPolicy::Always).await.unwrap(),
            CursorWrite::Stored
        );
        let read = cursor::read(client, &pipeline.names.key).await.unwrap().unwrap();
        assert_eq!((read.flush_limit, read.partial), (at("FFFF/200"), None));

        let back = moved(&first, "FFFF/FF");
        let behind = CursorWrite::Behind(Watermark::resumed(at("FFFF/100")));
        assert_eq!(
            cursor::write(client, &back, &cursor::SnapshotPolicy::Always).await.unwrap(),
            behind
        );
    }
}

/// A snapshot of the transactions that are published counts from the cursor row on that has passed the end of WAL at
/// which it was taken. A relay that lags all the time gets there: rows that it writes before do not take a later one
/// in its stead. Else the snapshot would stay as it was before the lag, and a repair would publish all since.
#[tokio::test]
async fn snapshot_of_what_is_published_moves_on_however_far_the_row_lags() {
    for version in Version::ALL {
        let pipeline = Pipeline::ready(version, "cursor_snapshot").await;
        let client = pipeline.control.client();
        let first = pipeline.facts().await.cursor.unwrap();
        let written = async |to: Offset| {
            let row =
                Cursor { watermark: Watermark::resumed(to), flush_limit: to, ..first.clone() };
            cursor::write(client, &row, &cursor::SnapshotPolicy::Always).await.unwrap()
        };
        let column = async |column: &str| {
            let sql = format!(
                "select {column}::text from postrider.cursor where pipeline = '{}'",
                pipeline.names.key.pipeline
            );
            client.query_one(&sql, &[]).await.unwrap().get::<_, Option<String>>(0)
        };
        let more_wal = "select pg_logical_emit_message(true, 'other', 'lag')";
        // Whatever was pending before is passed. The row lags: the server has written WAL since.
        let far = client.query_one("select pg_current_wal_insert_lsn()::text", &[]).await.unwrap();
        let far = at(far.get(0));
        pipeline.sql(more_wal).await;
        assert_eq!(written(far).await, CursorWrite::Stored);
        let pending = column("pending_lsn").await.expect("a snapshot is taken");
        let snapshot = column("pending_snapshot").await;
        assert!(at(&pending) > far);
        for _ in 0..3 {
            pipeline.sql(more_wal).await;
            assert_eq!(written(far).await, CursorWrite::Stored);
            assert_eq!(column("pending_lsn").await.as_ref(), Some(&pending));
            assert_ne!(column("resolved_snapshot").await, snapshot, "it is not passed yet");
        }
        assert_eq!(written(at(&pending)).await, CursorWrite::Stored);
        assert_eq!(column("resolved_snapshot").await, snapshot);
    }
}

/// Seconds that are far ahead of the server's clock, so that ours decides.
const LATER: u32 = 3_000_000_000;

#[tokio::test]
async fn histories_are_raised_once_by_the_owner_alone() {
    for version in Version::ALL {
        let pipeline = Pipeline::ready(version, "cursor_histories").await;
        let (client, name) = (pipeline.control.client(), &pipeline.names.key);
        let switches = [TimelineSwitch {
            timeline: 1,
            at: postrider::postgres::wire::to_wire(at("0/5000")),
            reason: "no recovery target specified".to_owned(),
        }];
        let of = |timeline| ServerHistory { system_identifier: "7", timeline, switches: &switches };
        let settle = async |epoch, timeline, now, seen| {
            let said = (now, HistoryId(seen));
            cursor::settle_histories(client, name, epoch, of(timeline), said).await.unwrap()
        };
        let old = cursor::take_over(client, name).await.unwrap();
        let before = cursor::histories(client, name).await.unwrap().unwrap();
        // The first start: the server's own second, which is later than ours here.
        let first = settle(old, 1, 5, 0).await.expect("the owner");
        assert_eq!(first.raised, Some((before.current(), Offset::ZERO)));
        assert!(first.histories.current() > before.current());
        assert!(first.histories.current().0 > 1_700_000_000, "{:?}", first.histories);
        // Committed: the next start finds it, and raises nothing.
        assert_eq!(cursor::histories(client, name).await.unwrap().as_ref(), Some(&first.histories));
        let again = settle(old, 1, LATER, 0).await.expect("the owner");
        assert_eq!(
            again,
            SettledHistories { histories: first.histories.clone(), raised: None, first: false }
        );

        // Whoever lost the pipeline raises nothing, and the new owner raises it once.
        let new = cursor::take_over(client, name).await.unwrap();
        assert_eq!(settle(old, 2, LATER, 0).await, None);
        let second = settle(new, 2, LATER, 0).await.expect("the owner");
        assert_eq!(second.raised, Some((first.histories.current(), at("0/5000"))));
        assert_eq!(second.histories.current(), HistoryId(LATER));
        assert_eq!(second.histories.of(at("0/4FFF")), first.histories.current());
        assert_eq!(settle(new, 2, LATER, 0).await.expect("the owner").raised, None);

        // A failover within the same second, to a server that lost the raise before it; and a clock that was set back.
        let third = settle(new, 3, 5, LATER + 7).await.expect("the owner");
        assert_eq!(third.histories.current(), HistoryId(LATER + 8));
        // Asked for: by a halt of ours, or by hand.
        cursor::end_history(client, name, old).await.unwrap();
        assert_eq!(settle(new, 3, 5, 0).await.expect("the owner").raised, None);
        cursor::end_history(client, name, new).await.unwrap();
        let fourth = settle(new, 3, 5, 0).await.expect("the owner");
        assert_eq!(fourth.histories.starts(), [(Offset::ZERO, HistoryId(LATER + 9))]);

        // The row is ahead of the server's WAL: it was set back.
        let ahead = "update postrider.cursor set watermark = 'FFFF/0', flush_limit = 'FFFF/0'";
        pipeline.sql(ahead).await;
        let fifth = settle(new, 3, 5, 0).await.expect("the owner");
        assert_eq!(fifth.histories.current(), HistoryId(LATER + 10));
        // What no history is, written by hand.
        pipeline
            .sql("update postrider.cursor set histories = '{9,8}', histories_from = '{0/0}'")
            .await;
        let strange = cursor::histories(client, name).await.unwrap().unwrap();
        assert_eq!(strange.starts(), [(Offset::ZERO, HistoryId(9))]);
    }
}

#[tokio::test]
async fn a_row_that_was_bound_to_another_slot_is_not_overwritten() {
    let pipeline = Pipeline::ready(Version::Pg15, "cursor_rebound").await;
    let client = pipeline.control.client();
    let ours = pipeline.facts().await.cursor.unwrap();
    for (column, value) in
        [("slot_created_lsn", "'0/1'"), ("slot", "'another'"), ("system_identifier", "'12345'")]
    {
        pipeline.sql(&format!("update postrider.cursor set {column} = {value}")).await;
        let written =
            cursor::write(client, &moved(&ours, "FFFF/1"), &cursor::SnapshotPolicy::Always)
                .await
                .unwrap();
        assert!(matches!(written, CursorWrite::Rebound(_)), "{column}: {written:?}");
    }
    pipeline.sql("delete from postrider.cursor").await;
    assert_eq!(
        cursor::write(client, &ours, &cursor::SnapshotPolicy::Always).await.unwrap(),
        CursorWrite::Missing
    );
    assert!(cursor::create(client, &ours).await.unwrap());
    assert!(!cursor::create(client, &ours).await.unwrap());
    assert_eq!(
        cursor::write(client, &ours, &cursor::SnapshotPolicy::Always).await.unwrap(),
        CursorWrite::Stored
    );
}

/// The order of writes rests on it: whoever confirms after the answer can't be ahead of the row.
#[tokio::test]
async fn a_row_that_was_answered_survives_kill_9_of_the_server() {
    for version in Version::ALL {
        let conf = "synchronous_commit = off\nwal_writer_delay = 10s";
        let mut server = PrivatePostgres::start(version, conf).await;
        let conninfo = super::conninfo(&server.url());
        let control = Control::connect(&conninfo, "postrider").await.unwrap();
        let schema = postrider::postgres::schema::MIGRATIONS.iter().map(|migration| migration.sql);
        let schema: String = std::iter::once("CREATE SCHEMA postrider;").chain(schema).collect();
        control.client().batch_execute(&schema).await.unwrap();
        let row = Cursor {
            key: PipelineKey::first("p"),
            system_identifier: "1".to_owned(),
            timeline: 1,
            slot: "p".to_owned(),
            slot_created_lsn: at("0/1"),
            publication: "p".to_owned(),
            messages: false,
            watermark: Watermark::resumed(at("0/1")),
            flush_limit: at("0/1"),
            partial: None,
            owner_epoch: 0,
        };
        assert!(cursor::create(control.client(), &row).await.unwrap());
        let next = moved(&row, "0/5000");
        assert_eq!(
            cursor::write(control.client(), &next, &cursor::SnapshotPolicy::Always).await.unwrap(),
            CursorWrite::Stored
        );
        server.kill().await;
        server.restart().await;
        let control = Control::connect(&conninfo, "postrider").await.unwrap();
        assert_eq!(
            cursor::read(control.client(), &PipelineKey::first("p")).await.unwrap(),
            Some(next)
        );
    }
}
