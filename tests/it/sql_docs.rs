//! The pages of docs/sql: their statements run in the order of the page, in a database with the toolkit, and do what
//! the page says.

use crate::docs_commands::blocks;
use crate::groups::GroupDatabase;
use crate::server::{Database, Version};
use crate::toolkit::install_toolkit;

/// What the page takes for granted beside the log `orders`: a log of references, and the tables of that example.
const DOCUMENTS: &str = "
    create table document_outbox (id bigint primary key, payload json);
    insert into document_outbox select i, json_build_object('text', 'words of ' || i) from generate_series(1, 40) i;
    create table search_document (id text, words tsvector);
    select postrider.create_log('documents', 4, 1000, 'reference');
    insert into postrider_log.log_documents (seq, part, event_id, event_type, aggregate_id)
        select i, i % 4, i::text, 'Changed', i::text from generate_series(1, 40) i;
    select postrider.log_move('documents', 0, 40, array[40, 37, 38, 39], array[10, 10, 10, 10]);";

#[tokio::test]
async fn the_statements_of_the_groups_page_run_and_do_what_they_say() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "sql_docs").await;
        world.append(150, 15).await;
        world.sql.batch(DOCUMENTS).await;
        let mut lags = Vec::new();
        for block in blocks::of("docs/sql/groups.md") {
            if block.language == "sql" {
                let result = world.sql.simple_query(&block.text).await;
                result.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
                lags.push(world.lag("billing").await);
            } else {
                assert!(matches!(block.language.as_str(), "text" | "sh"), "{}", block.place);
            }
        }
        // Created, a batch of 100, looks, a seek to the beginning, another group.
        assert_eq!(lags, [150, 50, 50, 150, 150]);
        assert_eq!(world.number("select count(*) from invoice").await, 100);
        assert_eq!(
            world.number("select count(*) from search_document where words is not null").await,
            20
        );
        assert_eq!(world.lag("search").await, 20);
    }
}

/// The log of the page's examples is fed and read, in a database that has nothing but the toolkit.
#[tokio::test]
async fn the_statements_of_the_log_page_run_and_do_what_they_say() {
    for version in Version::ALL {
        let database = Database::create(version, "sql_docs_log").await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        for block in blocks::of("docs/sql/log.md") {
            if block.language == "sql" {
                let result = sql.simple_query(&block.text).await;
                result.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
            } else {
                assert!(
                    matches!(block.language.as_str(), "text" | "sh" | "toml"),
                    "{}",
                    block.place
                );
            }
        }
        let read = "select count(*) || ' ' || (select last_seq from public.report_offset) from public.report";
        assert_eq!(sql.text(read).await.as_deref(), Some("2 2"));
        let all =
            "select string_agg(event_type, ' ' order by seq) from postrider.log_read('shop', 0)";
        assert_eq!(sql.text(all).await.as_deref(), Some("OrderPlaced OrderPaid OrderPlaced"));
    }
}

/// Every function of the page exists, and every function for users is on the page.
#[tokio::test]
async fn the_page_lists_the_functions_that_there_are() {
    let world = GroupDatabase::create(Version::Pg15, "sql_docs_names").await;
    let page = include_str!("../../docs/sql/groups.md");
    let text = include_str!("../../sql/toolkit/functions/groups.sql");
    // For other functions of the toolkit, and for Postrider.
    let inner = [
        "check_name",
        "check_number",
        "check_read_committed",
        "no_group",
        "lease_over",
        "group_state",
        "part_state",
        "group_append",
        "group_lock",
        "state_closed",
        "log_gap",
        "lease_lost",
        "group_done_to",
        "groups_hold",
    ];
    let defined = text.lines().filter_map(|line| {
        line.strip_prefix("CREATE OR REPLACE FUNCTION postrider.")?.split('(').next()
    });
    for name in defined {
        let listed = page.contains(&format!("| `{name}("));
        assert_ne!(listed, inner.contains(&name), "{name}");
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('('));
    for (name, _) in
        rows.filter(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    {
        let exists = format!("select count(*) from pg_proc where proname = '{name}'");
        assert!(world.number(&exists).await > 0, "{name}");
    }
}
