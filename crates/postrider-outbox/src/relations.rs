//! What the stream has said of tables: which relation is the outbox, and where its columns are now.
//!
//! Columns are found by name on each Relation message, never by position: a row is decoded with the catalog of its
//! time.

use super::error::{MapError, Unfit};
use super::layout::Role;
use super::route::{Field, Route};
use super::span::Source;
use super::spec::{TableName, TimestampSource};
use super::types::{ColumnType, Resolved, Types};
use pg_replication::pgoutput::Relation;
use std::collections::BTreeMap;

/// Where the outbox's fields are in the rows of one relation.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many columns a row has.
    pub(super) width: usize,
    /// By field.
    pub(super) sources: Vec<Source>,
}

/// The relations described since the connection began, by id; `None` for those that are not the outbox.
///
/// As many as the publication has tables: one, where `setup` made it.
#[derive(Debug, Default)]
pub(super) struct Relations(BTreeMap<u32, Option<Plan>>);

impl Relations {
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// The plan for rows of `relation_id`; `None` where they are not ours.
    pub(super) fn plan(&self, relation_id: u32) -> Result<Option<&Plan>, MapError> {
        let what = "the server never described that relation";
        let known = self.0.get(&relation_id).ok_or(MapError::OutOfStep { relation_id, what })?;
        Ok(known.as_ref())
    }

    /// Takes note of a relation's shape.
    pub(super) fn describe(
        &mut self,
        relation: &Relation<'_>,
        table: Option<&TableName>,
        table_oid: Option<u32>,
        route: &Route,
        types: &Types,
    ) -> Result<(), MapError> {
        // First of all: a row must never be read with the shape from before one that does not fit.
        self.0.remove(&relation.id);
        let ours = table.filter(|table| is_ours(relation, table, table_oid));
        let plan = ours.map(|table| plan(relation, table, route, types).map_err(MapError::Unfit));
        self.0.insert(relation.id, plan.transpose()?);
        Ok(())
    }
}

/// The protocol writes no schema for `pg_catalog`; an outbox is never there.
pub(super) fn is_ours(relation: &Relation<'_>, table: &TableName, table_oid: Option<u32>) -> bool {
    table_oid == Some(relation.id)
        || (table.schema == relation.schema && table.name == relation.name)
}

/// Types of the columns of our table that the catalog is to be asked for.
pub(super) fn unknown_types(relation: &Relation<'_>, route: &Route, types: &Types) -> Vec<u32> {
    let columns = relation.columns.iter();
    let asked = columns.filter(|column| route.fields.iter().any(|f| f.column == column.name));
    let mut oids: Vec<u32> = asked.map(|column| column.type_oid).collect();
    oids.retain(|oid| types.unknown(*oid));
    oids.sort_unstable();
    oids.dedup();
    oids
}

/// The columns of the table, as the catalog has it, whose types can't play their roles. Those that it lacks are
/// somebody else's to miss.
pub(super) fn unfit_types(
    table: &TableName,
    columns: &[ColumnType<'_>],
    route: &Route,
) -> Vec<Unfit> {
    let mut unfit = Vec::new();
    for field in &route.fields {
        let Some(column) = columns.iter().find(|column| column.name == field.column) else {
            continue;
        };
        let resolved = Resolved::of_column(column);
        if let Some(role) = field.role.filter(|role| !fits(*role, resolved, route)) {
            let (column, is) = (field.column.clone(), Some(column.type_name.to_owned()));
            unfit.push(Unfit::Type { table: table.clone(), column, role, is });
        }
    }
    unfit
}

fn plan(
    relation: &Relation<'_>,
    table: &TableName,
    route: &Route,
    types: &Types,
) -> Result<Plan, Unfit> {
    let mut missing = Vec::new();
    let mut sources = Vec::with_capacity(route.fields.len());
    for field in &route.fields {
        let mut columns = relation.columns.iter().enumerate();
        let Some((index, column)) = columns.find(|(_, column)| column.name == field.column) else {
            if !field.may_lack {
                missing.push((field.column.clone(), key_of(field)));
            }
            sources.push(Source::default());
            continue;
        };
        let resolved = types.resolve(column.type_oid, column.type_modifier);
        if let Some(role) = field.role.filter(|role| !fits(*role, resolved, route)) {
            let column = field.column.clone();
            return Err(Unfit::Type { table: table.clone(), column, role, is: None });
        }
        let decides = matches!(field.role, Some(Role::AvailableAt | Role::ExpiresAt));
        if let Some(role) = field.role.filter(|_| decides && resolved.kind.lacks_zone())
            && route.zone.is_none()
        {
            let column = field.column.clone();
            return Err(Unfit::NoZone { table: table.clone(), column, role });
        }
        sources.push(Source { column: Some(index), kind: resolved.kind });
    }
    if missing.is_empty() {
        Ok(Plan { width: relation.columns.len(), sources })
    } else {
        Err(Unfit::Missing { table: table.clone(), columns: missing })
    }
}

/// The configuration's key that names another column, or none, or elsewhere.
fn key_of(field: &Field) -> String {
    match field.role {
        Some(role) => format!("outbox.columns.{role}"),
        None => format!("outbox.extra.{}", field.column),
    }
}

fn fits(role: Role, of: Resolved, route: &Route) -> bool {
    match role {
        Role::Time => route.timestamp != TimestampSource::Event || of.can_be_time(),
        Role::AvailableAt | Role::ExpiresAt => of.can_be_time(),
        Role::Headers => of.can_be_object(),
        Role::Id
        | Role::AggregateType
        | Role::AggregateId
        | Role::EventType
        | Role::Payload
        | Role::Topic
        | Role::PartitionKey
        | Role::Trace => true,
    }
}
