//! Who owns the pipeline: takeovers, writes of the cursor row under an epoch, and a write whose session is gone.

use super::{Real, conninfo, key, sessions};
use crate::await_that::{SOON, await_that};
use crate::model::script::{By, Step};
use crate::server::Client;
use postrider::offset::{Offset, Watermark};
use postrider::postgres::control::Control;
use postrider::postgres::store::cursor::{self, Cursor, CursorWrite};

impl Real {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller has chosen")]
    pub(super) async fn owning(&mut self, step: Step) {
        match step {
            Step::TakeOver => {
                let epoch = cursor::take_over(self.control.client(), key()).await;
                self.owned(epoch.expect("an epoch"));
            }
            Step::Cursor(letter, by) => {
                let moved = self.moved(letter, by);
                let written =
                    cursor::write(self.control.client(), &moved, &cursor::SnapshotPolicy::Always)
                        .await
                        .expect("a write");
                let stored = written == CursorWrite::Stored;
                self.notes.say(format!("the cursor row to {letter}: stored {stored}"));
            }
            Step::Row => {
                let row = cursor::read(&self.client, key()).await.expect("a row").expect("one");
                let row = self.notes.name(row.watermark.offset().get());
                self.notes.say(format!("the cursor row is {row}"));
            }
            Step::Lock => {
                let client = Client::connect(&self.url).await.expect("a session");
                client.batch("begin; select from postrider.cursor for update").await;
                self.locker = Some(client);
            }
            Step::Send(letter) => self.send(letter).await,
            Step::Gone => {
                self.sent.shutdown().await;
                (self.control, _) = sessions(&self.url).await;
            }
            Step::TakeOverLocked => {
                let client = self.locker.as_ref().expect("a lock");
                let epoch = cursor::take_over(client, key()).await.expect("an epoch");
                self.owned(epoch);
            }
            Step::Unlock => {
                self.locker.take().expect("a lock").batch("commit").await;
                self.no_orphan_runs().await;
            }
            other => panic!("{other:?} is not about the owner"),
        }
    }

    fn owned(&mut self, epoch: i64) {
        self.former = std::mem::replace(&mut self.cursor.owner_epoch, epoch);
    }

    pub(super) fn epoch(&self, by: By) -> i64 {
        match by {
            By::TheOwner => self.cursor.owner_epoch,
            By::TheFormer => self.former,
        }
    }

    fn moved(&self, letter: char, by: By) -> Cursor {
        let end = Offset::new(self.notes.end_of(letter));
        let watermark = Watermark::from_commit_end(end);
        Cursor { watermark, flush_limit: end, owner_epoch: self.epoch(by), ..self.cursor.clone() }
    }

    /// A session of its own writes, and waits for the lock.
    async fn send(&mut self, letter: char) {
        let moved = self.moved(letter, By::TheOwner);
        let control = Control::connect(&conninfo(&self.url), "orphan").await.expect("a session");
        // Its own patience with locks is not what is looked at.
        control.client().batch_execute("set lock_timeout = 0").await.expect("a setting");
        self.sent.spawn(async move {
            drop(cursor::write(control.client(), &moved, &cursor::SnapshotPolicy::Always).await);
        });
        self.await_orphan("waits for the lock", "wait_event_type = 'Lock'", "1").await;
    }

    async fn no_orphan_runs(&self) {
        self.await_orphan("is done", "true", "0").await;
    }

    async fn await_orphan(&self, what: &str, condition: &str, count: &str) {
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name = 'orphan' and {condition}"
        );
        await_that(&format!("the statement {what}"), SOON, || async {
            let found = self.client.text(&sql).await;
            if found.as_deref() == Some(count) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }
}
