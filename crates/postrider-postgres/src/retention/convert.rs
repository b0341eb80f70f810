//! Turns a plain outbox into a partitioned one while applications write to it: the statements, one after the other.
//!
//! No row is copied. The table becomes the first partition of a new table with its name; a validated CHECK proves its
//! bound, so the exchange reads no rows, and holds its lock for some milliseconds. Every step before the exchange can
//! be undone.

use super::root::Width;
use crate::names::{TableName, fitted, ident, literal};
use pg_replication::error::{ServerReport, SourceError, SqlState};
use std::fmt::Write as _;
use tokio_postgres::Client;

/// Ids that are left for the old table, so that no insert is refused before the exchange.
const NUMBERS_AHEAD: u64 = 10_000_000;

/// What the conversion is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConversionRequest {
    /// The outbox.
    pub table: TableName,
    /// The column of the event's id.
    pub id: String,
    /// The column of the event's time.
    pub time: Option<String>,
    /// How wide partitions are: a number partitions by the id, a unit of time by the time.
    pub width: Width,
}

/// A step of a conversion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConversionStep {
    /// What it does, in a sentence.
    pub what: String,
    /// Its statement. The last step is several statements in one transaction.
    pub sql: String,
    /// The statement that undoes it; `None` for the exchange.
    pub undo: Option<String>,
    /// It has been done already.
    pub is_done: bool,
}

/// The steps of a conversion, in order, and what it changes for applications.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConversionPlan {
    /// What stops working, and what changes: sentences.
    pub changes: Vec<String>,
    /// The steps.
    pub steps: Vec<ConversionStep>,
}

/// Why a table is not converted: a sentence, and what fixes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The reason.
    pub why: String,
    /// What fixes it.
    pub hint: String,
}

/// An index of the table that is not its primary key.
struct Index {
    name: String,
    is_unique: bool,
    /// What follows the name of the table.
    definition: String,
    has_key: bool,
}

/// The table as the catalog has it.
struct Shape {
    oid: u32,
    owner: String,
    key: String,
    key_is_number: bool,
    is_nullable: bool,
    /// `a`: generated always as identity, `d`: by default; empty without one.
    identity: String,
    /// The sequence that a default of the id takes its numbers from.
    sequence: Option<String>,
    /// The constraint of the primary key, and whether the key of the partitions is in it.
    primary: Option<(String, bool)>,
    indexes: Vec<Index>,
    publications: Vec<String>,
    grants: Vec<String>,
    /// The first bound, and the one after it.
    bounds: (String, String),
}

/// Makes the plan.
///
/// # Errors
/// An error of the server or of the connection; 42P01 if the table does not exist.
pub async fn plan_conversion(
    client: &Client,
    request: &ConversionRequest,
) -> Result<Result<ConversionPlan, Refused>, SourceError> {
    let by_time = !matches!(request.width, Width::Numbers(_));
    let key = if by_time { request.time.clone() } else { Some(request.id.clone()) };
    let Some(key) = key else {
        return Ok(Err(Refused {
            why: format!("{} has no time column", request.table),
            hint:
                "name it: [pipelines.NAME.outbox.columns] time = \"created_at\"; or partition by \
                   numbers: --by 1000000"
                    .to_owned(),
        }));
    };
    if let Some(refused) = obstacle(client, request).await? {
        return Ok(Err(refused));
    }
    let shape = Shape::read(client, request, &key).await?;
    if let Some(refused) = shape.unfit(request, by_time) {
        return Ok(Err(refused));
    }
    Ok(Ok(shape.plan(client, request, by_time).await?))
}

/// What depends on the table in a way that the exchange would break.
async fn obstacle(
    client: &Client,
    request: &ConversionRequest,
) -> Result<Option<Refused>, SourceError> {
    let table = &request.table;
    let failed = |e| SourceError::control(format!("read what depends on {table}"), e);
    let sql = "\
SELECT c.relkind::text, c.relpersistence::text, \
  (SELECT string_agg(conrelid::regclass::text, ', ') FROM pg_constraint WHERE confrelid = c.oid), \
  (SELECT string_agg(DISTINCT v.oid::regclass::text, ', ') FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid \
     JOIN pg_class AS v ON v.oid = r.ev_class WHERE d.classid = 'pg_rewrite'::regclass \
     AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND v.oid <> c.oid), \
  (SELECT string_agg(tgname, ', ') FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal), \
  c.relrowsecurity OR c.relhasrules OR EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)), \
  EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attacl IS NOT NULL), \
  EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = c.oid AND (prqual IS NOT NULL OR prattrs IS NOT NULL)) \
FROM pg_class AS c WHERE c.oid = to_regclass($1)";
    let row = client.query_opt(sql, &[&table.to_string()]).await.map_err(failed)?;
    let Some(row) = row else { return Err(missing(table)) };
    let text = |at: usize| row.try_get::<_, Option<String>>(at).map_err(failed);
    let yes = |at: usize| row.try_get::<_, bool>(at).map_err(failed);
    let refused = |why: String, hint: &str| Ok(Some(Refused { why, hint: hint.to_owned() }));
    if text(0)?.as_deref() == Some("p") {
        return refused(
            format!("{table} is partitioned already"),
            "set retention.partitions and retention.action",
        );
    }
    if text(0)?.as_deref() != Some("r") || text(1)?.as_deref() != Some("p") {
        return refused(
            format!("{table} is not an ordinary table"),
            "only ordinary tables are converted",
        );
    }
    if let Some(others) = text(2)? {
        return refused(
            format!("foreign keys of {others} reference {table}"),
            "drop the foreign keys: a reference to a partitioned table needs a unique key with the partition key",
        );
    }
    if let Some(views) = text(3)? {
        return refused(
            format!("the views {views} read {table}, and would go on reading the old table alone"),
            "drop the views, and create them again after the conversion",
        );
    }
    if let Some(triggers) = text(4)? {
        return refused(
            format!("{table} has the triggers {triggers}"),
            "drop them, and create them on the new table after the conversion",
        );
    }
    if yes(5)? {
        return refused(
            format!("{table} has row security, rules, or inherits"),
            "convert it by hand, by the statements of docs/operations/retention.md",
        );
    }
    if yes(6)? {
        return refused(
            format!("rights were granted on single columns of {table}"),
            "grant them on the table, and revoke those on columns",
        );
    }
    if yes(7)? {
        return refused(
            format!("a publication has a row filter or a column list for {table}"),
            "remove the filter or the list from the publication",
        );
    }
    Ok(None)
}

fn missing(table: &TableName) -> SourceError {
    let report = ServerReport {
        severity: "ERROR".to_owned(),
        sqlstate: SqlState::UNDEFINED_TABLE,
        message: format!("table {table} does not exist"),
        detail: None,
        hint: None,
        constraint: None,
        associated_lsn: None,
    };
    SourceError::server(format!("read table {table}"), report)
}

impl Shape {
    async fn read(
        client: &Client,
        request: &ConversionRequest,
        key: &str,
    ) -> Result<Self, SourceError> {
        let table = &request.table;
        let failed = |e| SourceError::control(format!("read the definition of {table}"), e);
        let sql = "\
SELECT c.oid, pg_get_userbyid(c.relowner)::text, k.atttypid IN (20, 21, 23), NOT k.attnotnull, i.attidentity::text, \
  pg_get_serial_sequence($1, i.attname), p.conname::text, k.attnum = ANY (p.conkey), \
  ARRAY(SELECT u.pubname::text FROM pg_publication_rel AS r JOIN pg_publication AS u ON u.oid = r.prpubid \
    WHERE r.prrelid = c.oid ORDER BY 1), \
  ARRAY(SELECT format('%s ON TABLE {new} TO %s%s', a.privilege_type, \
      CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, \
      CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) \
    FROM aclexplode(c.relacl) AS a WHERE a.grantee <> c.relowner ORDER BY 1) \
FROM pg_class AS c JOIN pg_attribute AS k ON k.attrelid = c.oid AND k.attname = $2 \
JOIN pg_attribute AS i ON i.attrelid = c.oid AND i.attname = $3 \
LEFT JOIN pg_constraint AS p ON p.conrelid = c.oid AND p.contype = 'p' WHERE c.oid = to_regclass($1)";
        let sql = sql.replace("{new}", &table.to_string().replace('%', "%%"));
        let row = client.query_opt(&sql, &[&table.to_string(), &key, &request.id]).await;
        let row = row.map_err(failed)?.ok_or_else(|| missing(table))?;
        let primary: Option<String> = row.try_get(6).map_err(failed)?;
        let oid = row.try_get(0).map_err(failed)?;
        let bounds = Self::bounds(client, request, key).await?;
        Ok(Self {
            oid,
            owner: row.try_get(1).map_err(failed)?,
            key: key.to_owned(),
            key_is_number: row.try_get(2).map_err(failed)?,
            is_nullable: row.try_get(3).map_err(failed)?,
            identity: row.try_get(4).map_err(failed)?,
            sequence: row.try_get(5).map_err(failed)?,
            primary: primary.zip(row.try_get::<_, Option<bool>>(7).map_err(failed)?),
            publications: row.try_get(8).map_err(failed)?,
            grants: row.try_get(9).map_err(failed)?,
            indexes: Self::indexes(client, table, oid, key).await?,
            bounds,
        })
    }

    /// The indexes beside the primary key.
    async fn indexes(
        client: &Client,
        table: &TableName,
        oid: u32,
        key: &str,
    ) -> Result<Vec<Index>, SourceError> {
        let failed = |e| SourceError::control(format!("read the indexes of {table}"), e);
        let sql = "SELECT c.relname::text, i.indisunique, substring(pg_get_indexdef(c.oid) FROM ' USING .*$'), \
                     EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = i.indrelid AND a.attname = $2 \
                       AND a.attnum = ANY (i.indkey)) \
                   FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid \
                   WHERE i.indrelid = $1 AND NOT i.indisprimary AND i.indisvalid ORDER BY 1";
        let rows = client.query(sql, &[&oid, &key]).await.map_err(failed)?;
        let index = |row: &tokio_postgres::Row| -> Result<Index, tokio_postgres::Error> {
            Ok(Index {
                name: row.try_get(0)?,
                is_unique: row.try_get(1)?,
                definition: row.try_get(2)?,
                has_key: row.try_get(3)?,
            })
        };
        rows.iter().map(index).collect::<Result<_, _>>().map_err(failed)
    }

    /// The bound between the old table and the first new partition, and the end of that one.
    async fn bounds(
        client: &Client,
        request: &ConversionRequest,
        key: &str,
    ) -> Result<(String, String), SourceError> {
        let table = &request.table;
        let failed = |e| SourceError::control(format!("read the bounds of {table}"), e);
        // A bound that an earlier run has set stays.
        let name = check_name(table);
        let sql = "SELECT substring(pg_get_constraintdef(oid) FROM '< (.*?)\\)+( NOT VALID)?$') FROM pg_constraint \
                   WHERE conrelid = to_regclass($1) AND conname = $2";
        let set = client.query_opt(sql, &[&table.to_string(), &name]).await.map_err(failed)?;
        let set: Option<String> =
            set.map(|row| row.try_get(0)).transpose().map_err(failed)?.flatten();
        let set = set.map(|text| {
            text.split("::").next().unwrap_or_default().trim_matches(['\'', '(', ')']).to_owned()
        });
        let sql = match request.width {
            Width::Numbers(numbers) => {
                let cut = set.map_or_else(
                    || {
                        format!(
                            "(SELECT (floor((coalesce(max({key}), 0) + {NUMBERS_AHEAD})::numeric / {numbers}) + 1) \
                             * {numbers} \
                             FROM {table})",
                            key = ident(key)
                        )
                    },
                    |set| format!("{}::numeric", literal(&set)),
                );
                format!("SELECT cut::text, (cut + {numbers})::text FROM (SELECT {cut} AS cut) AS c")
            }
            Width::Hour | Width::Day | Width::Week | Width::Month | Width::Year => {
                let unit = request.width.to_string();
                let cut = set.map_or_else(
                    || format!("date_trunc('{unit}', now()) + interval '2 {unit}'"),
                    |set| format!("{}::timestamptz", literal(&set)),
                );
                format!(
                    "SELECT cut::text, (cut + interval '1 {unit}')::text FROM (SELECT {cut} AS cut) AS c"
                )
            }
        };
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        Ok((row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?))
    }

    fn unfit(&self, request: &ConversionRequest, by_time: bool) -> Option<Refused> {
        let (table, key) = (&request.table, ident(&self.key));
        if !by_time && !self.key_is_number {
            return Some(Refused {
                why: format!("column {key} of {table} is not a whole number"),
                hint: "partition by time: --by month".to_owned(),
            });
        }
        if self.is_nullable {
            return Some(Refused {
                why: format!("column {key} of {table} may be NULL"),
                hint: format!("ALTER TABLE {table} ALTER COLUMN {key} SET NOT NULL;"),
            });
        }
        let unique = self.indexes.iter().find(|index| index.is_unique && !index.has_key);
        unique.map(|index| Refused {
            why: format!("the unique index {} does not contain {key}", ident(&index.name)),
            hint: format!("DROP INDEX {}.{};", ident(&table.schema), ident(&index.name)),
        })
    }

    async fn plan(
        &self,
        client: &Client,
        request: &ConversionRequest,
        by_time: bool,
    ) -> Result<ConversionPlan, SourceError> {
        let table = &request.table;
        let failed = |e| SourceError::control(format!("read the constraints of {table}"), e);
        let check = check_name(table);
        let sql = "SELECT convalidated FROM pg_constraint WHERE conrelid = $1 AND conname = $2";
        let row = client.query_opt(sql, &[&self.oid, &check]).await.map_err(failed)?;
        let validated: Option<bool> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?;
        let (key, cut) = (ident(&self.key), literal(&self.bounds.0));
        let constraint = ident(&check);
        let drop_check = format!("ALTER TABLE {table} DROP CONSTRAINT {constraint};");
        let mut steps = vec![
            ConversionStep {
                what: format!(
                    "Sets the bound of the old table: rows from {} on are refused until the exchange",
                    self.bounds.0
                ),
                sql: format!(
                    "ALTER TABLE {table} ADD CONSTRAINT {constraint} CHECK ({key} < {cut}) NOT VALID;"
                ),
                undo: Some(drop_check.clone()),
                is_done: validated.is_some(),
            },
            ConversionStep {
                what: "Reads all rows, so that the exchange reads none. Nobody waits for it"
                    .to_owned(),
                sql: format!("ALTER TABLE {table} VALIDATE CONSTRAINT {constraint};"),
                undo: Some(drop_check),
                is_done: validated == Some(true),
            },
        ];
        let unique = unique_name(table);
        if by_time {
            let exists = self.indexes.iter().any(|index| index.name == unique);
            let index = ident(&unique);
            steps.push(ConversionStep {
                what:
                    "Builds the unique index of the new table for the old one. Nobody waits for it"
                        .to_owned(),
                sql: format!(
                    "CREATE UNIQUE INDEX CONCURRENTLY {index} ON {table} ({}, {key});",
                    ident(&request.id)
                ),
                undo: Some(format!(
                    "DROP INDEX CONCURRENTLY IF EXISTS {}.{index};",
                    ident(&table.schema)
                )),
                is_done: exists,
            });
        }
        steps.push(ConversionStep {
            what: "Exchanges the tables: the old one becomes the first partition. Writers wait for some milliseconds"
                .to_owned(),
            sql: self.exchange_sql(request, by_time),
            undo: None,
            is_done: false,
        });
        Ok(ConversionPlan { changes: self.changes(request, by_time), steps })
    }

    fn changes(&self, request: &ConversionRequest, by_time: bool) -> Vec<String> {
        let (id, key) = (ident(&request.id), ident(&self.key));
        let mut changes = vec![format!(
            "until the exchange, rows with {key} from {} on are refused (23514)",
            self.bounds.0
        )];
        if by_time {
            changes.push(format!(
                "{id} is unique within a partition only, and INSERT ... ON CONFLICT ({id}) fails (42P10)"
            ));
        }
        if !self.identity.is_empty() {
            changes.push(format!("numbers of {id} continue above the highest one"));
        }
        changes.push(
            "until the relay has published again, a repair would publish every row of the table"
                .to_owned(),
        );
        changes
    }

    /// The statements of the exchange, in one transaction.
    fn exchange_sql(&self, request: &ConversionRequest, by_time: bool) -> String {
        let table = &request.table;
        let old = TableName::new(table.schema.clone(), fitted(&table.name, "_p0"));
        let (id, key, check) = (ident(&request.id), ident(&self.key), ident(&check_name(table)));
        let mut sql = format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;\n");
        let mut line = |text: &str| {
            let _infallible = writeln!(sql, "{text}");
        };
        let highest = format!("SELECT coalesce(max({id}), 0) + 1 FROM {table}");
        if !self.identity.is_empty() {
            // The numbers that open transactions had taken are below the sequence's last value.
            let sequence = self.sequence.as_deref().unwrap_or_default();
            line(&format!(
                "SELECT set_config('postrider.first', greatest(({highest}), (SELECT last_value + 1 FROM \
                 {sequence}))::text, \
                 true);"
            ));
            line(&format!("ALTER TABLE {table} ALTER COLUMN {id} DROP IDENTITY;"));
        }
        line(&format!("ALTER TABLE {table} RENAME TO {};", ident(&old.name)));
        for name in self
            .indexes
            .iter()
            .map(|index| &index.name)
            .chain(self.primary.iter().map(|(name, _)| name))
        {
            let renamed = ident(&fitted(name, "_p0"));
            line(&format!(
                "ALTER INDEX {}.{} RENAME TO {renamed};",
                ident(&table.schema),
                ident(name)
            ));
        }
        line(&format!(
            "CREATE TABLE {table} (LIKE {old} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING \
             STORAGE INCLUDING COMPRESSION INCLUDING COMMENTS) PARTITION BY RANGE ({key});"
        ));
        line(&format!("ALTER TABLE {table} DROP CONSTRAINT {check};"));
        line(&format!("ALTER TABLE {table} OWNER TO {};", ident(&self.owner)));
        if let Some((name, true)) = &self.primary {
            line(&format!(
                "ALTER TABLE {table} ADD CONSTRAINT {} PRIMARY KEY ({id});",
                ident(name)
            ));
        }
        for index in &self.indexes {
            let unique = if index.is_unique { "UNIQUE " } else { "" };
            let name = ident(&index.name);
            line(&format!("CREATE {unique}INDEX {name} ON {table}{};", index.definition));
        }
        if by_time && !self.indexes.iter().any(|index| index.name == unique_name(table)) {
            // Planned before the index of the old table was built.
            let name = ident(&unique_name(table));
            let renamed = ident(&fitted(&unique_name(table), "_p0"));
            line(&format!("ALTER INDEX {}.{name} RENAME TO {renamed};", ident(&table.schema)));
            line(&format!("CREATE UNIQUE INDEX {name} ON {table} ({id}, {key});"));
        }
        let (cut, next) = (literal(&self.bounds.0), literal(&self.bounds.1));
        line(&format!(
            "ALTER TABLE {table} ATTACH PARTITION {old} FOR VALUES FROM (MINVALUE) TO ({cut});"
        ));
        let first = TableName::new(table.schema.clone(), fitted(&table.name, "_p1"));
        line(&format!(
            "CREATE TABLE {first} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING \
             STORAGE INCLUDING COMPRESSION);"
        ));
        line(&format!("ALTER TABLE {first} OWNER TO {};", ident(&self.owner)));
        line(&format!(
            "ALTER TABLE {table} ATTACH PARTITION {first} FOR VALUES FROM ({cut}) TO ({next});"
        ));
        self.after_exchange(request, &old, &mut line);
        sql
    }

    /// Numbers, rights, publications, and what Postrider knows of the table.
    fn after_exchange(
        &self,
        request: &ConversionRequest,
        old: &TableName,
        line: &mut dyn FnMut(&str),
    ) {
        let table = &request.table;
        let id = ident(&request.id);
        if self.identity.is_empty() {
            if let Some(sequence) = &self.sequence {
                line(&format!("ALTER SEQUENCE {sequence} OWNED BY {table}.{id};"));
            }
        } else {
            let kind = if self.identity == "a" { "ALWAYS" } else { "BY DEFAULT" };
            line(&format!(
                "DO $$ BEGIN EXECUTE format({}, current_setting('postrider.first')); END $$;",
                literal(&format!(
                    "ALTER TABLE {} ALTER COLUMN {} ADD GENERATED {kind} AS IDENTITY (START WITH %s)",
                    table.to_string().replace('%', "%%"),
                    id.replace('%', "%%")
                ))
            ));
        }
        for grant in &self.grants {
            line(&format!("GRANT {grant};"));
        }
        for publication in &self.publications {
            let name = ident(publication);
            line(&format!("ALTER PUBLICATION {name} ADD TABLE {table};"));
            line(&format!("ALTER PUBLICATION {name} DROP TABLE {old};"));
            line(&format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"));
        }
        line(&format!("ALTER TABLE {old} DROP CONSTRAINT {};", ident(&check_name(table))));
        // No row was left out, because no transaction that wrote to the old table was open: the snapshot of published
        // transactions begins again, and the position stays.
        line(&format!(
            "UPDATE postrider.cursor SET of_table_oid = {new}::regclass::oid, resolved_snapshot = NULL, \
             pending_snapshot = NULL, pending_lsn = NULL WHERE of_table_oid = {oid};",
            new = literal(&table.to_string()),
            oid = self.oid
        ));
    }
}

fn check_name(table: &TableName) -> String {
    fitted(&table.name, "_below")
}

fn unique_name(table: &TableName) -> String {
    fitted(&table.name, "_unique")
}
