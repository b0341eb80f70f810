//! The relay's role against an administrator: whoever owned schema `postrider`, or could add objects to it, has planted
//! code there. Nothing of it runs with an administrator's rights; it is named, and the printed lines remove it.

use crate::answers::answer;
use crate::await_that::SOON;
use crate::halted::run_to_halt;
use crate::managed::Managed;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::{Client, Version};

/// Code that the relay's role planted.
struct Planted {
    /// What is planted, as the relay's role. `{probe}` is the function that notes who runs it.
    plant: &'static str,
    /// What an administrator could do on the tables, and would run it; none where a superuser never would.
    touch: Option<&'static str>,
    /// What every command calls it.
    name: &'static str,
    /// What restores the tables after the printed lines.
    restore: &'static str,
}

const PLANTED: &[Planted] = &[
    Planted {
        plant: "create trigger evil before insert or update or delete on postrider.cursor \
                for each row execute function postrider.evil_trigger()",
        touch: Some("update postrider.cursor set updated_at = now()"),
        name: "trigger evil on postrider.cursor",
        restore: "",
    },
    Planted {
        plant: "create trigger \"an evil;one\" after insert on postrider.migration \
                for each statement execute function postrider.evil_trigger()",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "trigger \"an evil;one\" on postrider.migration",
        restore: "",
    },
    Planted {
        plant: "create rule evil as on insert to postrider.migration do also select postrider.evil()",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "rule evil on postrider.migration",
        restore: "",
    },
    Planted {
        plant: "alter table postrider.migration rename to kept; \
                create view postrider.migration as select * from postrider.kept where postrider.evil()",
        touch: Some("select max(number) from postrider.migration"),
        name: "view postrider.migration",
        restore: "alter table public.kept rename to migration; alter table public.migration set schema postrider",
    },
    Planted {
        plant: "create function postrider.notify_outbox(integer) returns boolean language sql \
                as 'select postrider.evil()'",
        touch: Some("select postrider.notify_outbox(1)"),
        name: "function postrider.notify_outbox(integer)",
        restore: "",
    },
    Planted {
        plant: "create operator postrider.= (leftarg = text, rightarg = text, function = postrider.evil_equal)",
        touch: Some("select 'a'::text operator(postrider.=) 'b'::text"),
        name: "operator postrider.=(",
        restore: "",
    },
    Planted {
        plant: "alter table postrider.migration alter name set default postrider.evil()::text",
        touch: Some("insert into postrider.migration (number) values (99)"),
        name: "default value for postrider.migration.name",
        restore: "",
    },
    Planted {
        plant: "alter table postrider.migration add constraint evil check (postrider.evil())",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "table constraint evil on postrider.migration",
        restore: "",
    },
    // The same by functions of PostgreSQL alone.
    Planted {
        plant: "alter table postrider.migration add constraint evil \
                check (query_to_xml('select postrider.evil()', true, false, '') is not null)",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "table constraint evil on postrider.migration",
        restore: "",
    },
    Planted {
        plant: "create domain postrider.evil_text as text check (postrider.evil()); \
                alter table postrider.migration alter name type postrider.evil_text",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "type postrider.evil_text",
        restore: "",
    },
    Planted {
        plant: "create index evil on postrider.migration (postrider.evil_number(number))",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "index postrider.evil",
        restore: "",
    },
    Planted {
        plant: "create index evil on postrider.migration (number) where postrider.evil_number(number) > 0",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "index postrider.evil",
        restore: "",
    },
    Planted {
        plant: "alter table postrider.migration add evil integer \
                generated always as (postrider.evil_number(number)) stored",
        touch: Some("insert into postrider.migration (number, name) values (99, 'x')"),
        name: "table column postrider.migration.evil",
        restore: "",
    },
    // A superuser passes by; an administrator who is none does not.
    Planted {
        plant: "create policy evil on postrider.migration using (postrider.evil()); \
                alter table postrider.migration enable row level security; \
                alter table postrider.migration force row level security",
        touch: None,
        name: "policy evil on postrider.migration",
        restore: "",
    },
    Planted {
        plant: "create table postrider.child () inherits (postrider.cursor); \
                insert into postrider.child select * from postrider.cursor; \
                create trigger evil before update on postrider.child \
                for each row execute function postrider.evil_trigger()",
        touch: Some("update postrider.cursor set updated_at = now()"),
        name: "table postrider.child",
        restore: "drop table public.child",
    },
    Planted {
        plant: "create table postrider.referring (pipeline text, shard integer, \
                  foreign key (pipeline, shard) references postrider.cursor on delete cascade); \
                insert into postrider.referring select pipeline, shard from postrider.cursor; \
                create trigger evil after delete on postrider.referring \
                for each row execute function postrider.evil_trigger()",
        touch: Some("delete from postrider.cursor"),
        name: "table constraint referring_pipeline_shard_fkey on postrider.referring",
        restore: "drop table public.referring",
    },
];

/// The functions behind all of them. `nextval` is not undone by a rollback.
const PROBE: &str = "\
create function postrider.evil() returns boolean language plpgsql as $$ begin \
  if (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then \
    perform pg_catalog.nextval('public.ran'); end if; return true; end $$; \
create function postrider.evil_trigger() returns trigger language plpgsql as $$ begin \
  perform postrider.evil(); if tg_op = 'DELETE' then return old; end if; return new; end $$; \
create function postrider.evil_equal(text, text) returns boolean language sql as 'select postrider.evil()'; \
create function postrider.evil_number(integer) returns integer language plpgsql immutable as $$ begin \
  perform postrider.evil(); return 1; end $$";

const OWN_TABLES: [&str; 8] =
    ["migration", "cursor", "parked", "repair", "repair_page", "bookmark", "replay", "pause"];

/// What `setup` of the version before this one left: the relay's role owns schema and tables.
async fn owned_by(sql: &Client, role: &str) {
    sql.batch(&format!("alter schema postrider owner to {role}")).await;
    for table in OWN_TABLES {
        sql.batch(&format!("alter table postrider.{table} owner to {role}")).await;
    }
    sql.batch("delete from postrider.migration where number > 5").await;
}

async fn ran(sql: &Client) -> bool {
    sql.text("select is_called::text from public.ran").await.as_deref() == Some("true")
}

/// The owner of the schema and of everything in it.
async fn owners(sql: &Client) -> Option<String> {
    sql.text(
        "select string_agg(distinct r.rolname, ' ') from pg_roles r \
         where r.oid in (select nspowner from pg_namespace where nspname = 'postrider' \
           union select relowner from pg_class where relnamespace = 'postrider'::regnamespace \
           union select proowner from pg_proc where pronamespace = 'postrider'::regnamespace)",
    )
    .await
}

/// The statements that a text prints to remove objects.
fn removals(text: &str) -> Vec<String> {
    let begins = ["DROP ", "ALTER TABLE "];
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = begins.iter().filter_map(|word| rest.find(word)).min() {
        let (_, from) = rest.split_at(at);
        // A name may hold a semicolon.
        let mut is_quoted = false;
        let end = from.find(|c| {
            is_quoted ^= c == '"';
            c == ';' && !is_quoted
        });
        let (statement, after) = from.split_at(end.expect("a statement") + 1);
        found.push(statement.replace('\n', " "));
        rest = after;
    }
    found
}

#[tokio::test]
async fn nothing_that_was_planted_runs_as_the_administrator_and_each_is_named() {
    for version in [Version::Pg15, Version::Pg18] {
        let hostile = Managed::new(version, "hostile", "replication", "").await;
        let (sql, relay) = (&hostile.sql, &hostile.relay);
        let database = &*hostile.database.url();
        postrider_ok(&hostile.config, &["setup", "--url", database]);
        sql.batch("create sequence public.ran; grant usage on sequence public.ran to public").await;
        owned_by(sql, relay).await;
        let owner = Client::connect(&hostile.relay_url()).await.expect("the relay's session");
        for planted in PLANTED {
            owner.batch(PROBE).await;
            owner.batch(planted.plant).await;
            let commands: [&[&str]; 4] = [
                &["setup", "--url", database],
                &["setup", "--url", database, "--print-sql"],
                &["setup", "--undo", "--yes", "--url", database],
                &["check", "--url", database],
            ];
            let mut said = String::new();
            for command in commands {
                let output = postrider(&hostile.config, command);
                said = crate::managed::said(&output).1;
                assert_ne!(output.status.code(), Some(0), "{command:?} {}: {said}", planted.name);
                assert!(said.contains(planted.name), "{command:?} {}: {said}", planted.name);
                assert!(said.contains("PR024"), "{command:?} {}: {said}", planted.name);
                assert!(!ran(sql).await, "{command:?} ran {}: {said}", planted.name);
            }
            // The relay's own login prints for an administrator, who runs it.
            let printed = postrider(&hostile.config, &["setup", "--print-sql"]);
            // It is refused its own table where that has policies.
            if printed.status.success() {
                let session = Client::connect(database).await.expect("a superuser's session");
                let printed = String::from_utf8(printed.stdout).expect("UTF-8");
                let refused = session.batch_execute(&printed).await.expect_err(planted.name);
                let state = refused.code().map(|code| code.code().to_owned());
                assert_eq!(state.as_deref(), Some("PR024"), "{}: {refused:?}", planted.name);
                assert!(!ran(sql).await, "the printed SQL ran {}", planted.name);
            }
            // It is code that would have run.
            if let Some(touch) = planted.touch {
                sql.batch(&format!("begin; {touch}; rollback")).await;
                // From 18 on a trigger that a cascade fires runs as the owner of the foreign key's table.
                let is_harmless = version == Version::Pg18 && planted.plant.contains("cascade");
                assert!(is_harmless || ran(sql).await, "{} does nothing", planted.name);
                sql.batch("select setval('public.ran', 1, false)").await;
            }
            for line in removals(&said) {
                sql.batch(&line).await;
            }
            sql.batch(planted.restore).await;
            assert!(!ran(sql).await, "the printed lines ran {}: {said}", planted.name);
        }
        // What is left is the ownership, which setup takes.
        let (code, text) =
            crate::managed::said(&postrider(&hostile.config, &["check", "--url", database]));
        assert!(code == Some(1) && text.contains("PR024"), "{text}");
        assert!(!ran(sql).await);
        let text = postrider_ok(&hostile.config, &["setup", "--url", database]);
        assert!(text.contains(&format!("from role \"{relay}\"")), "{text}");
        assert_eq!(owners(sql).await.as_deref(), Some("postgres"));
        postrider_ok(&hostile.config, &["check", "--url", database]);
        postrider_ok(&hostile.config, &["check"]);
        hostile.streams().await;
        assert!(!ran(sql).await);
        hostile.gone().await;
    }
}

/// Rights that let others add code to the tables are taken too; those on rows stay.
#[tokio::test]
async fn rights_to_add_triggers_are_revoked_and_rights_on_rows_are_kept() {
    for version in [Version::Pg15, Version::Pg18] {
        let hostile = Managed::new(version, "granted", "replication", "").await;
        let (sql, database) = (&hostile.sql, &*hostile.database.url());
        postrider_ok(&hostile.config, &["setup", "--url", database]);
        for grant in [
            "grant create on schema postrider to public",
            "grant trigger on postrider.cursor to public",
            "grant references (pipeline) on postrider.cursor to public",
        ] {
            sql.batch(grant).await;
            let text =
                crate::managed::said(&postrider(&hostile.config, &["check", "--url", database])).1;
            assert!(text.contains("PR024"), "{grant}: {text}");
            postrider_ok(&hostile.config, &["setup", "--url", database]);
            postrider_ok(&hostile.config, &["check", "--url", database]);
        }
        hostile.streams().await;
        hostile.gone().await;
    }
}

/// A database of the version before this one: a superuser's `setup` takes the schema while the relay runs.
#[tokio::test]
async fn ownership_moves_to_the_superuser_who_runs_setup_and_the_relay_goes_on() {
    for version in Version::ALL {
        let managed = Managed::new(version, "moves", "replication", "").await;
        let database = &*managed.database.url();
        postrider_ok(&managed.config, &["setup", "--url", database, "--notify"]);
        managed
            .sql
            .batch(&format!("alter function postrider.notify_outbox() owner to {}", managed.relay))
            .await;
        owned_by(&managed.sql, &managed.relay).await;
        let halted = run_to_halt(&managed.config).await;
        halted.assert_says("PR010", &["has version 5"], &["postrider setup"]);
        let text = postrider_ok(&managed.config, &["setup", "--url", database]);
        assert!(text.contains("take ownership of schema \"postrider\""), "{text}");
        assert_eq!(owners(&managed.sql).await.as_deref(), Some("postgres"));
        let rights = format!(
            "select (has_schema_privilege('{0}', 'postrider', 'usage') \
               and not has_schema_privilege('{0}', 'postrider', 'create') \
               and not has_table_privilege('{0}', 'postrider.cursor', 'trigger') \
               and has_table_privilege('{0}', 'postrider.cursor', 'select, insert, update, delete'))::text",
            managed.relay
        );
        assert_eq!(managed.sql.text(&rights).await.as_deref(), Some("true"));
        let again = postrider_ok(&managed.config, &["setup", "--url", database]);
        assert!(again.contains("nothing is missing"), "{again}");
        managed.streams().await;
        managed.gone().await;
    }
}

/// The same by an administrator with CREATEROLE who owns the database and is no superuser: with the right to grant the
/// relay's role it is lent for the moment, without it the line is printed.
#[tokio::test]
async fn ownership_moves_to_an_administrator_who_is_no_superuser() {
    for version in Version::ALL {
        let managed = Managed::new(version, "moves_admin", "replication", "").await;
        managed.sql.batch(&format!("alter table outbox owner to {}", managed.admin)).await;
        postrider_ok(&managed.config, &["setup", "--url", &managed.database.url()]);
        owned_by(&managed.sql, &managed.relay).await;
        if version.major() >= 16 {
            let (code, text) = managed.setup();
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains("could not take ownership of schema"), "{text}");
            let grant = crate::managed::line(&text, &format!("GRANT \"{}\" TO", managed.relay));
            assert!(grant.contains("WITH INHERIT TRUE"), "{text}");
            // The right to grant it, and nothing more.
            managed
                .sql
                .batch(&format!(
                    "grant {} to {} with admin true, inherit false, set false",
                    managed.relay, managed.admin
                ))
                .await;
        }
        let members = "select coalesce(string_agg(pg_catalog.to_jsonb(m)::text, ' ' order by m.member), '') \
                       from pg_auth_members m";
        let before = managed
            .sql
            .text(&format!("{members} where m.roleid = '{}'::regrole", managed.relay))
            .await;
        let (code, text) = managed.setup();
        assert!(code == Some(0) || text.contains("could not create slot"), "{text}");
        assert!(text.contains("done           take ownership of schema"), "{text}");
        let owner = owners(&managed.sql).await;
        assert_eq!(owner.as_deref(), Some(managed.admin.as_str()));
        let after = managed
            .sql
            .text(&format!("{members} where m.roleid = '{}'::regrole", managed.relay))
            .await;
        assert_eq!(before, after, "the membership was lent");
        postrider_ok(&managed.config, &["check"]);
        managed.streams().await;
        managed.gone().await;
    }
}

/// The printed SQL does the same, by whoever runs it.
#[tokio::test]
async fn ownership_moves_by_the_printed_sql() {
    for version in [Version::Pg15, Version::Pg18] {
        let managed = Managed::new(version, "moves_sql", "replication", "").await;
        let database = &*managed.database.url();
        postrider_ok(&managed.config, &["setup", "--url", database]);
        owned_by(&managed.sql, &managed.relay).await;
        for args in [&["setup", "--print-sql"][..], &["setup", "--print-sql", "--url", database]] {
            let printed = postrider_ok(&managed.config, args);
            managed.sql.batch(&printed).await;
        }
        assert_eq!(owners(&managed.sql).await.as_deref(), Some("postgres"));
        postrider_ok(&managed.config, &["check", "--url", database]);
        managed.streams().await;
        managed.gone().await;
    }
}

/// A relay whose own role set the pipeline up goes on as before, and `check` names what it means.
#[tokio::test]
async fn relay_that_owns_the_schema_runs_on_and_check_warns() {
    let managed = Managed::new(Version::Pg18, "own", "replication", "").await;
    let database = &*managed.database.url();
    postrider_ok(&managed.config, &["setup", "--url", database]);
    owned_by(&managed.sql, &managed.relay).await;
    postrider_ok(&managed.config, &["setup"]);
    assert_eq!(owners(&managed.sql).await.as_deref(), Some(managed.relay.as_str()));
    managed.streams().await;
    let text = postrider_ok(&managed.config, &["check"]);
    assert!(
        text.contains(&format!("role \"{}\" owns schema \"postrider\"", managed.relay)),
        "{text}"
    );
    managed.gone().await;
}

/// A superuser's login as the relay's is not safe in somebody else's schema either.
#[tokio::test]
async fn superuser_does_not_run_in_a_schema_of_another_role() {
    let pipeline = Pipeline::shared(Version::Pg18, "super_runs").await;
    let role = crate::server::unique("other");
    pipeline.sql.batch(&format!("create role {role} login")).await;
    pipeline.sql.batch(&format!("alter table postrider.cursor owner to {role}")).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR024", &[&role], &["postrider setup"]);
    // Its name is the run's own.
    let said = format!("PR024 {}", halted.message.replace(&role, "other"));
    assert!(said.contains("belong to role \"other\""), "{said}");
    postrider_ok(&pipeline.config, &["setup"]);
    let relay = Relay::spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
}

/// Also where nobody meant harm by it.
#[tokio::test]
async fn trigger_that_is_not_ours_is_refused_by_name_with_the_line_that_removes_it() {
    let pipeline = Pipeline::shared(Version::Pg18, "stamped").await;
    pipeline
        .sql
        .batch(
            "create function public.stamp() returns trigger language plpgsql as $$ begin return new; end $$; \
             create trigger stamp before update on postrider.cursor for each row execute function public.stamp()",
        )
        .await;
    let output = postrider(&pipeline.config, &["setup"]);
    answer("trigger in schema postrider, to an administrator who runs setup", &pipeline, &output);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for line in removals(&text) {
        pipeline.sql.batch(&line).await;
    }
    postrider_ok(&pipeline.config, &["setup"]);
}
