//! `postrider setup` as a managed server lets it be run: by an administrator who is no superuser and does not own the
//! outbox. What is refused comes with the line that lets it be done, and what is said to be done is true.

use crate::await_that::SOON;
use crate::halted::run_to_halt;
use crate::private::PrivatePostgres;
use crate::relay::{Relay, pipeline, postrider, postrider_ok};
use crate::server::{Client, Database, Version, brokers, unique};
use crate::topic::{Topic, Topics};

/// A database of an administrator with CREATEROLE and CREATEDB; its outbox belongs to the application.
pub(crate) struct Managed {
    pub(crate) database: Database,
    /// A superuser's session.
    pub(crate) sql: Client,
    pub(crate) admin: String,
    owner: String,
    pub(crate) relay: String,
    topic: Topic,
    pub(crate) config: String,
}

impl Managed {
    /// `relay_may`: attributes of the relay's role; `admin_may`: further ones of the administrator.
    pub(crate) async fn new(
        version: Version,
        test: &str,
        relay_may: &str,
        admin_may: &str,
    ) -> Self {
        let database = Database::create(version, test).await;
        let sql = database.connect().await;
        let [admin, owner, relay] = ["admin", "owner", "relay"].map(unique);
        sql.batch(&format!(
            "create role {admin} login createrole createdb {admin_may}; create role {owner} login; \
             create role {relay} login {relay_may}; alter database \"{}\" owner to {admin}",
            database.name
        ))
        .await;
        sql.batch(include_str!("../../sql/layouts/postrider.sql")).await;
        sql.batch(&format!("alter table outbox owner to {owner}")).await;
        let topic = Topics::new(&brokers(), test).create("events", 1).await;
        let url = database.url().replacen("postgres@", &format!("{relay}@"), 1);
        let config = pipeline(&relay, &url, "public.outbox", &topic.name, &brokers());
        Self { database, sql, admin, owner, relay, topic, config }
    }

    fn admin_url(&self) -> String {
        self.database.url().replacen("postgres@", &format!("{}@", self.admin), 1)
    }

    /// The relay's own login.
    pub(crate) fn relay_url(&self) -> String {
        self.database.url().replacen("postgres@", &format!("{}@", self.relay), 1)
    }

    /// `setup --url ADMIN`: the exit code, and what it says.
    pub(crate) fn setup(&self) -> (Option<i32>, String) {
        said(&postrider(&self.config, &["setup", "--url", &self.admin_url()]))
    }

    /// An event goes from the outbox to the topic.
    pub(crate) async fn streams(&self) {
        let relay = Relay::spawn(&self.config);
        relay.await_state("streaming", SOON).await;
        self.sql
            .batch(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', '1', 'T', '1')",
            )
            .await;
        self.topic.await_records(1, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }

    pub(crate) async fn gone(self) {
        let [admin, owner, relay] = [&self.admin, &self.owner, &self.relay];
        self.sql
            .batch(&format!(
                "alter database \"{}\" owner to postgres; drop owned by {relay}, {admin}, {owner} cascade; \
                 drop role {relay}, {admin}, {owner}",
                self.database.name
            ))
            .await;
    }
}

pub(crate) fn said(output: &std::process::Output) -> (Option<i32>, String) {
    let text =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.code(), text.concat())
}

/// The statement in a text that begins with these words, up to its end.
pub(crate) fn line<'t>(text: &'t str, begins: &str) -> &'t str {
    let at = text.find(begins).unwrap_or_else(|| panic!("no {begins:?} in {text}"));
    let (_, rest) = text.split_at(at);
    rest.split_inclusive(';').next().expect("a statement")
}

/// Each refusal names one line; followed one after the other they end in a pipeline that streams.
#[tokio::test]
async fn administrator_who_owns_nothing_is_led_to_a_pipeline_that_streams() {
    for version in Version::ALL {
        let managed = Managed::new(version, "managed", "replication", "").await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("could not create publication"), "{text}");
        managed.sql.batch(line(&text, &format!("GRANT \"{}\" TO", managed.owner))).await;

        // It may not make a slot: the relay's role may, and everything else is there.
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("could not create slot"), "{text}");
        assert!(text.contains("(without --url)"), "{text}");
        assert!(!text.contains("refused        let role"), "it replicates already: {text}");
        postrider_ok(&managed.config, &["setup"]);
        let (code, text) = managed.setup();
        assert!(code == Some(0) && text.contains("nothing is missing"), "{text}");
        postrider_ok(&managed.config, &["check"]);
        managed.streams().await;
        managed.gone().await;
    }
}

/// The command that a text names: `postrider setup …`, to its end or the end of its line, with the place of the
/// administrator filled in.
fn command(text: &str, begins: &str, admin: &str) -> Vec<String> {
    let at = text.find(begins).unwrap_or_else(|| panic!("no {begins:?} in {text}"));
    let line = text.split_at(at).1.lines().next().expect("a line");
    let line = line.replace("ADMIN@", &format!("{admin}@"));
    let words = line.split_whitespace().skip(1).map(|word| word.trim_matches('\'').to_owned());
    words.collect()
}

/// Whatever `setup` is refused as the relay's own role is an administrator's to do: the role is not made able to.
#[tokio::test]
async fn relay_that_runs_setup_itself_is_led_to_an_administrator_and_gets_no_more_rights() {
    for version in Version::ALL {
        for owner_is_superuser in [false, true] {
            let managed = Managed::new(version, "ownrole", "replication", "").await;
            if owner_is_superuser {
                managed.sql.batch("alter table outbox owner to postgres").await;
            }
            // The way there is the product's: the halt of a pipeline that was never set up.
            let halted = run_to_halt(&managed.config).await;
            halted.assert_says("PR010", &["does not exist"], &["--url postgresql://ADMIN@HOST/"]);
            let (code, text) = said(&postrider(&managed.config, &["setup"]));
            assert_eq!(code, Some(1), "{text}");
            assert!(!text.contains("GRANT"), "{text}");
            assert_eq!(text.matches("hint:").count(), 1, "{text}");
            let args = command(&text, "postrider setup", "postgres");
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            postrider_ok(&managed.config, &args);
            let more = format!(
                "select (rolsuper or rolcreaterole or has_database_privilege(oid, current_database(), 'create') \
                   or exists (select from pg_auth_members m where m.member = r.oid))::text \
                 from pg_roles r where rolname = '{}'",
                managed.relay
            );
            assert_eq!(managed.sql.text(&more).await.as_deref(), Some("false"));
            managed.streams().await;
            managed.gone().await;
        }
    }
}

/// The relay's role may not make the table either, and `setup --create-table` says who may; whoever inserts needs a
/// right that the end of it names.
#[tokio::test]
async fn table_that_setup_makes_is_an_administrators_and_the_applications_right_is_named() {
    for layout in ["postrider", "sqlgarden", "commerce"] {
        let managed = Managed::new(Version::Pg18, "create", "replication", "").await;
        managed.sql.batch("drop table outbox").await;
        let table = match layout {
            "postrider" => "public.outbox",
            "sqlgarden" => "public.outbox_events",
            _ => "public.outbox_messages",
        };
        let config = managed.config.replace(
            "table = \"public.outbox\"",
            &format!("table = \"{table}\"\nlayout = \"{layout}\""),
        );
        let (code, text) = said(&postrider(&config, &["setup", "--create-table"]));
        assert_eq!(code, Some(1), "{text}");
        assert!(!text.contains("GRANT"), "{text}");
        let args = command(&text, "postrider setup", "postgres");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert!(args.contains(&"--create-table"), "{text}");
        let text = postrider_ok(&config, &args);
        let app = unique("app");
        managed.sql.batch(&format!("create role {app} login")).await;
        let grants = text.lines().filter_map(|line| line.trim().strip_prefix("sql  "));
        let grants: Vec<String> = grants.map(|sql| sql.replace("APPLICATION", &app)).collect();
        assert!(!grants.is_empty(), "{text}");
        for grant in &grants {
            managed.sql.batch(grant).await;
        }
        let columns = if layout == "commerce" {
            "(tenant_id, aggregate_type, aggregate_id, event_type, payload) values (1, 'order', 1, 'T', '1')"
        } else {
            "(aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'T', '1')"
        };
        managed.sql.batch(&format!("set role {app}")).await;
        managed.sql.batch(&format!("insert into {table} {columns}")).await;
        managed.sql.batch("reset role").await;
        managed.sql.batch(&format!("drop owned by {app}; drop role {app}")).await;
        managed.sql.batch(&format!("grant {} to {}", managed.owner, managed.admin)).await;
        managed.gone().await;
    }
}

/// Membership in a superuser makes a superuser: it is never the line that is printed.
#[tokio::test]
async fn administrator_is_not_made_a_member_of_a_superuser() {
    for version in [Version::Pg15, Version::Pg18] {
        let managed = Managed::new(version, "superowner", "replication", "replication").await;
        managed.sql.batch("alter table outbox owner to postgres").await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        assert!(!text.contains("GRANT \"postgres\""), "{text}");
        let args = command(&text, "postrider setup", "nobody");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert!(args.iter().any(|arg| arg.contains("postgres@")), "{text}");
        postrider_ok(&managed.config, &args);
        managed.streams().await;
        managed.gone().await;
    }
}

/// Everything that the login may do is done and said, and everything that was refused has its own line.
#[tokio::test]
async fn steps_that_are_refused_stop_no_other_and_each_has_its_line() {
    for version in Version::ALL {
        // It owns the database and the table, and may not let anybody replicate.
        let managed = Managed::new(version, "eachline", "", "").await;
        managed.sql.batch(&format!("alter table outbox owner to {}", managed.admin)).await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        for words in [
            "done           create publication",
            "done           create schema",
            "done           give role",
            "refused        let role",
            "refused        create slot",
            "(without --url)",
            "then run the same setup again",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        managed.sql.batch(line(&text, &format!("ALTER ROLE \"{}\"", managed.relay))).await;
        postrider_ok(&managed.config, &["setup"]);
        managed.streams().await;
        managed.gone().await;

        // It owns nothing: the schema and the rights on it are made, and the slot is not begun without publication.
        let managed = Managed::new(version, "ownsnothing", "replication", "replication").await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        for words in [
            "refused        create publication",
            "done           create schema",
            "refused        give role",
            "lacks SELECT on table",
            "not begun      create slot",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        managed.sql.batch(line(&text, &format!("GRANT \"{}\" TO", managed.owner))).await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(0), "{text}");
        managed.streams().await;
        managed.gone().await;
    }
}

/// A backfill makes the slot in another way than the plan's step, and is led to the relay's role too.
#[tokio::test]
async fn backfill_by_an_administrator_who_may_not_replicate_ends_as_the_relays_role() {
    for version in [Version::Pg15, Version::Pg18] {
        let managed = Managed::new(version, "backfills", "replication", "").await;
        managed.sql.batch(&format!("alter table outbox owner to {}", managed.admin)).await;
        managed
            .sql
            .batch(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', '1', 'T', '1'), ('order', '1', 'T', '2')",
            )
            .await;
        let args = ["setup", "--backfill", "all", "--url", &managed.admin_url()];
        let (code, text) = said(&postrider(&managed.config, &args));
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("done           create publication"), "{text}");
        assert!(text.contains("--backfill all (without --url)"), "{text}");
        postrider_ok(&managed.config, &["setup", "--backfill", "all"]);
        let relay = Relay::spawn(&managed.config);
        managed.topic.await_records(2, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        managed.gone().await;
    }
}

/// The attribute is refused; the grants stay, and the line for it is named.
#[tokio::test]
async fn replication_that_can_not_be_given_leaves_the_other_rights_given() {
    for version in Version::ALL {
        let managed = Managed::new(version, "noattribute", "", "replication").await;
        managed.sql.batch(&format!("grant {} to {}", managed.owner, managed.admin)).await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("lacks REPLICATION"), "{text}");
        assert_eq!(text.matches("refused  ").count(), 1, "the other steps are done: {text}");
        assert!(!text.contains("is set up"), "{text}");
        let select =
            format!("select has_table_privilege('{}', 'outbox', 'select')::text", managed.relay);
        assert_eq!(managed.sql.text(&select).await.as_deref(), Some("true"));
        managed.sql.batch(line(&text, "ALTER ROLE")).await;
        let (code, text) = managed.setup();
        assert!(code == Some(0) && text.contains("nothing is missing"), "{text}");
        assert!(text.contains("exists         the rights of role"), "{text}");
        managed.streams().await;
        managed.gone().await;
    }
}

/// A GRANT by who has a right without the option to grant it is a warning, and gives nothing.
#[tokio::test]
async fn grant_of_which_the_server_only_warns_is_not_done() {
    for version in [Version::Pg15, Version::Pg18] {
        let managed = Managed::new(version, "warns", "replication", "replication").await;
        let (admin, relay) = (&managed.admin, &managed.relay);
        managed
            .sql
            .batch(&format!(
                "create publication {relay} for table outbox with (publish = 'insert'); \
                 grant insert on outbox to {admin}"
            ))
            .await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("lacks SELECT on table \"public\".\"outbox\""), "{text}");
        let done = text.lines().filter(|line| line.starts_with("done"));
        assert!(
            done.clone().count() > 0 && done.clone().all(|line| !line.contains("on table")),
            "{text}"
        );
        managed.sql.batch(line(&text, "GRANT SELECT ON TABLE")).await;
        let (code, text) = managed.setup();
        assert_eq!(code, Some(0), "{text}");
        managed.streams().await;
        managed.gone().await;
    }
}

/// What RDS has in place of the attribute: a role that is a member needs nothing more, and one that is none gets it.
#[tokio::test]
async fn on_amazon_rds_membership_counts_as_replication() {
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let sql = server.connect().await;
    sql.batch(include_str!("../../sql/layouts/postrider.sql")).await;
    sql.batch(
        "create role rds_replication; create role member login; create role stranger login; \
         grant rds_replication to member",
    )
    .await;
    for (role, given) in [("member", false), ("stranger", true)] {
        let url = server.url().replacen("postgres@", &format!("{role}@"), 1);
        let config = pipeline("orders", &url, "public.outbox", "t", "127.0.0.1:1");
        let (code, text) =
            said(&postrider(&config, &["setup", "--print-sql", "--url", &server.url()]));
        assert_eq!(code, Some(0), "{text}");
        assert!(!text.contains("ALTER ROLE"), "{text}");
        assert_eq!(text.contains("GRANT rds_replication TO"), given, "{role}: {text}");
    }
    let url = server.url().replacen("postgres@", "absent@", 1);
    let config = pipeline("orders", &url, "public.outbox", "t", "127.0.0.1:1");
    let (_, text) = said(&postrider(&config, &["setup", "--url", &server.url()]));
    assert!(text.contains("CREATE ROLE \"absent\" LOGIN PASSWORD"), "{text}");
    assert!(text.contains("GRANT rds_replication TO \"absent\";"), "{text}");
}

/// Rows that were there before the slot are counted, and the way that is named publishes them.
#[tokio::test]
async fn rows_that_are_there_before_the_slot_are_told_and_can_still_be_backfilled() {
    let database = Database::create(Version::Pg17, "heldrows").await;
    let sql = database.connect().await;
    sql.batch(include_str!("../../sql/layouts/postrider.sql")).await;
    sql.batch(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', '1', 'T', to_json(i) from generate_series(1, 3) i",
    )
    .await;
    let topic = Topics::new(&brokers(), "heldrows").create("events", 1).await;
    let name = unique("heldrows");
    let config = pipeline(&name, &database.url(), "public.outbox", &topic.name, &brokers());
    let printed = postrider_ok(&config, &["setup", "--print-sql"]);
    assert!(printed.contains("-- Not streamed") && printed.contains("3 rows"), "{printed}");
    let text = postrider_ok(&config, &["setup"]);
    assert!(text.contains("not streamed   3 rows of \"public\".\"outbox\""), "{text}");
    assert!(text.contains("--undo --yes") && text.contains("--backfill all"), "{text}");
    // As it says: from now on it is refused.
    let (code, refused) = said(&postrider(&config, &["setup", "--backfill", "all"]));
    assert!(code == Some(3) && refused.contains("has begun already"), "{refused}");
    let again = postrider_ok(&config, &["setup"]);
    assert!(!again.contains("not streamed"), "said when the slot is made: {again}");
    postrider_ok(&config, &["setup", "--undo", "--yes"]);
    postrider_ok(&config, &["setup", "--backfill", "all"]);
    let relay = Relay::spawn(&config);
    topic.await_records(3, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let none = database.connect().await;
    none.batch("truncate outbox").await;
    postrider_ok(&config, &["setup", "--undo", "--yes"]);
    let text = postrider_ok(&config, &["setup"]);
    assert!(!text.contains("not streamed"), "{text}");
}
