//! The shapes of types: how `to_jsonb` writes their values. Those of arrays, domains and rows are in the catalog.

use super::json::{JsonShape, member_name};
use crate::error::SourceError;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_postgres::Client;

/// A type as the catalog has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShapeFacts {
    /// The type's OID.
    pub oid: u32,
    /// OID of the type below a domain; 0 for other types.
    pub base: u32,
    /// OID of the element type of an array; 0 for other types.
    pub element: u32,
    /// What is between the elements of an array.
    pub delimiter: u8,
    /// The fields of a composite type: name and OID of the type; `None` for other types.
    pub fields: Option<Vec<(String, u32)>>,
}

/// The first OID of types that are not built in (`FirstGenbkiObjectId`).
const FIRST_USERS: u32 = 10_000;

/// Maximum depth of types within types.
const DEPTH_MAX: usize = 64;

/// The shapes of the types of one connection. Another server has other OIDs.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    known: BTreeMap<u32, Arc<JsonShape>>,
}

/// The shape of a built-in type that needs no query; `None` if the catalog must be read.
fn built_in(oid: u32) -> Option<JsonShape> {
    Some(match oid {
        16 => JsonShape::Bool,
        20 | 21 | 23 | 700 | 701 | 1700 => JsonShape::Number,
        114 | 3802 => JsonShape::Json,
        1114 | 1184 => JsonShape::Timestamp,
        22 => JsonShape::Vector { element: Box::new(JsonShape::Number) },
        30 => JsonShape::Vector { element: Box::new(JsonShape::Text) },
        17 | 18 | 19 | 25 | 26 | 142 | 600 | 650 | 774 | 790 | 829 | 869 | 1042 | 1043 | 1082
        | 1083 | 1186 | 1266 | 1560 | 1562 | 2950 => JsonShape::Text,
        _ => return None,
    })
}

/// Whether a type can be changed or dropped, so that its shape may be another one when a value is read again.
pub(super) fn may_change(oid: u32) -> bool {
    oid >= FIRST_USERS
}

impl Shapes {
    /// Whether the catalog must be read for the type.
    pub(super) fn is_unknown(&self, oid: u32) -> bool {
        built_in(oid).is_none() && !self.known.contains_key(&oid)
    }

    /// Adds what the catalog has of the types `asked`, and of those that they are made of. A type that no longer exists
    /// is written as a string.
    pub(super) fn add(&mut self, asked: &[u32], found: &[ShapeFacts]) {
        let facts: BTreeMap<u32, &ShapeFacts> = found.iter().map(|of| (of.oid, of)).collect();
        for oid in asked {
            self.known.insert(*oid, Arc::new(shape(*oid, &facts, 0)));
        }
    }

    /// The shape of a type.
    pub(super) fn of(&self, oid: u32) -> Arc<JsonShape> {
        let known = self.known.get(&oid).map(Arc::clone);
        known.unwrap_or_else(|| Arc::new(built_in(oid).unwrap_or(JsonShape::Text)))
    }
}

fn shape(oid: u32, facts: &BTreeMap<u32, &ShapeFacts>, depth: usize) -> JsonShape {
    if let Some(shape) = built_in(oid) {
        return shape;
    }
    let Some(of) = facts.get(&oid).filter(|_| depth < DEPTH_MAX) else { return JsonShape::Text };
    if let Some(fields) = &of.fields {
        let field =
            |(name, oid): &(String, u32)| (member_name(name), shape(*oid, facts, depth + 1));
        return JsonShape::Record { fields: fields.iter().map(field).collect() };
    }
    match (of.base, of.element) {
        (0, 0) => JsonShape::Text,
        (0, element) => JsonShape::Array {
            element: Box::new(shape(element, facts, depth + 1)),
            delimiter: of.delimiter,
        },
        (base, _) => shape(base, facts, depth + 1),
    }
}

/// What is done, for an error.
pub const READ_SHAPES: &str = "look up the types of captured columns";

/// Reads the types with these OIDs, and the types that they are made of, as far as they exist.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_shapes(client: &Client, oids: &[u32]) -> Result<Vec<ShapeFacts>, SourceError> {
    let failed = |e| SourceError::control(READ_SHAPES, e);
    // `typsubscript` distinguishes arrays from other types with elements, as `get_element_type` does.
    let sql = "\
WITH RECURSIVE used (oid) AS ( \
  SELECT pg_catalog.unnest($1::pg_catalog.oid[]) \
  UNION \
  SELECT part.oid FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid \
  CROSS JOIN LATERAL ( \
    SELECT t.typbasetype WHERE t.typtype = 'd' \
    UNION ALL SELECT t.typelem WHERE t.typelem <> 0 \
      AND t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc \
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a \
      WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped \
  ) AS part (oid)) \
SELECT t.oid, t.typbasetype, \
  CASE WHEN t.typtype <> 'd' AND t.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc \
    THEN t.typelem ELSE 0::pg_catalog.oid END, \
  coalesce((SELECT e.typdelim FROM pg_catalog.pg_type e WHERE e.oid = t.typelem), t.typdelim), \
  CASE WHEN t.typtype = 'c' THEN ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a \
    WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) END, \
  CASE WHEN t.typtype = 'c' THEN ARRAY(SELECT a.atttypid FROM pg_catalog.pg_attribute a \
    WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) END \
FROM (SELECT DISTINCT oid FROM used) AS u JOIN pg_catalog.pg_type t ON t.oid = u.oid";
    let rows = client.query(sql, &[&oids]).await.map_err(failed)?;
    let facts = |row: &tokio_postgres::Row| -> Result<ShapeFacts, tokio_postgres::Error> {
        let names: Option<Vec<String>> = row.try_get(4)?;
        let types: Option<Vec<u32>> = row.try_get(5)?;
        let delimiter: i8 = row.try_get(3)?;
        Ok(ShapeFacts {
            oid: row.try_get(0)?,
            base: row.try_get(1)?,
            element: row.try_get(2)?,
            delimiter: delimiter.cast_unsigned(),
            fields: names.zip(types).map(|(names, types)| names.into_iter().zip(types).collect()),
        })
    };
    rows.iter().map(|row| facts(row).map_err(failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(oid: u32, base: u32, element: u32, fields: Option<&[(&str, u32)]>) -> ShapeFacts {
        let fields =
            fields.map(|of| of.iter().map(|(name, oid)| ((*name).to_owned(), *oid)).collect());
        ShapeFacts { oid, base, element, delimiter: b',', fields }
    }

    #[test]
    fn a_type_is_made_of_those_that_the_catalog_names() {
        let mut shapes = Shapes::default();
        let asked = [20_001, 20_002, 20_003, 20_004, 1007];
        assert!(asked.iter().all(|oid| shapes.is_unknown(*oid)) && !shapes.is_unknown(25));
        shapes.add(
            &asked,
            &[
                facts(20_001, 1700, 0, None),
                facts(20_002, 0, 20_001, None),
                facts(20_003, 0, 0, Some(&[("a\"", 16), ("list", 20_002)])),
                facts(1007, 0, 23, None),
            ],
        );
        let numbers = || JsonShape::Array { element: Box::new(JsonShape::Number), delimiter: b',' };
        assert_eq!(*shapes.of(20_001), JsonShape::Number);
        assert_eq!(*shapes.of(20_002), numbers());
        assert_eq!(*shapes.of(1007), numbers());
        let fields =
            vec![(b"\"a\\\"\":".to_vec(), JsonShape::Bool), (b"\"list\":".to_vec(), numbers())];
        assert_eq!(*shapes.of(20_003), JsonShape::Record { fields });
        // It was dropped.
        assert_eq!(*shapes.of(20_004), JsonShape::Text);
        assert!(!asked.iter().any(|oid| shapes.is_unknown(*oid)), "each type is asked for once");
    }
}
