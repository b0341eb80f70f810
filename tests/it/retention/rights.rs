//! `postrider setup` gives the relay's role what retention needs, and takes it back; `check` names what is missing.

use super::DAY;
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::{Version, unique};
use serde_json::Value;

/// A pipeline whose relay logs in with a role of its own, and whose outbox belongs to another role.
struct Roles {
    pipeline: Pipeline,
    relay: String,
    owner: String,
    /// The configuration with the login of the relay.
    config: String,
}

impl Roles {
    /// `makes`: what becomes of the table before setup, with `{owner}` and `{relay}`.
    async fn new(version: Version, retention: &str, makes: &str) -> Self {
        let mut pipeline = Pipeline::shared(version, "retention_roles").await;
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        let (relay, owner) = (unique("retention_relay"), unique("retention_owner"));
        let makes = makes.replace("{owner}", &owner).replace("{relay}", &relay);
        pipeline
            .sql
            .batch(&format!(
                "create role {relay} login replication; create role {owner} nologin; {makes}"
            ))
            .await;
        let section = format!("[pipelines.{}.retention]\n{retention}\n", pipeline.name);
        pipeline.config.push_str(&section);
        let as_relay = pipeline.url.replace("user=postgres", &format!("user={relay}"));
        let config = pipeline.config.replace(&pipeline.url, &as_relay);
        Self { pipeline, relay, owner, config }
    }

    fn setup(&self, more: &[&str]) -> String {
        let args: Vec<&str> = ["setup", "--url", &self.pipeline.url]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        postrider_ok(&self.config, &args)
    }

    /// Findings of `check` about rights.
    fn findings(&self) -> Vec<String> {
        let printed = postrider(&self.config, &["check", "--json"]);
        let found: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
        let all = found.as_array().expect("findings");
        let of = all.iter().filter(|finding| finding["id"] == "retention_rights");
        of.map(ToString::to_string).collect()
    }

    /// A relay has published all rows that the table has.
    async fn published(&self) {
        self.pipeline
            .sql
            .batch(
                "update postrider.cursor set of_mode = 'wal', of_marks = false, of_layout = 'postrider', \
                   of_table_oid = 'public.outbox'::regclass::oid, resolved_snapshot = concat( \
                     pg_snapshot_xmax(pg_current_snapshot()), ':', pg_snapshot_xmax(pg_current_snapshot()), ':' \
                   )::pg_snapshot",
            )
            .await;
    }

    async fn insert(&self) {
        self.pipeline
            .sql
            .batch(
                "insert into public.outbox (aggregate_type, aggregate_id, event_type, created_at) \
                 select 'o', '1', 'e', now() - interval '40 days' from generate_series(1, 5)",
            )
            .await;
        self.published().await;
    }

    async fn held(&self, of: &str) -> String {
        let sql = format!("select ({of})::text");
        let sql = sql.replace("{owner}", &self.owner).replace("{relay}", &self.relay);
        self.pipeline.sql.text(&sql).await.unwrap_or_default()
    }

    async fn end(self) {
        let sql = format!(
            "drop owned by {0} cascade; drop owned by {1} cascade; drop role {0}; drop role {1}",
            self.relay, self.owner
        );
        self.pipeline.sql.batch(&sql).await;
    }
}

#[tokio::test]
async fn setup_grants_the_right_to_delete_and_undo_revokes_it() {
    for version in Version::ALL {
        let roles = Roles::new(version, "keep = \"7d\"", "").await;
        let printed = roles.setup(&["--print-sql"]);
        let grant = format!("GRANT SELECT, DELETE ON TABLE public.outbox TO {};", roles.relay);
        assert!(printed.contains(&grant), "{printed}");
        let done = roles.setup(&[]);
        assert!(done.contains("the rights that retention needs"), "{done}");
        assert!(roles.setup(&[]).contains("nothing is missing"));
        assert_eq!(roles.findings(), [] as [String; 0]);
        roles.insert().await;
        let printed = postrider_ok(&roles.config, &["retain"]);
        assert!(printed.contains("removed 5 rows"), "{printed}");

        let printed = roles.setup(&["--undo", "--print-sql"]);
        let revoke = format!("REVOKE DELETE ON TABLE public.outbox FROM {};", roles.relay);
        assert!(printed.contains(&revoke), "{printed}");
        let undone = roles.setup(&["--undo", "--yes"]);
        assert!(undone.contains("revoke the rights of retention"), "{undone}");
        let has = "select has_table_privilege('{relay}', 'public.outbox', 'DELETE')::int \
                   + 2 * has_table_privilege('{relay}', 'public.outbox', 'SELECT')::int";
        assert_eq!(roles.held(has).await, "2", "what streaming uses is kept");
        roles.end().await;
    }
}

/// An outbox with a partition of old rows, and an archive, both of the owner.
const PARTITIONED: &str = "\
drop table public.outbox; create table public.outbox (id bigint generated always as identity, \
  aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, headers json, \
  created_at timestamptz not null default clock_timestamp()) partition by range (created_at); \
create table public.past partition of public.outbox for values from (minvalue) \
  to (date_trunc('day', now()) - interval '30 days'); \
create table public.old (like public.outbox including defaults) partition by range (created_at); \
alter table public.outbox owner to {owner}; alter table public.past owner to {owner}; \
alter table public.old owner to {owner}";

#[tokio::test]
async fn setup_makes_the_relay_a_member_of_the_owner_and_undo_ends_that() {
    let retention = format!(
        "keep = \"{}s\"\naction = \"archive\"\narchive = \"public.old\"\narchive_keep = \"30d\"\n\
         partitions = {{ by = \"day\" }}",
        (7 * DAY).as_secs()
    );
    for version in Version::ALL {
        let roles = Roles::new(version, &retention, PARTITIONED).await;
        let before = roles.setup(&["--print-sql"]);
        let grant = format!("GRANT {} TO {}", roles.owner, roles.relay);
        let creates = format!("GRANT USAGE, CREATE ON SCHEMA public TO {}", roles.owner);
        assert!(before.contains(&grant) && before.contains(&creates), "{before}");
        roles.setup(&[]);
        assert!(roles.setup(&[]).contains("nothing is missing"));
        assert_eq!(roles.findings(), [] as [String; 0]);
        roles.insert().await;
        // The rows are older than archive_keep: their partition is archived, and dropped there.
        let printed = postrider_ok(&roles.config, &["retain"]);
        assert!(printed.contains("created partition \"public\".\"outbox_p"), "{printed}");
        assert!(
            printed.contains("attached partition \"public\".\"past\" to the archive"),
            "{printed}"
        );
        assert!(
            printed.contains("dropped partition \"public\".\"past\" of the archive"),
            "{printed}"
        );

        let member = "select count(*) from pg_auth_members where member = '{relay}'::regrole";
        assert_eq!(roles.held(member).await, "1");
        let undone = roles.setup(&["--undo", "--yes"]);
        assert!(undone.contains("membership in role"), "{undone}");
        assert_eq!(roles.held(member).await, "0");
        roles.end().await;
    }
}

/// Membership in a superuser would make a superuser of the relay: it is named, and the statements that are printed in
/// its place are enough.
#[tokio::test]
async fn membership_in_a_superuser_is_not_granted() {
    let retention = "keep = \"7d\"\naction = \"drop\"";
    for version in [Version::Pg15, Version::Pg18] {
        let roles =
            Roles::new(version, retention, &PARTITIONED.replace("{owner}", "postgres")).await;
        let done = roles.setup(&[]);
        let sql = done.split_once("To give the table another owner: ").expect("a statement").1;
        let sql = sql.lines().next().unwrap_or_default().to_owned();
        let is_member = "select pg_has_role('{relay}', 'postgres', 'MEMBER')";
        assert_eq!(roles.held(is_member).await, "false", "{done}");
        let findings = roles.findings();
        assert!(
            findings.len() == 1 && findings[0].contains("CREATE ROLE outbox_owner"),
            "{findings:?}"
        );
        // A name that no other test's database has, because roles belong to the server.
        let owner = unique("outbox_owner");
        roles.pipeline.sql.batch(&sql.replace("outbox_owner", &owner)).await;
        assert_eq!(roles.findings(), [] as [String; 0]);
        roles.insert().await;
        let printed = postrider_ok(&roles.config, &["retain"]);
        assert!(printed.contains("dropped partition \"public\".\"past\""), "{printed}");
        assert_eq!(roles.held(is_member).await, "false");
        roles
            .pipeline
            .sql
            .batch(&format!("drop owned by {owner} cascade; drop role {owner}"))
            .await;
        roles.end().await;
    }
}
