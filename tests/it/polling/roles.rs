//! Polling by a role that has the rights of its layout, and no others.

use super::{count, polling};
use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use crate::sink_caller::alter;

/// A role that has what `setup` gives it, and nothing else.
struct Least {
    pipeline: Pipeline,
    role: String,
}

impl Least {
    async fn polls(test: &str, layout: &str) -> Self {
        let mut pipeline = polling(Version::Pg17, test, layout).await;
        pipeline.sql.batch("drop schema postrider cascade").await;
        let role = pipeline.name.clone();
        let before =
            "revoke all on schema public from public; grant create on schema public to postgres";
        pipeline.sql.batch(&format!("{before}; create role {role} login")).await;
        let admin = pipeline.url.clone();
        let user = pipeline.config.replace("user=postgres", &format!("user={role}"));
        pipeline.config = user.replace("postgres@", &format!("{role}@"));
        assert_ne!(admin, pipeline.config);
        postrider_ok(&pipeline.config, &["setup", "--url", &admin]);
        Self { pipeline, role }
    }

    /// What the role may do with tables outside of its own schema.
    async fn rights(&self) -> String {
        let sql = format!(
            "select string_agg(table_name || ' ' || privilege_type, ', ' order by table_name, privilege_type) \
             from information_schema.role_table_grants \
             where grantee = '{}' and table_schema <> 'postrider'",
            self.role
        );
        self.pipeline.sql.text(&sql).await.unwrap_or_default()
    }

    async fn gone(self) {
        let role = &self.role;
        let sql = format!("drop owned by {role} cascade; drop role {role}");
        self.pipeline.sql.batch(&sql).await;
    }
}

/// Rows are locked, published and marked by a role without REPLICATION; `check` finds nothing to say.
#[tokio::test]
async fn role_that_setup_gave_its_rights_polls_each_layout() {
    let uuid = "select 'order', gen_random_uuid(), 'T', to_jsonb(i) from generate_series(1, 20) i";
    let text = "select 'order', (i % 3)::text, 'T', to_jsonb(i) from generate_series(1, 20) i";
    for (layout, table, columns, rows, rights) in [
        ("postrider", "outbox", "", text, "DELETE SELECT UPDATE"),
        (
            "debezium",
            "outboxevent",
            "aggregatetype, aggregateid, type",
            text,
            "DELETE SELECT UPDATE",
        ),
        ("sqlgarden", "outbox_events", "", text, "SELECT UPDATE"),
        ("adr30", "outbox", "", uuid, "SELECT UPDATE"),
        ("gcx", "outbox", "", uuid, "SELECT UPDATE"),
    ] {
        let least = Least::polls("pollleast", layout).await;
        let wanted: Vec<String> =
            rights.split(' ').map(|right| format!("{table} {right}")).collect();
        assert_eq!(least.rights().await, wanted.join(", "), "{layout}");
        let pipeline = &least.pipeline;
        let columns =
            if columns.is_empty() { "aggregate_type, aggregate_id, event_type" } else { columns };
        let rows = if layout == "gcx" {
            rows.replace("to_jsonb(i)", "to_jsonb(i), 't'")
        } else {
            rows.to_owned()
        };
        let topic = if layout == "gcx" { ", topic" } else { "" };
        pipeline
            .sql
            .batch(&format!("insert into {table} ({columns}, payload{topic}) {rows}"))
            .await;
        let found = postrider(&pipeline.config, &["check"]);
        let said = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.status.success() && !said.contains("rights"), "{layout}: {said}");
        let relay = pipeline.run();
        assert_eq!(pipeline.topic.await_records(20, SOON).await.len(), 20, "{layout}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{layout}");
        least.gone().await;
    }
}

/// The same for the layout that also moves rows to a table of dead letters, which the role may not read.
#[tokio::test]
async fn role_that_setup_gave_its_rights_moves_dead_rows() {
    let mut least = Least::polls("pollbury", "commerce").await;
    assert_eq!(
        least.rights().await,
        "outbox_messages DELETE, outbox_messages SELECT, outbox_messages UPDATE, outbox_messages_dlq INSERT"
    );
    least.pipeline.config = least.pipeline.config.replace("attempts_max = 3", "attempts_max = 1");
    let pipeline = &least.pipeline;
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    pipeline
        .sql
        .batch(
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at) \
             select 1, 'order', i, 'T', 1, to_jsonb(case when i = 2 then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end), now() from generate_series(1, 3) i",
        )
        .await;
    let relay = pipeline.run();
    count(pipeline, "select string_agg(id::text, ',') from outbox_messages_dlq", "2").await;
    count(pipeline, "select count(*)::text from outbox_messages where processed_at is null", "0")
        .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql.batch(&format!("revoke insert on outbox_messages_dlq from {}", least.role)).await;
    let found = postrider(&pipeline.config, &["check"]);
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(said.contains("GRANT INSERT ON TABLE"), "{said}");
    least.gone().await;
}
