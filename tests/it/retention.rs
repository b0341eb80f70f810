//! Retention of the outbox: nothing that anybody needs is removed, and everything else is.

/// What an archive costs.
mod alone;
/// What readers and writers wait meanwhile.
mod beside;
/// Repairs, replays, parked events and changes of the table that begin meanwhile.
mod changes;
/// `postrider retain`, and what a running relay does.
mod commands;
/// `postrider partition`.
mod conversion;
/// What partitions cost beside rows: `scripts/bench --retention`.
mod costs;
/// Random histories against a real server, and rules with a condition taken out.
mod histories;
/// Partitions: created, detached, dropped, archived, and found again after a crash at any step.
mod partitions;
/// What the relay's role is given, and what is taken from it.
mod rights;
/// Rows that are deleted, or moved to an archive.
mod rows;
/// The rules of the layouts' own relays.
mod seeds;

use crate::pipeline::{Pipeline, show};
use crate::server::Version;
use postrider::outbox::{Layout, OutboxSpec, Role};
use postrider::pipeline::poll_spec;
use postrider::postgres::Conninfo;
use postrider::postgres::control::Control;
use postrider::postgres::retention::{
    BlockRange, Guard, PassReport, RetentionRule, RetentionSettings, RetentionTable, pass,
};
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

/// A pipeline that no relay runs, and a session for retention: the test does to the cursor row what a relay does.
struct Fixture {
    pipeline: Pipeline,
    control: Control,
    rule: RetentionRule,
}

impl Fixture {
    /// In layout `postrider`, mode `wal`; what is older than a day is deleted.
    async fn new(version: Version, test: &str) -> Self {
        let settings = RetentionSettings { keep: Some(DAY), ..RetentionSettings::default() };
        Self::with(version, test, Layout::Postrider, settings).await
    }

    async fn with(
        version: Version,
        test: &str,
        layout: Layout,
        settings: RetentionSettings,
    ) -> Self {
        let pipeline = Pipeline::in_layout(version, test, layout.name()).await;
        let conninfo = Conninfo::parse(&pipeline.url, &|_: &str| None).expect("a URL");
        let control = Control::connect(&conninfo, "retention test").await.expect("a session");
        let mut outbox = OutboxSpec::for_layout(layout);
        let name = match layout {
            Layout::Commerce => "outbox_messages",
            Layout::Sqlgarden => "outbox_events",
            Layout::Debezium => "outboxevent",
            Layout::Pgtrickle => "outbox_changes",
            Layout::Postrider | Layout::Gcx | Layout::Adr30 => "outbox",
        };
        let table = postrider::outbox::TableName { schema: "public".into(), name: name.into() };
        outbox.table = Some(table);
        let rule = RetentionRule {
            table: poll_spec(&pipeline.name, &outbox, false).expect("a table"),
            mode: "wal",
            layout: layout.name().to_owned(),
            marked: false,
            expiry: outbox.column(Role::ExpiresAt).map(str::to_owned),
            settings,
        };
        let fixture = Self { pipeline, control, rule };
        fixture.belongs().await;
        fixture
    }

    /// Writes into the cursor row what a relay writes at its start, and that all rows from before the slot are
    /// published: the rows of these tests have times from before it.
    async fn belongs(&self) {
        let RetentionRule { mode, layout, marked, table, .. } = &self.rule;
        self.pipeline
            .sql
            .batch(&format!(
                "update postrider.cursor set of_mode = '{mode}', of_marks = {marked}, of_layout = '{layout}', \
                   of_sink = 'kafka', of_topic = '', of_key = '', of_table = '{0}', \
                   of_table_oid = '{0}'::regclass::oid, before_slot = '3:3:' where pipeline = '{1}'",
                table.table, self.pipeline.name
            ))
            .await;
    }

    /// All that is committed now is published: its transactions are resolved by the cursor row.
    async fn published(&self) {
        self.pipeline
            .sql
            .batch(&format!(
                "update postrider.cursor set resolved_snapshot = \
                   concat(pg_snapshot_xmax(pg_current_snapshot()), ':', \
                     pg_snapshot_xmax(pg_current_snapshot()), ':')::pg_snapshot where pipeline = '{}'",
                self.pipeline.name
            ))
            .await;
    }

    async fn table(&self) -> RetentionTable {
        RetentionTable::read(self.control.client(), self.rule.clone()).await.expect("a table")
    }

    /// One pass; everything that it did must have succeeded.
    async fn pass(&self) -> PassReport {
        let report = self.try_pass().await;
        assert!(report.errors.is_empty(), "{report:?}");
        report
    }

    async fn try_pass(&self) -> PassReport {
        pass(self.control.client(), &self.rule, &mut |_| ()).await
    }

    /// How many rows the rule removes that lacks a guard. Nothing is changed.
    async fn removes_without(&self, guard: Guard) -> u64 {
        let (table, client) = (self.table().await, self.control.client());
        client.batch_execute("begin").await.expect("a transaction");
        let horizon = table.horizon(client).await.expect("a horizon");
        assert!(horizon.holds.is_empty(), "{horizon:?}");
        let mut guards = table.guards(&horizon);
        guards.retain(|of| of.guard != guard);
        let all = BlockRange { from: 0, to: 1_000_000 };
        let sql = table.remove_sql(table.name(), all, &guards, None);
        let removed = client.execute(&sql, &[]).await.expect("a removal");
        client.batch_execute("rollback").await.expect("a rollback");
        show(&format!("Without({guard:?}): {removed} rows were removed that are needed"));
        removed
    }

    /// A count, as the answer of a query.
    async fn count(&self, of: &str) -> i64 {
        let sql = format!("select count(*) from {of}");
        self.pipeline.sql.query_one(&sql, &[]).await.expect("a count").get(0)
    }

    /// Inserts events that are so many days old.
    async fn insert(&self, rows: u32, days: u32) {
        self.pipeline
            .sql
            .batch(&format!(
                "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                 select 'order', (i % 10)::text, 'Written', to_json(i), now() - interval '{days} days' \
                 from generate_series(1, {rows}) i"
            ))
            .await;
    }
}
