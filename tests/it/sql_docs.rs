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

/// What there is when the statements of the inbox page have run.
const AFTER_THE_INBOX_PAGE: [(&str, &str); 10] = [
    // The effect of a record that came twice, and was repaired; that of a failed message was rolled back.
    ("select string_agg(order_id || ' ' || event_id, ', ') from public.invoice", "42 1"),
    (
        "select string_agg(consumer || ' ' || right(position, 1), ', ' order by consumer)
         from postrider.inbox_position",
        "billing 0, mail 0, search 1",
    ),
    (
        "select string_agg(consumer || ' ' || message_id, ', ' order by consumer, message_id)
         from postrider.inbox_seen_undated",
        "billing 68F1A2B3/1, billing 68F1A2B3/2, billing msg-2, mail 68F1A2B3/9",
    ),
    ("select count(*) || ' of ' || count(distinct event_id) from public.sent", "3 of 3"),
    ("select count(processed_at) || ' of ' || count(*) from postrider_inbox.mail", "4 of 4"),
    (
        "select string_agg(event_id || ' ' || coalesce(error, 'waits'), ', ' order by event_id)
         from postrider_inbox.payment",
        "p-1 skipped: account closed, p-2 waits",
    ),
    (
        "select string_agg(aggregate_id || ' ' || last_seq, ', ' order by aggregate_id)
         from postrider.inbox_order",
        "item/1 3, item/2 1",
    ),
    ("select count(*) from public.webhook where attempts = 0 and processed_at is null", "2"),
    ("select string_agg(name, ' ' order by name) from postrider.inbox", "mail payment stock"),
    ("select coalesce(to_regclass('postrider_inbox.job')::text, 'dropped')", "dropped"),
];

/// Effects happen once, and stored messages are processed, in a database that has nothing but the toolkit.
#[tokio::test]
async fn the_statements_of_the_inbox_page_run_and_do_what_they_say() {
    for version in Version::ALL {
        let database = Database::create(version, "sql_docs_inbox").await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        for block in blocks::of("docs/sql/inbox.md") {
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
        for (query, expected) in AFTER_THE_INBOX_PAGE {
            let found = sql.text(query).await;
            assert_eq!(found.as_deref(), Some(expected), "{query} on {}", version.major());
        }
    }
}

/// The changes of a table are captured as the page says, in a database that has nothing but the toolkit.
#[tokio::test]
async fn the_statements_of_the_table_outbox_page_run_and_do_what_they_say() {
    for version in Version::ALL {
        let database = Database::create(version, "sql_docs_table").await;
        let sql = database.connect().await;
        install_toolkit(&sql, "postgres").await;
        for block in blocks::of("docs/sql/table-outbox.md") {
            if block.language == "sql" {
                let result = sql.simple_query(&block.text).await;
                result.unwrap_or_else(|error| panic!("{}: {error:?}", block.place));
            } else {
                assert_eq!(block.language, "toml", "{}", block.place);
            }
        }
        let left = "select string_agg(id || event_type || is_claim_check || (unread_since is null), ' ' order by id) \
                    from postrider_outbox.outbox_orders";
        assert_eq!(sql.text(left).await.as_deref(), Some("3INSERTtruetrue"));
        assert_eq!(sql.text("select count(*)::text from orders_copy").await.as_deref(), Some("1"));
    }
}

/// The page has a row for each function for users, and every function of its rows exists.
#[tokio::test]
async fn the_table_outbox_page_lists_the_functions_for_users() {
    let page = include_str!("../../docs/sql/table-outbox.md");
    let text = include_str!("../../sql/toolkit/functions/table_outbox.sql");
    let inner = [
        "outbox_get",
        "outbox_object",
        "outbox_triggers",
        "outbox_source",
        "outbox_tables",
        "outbox_ways",
        "outbox_cover",
        "outbox_unfit",
        "outbox_other_triggers",
        "outbox_function",
        "outbox_owned",
        "outbox_check_columns",
        "outbox_create",
    ];
    let known: Vec<&str> = defined_in(text).collect();
    for name in &known {
        assert_ne!(page.contains(&format!("| `{name}(")), inner.contains(name), "{name}");
    }
    for name in rows_of(page) {
        assert!(known.contains(&name), "{name}");
    }
}

/// The functions that a file of the toolkit defines.
fn defined_in(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        line.strip_prefix("CREATE OR REPLACE FUNCTION postrider.")?.split('(').next()
    })
}

/// The functions that have a row of their own on a page.
fn rows_of(page: &str) -> impl Iterator<Item = &str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('('));
    let names = rows.map(|(name, _)| name);
    names.filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
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
    for name in defined_in(text) {
        let listed = page.contains(&format!("| `{name}("));
        assert_ne!(listed, inner.contains(&name), "{name}");
    }
    for name in rows_of(page) {
        let exists = format!("select count(*) from pg_proc where proname = '{name}'");
        assert!(world.number(&exists).await > 0, "{name}");
    }
}

/// The page of the inbox has a row for each function for users, and its last table names each of the others; every
/// function of both exists.
#[tokio::test]
async fn the_inbox_page_names_the_functions_that_there_are() {
    let database = Database::create(Version::Pg15, "sql_docs_inbox_names").await;
    let sql = database.connect().await;
    install_toolkit(&sql, "postgres").await;
    let page = include_str!("../../docs/sql/inbox.md");
    let (users, others) = page.rsplit_once("\n\nThese are for the functions above").expect("both");
    // The names in the first column.
    let cells: String = others.lines().filter_map(|line| line.split(" | ").next()).collect();
    let inner: Vec<&str> = cells.split('`').skip(1).step_by(2).collect();
    let files = [
        include_str!("../../sql/toolkit/functions/inbox.sql"),
        include_str!("../../sql/toolkit/functions/inbox_store.sql"),
    ];
    for name in files.into_iter().flat_map(defined_in) {
        let listed = users.contains(&format!("| `{name}("));
        assert_ne!(listed, inner.contains(&name), "{name} is in one of the two tables");
    }
    for name in rows_of(users).chain(inner.iter().copied()) {
        let exists = format!(
            "select count(*) from pg_proc
             where pronamespace = 'postrider'::regnamespace and proname = '{name}'"
        );
        assert_ne!(sql.text(&exists).await.as_deref(), Some("0"), "{name}");
    }
}
