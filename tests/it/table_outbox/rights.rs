//! Whose rights the triggers need, who gets them, and as whom they run.

use super::{ORDERS, TableDatabase};
use crate::groups::refused;
use crate::server::{Version, unique};

/// A role of a test, which is dropped at its end.
struct WriterRole {
    name: String,
}

impl WriterRole {
    async fn new(world: &TableDatabase, name: &str) -> Self {
        let name = unique(name);
        world.sql.batch(&format!("create role {name}")).await;
        Self { name }
    }

    /// Runs a statement as the role. The SQLSTATE, if it fails.
    async fn run(&self, world: &TableDatabase, statement: &str) -> Result<(), String> {
        world.sql.batch(&format!("set role {}", self.name)).await;
        let answer = world.sql.simple_query(statement).await;
        world.sql.batch("rollback; reset role").await;
        answer.map(drop).map_err(|error| error.code().expect("a SQLSTATE").code().to_owned())
    }

    async fn gone(self, world: &TableDatabase) {
        world.sql.batch(&format!("drop owned by {0} cascade; drop role {0}", self.name)).await;
    }
}

/// A right on a table, a view or a parent table, and a statement that it allows; `{}` is the role.
const WAYS: [(&str, &str); 10] = [
    ("grant insert, select on orders to {}", "insert into orders values (1, 1)"),
    ("grant insert (id) on orders to {}", "insert into orders (id) values (2)"),
    ("grant update (note), select on orders to {}", "update orders set note = 'x' where id = 1"),
    ("grant delete, select on orders to {}", "delete from orders where id = 2"),
    ("grant insert on newest to {}", "insert into newest values (3, 'view')"),
    ("grant insert on fax to {}", "insert into fax values (4)"),
    ("grant update, select on customer to {}", "update customer set id = 10 where id = 1"),
    ("grant delete, select on customer to {}", "delete from customer where id = 10"),
    (
        "grant pg_write_all_data to {}",
        "insert into orders select i from generate_series(1000, 3000) i",
    ),
    ("grant truncate on orders to {}", "truncate orders"),
];

/// Every way to write the table that does not need rights on the table itself is one too.
#[tokio::test]
async fn roles_that_write_in_any_way_get_the_rights_that_the_triggers_need() {
    for version in Version::ALL {
        let world = TableDatabase::create(version, "tbl_ways").await;
        world
            .sql
            .batch(
                "create table customer (id int primary key); \
                 create table orders (id int primary key, customer int references customer on delete cascade \
                   on update cascade, note text); \
                 create view recent as select id, note from orders; \
                 create view newest as select * from recent where id > 0; \
                 create table fax (id int); \
                 create rule fax as on insert to fax do also insert into orders values (new.id); \
                 insert into customer values (1), (2)",
            )
            .await;
        let mut roles = Vec::new();
        for (grant, statement) in WAYS {
            let role = WriterRole::new(&world, "way").await;
            world.sql.batch(&grant.replace("{}", &role.name)).await;
            roles.push((role, statement));
        }
        let stranger = WriterRole::new(&world, "stranger").await;
        world.sql.batch("select postrider.enable_outbox('orders')").await;
        assert_eq!(world.status("orders", "writers_without_rights").await, "[]");
        for (role, statement) in &roles {
            let before = world.events("outbox_orders").await.len();
            assert_eq!(
                role.run(&world, statement).await,
                Ok(()),
                "{statement} on {}",
                version.major()
            );
            assert_eq!(world.events("outbox_orders").await.len(), before + 1, "{statement}");
            // The events of others are not for a role that writes.
            let read = role.run(&world, "select payload from postrider_outbox.outbox_orders").await;
            assert_eq!(read, Err("42501".to_owned()), "{statement}");
        }
        for statement in [
            "select id from postrider_outbox.outbox_orders",
            "insert into postrider_outbox.outbox_orders (event_type, payload, inserted_count, deleted_count) \
             values ('x', '1', 0, 0)",
            "insert into postrider_outbox.outbox_delta_rows_orders values (1, 1, 'I', '1')",
            "select postrider_outbox.outbox_fn_orders()",
        ] {
            assert_eq!(
                stranger.run(&world, statement).await,
                Err("42501".to_owned()),
                "{statement}"
            );
        }
        stranger.gone(&world).await;
        for (role, _) in roles {
            role.gone(&world).await;
        }
    }
}

#[tokio::test]
async fn a_writer_that_is_added_later_is_named_before_it_fails_and_a_refresh_gives_it_the_rights() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = TableDatabase::with_orders(version, "tbl_later", "").await;
        let late = WriterRole::new(&world, "late").await;
        world.sql.batch(&format!("grant insert on orders to {}", late.name)).await;
        assert_eq!(
            world.status("orders", "writers_without_rights").await,
            format!("[\"{}\"]", late.name)
        );
        let insert = "insert into orders values (1)";
        assert_eq!(late.run(&world, insert).await, Err("42501".to_owned()));
        assert_eq!(world.number("select postrider.outbox_refresh('orders')").await, 0);
        assert_eq!(world.status("orders", "writers_without_rights").await, "[]");
        assert_eq!(late.run(&world, insert).await, Ok(()));
        assert_eq!(world.lines("outbox_orders").await, ["INSERT +1 -0"]);
        late.gone(&world).await;
    }
}

/// A DBA has closed the schema: nothing is enabled that would stop writers.
#[tokio::test]
async fn an_outbox_that_would_stop_writers_is_not_enabled_and_they_are_named() {
    let world = TableDatabase::create(Version::Pg17, "tbl_stops").await;
    let writer = WriterRole::new(&world, "writer").await;
    world
        .sql
        .batch(&format!(
            "{ORDERS}; grant insert on orders to {}; revoke usage on schema postrider_outbox from public",
            writer.name
        ))
        .await;
    let error = world.sql.simple_query("select postrider.enable_outbox('orders')").await;
    let error = error.expect_err("refused");
    assert_eq!(error.code().expect("a SQLSTATE").code(), "42501");
    let message = error.as_db_error().expect("the server's").message();
    assert!(message.contains(&writer.name), "{message}");
    assert_eq!(writer.run(&world, "insert into orders values (1)").await, Ok(()));
    assert_eq!(world.number("select count(*) from postrider.table_outbox").await, 0);
    world.sql.batch("grant usage on schema postrider_outbox to public").await;
    world.sql.batch("select postrider.enable_outbox('orders')").await;
    assert_eq!(writer.run(&world, "insert into orders values (2)").await, Ok(()));
    writer.gone(&world).await;
}

/// A type's cast to json is code of the owner of the type. The owner of the outbox is a superuser here.
#[tokio::test]
async fn a_cast_to_json_runs_as_the_role_that_writes() {
    for version in Version::ALL {
        let world = TableDatabase::create(version, "tbl_cast").await;
        let writer = WriterRole::new(&world, "writer").await;
        world
            .sql
            .batch(&format!(
                "create table ran (by name); grant insert on ran to public; \
                 create type mood as enum ('fine'); \
                 create function mood_json(mood) returns json language plpgsql as $$ begin \
                   insert into public.ran values (current_user); return '\"cast\"'; end $$; \
                 create cast (mood as json) with function mood_json(mood); \
                 create table diary (id int, mood mood); grant insert on diary to {}; \
                 select postrider.enable_outbox('diary')",
                writer.name
            ))
            .await;
        assert_eq!(writer.run(&world, "insert into diary values (1, 'fine')").await, Ok(()));
        assert_eq!(
            world.sql.text("select string_agg(by, ' ') from ran").await.as_deref(),
            Some(writer.name.as_str()),
            "{}",
            version.major()
        );
        assert_eq!(world.events("outbox_diary").await[0].document["inserted"][0]["mood"], "cast");
        let definer = "select count(*) from pg_proc where pronamespace in ('postrider'::regnamespace, \
            'postrider_outbox'::regnamespace) and prosecdef";
        assert_eq!(world.number(definer).await, 0);
        writer.gone(&world).await;
    }
}

#[tokio::test]
async fn only_a_role_with_the_rights_of_the_tables_owner_enables_refreshes_and_disables() {
    let world = TableDatabase::create(Version::Pg16, "tbl_owner").await;
    let (admin, owner) =
        (WriterRole::new(&world, "admin").await, WriterRole::new(&world, "owner").await);
    let rights = include_str!("../../../sql/toolkit/roles/administrator.sql");
    world.sql.batch(&rights.replace(":\"role\"", &admin.name)).await;
    world
        .sql
        .batch(&format!(
            "{ORDERS}; alter table orders owner to {}; create table other (id int)",
            owner.name
        ))
        .await;
    let denied = Err("42501".to_owned());
    let enable = "select postrider.enable_outbox('public.orders')";
    assert_eq!(admin.run(&world, enable).await, denied);
    assert_eq!(owner.run(&world, enable).await, denied, "it may not call the function");
    world.sql.batch(&format!("grant {} to {}", owner.name, admin.name)).await;
    assert_eq!(admin.run(&world, enable).await, Ok(()));
    assert_eq!(owner.run(&world, "insert into orders values (1)").await, Ok(()));
    assert_eq!(admin.run(&world, "select postrider.outbox_status('orders')").await, Ok(()));
    assert_eq!(admin.run(&world, "select postrider.outbox_refresh('orders')").await, Ok(()));
    world.sql.batch(&format!("revoke {} from {}", owner.name, admin.name)).await;
    for call in ["outbox_refresh('orders')", "disable_outbox('orders', p_discard => true)"] {
        assert_eq!(admin.run(&world, &format!("select postrider.{call}")).await, denied, "{call}");
    }
    world.sql.batch(&format!("grant {} to {}", owner.name, admin.name)).await;
    let disable = "select postrider.disable_outbox('orders', p_discard => true)";
    assert_eq!(admin.run(&world, disable).await, Ok(()));
    assert_eq!(refused(&world.sql, "select postrider.outbox_status('orders')").await, "PR131");
    admin.gone(&world).await;
    owner.gone(&world).await;
}
