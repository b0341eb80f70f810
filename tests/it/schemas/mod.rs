//! Schemas: records of each format read back by programs that share no code with Postrider, and a registry that is
//! away, refuses schemas, asks for a login or has TLS.

mod formats;
mod paths;
mod proxy;
mod registry;

use crate::pipeline::Pipeline;
use crate::private::PrivateRegistry;
use crate::server::{Version, brokers};

/// A pipeline with a registry.
async fn pipeline(registry: &PrivateRegistry, test: &str, format: &str, more: &str) -> Pipeline {
    with_url(&registry.url(), test, format, more).await
}

/// A pipeline with a registry at a URL. `format`: lines of table `format`; `more`: of its table `registry`.
async fn with_url(url: &str, test: &str, format: &str, more: &str) -> Pipeline {
    let tables = format!("[.format]\n{format}\n[.format.registry]\nurl = \"{url}\"\n{more}\n");
    Pipeline::in_database(Version::Pg17, &brokers(), test, "postrider", &tables).await
}

/// Inserts an event.
async fn insert(pipeline: &Pipeline, aggregate: &str, event_type: &str, payload: Option<&str>) {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let payload = payload.map_or_else(|| "null".to_owned(), quoted);
    let sql = format!(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         values ('order', {}, {}, {payload})",
        quoted(aggregate),
        quoted(event_type)
    );
    pipeline.sql.batch(&sql).await;
}

/// Bytes as the programs read them.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
