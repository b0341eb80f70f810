//! The cursor row on real servers.

use super::Pipeline;
use crate::private::PrivatePostgres;
use crate::server::Version;
use postrider::event::Position;
use postrider::lsn::{Lsn, Watermark};
use postrider::postgres::control::Control;
use postrider::postgres::cursor::{self, Cursor, Written};

fn at(text: &str) -> Lsn {
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
        next.partial = Some(Position { commit_lsn: at("FFFF/180"), ordinal: 42 });
        next.messages = true;
        next.timeline += 1;
        assert_eq!(cursor::write(client, &next).await.unwrap(), Written::Stored);
        let read = cursor::read(client, &pipeline.names.pipeline).await.unwrap();
        assert_eq!(read.as_ref(), Some(&next));

        // A lower limit is not a lower limit: what may have been confirmed may have been confirmed.
        let same = moved(&first, "FFFF/100");
        assert_eq!(cursor::write(client, &same).await.unwrap(), Written::Stored);
        let read = cursor::read(client, &pipeline.names.pipeline).await.unwrap().unwrap();
        assert_eq!((read.flush_limit, read.partial), (at("FFFF/200"), None));

        let back = moved(&first, "FFFF/FF");
        let behind = Written::Behind(Watermark::resumed(at("FFFF/100")));
        assert_eq!(cursor::write(client, &back).await.unwrap(), behind);
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
        let written = cursor::write(client, &moved(&ours, "FFFF/1")).await.unwrap();
        assert!(matches!(written, Written::Rebound(_)), "{column}: {written:?}");
    }
    pipeline.sql("delete from postrider.cursor").await;
    assert_eq!(cursor::write(client, &ours).await.unwrap(), Written::Missing);
    assert!(cursor::create(client, &ours).await.unwrap());
    assert!(!cursor::create(client, &ours).await.unwrap());
    assert_eq!(cursor::write(client, &ours).await.unwrap(), Written::Stored);
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
            pipeline: "p".to_owned(),
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
        assert_eq!(cursor::write(control.client(), &next).await.unwrap(), Written::Stored);
        server.kill().await;
        server.restart().await;
        let control = Control::connect(&conninfo, "postrider").await.unwrap();
        assert_eq!(cursor::read(control.client(), "p").await.unwrap(), Some(next));
    }
}
