//! The findings about retention: rights, what blocks it, and what autovacuum has to do after it.

use crate::error::Chain;
use crate::finding::Finding;
use crate::pipeline::PipelineSpec;
use crate::postgres::SourceError;
use crate::postgres::control::Control;
use crate::postgres::retention::{
    Hold, PartitionedRoot, RetentionAction, RetentionRule, RetentionTable,
};
use tokio_postgres::Client;

/// `application_name` of the session.
const APPLICATION_NAME: &str = "postrider check";

/// Makes the session read-only, in addition to the settings of every control session.
const READ_ONLY: &str = "SET default_transaction_read_only = on; SET lock_timeout = '2s'";

/// With more rows, autovacuum's default of one row in five is late.
const ROWS_FOR_VACUUM: f32 = 1_000_000.0;

/// With more rows, partitions are removed in less time than rows.
const ROWS_FOR_PARTITIONS: f32 = 50_000_000.0;

/// Checks the retention of a pipeline with its own login, whose rights are in question.
pub(super) async fn check(spec: &PipelineSpec, findings: &mut Vec<Finding>) {
    let Some(rule) = &spec.maintenance.retention else { return };
    // The reason why a session cannot be opened is a finding already.
    let Ok(control) = Control::connect(&spec.conninfo, APPLICATION_NAME).await else { return };
    match found(rule, control.client()).await {
        Ok(found) if found.is_empty() => findings.push(Finding::ok(
            "retention",
            format!("nothing blocks retention of {}", rule.table.table),
        )),
        Ok(mut found) => findings.append(&mut found),
        Err(error) => findings.push(
            Finding::warning("retention_unread", Chain(&error).to_string())
                .why("it is not known whether old rows of the outbox can be removed"),
        ),
    }
}

async fn found(rule: &RetentionRule, client: &Client) -> Result<Vec<Finding>, SourceError> {
    let failed = |e| SourceError::control("read the size of the outbox", e);
    client.batch_execute(READ_ONLY).await.map_err(failed)?;
    let mut findings = Vec::new();
    for line in rule.missing_rights(client).await? {
        findings.push(
            Finding::warning(
                "retention_rights",
                "the relay's role lacks a right that retention needs",
            )
            .why("no row is removed; publishing is not affected")
            .sql(line),
        );
    }
    let table = RetentionTable::read(client, rule.clone()).await?;
    let mut holds = table.horizon(client).await?.holds;
    if let Err(hold) = table.archive(client).await? {
        holds.push(hold);
    }
    let keep = rule.settings.keep.unwrap_or_default();
    let zone = rule.table.zone.as_ref();
    let root = PartitionedRoot::read(client, table.name(), zone, keep).await?;
    match (&root, rule.settings.action) {
        (Some(root), RetentionAction::Archive | RetentionAction::Drop) => {
            let default = root.default_partition();
            holds.extend(default.map(|child| Hold::DefaultPartition(child.name.to_string())));
        }
        (None, RetentionAction::Drop) => holds.push(Hold::NotPartitioned),
        (None, RetentionAction::Archive) | (_, RetentionAction::Delete) => {}
    }
    findings.extend(holds.iter().map(of_hold));
    if root.is_none() {
        findings.extend(of_size(rule, client).await?);
    }
    Ok(findings)
}

fn of_hold(hold: &Hold) -> Finding {
    let finding = Finding::warning("retention_blocked", hold.to_string());
    match hold.hint() {
        Some(hint) => finding.why(hint),
        None => finding.why("it ends without an action; no row is removed meanwhile"),
    }
}

/// What a table of this size needs whose rows are deleted.
async fn of_size(rule: &RetentionRule, client: &Client) -> Result<Vec<Finding>, SourceError> {
    let failed = |e| SourceError::control("read the size of the outbox", e);
    let table = &rule.table.table;
    let sql = "SELECT c.reltuples, coalesce(array_to_string(c.reloptions, ' '), '') FROM pg_catalog.pg_class AS c \
               WHERE c.oid = pg_catalog.to_regclass($1)";
    let Some(row) = client.query_opt(sql, &[&table.to_string()]).await.map_err(failed)? else {
        return Ok(Vec::new());
    };
    let (rows, options): (f32, String) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    let mut findings = Vec::new();
    if rows >= ROWS_FOR_VACUUM && !options.contains("autovacuum_vacuum_scale_factor") {
        findings.push(
            Finding::warning("retention_vacuum", format!("{table} has the default of autovacuum"))
                .why(
                    "autovacuum begins when a fifth of the rows is deleted: until then the table grows by the rows \
                     that \
                     are inserted meanwhile",
                )
                .sql(format!("ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02);")),
        );
    }
    if rows >= ROWS_FOR_PARTITIONS {
        findings.push(
            Finding::info("retention_partitions", format!("{table} has about {rows:.0} rows"))
                .why("a partitioned table is archived or dropped by partitions, in milliseconds: postrider partition"),
        );
    }
    Ok(findings)
}
