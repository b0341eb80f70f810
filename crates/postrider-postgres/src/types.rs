//! What a column's type is beneath its domains.
//!
//! Only reads. What a type means for a value is `outbox`'s to say.

use super::error::SourceError;
use tokio_postgres::Client;

/// A type, and where it is a domain, the type beneath all domains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeFacts {
    /// Its OID.
    pub oid: u32,
    /// The OID of the type beneath; its own where it is no domain.
    pub base_oid: u32,
    /// The modifier of a column of that type, and of a domain that of the innermost one; -1 for none.
    pub base_modifier: i32,
    /// The type beneath is not built in, and is a kind of text (`citext`).
    pub is_text: bool,
}

/// What [`read`] does, for errors.
pub const LOOK_UP: &str = "look up the types of the outbox table's columns";

/// The types of these OIDs, without those that there are not.
///
/// # Errors
/// What the server says.
pub async fn read(client: &Client, oids: &[u32]) -> Result<Vec<TypeFacts>, SourceError> {
    let failed = |e| SourceError::control(LOOK_UP, e);
    let sql = format!(
        "SELECT a.atttypid, base.oid, base.modifier, {IS_TEXT_SQL} \
         FROM (SELECT t.oid AS atttypid, -1 AS atttypmod FROM pg_catalog.pg_type t WHERE t.oid = ANY ($1)) AS a \
         {BASE_TYPE_SQL} JOIN pg_catalog.pg_type t ON t.oid = base.oid"
    );
    let rows = client.query(&sql, &[&oids]).await.map_err(failed)?;
    let facts = |row: &tokio_postgres::Row| {
        Ok(TypeFacts {
            oid: row.try_get(0)?,
            base_oid: row.try_get(1)?,
            base_modifier: row.try_get(2)?,
            is_text: row.try_get(3)?,
        })
    };
    rows.iter().map(|row| facts(row).map_err(failed)).collect()
}

/// Whether type `t` is not built in, and a kind of text.
pub const IS_TEXT_SQL: &str =
    "(t.typcategory = 'S' AND t.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace)";

/// Joins `base` to an attribute `a`: OID and modifier of its type, and where that is a domain, of the type beneath all
/// domains. The modifier is that of the innermost domain then (`getBaseTypeAndTypmod`).
pub const BASE_TYPE_SQL: &str = "\
CROSS JOIN LATERAL (WITH RECURSIVE r (oid, modifier, depth) AS (\
    SELECT a.atttypid, a.atttypmod, 0 \
    UNION ALL SELECT d.typbasetype, d.typtypmod, r.depth + 1 \
      FROM r JOIN pg_catalog.pg_type d ON d.oid = r.oid WHERE d.typtype = 'd') \
  SELECT r.oid, r.modifier FROM r ORDER BY r.depth DESC LIMIT 1) AS base ";
