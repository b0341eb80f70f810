//! Random histories: transactions with savepoints that stay open, prepared transactions, rollbacks, updates, old time
//! columns, positions that move now and then, parked events, repairs, replays, bookmarks, and another pipeline over
//! the same table. After each removal a naive model says which rows somebody needs; all of them must be in the table.
//! At the end of a history nobody needs an old row, and all are gone.
//!
//! The same histories are run with rules that lack one condition each. Each of them must remove a row that is needed:
//! otherwise the histories would prove nothing about that condition.

use super::Fixture;
use crate::await_that::{SOON, await_that};
use crate::pipeline::show;
use crate::server::{Client, Version};
use postrider::offset::{Offset, Watermark};
use postrider::postgres::retention::{BlockRange, Guard, Horizon, RowGuard};
use postrider::postgres::store::cursor::{self, Cursor, SnapshotPolicy};
use postrider::store::PipelineKey;
use std::collections::BTreeMap;

/// Operations of one history.
const OPERATIONS: usize = 60;
/// Histories of the complete rule on each version.
const HISTORIES: u64 = 25;
/// Histories in which a rule that lacks a condition must be found out.
const MUTANT_HISTORIES: u64 = 400;
/// Sessions that write.
const WRITERS: usize = 3;
/// The other pipeline over the same table.
const OTHER: &str = "other";
/// All blocks of the table.
const ALL: BlockRange = BlockRange { from: 0, to: 1_000_000 };

/// What is taken out of the rule.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mutant {
    /// Nothing.
    None,
    /// A condition on rows.
    Without(Guard),
    /// What blocks the whole table, by its name.
    Unblocked(&'static str),
    /// Transactions that the snapshot sees count as resolved, instead of those below its xmin.
    Visible,
    /// The snapshot that is pending counts, before the position has reached it.
    Pending,
    /// The other pipeline does not count.
    OnePipeline,
}

/// A committed row.
#[derive(Clone, Copy, Debug)]
struct RowModel {
    /// The end of WAL after its commit; `None`: committed before the slot was created.
    position: Option<u64>,
    days: u32,
    parked: bool,
}

/// A session that writes.
struct Writer {
    session: Client,
    /// Rows of its open transaction: id and days; `None` if none is open.
    open: Option<Vec<(i64, u32)>>,
}

struct History {
    fixture: Fixture,
    random: fastrand::Rng,
    writers: Vec<Writer>,
    /// Rows of a prepared transaction.
    prepared: Option<Vec<(i64, u32)>>,
    rows: BTreeMap<i64, RowModel>,
    /// What each pipeline has published: everything up to this position.
    published: [u64; 2],
    /// Positions that a pipeline may reach.
    positions: Vec<u64>,
    /// The table may have rows from before the slot.
    before_slot: bool,
    repair: bool,
    replay: bool,
    /// How many days ago a bookmark was created.
    bookmark: Option<u32>,
    log: Vec<String>,
}

impl History {
    async fn new(version: Version) -> Self {
        let fixture = Fixture::new(version, "retention_histories").await;
        let sql = &fixture.pipeline.sql;
        sql.batch(&format!(
            "create temporary table o as select * from postrider.cursor; \
             update o set pipeline = '{OTHER}', slot = 'other'; insert into postrider.cursor select * from o"
        ))
        .await;
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            let session = Client::connect(&fixture.pipeline.url).await.expect("a session");
            writers.push(Writer { session, open: None });
        }
        Self {
            fixture,
            random: fastrand::Rng::with_seed(0),
            writers,
            prepared: None,
            rows: BTreeMap::new(),
            published: [0; 2],
            positions: Vec::new(),
            before_slot: false,
            repair: false,
            replay: false,
            bookmark: None,
            log: Vec::new(),
        }
    }

    fn sql(&self) -> &Client {
        &self.fixture.pipeline.sql
    }

    fn key(&self, of: usize) -> PipelineKey {
        if of == 0 { self.fixture.pipeline.key() } else { PipelineKey::first(OTHER) }
    }

    async fn end_of_wal(&self) -> u64 {
        let sql = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
        let end: i64 = self.sql().query_one(sql, &[]).await.unwrap().get(0);
        end.unsigned_abs()
    }

    /// A new history, with rows from before the slot.
    async fn begin(&mut self, seed: u64) {
        self.random = fastrand::Rng::with_seed(seed);
        self.rows.clear();
        self.log.clear();
        self.sql().batch("delete from public.outbox; delete from postrider.parked").await;
        // In half of the histories the table has rows from before the slot, and in some of these an operator decides
        // later that they are not needed.
        self.before_slot = seed % 2 == 1;
        let value = if self.before_slot {
            for _ in 0..2 {
                let id = insert(self.sql(), 40).await;
                self.rows.insert(id, RowModel { position: None, days: 40, parked: false });
            }
            "pg_current_snapshot()"
        } else {
            "'3:3:'"
        };
        self.sql().batch(&format!("update postrider.cursor set before_slot = {value}")).await;
        let end = self.end_of_wal().await;
        self.positions = vec![end];
    }

    /// The position of a pipeline moves to one of those that it may reach, and its row is written.
    async fn publish(&mut self, of: usize, to: u64) {
        self.published[of] = self.published[of].max(to);
        let key = self.key(of);
        let client = self.fixture.control.client();
        let row = cursor::read(client, &key).await.unwrap().expect("a row");
        let to = Offset::new(self.published[of]);
        let row = Cursor { watermark: Watermark::resumed(to), flush_limit: to, ..row };
        let written = cursor::write(client, &row, &SnapshotPolicy::Always).await.unwrap();
        assert_eq!(written, cursor::CursorWrite::Stored);
    }

    async fn committed(&mut self, written: Vec<(i64, u32)>) {
        let position = self.end_of_wal().await;
        self.positions.push(position);
        for (id, days) in written {
            self.rows.insert(id, RowModel { position: Some(position), days, parked: false });
        }
    }

    fn days(&mut self) -> u32 {
        [0, 10, 30, 30][self.random.usize(0..4)]
    }

    async fn operate(&mut self, mutant: Mutant) -> Result<(), String> {
        let operation = self.random.u32(0..100);
        self.log.push(format!("operation {operation}"));
        match operation {
            0..30 => self.write().await,
            30..40 => self.end_transaction().await,
            70..73 => self.end_prepared().await,
            40..55 => {
                let of = self.random.usize(0..2);
                let to = self.random.choice(&self.positions).copied().unwrap_or_default();
                let to = if self.random.bool() { self.end_of_wal().await } else { to };
                self.publish(of, to).await;
            }
            55..58 => self.update().await,
            58..62 => self.park().await,
            62..64 => self.toggle_repair().await,
            64..66 => self.toggle_replay().await,
            66..68 => self.toggle_bookmark().await,
            68..69 => self.decide().await,
            69..70 => {
                let pipeline = self.key(0).pipeline;
                self.sql()
                    .batch(&format!(
                        "update postrider.cursor set resolved_snapshot = null, pending_snapshot = null, \
                           pending_lsn = null where pipeline = '{pipeline}'"
                    ))
                    .await;
            }
            _ => return self.remove(mutant).await,
        }
        Ok(())
    }

    /// Writes a row: alone, in an open transaction, or in a savepoint of it.
    async fn write(&mut self) {
        let (at, days) = (self.random.usize(0..WRITERS), self.days());
        let (begins, in_savepoint) = (self.random.bool(), self.random.bool());
        let writer = &mut self.writers[at];
        match &mut writer.open {
            None if begins => {
                writer.session.batch("begin").await;
                let id = insert(&writer.session, days).await;
                writer.open = Some(vec![(id, days)]);
            }
            None => {
                let id = insert(&writer.session, days).await;
                self.committed(vec![(id, days)]).await;
            }
            Some(open) if in_savepoint => {
                writer.session.batch("savepoint a").await;
                open.push((insert(&writer.session, days).await, days));
                writer.session.batch("release a").await;
            }
            Some(open) => open.push((insert(&writer.session, days).await, days)),
        }
    }

    async fn end_transaction(&mut self) {
        let at = self.random.usize(0..WRITERS);
        let commits = self.random.u32(0..4) > 0;
        let writer = &mut self.writers[at];
        let Some(written) = writer.open.take() else { return };
        if self.prepared.is_none() && self.random.bool() {
            let name = &self.fixture.pipeline.name;
            writer.session.batch(&format!("prepare transaction '{name}'")).await;
            self.prepared = Some(written);
            return;
        }
        writer.session.batch(if commits { "commit" } else { "rollback" }).await;
        if commits {
            self.committed(written).await;
        }
    }

    async fn end_prepared(&mut self) {
        let Some(written) = self.prepared.take() else { return };
        let commits = self.random.u32(0..4) > 0;
        let end = if commits { "commit" } else { "rollback" };
        self.sql().batch(&format!("{end} prepared '{}'", self.fixture.pipeline.name)).await;
        if commits {
            self.committed(written).await;
        }
    }

    async fn update(&mut self) {
        let Some(id) = self.random.choice(self.rows.keys()).copied() else { return };
        let sql =
            format!("update public.outbox set event_type = event_type || '.' where id = {id}");
        self.sql().batch(&sql).await;
    }

    /// Parks an event that is not published, or resolves one that is parked.
    async fn park(&mut self) {
        let Some(id) = self.random.choice(self.rows.keys()).copied() else { return };
        let (pipeline, published) = (self.key(0).pipeline, self.published[0]);
        let Some(row) = self.rows.get_mut(&id) else { return };
        let sql = if row.parked {
            row.parked = false;
            format!(
                "update postrider.parked set state = 'done', resolved_at = now() where event_id = '{id}'"
            )
        } else if row.position.is_some_and(|position| position > published) {
            row.parked = true;
            format!(
                "insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, blocks, topic, state, \
                   event_id) values ('{pipeline}', '0/0'::pg_lsn + {id}, 0, now(), false, 'events', 'waiting', '{id}') \
                 on conflict (pipeline, shard, commit_lsn, ordinal) \
                   do update set state = 'waiting', resolved_at = null"
            )
        } else {
            return;
        };
        self.sql().batch(&sql).await;
    }

    async fn toggle_repair(&mut self) {
        self.repair = !self.repair;
        let of = self.random.usize(0..2);
        let pipeline = self.key(of).pipeline;
        let sql = if self.repair {
            format!(
                "insert into postrider.repair (pipeline, kind, state, selection, slot) \
                 values ('{pipeline}', 'repair', 'making', 'unresolved', 's')"
            )
        } else {
            "delete from postrider.repair".to_owned()
        };
        self.sql().batch(&sql).await;
    }

    async fn toggle_replay(&mut self) {
        self.replay = !self.replay;
        let of = self.random.usize(0..2);
        let pipeline = self.key(of).pipeline;
        let sql = if self.replay {
            format!(
                "insert into postrider.replay (pipeline, name, request, source) \
                 values ('{pipeline}', 'again', '{{}}', 'table')"
            )
        } else {
            "delete from postrider.replay".to_owned()
        };
        self.sql().batch(&sql).await;
    }

    /// An operator decides that rows from before the slot are not needed.
    async fn decide(&mut self) {
        self.before_slot = false;
        for row in self.rows.values_mut() {
            row.position = row.position.or(Some(0));
        }
        self.sql().batch("update postrider.cursor set before_slot = '3:3:'").await;
    }

    async fn toggle_bookmark(&mut self) {
        self.bookmark = if self.bookmark.is_some() { None } else { Some(20) };
        let of = self.random.usize(0..2);
        let pipeline = self.key(of).pipeline;
        let sql = match self.bookmark {
            Some(days) => format!(
                "insert into postrider.bookmark (pipeline, name, slot, system_identifier, timeline, publication, \
                   messages, created_at) \
                 values ('{pipeline}', 'before', 'b', '', 1, '', false, now() - interval '{days} days')"
            ),
            None => "delete from postrider.bookmark".to_owned(),
        };
        self.sql().batch(&sql).await;
    }

    /// Why somebody needs a row.
    fn needed(&self, row: &RowModel) -> Option<&'static str> {
        let unpublished = row.position.is_none_or(|at| self.published.iter().any(|to| at > *to));
        let wanted = [
            (self.repair, "a repair"),
            (self.replay, "a replay from the table"),
            (row.days == 0, "it is not old"),
            (unpublished, "it is not published"),
            (row.parked, "it is parked"),
            (self.bookmark.is_some_and(|days| row.days < days), "a bookmark"),
        ];
        wanted.into_iter().find(|(applies, _)| *applies).map(|(_, why)| why)
    }

    /// Removes what the rule allows, and compares the table with what is needed.
    async fn remove(&mut self, mutant: Mutant) -> Result<(), String> {
        let table = self.fixture.table().await;
        let client = self.fixture.control.client();
        client.batch_execute("begin").await.unwrap();
        table.lock_readers(client).await.unwrap();
        let mut horizon = table.horizon(client).await.unwrap();
        match mutant {
            Mutant::Unblocked(name) => horizon.holds.retain(|hold| hold.name() != name),
            Mutant::OnePipeline => self.only_first(&mut horizon).await,
            Mutant::Pending => self.pending(&mut horizon).await,
            Mutant::None | Mutant::Without(_) | Mutant::Visible => {}
        }
        if horizon.holds.is_empty() {
            let mut guards = table.guards(&horizon);
            match mutant {
                Mutant::Without(guard) => guards.retain(|of| of.guard != guard),
                Mutant::Visible => visible(&mut guards),
                Mutant::None | Mutant::Unblocked(_) | Mutant::OnePipeline | Mutant::Pending => {}
            }
            let sql = table.remove_sql(table.name(), ALL, &guards, None);
            client.batch_execute(&sql).await.unwrap();
        }
        client.batch_execute("commit").await.unwrap();
        let left = self.sql().query("select id from public.outbox", &[]).await.unwrap();
        let left: Vec<i64> = left.iter().map(|row| row.get(0)).collect();
        let gone: Vec<i64> = self.rows.keys().filter(|id| !left.contains(id)).copied().collect();
        for id in gone {
            let row = self.rows.remove(&id).unwrap();
            if let Some(why) = self.needed(&row) {
                return Err(format!("row {id} was removed: {why}; {row:?}; {:?}", self.log));
            }
        }
        Ok(())
    }

    async fn only_first(&self, horizon: &mut Horizon) {
        horizon.holds.retain(|hold| !hold.to_string().contains(OTHER));
        horizon.below = self.number("pg_snapshot_xmin(resolved_snapshot)").await;
    }

    async fn pending(&self, horizon: &mut Horizon) {
        horizon.holds.retain(|hold| hold.name() != "nothing_resolved");
        let sql = "select min(pg_snapshot_xmin(coalesce(pending_snapshot, resolved_snapshot))::text::int8) \
                   from postrider.cursor";
        horizon.below = self.sql().query_one(sql, &[]).await.unwrap().get(0);
    }

    async fn number(&self, of: &str) -> Option<i64> {
        let pipeline = self.key(0).pipeline;
        let sql =
            format!("select {of}::text::int8 from postrider.cursor where pipeline = '{pipeline}'");
        self.sql().query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// Ends everything that keeps a row.
    async fn quiet(&mut self) {
        for writer in &mut self.writers {
            if writer.open.take().is_some() {
                writer.session.batch("rollback").await;
            }
        }
        if self.prepared.take().is_some() {
            let name = &self.fixture.pipeline.name;
            self.sql().batch(&format!("rollback prepared '{name}'")).await;
        }
        (self.repair, self.replay, self.bookmark) = (false, false, None);
        for row in self.rows.values_mut() {
            row.parked = false;
        }
        self.sql()
            .batch(
                "delete from postrider.repair; delete from postrider.replay; delete from postrider.bookmark; \
                 delete from postrider.parked",
            )
            .await;
    }

    async fn run(&mut self, seed: u64, mutant: Mutant) -> Result<(), String> {
        self.begin(seed).await;
        let mut done = Ok(());
        for _ in 0..OPERATIONS {
            done = self.operate(mutant).await;
            if done.is_err() {
                break;
            }
        }
        self.quiet().await;
        done.map_err(|why| format!("history {seed}: {why}"))
    }

    /// Nobody needs an old row any more: all are gone as soon as that is known.
    async fn assert_old_rows_go(&mut self) {
        self.decide().await;
        let young = self.rows.values().filter(|row| row.days == 0).count();
        let history = tokio::sync::Mutex::new(self);
        await_that("the old rows to be removed", SOON, || async {
            let mut history = history.lock().await;
            for of in [0, 1] {
                let end = history.end_of_wal().await;
                history.publish(of, end).await;
            }
            history.remove(Mutant::None).await?;
            let left = history.rows.len();
            if left == young { Ok(()) } else { Err(format!("{left} rows, {young} of them young")) }
        })
        .await;
    }
}

/// Inserts a row that is so many days old, and returns its id.
async fn insert(session: &Client, days: u32) -> i64 {
    let sql = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
         values ('order', '1', 'Written', '1', now() - interval '{days} days') returning id"
    );
    session.query_one(&sql, &[]).await.expect("an id").get(0)
}

/// Rows of transactions that the resolved snapshots see.
const VISIBLE: &str = "(select bool_and(pg_visible_in_snapshot((pg_snapshot_xmax(pg_current_snapshot())::text::int8 \
             - ((pg_snapshot_xmax(pg_current_snapshot())::text::int8 - o.xmin::text::int8) & 4294967295))::text::xid8, \
               c.resolved_snapshot)) from postrider.cursor c)";

/// Makes the guard of published rows one of visibility.
fn visible(guards: &mut [RowGuard]) {
    for guard in guards.iter_mut().filter(|guard| guard.guard == Guard::Unresolved) {
        VISIBLE.clone_into(&mut guard.allows);
    }
}

#[tokio::test]
async fn nothing_that_anybody_needs_is_removed_and_everything_else_is() {
    for version in Version::ALL {
        let mut history = History::new(version).await;
        for seed in 0..HISTORIES {
            history.run(seed, Mutant::None).await.unwrap();
            history.assert_old_rows_go().await;
        }
    }
}

#[tokio::test]
async fn each_condition_that_is_taken_out_removes_a_row_that_is_needed() {
    let mut history = History::new(Version::Pg17).await;
    for mutant in [
        Mutant::Without(Guard::Age),
        Mutant::Without(Guard::Unresolved),
        Mutant::Without(Guard::Parked),
        Mutant::Without(Guard::Bookmark),
        Mutant::Unblocked("before_slot"),
        Mutant::Unblocked("repair"),
        Mutant::Unblocked("replay"),
        Mutant::Unblocked("nothing_resolved"),
        Mutant::Visible,
        Mutant::Pending,
        Mutant::OnePipeline,
    ] {
        let mut found = None;
        for seed in 0..MUTANT_HISTORIES {
            if let Err(why) = history.run(seed, mutant).await {
                found = Some(why);
                break;
            }
        }
        let found = found.unwrap_or_else(|| panic!("{mutant:?} removed nothing that is needed"));
        show(&format!("{mutant:?}: {}", found.split("; ").next().unwrap_or_default()));
    }
}
