//! Arguments, names, rights, and a hostile path.

use super::{GroupDatabase, commit_text, number, poll, refused};
use crate::server::{Client, Version};

/// Calls with an argument out of bounds; LONG is a name of 201 bytes.
const OUT_OF_BOUNDS: &[&str] = &[
    "poll_outbox(null, 'a')",
    "poll_outbox('', 'a')",
    "poll_outbox('g', null)",
    "poll_outbox('g', '')",
    "poll_outbox('g', 'LONG')",
    "poll_outbox('g', 'a', 0)",
    "poll_outbox('g', 'a', -1)",
    "poll_outbox('g', 'a', 10001)",
    "poll_outbox('g', 'a', null)",
    "poll_outbox('g', 'a', 10, 0)",
    "poll_outbox('g', 'a', 10, 86401)",
    "poll_outbox('g', 'a', 10, null)",
    "commit_offset(null, 'a', 1, 1)",
    "commit_offset('g', null, 1, 1)",
    "commit_offset('g', 'a', null, 1)",
    "commit_offset('g', 'a', -1, 1)",
    "commit_offset('g', 'a', 1, null)",
    "commit_offset('g', 'a', 1, 0)",
    "commit_offset('g', 'a', null)",
    "commit_offset('g', 'a', -5)",
    "commit_offset(null, 'a', 1)",
    "extend_lease('g', 'a', 0)",
    "extend_lease('g', 'a', 86401)",
    "extend_lease('g', 'a', null)",
    "extend_lease('g', null)",
    "extend_lease(null, 'a')",
    "release_lease(null, 'a')",
    "release_lease('g', null)",
    "seek_offset('g', 'a', null)",
    "seek_offset('g', 'a', -1)",
    "seek_offset(null, 'a', 0)",
    "consumer_heartbeat('g', null)",
    "consumer_heartbeat(null, 'a')",
    "consumer_heartbeat('g', 'LONG')",
    "create_consumer_group(null, 'orders')",
    "create_consumer_group('', 'orders')",
    "create_consumer_group('LONG', 'orders')",
    "create_consumer_group('h', null)",
    "create_consumer_group('h', 'orders', 'soon')",
    "create_consumer_group('h', 'orders', null)",
    "create_consumer_group('h', 'orders', 'latest', 0)",
    "drop_consumer_group(null)",
    "evict_consumer_group(null)",
    "reap_consumers(null)",
    "reap_consumers('10 seconds')",
    "reap_consumers('-1 day')",
    "sweep_states(0)",
    "sweep_states(null)",
    "sweep_states(1, 0)",
];

#[tokio::test]
async fn arguments_out_of_bounds_are_refused_with_a_hint() {
    let world = GroupDatabase::create(Version::Pg15, "group_args").await;
    world.append(5, 1).await;
    world.group("g").await;
    let long = "x".repeat(201);
    for call in OUT_OF_BOUNDS {
        let statement = format!("select * from postrider.{}", call.replace("LONG", &long));
        assert_eq!(refused(&world.sql, &statement).await, "22023", "{call}");
    }
    for (call, code) in [
        ("poll_outbox('nobody', 'a')", "PR112"),
        ("create_consumer_group('h', 'nothing')", "PR110"),
        ("create_consumer_group('g', 'orders')", "PR111"),
        ("extend_lease('g', 'a')", "PR114"),
        ("commit_offset('g', 'a', 1, 1)", "PR114"),
    ] {
        let statement = format!("select * from postrider.{call}");
        assert_eq!(refused(&world.sql, &statement).await, code, "{call}");
    }
    let again =
        "select postrider.create_consumer_group('g', 'orders', p_if_not_exists => true)::int";
    assert_eq!(world.number(again).await, 0);
    // A group of this name that reads another log is not what was asked for.
    world.sql.batch("select postrider.create_log('other')").await;
    let other = "select postrider.create_consumer_group('g', 'other', p_if_not_exists => true)";
    assert_eq!(refused(&world.sql, other).await, "PR111");
    // Nothing of all this has changed anything.
    assert_eq!(world.drain("g", "a").await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn names_may_have_quotes_other_scripts_and_200_bytes() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "group_names").await;
        let names = [
            r#"it''s "quoted"; drop table x --"#.to_owned(),
            "x".repeat(63),
            "y".repeat(200),
            "Gruppe für Ärger".to_owned(),
            "グループ".repeat(16),
            "%I %s $1 \\".to_owned(),
        ];
        for (i, name) in names.iter().enumerate() {
            // The log has a name of the same kind.
            let log = name.replace('グ', "ロ");
            world.sql.batch(&format!("select postrider.create_log('{log}', 4)")).await;
            world
                .sql
                .batch(&format!(
                    "select postrider.create_consumer_group('{name}', '{log}', 'earliest');
                     create table public.outbox_{i} (like public.outbox including all);
                     insert into outbox_{i} (aggregate_type, aggregate_id, event_type)
                        select 'order', i::text, 'x' from generate_series(1, 20) i;
                     select postrider.log_feed('{log}', 'public.outbox_{i}')"
                ))
                .await;
            assert_eq!(world.lag(name).await, 20, "{name}");
            let polled = world.poll(name, name, 15).await;
            world.commit(name, name, &polled).await;
            assert_eq!(world.lag(name).await, 20 - 15);
            world.sql.batch(&format!("select postrider.seek_offset('{name}', '{name}', 0)")).await;
            assert_eq!(world.drain(name, name).await.len(), 20);
            world.sql.batch(&format!("select postrider.drop_consumer_group('{name}')")).await;
        }
    }
}

/// The rights that the head of 0002_consumer_groups.sql lists, and none else.
const RIGHTS: &str = "
    grant usage on schema postrider, postrider_log to {reader}, {worker}, {admin};
    grant execute on all functions in schema postrider to {reader}, {worker}, {admin};
    grant select on all tables in schema postrider to {reader}, {worker}, {admin};
    grant select on postrider_log.log_orders to {reader}, {worker}, {admin};
    grant insert on postrider.consumer_group_state, postrider.consumer_seen to {worker}, {admin};
    grant update (part) on postrider.consumer_group_partition, postrider.consumer_group_state to {worker}, {admin};
    grant usage on sequence postrider.lease_token to {worker}, {admin};
    grant insert, update, delete on postrider.consumer_group, postrider.consumer_group_partition,
        postrider.consumer_group_state, postrider.consumer_seen to {admin}";

/// What every kind of role may see.
const LOOKS: &[&str] = &[
    "select count(*) from postrider.consumer_lag('g')",
    "select count(*) from postrider.consumer_group_lag",
    "select count(*) from postrider.consumer_offsets",
    "select count(*) from postrider.consumer",
    "select count(*) from postrider.log_read('orders', 0)",
];

/// What neither a reader nor a worker may do.
const ONLY_ADMINISTRATORS: &[&str] = &[
    "create_consumer_group('h', 'orders')",
    "seek_offset('g', null, 0)",
    "drop_consumer_group('g')",
    "evict_consumer_group('g')",
    "sweep_states(1)",
];

#[tokio::test]
async fn reader_worker_and_administrator_need_what_is_listed_and_can_do_no_more() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = GroupDatabase::create(version, "group_rights").await;
        world.append(100, 10).await;
        world.group("g").await;
        let role = |kind: &str| format!("{}_{kind}", world.database.name);
        let (reader, worker, admin) = (role("r"), role("w"), role("a"));
        let rights = RIGHTS
            .replace("{reader}", &reader)
            .replace("{worker}", &worker)
            .replace("{admin}", &admin);
        world
            .sql
            .batch(&format!(
                "create role {reader}; create role {worker}; create role {admin}; {rights}"
            ))
            .await;
        let as_role = async |role: &str| -> Client {
            let sql = world.connect().await;
            sql.batch(&format!("set role {role}")).await;
            sql
        };
        let refused_all = async |sql: &Client, calls: &[&str]| {
            for call in calls {
                let statement = format!("select * from postrider.{call}");
                assert_eq!(refused(sql, &statement).await, "42501", "{call}");
            }
        };
        let sql = as_role(&reader).await;
        for look in LOOKS {
            number(&sql, look).await;
        }
        refused_all(&sql, &["poll_outbox('g', 'a')", "consumer_heartbeat('g', 'a')"]).await;
        refused_all(&sql, ONLY_ADMINISTRATORS).await;

        let sql = as_role(&worker).await;
        for look in LOOKS {
            number(&sql, look).await;
        }
        for level in ["read committed", "repeatable read"] {
            sql.batch(&format!("begin isolation level {level}")).await;
            let polled = poll(&sql, "g", "a", 10, 30).await;
            sql.batch(&format!("select postrider.extend_lease('g', 'a', 60, {})", polled.lease))
                .await;
            sql.batch(&commit_text("g", "a", polled.end(), polled.lease)).await;
            poll(&sql, "g", "a", 10, 30).await;
            sql.batch("select postrider.release_lease('g', 'a'); commit").await;
        }
        refused_all(&sql, ONLY_ADMINISTRATORS).await;

        let sql = as_role(&admin).await;
        for call in [
            "create_consumer_group('h', 'orders', 'earliest')",
            "seek_offset('g', null, 0)",
            "evict_consumer_group('h')",
            "reap_consumers()",
            "drop_consumer_group('h')",
        ] {
            sql.batch(&format!("select * from postrider.{call}")).await;
        }
        let drop = format!(
            "drop owned by {reader}, {worker}, {admin}; drop role {reader}, {worker}, {admin}"
        );
        world.sql.batch(&drop).await;
    }
}

/// Operators, functions and tables that a caller finds first by its path change nothing.
#[tokio::test]
async fn a_hostile_path_is_not_followed() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "group_path").await;
        world.append(40, 10).await;
        world.group("g").await;
        world
            .sql
            .batch(
                "create schema bad;
                 create function bad.yes(bigint, bigint) returns boolean language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create operator bad.> (function = bad.yes, leftarg = bigint, rightarg = bigint);
                 create operator bad.<= (function = bad.yes, leftarg = bigint, rightarg = bigint);
                 create function bad.clock_timestamp() returns timestamptz language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create function bad.count(bigint) returns bigint language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create function bad.unnest(bigint[]) returns setof bigint language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create temporary table consumer_group (name text);
                 create temporary table log_orders (seq bigint);
                 set search_path = bad, pg_temp, pg_catalog, postrider",
            )
            .await;
        let hijacked = world.sql.simple_query("select 1::bigint > 2::bigint").await;
        assert!(hijacked.is_err(), "the path of this test works");
        let polled = world.poll("g", "a", 15).await;
        world.commit("g", "a", &polled).await;
        world.sql.batch("select * from postrider.consumer_lag('g')").await;
        world.sql.batch("select * from postrider.consumer_group_lag").await;
        world.sql.batch("select * from postrider.consumer_offsets").await;
        world.sql.batch("select postrider.seek_offset('g', null, 7)").await;
        world.sql.batch("select postrider.sweep_states(1)").await;
        world.sql.batch("select * from postrider.groups_hold('orders')").await;
        world.sql.batch("select postrider.release_lease('g', 'a')").await;
        world.sql.batch("select postrider.create_consumer_group('h', 'orders', 'earliest')").await;
        world.sql.batch("reset search_path").await;
        assert_eq!((world.lag("g").await, world.lag("h").await), (33, 40));
    }
}
