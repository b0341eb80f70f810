//! The tables that the stream of one connection has described.

use super::error::{CaptureError, CaptureFault};
use super::shapes::{ShapeFacts, Shapes};
use super::spec::CaptureSpec;
use super::streamed_table::StreamedTable;
use pg_replication::pgoutput::Relation;
use std::collections::HashMap;
use std::sync::Arc;

/// The tables of one connection, by OID.
#[derive(Debug)]
pub(super) struct Relations {
    /// The OIDs that the captured tables have now. Rows carry this OID also if the table had another name when they
    /// were committed.
    oids: Vec<Option<u32>>,
    /// A table without a description here is not captured.
    described: HashMap<u32, Option<Arc<StreamedTable>>>,
    shapes: Shapes,
    /// Types that the last description needs and that must be looked up.
    unknown_types: Vec<u32>,
}

impl Relations {
    pub(super) fn new(oids: Vec<Option<u32>>) -> Self {
        Self {
            oids,
            described: HashMap::new(),
            shapes: Shapes::default(),
            unknown_types: Vec::new(),
        }
    }

    /// Takes the description of a table; `false` if types must be looked up first.
    pub(super) fn describe(&mut self, relation: &Relation<'_>, spec: &CaptureSpec) -> bool {
        let Self { oids, described, shapes, unknown_types } = self;
        unknown_types.clear();
        let named = || {
            let mut tables = spec.tables.iter();
            tables.position(|table| {
                table.name.schema == relation.schema && table.name.name == relation.name
            })
        };
        let table = oids.iter().position(|oid| *oid == Some(relation.id)).or_else(named);
        let Some(table) = table else {
            described.insert(relation.id, None);
            return true;
        };
        let types = relation.columns.iter().map(|column| column.type_oid);
        unknown_types.extend(types.filter(|oid| shapes.is_unknown(*oid)));
        unknown_types.sort_unstable();
        unknown_types.dedup();
        if unknown_types.is_empty() {
            let captured = StreamedTable::new(table, relation, shapes);
            described.insert(relation.id, Some(Arc::new(captured)));
        }
        unknown_types.is_empty()
    }

    pub(super) fn unknown_types(&self) -> &[u32] {
        &self.unknown_types
    }

    pub(super) fn add_shapes(&mut self, found: &[ShapeFacts]) {
        self.shapes.add(&self.unknown_types, found);
        self.unknown_types.clear();
    }

    /// The description of a table; `None` if it is not captured.
    pub(super) fn get(&self, id: u32) -> Result<Option<&Arc<StreamedTable>>, CaptureError> {
        let error = CaptureError { relation: id, fault: CaptureFault::NotDescribed };
        self.described.get(&id).map(Option::as_ref).ok_or(error)
    }
}
