//! The trigger that wakes a polling relay (`setup --notify`), and what takes it away.

use crate::names::{TableName, ident};
use crate::poll::CHANNEL;

/// The trigger's name.
pub const TRIGGER: &str = "postrider_notify";

/// Makes function and trigger, or makes them again. A statement that inserts pays for one notification, and its commit
/// holds the lock that orders notifications (one for the whole cluster) for the moment it takes to queue it.
pub fn notify_sql(table: &TableName) -> String {
    format!(
        "{}\nCREATE OR REPLACE TRIGGER {} AFTER INSERT ON {table}\n    \
         FOR EACH STATEMENT EXECUTE FUNCTION postrider.notify_outbox();",
        notify_function_sql(),
        ident(TRIGGER),
    )
}

/// The function alone. It runs with the rights of who inserts.
pub(crate) fn notify_function_sql() -> String {
    format!(
        "CREATE OR REPLACE FUNCTION postrider.notify_outbox() RETURNS trigger\n    \
         LANGUAGE plpgsql SET search_path = '' AS $$\n\
         BEGIN\n    \
           PERFORM pg_catalog.pg_notify('{CHANNEL}', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME);\n    \
           RETURN NULL;\n\
         END $$;"
    )
}

/// Takes the trigger off. The function stays while other tables use it; it goes with schema `postrider`.
pub fn notify_undo_sql(table: &TableName) -> String {
    format!("DROP TRIGGER IF EXISTS {} ON {table};", ident(TRIGGER))
}
