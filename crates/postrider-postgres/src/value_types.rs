//! The types of columns, as far as they decide how a value is written: OIDs and modifiers become [`ValueType`]s.
//!
//! A Relation message has the OID of a domain, not of its base type. The base type is in the catalog, and the owner of
//! a connection queries it ([`Types::is_unknown`]). For a type that is no longer in the catalog, the stream's Type
//! message has the name of the base type, without its modifier.

use pg_replication::pgoutput::TypeName;
use postrider_core::row::{Kind, ValueType};
use std::collections::{BTreeMap, BTreeSet};

/// The first OID of types that are not built in (`FirstGenbkiObjectId`). The stream has Type messages only for those.
const FIRST_NAMED: u32 = 10_000;

/// The type of a column or of the base type of a domain, by OID (`src/include/catalog/pg_type.dat`) and type modifier.
/// A type that is not built in becomes [`Kind::Other`], known; its base type is looked up by [`Types`].
pub(crate) fn value_type(oid: u32, modifier: i32) -> ValueType {
    match element(oid) {
        // The modifier of an array is that of its elements.
        Some(element) => ValueType::array_of(kind(element, modifier)),
        None => ValueType::of(kind(oid, modifier)),
    }
}

/// As [`value_type`], if only the OID is known: a type that is not built in is unknown.
pub(crate) fn value_type_by_oid(oid: u32, modifier: i32) -> ValueType {
    if oid < FIRST_NAMED { value_type(oid, modifier) } else { ValueType::default() }
}

/// The kind of a built-in type that is no array.
fn kind(oid: u32, modifier: i32) -> Kind {
    let digits = u8::try_from(modifier).ok().filter(|digits| *digits <= 6).unwrap_or(6);
    match oid {
        16 => Kind::Bool,
        17 => Kind::Bytea,
        20 | 21 | 23 => Kind::Int,
        18 | 19 | 25 | 1042 | 1043 => Kind::Text,
        114 | 3802 => Kind::Json,
        700 => Kind::Float4,
        701 => Kind::Float8,
        1082 => Kind::Date,
        1083 => Kind::Time { digits },
        1114 => Kind::Timestamp { digits },
        1184 => Kind::Timestamptz { digits },
        1186 => Kind::Interval,
        26 => Kind::Oid,
        600 => Kind::Point,
        790 => Kind::Money,
        1266 => Kind::TimeTz,
        1560 | 1562 => Kind::Bit { length: modifier.max(0) },
        1700 => Kind::Numeric { scale: scale(modifier) },
        2950 => Kind::Uuid,
        _ => Kind::Other,
    }
}

/// The element type of an array type; `None` for other types, and for arrays that Debezium does not support.
fn element(oid: u32) -> Option<u32> {
    Some(match oid {
        1000 => 16,
        1001 => 17,
        1002 => 18,
        1016 => 20,
        1005 => 21,
        1007 => 23,
        1009 => 25,
        1028 => 26,
        199 => 114,
        651 => 650,
        775 => 774,
        1021 => 700,
        1022 => 701,
        1040 => 829,
        1041 => 869,
        1014 => 1042,
        1015 => 1043,
        1182 => 1082,
        1183 => 1083,
        1115 => 1114,
        1185 => 1184,
        1270 => 1266,
        1231 => 1700,
        2951 => 2950,
        3643 => 3614,
        3807 => 3802,
        3905 => 3904,
        3907 => 3906,
        3909 => 3908,
        3911 => 3910,
        3913 => 3912,
        3927 => 3926,
        _ => return None,
    })
}

/// The scale in a `numeric`'s modifier: `((precision << 16) | (scale & 0x7ff)) + 4` (`numeric.c`). A scale below zero
/// prints as none.
fn scale(modifier: i32) -> Option<u8> {
    let packed = modifier.checked_sub(4).filter(|packed| *packed >= 0)?;
    let scale = packed & 0x7ff;
    Some(u8::try_from(scale).unwrap_or(0))
}

/// A type and, if it is a domain, the base type beneath all domains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeFacts {
    /// The type's OID.
    pub oid: u32,
    /// The OID of the base type; the type's own OID if it is not a domain.
    pub base_oid: u32,
    /// The modifier of a column of that type; for a domain, that of the innermost domain; -1 for none.
    pub base_modifier: i32,
    /// The base type is not built in, and is a text type (`citext`).
    pub is_text: bool,
}

impl TypeFacts {
    /// The type, as far as it decides how a value is written.
    pub fn value_type(&self) -> ValueType {
        if self.is_text {
            ValueType::of(Kind::Text)
        } else {
            value_type(self.base_oid, self.base_modifier)
        }
    }
}

/// The types of one connection that are not built in. Another server has other OIDs.
#[derive(Debug, Default)]
pub(crate) struct Types {
    known: BTreeMap<u32, TypeFacts>,
    /// Types that the catalog did not have when it was queried.
    absent: BTreeSet<u32>,
    /// From Type messages: the OID of the built-in base type; 0 if it has no kind.
    named: BTreeMap<u32, u32>,
}

impl Types {
    /// Whether the catalog must be queried for the type.
    pub(crate) fn is_unknown(&self, oid: u32) -> bool {
        oid >= FIRST_NAMED && !self.known.contains_key(&oid) && !self.absent.contains(&oid)
    }

    /// Adds what the catalog has of the types `asked`. The result stays valid, because the base type of a domain can't
    /// be changed.
    pub(crate) fn add_found(&mut self, asked: &[u32], found: &[TypeFacts]) {
        self.known.extend(found.iter().map(|facts| (facts.oid, *facts)));
        self.absent.extend(asked.iter().filter(|oid| !self.known.contains_key(oid)));
    }

    /// Processes a Type message. It has the OID of the type, and the name of the base type below its domains.
    pub(crate) fn add_named(&mut self, of: &TypeName<'_>) {
        if of.schema.is_empty() {
            self.named.insert(of.id, built_in(of.name));
        }
    }

    /// The type with this OID and modifier, as far as it is known.
    pub(crate) fn resolve(&self, oid: u32, modifier: i32) -> ValueType {
        if oid < FIRST_NAMED {
            return value_type(oid, modifier);
        }
        if let Some(facts) = self.known.get(&oid) {
            return facts.value_type();
        }
        self.named.get(&oid).map_or_else(ValueType::default, |base| value_type(*base, modifier))
    }
}

/// The OID of a built-in type that has a kind; 0 for all others.
fn built_in(name: &str) -> u32 {
    match name {
        "bool" => 16,
        "bytea" => 17,
        "char" => 18,
        "name" => 19,
        "int8" => 20,
        "int2" => 21,
        "int4" => 23,
        "text" => 25,
        "json" => 114,
        "float4" => 700,
        "float8" => 701,
        "bpchar" => 1042,
        "varchar" => 1043,
        "oid" => 26,
        "point" => 600,
        "money" => 790,
        "date" => 1082,
        "time" => 1083,
        "timestamp" => 1114,
        "timestamptz" => 1184,
        "interval" => 1186,
        "timetz" => 1266,
        "bit" => 1560,
        "varbit" => 1562,
        "numeric" => 1700,
        "uuid" => 2950,
        "jsonb" => 3802,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_types_have_kinds_with_what_their_modifiers_declare() {
        for (oid, modifier, expected) in [
            (16, -1, Kind::Bool),
            (17, -1, Kind::Bytea),
            (20, -1, Kind::Int),
            (21, -1, Kind::Int),
            (23, -1, Kind::Int),
            (18, -1, Kind::Text),
            (19, -1, Kind::Text),
            (25, -1, Kind::Text),
            (1042, 9, Kind::Text),
            (1043, 68, Kind::Text),
            (114, -1, Kind::Json),
            (3802, -1, Kind::Json),
            (700, -1, Kind::Float4),
            (701, -1, Kind::Float8),
            (1082, -1, Kind::Date),
            (1083, -1, Kind::Time { digits: 6 }),
            (1083, 3, Kind::Time { digits: 3 }),
            (1114, 0, Kind::Timestamp { digits: 0 }),
            (1114, 6, Kind::Timestamp { digits: 6 }),
            (1184, 7, Kind::Timestamptz { digits: 6 }),
            (1186, -1, Kind::Interval),
            (26, -1, Kind::Oid),
            (600, -1, Kind::Point),
            (790, -1, Kind::Money),
            (1266, -1, Kind::TimeTz),
            (1560, 3, Kind::Bit { length: 3 }),
            (1562, -1, Kind::Bit { length: 0 }),
            (1700, -1, Kind::Numeric { scale: None }),
            (1700, (10 << 16 | 2) + 4, Kind::Numeric { scale: Some(2) }),
            (1700, (10 << 16 | 0x7fe) + 4, Kind::Numeric { scale: Some(0) }),
            (2950, -1, Kind::Uuid),
            (869, -1, Kind::Other),
            (9999, -1, Kind::Other),
        ] {
            assert_eq!(value_type(oid, modifier), ValueType::of(expected), "{oid} {modifier}");
        }
    }

    #[test]
    fn arrays_have_the_kind_of_their_elements_with_the_columns_modifier() {
        for (oid, modifier, element) in [
            (1007, -1, Kind::Int),
            (1009, -1, Kind::Text),
            (1231, (10 << 16 | 2) + 4, Kind::Numeric { scale: Some(2) }),
            (1115, 3, Kind::Timestamp { digits: 3 }),
            (1001, -1, Kind::Bytea),
            // An element type without a kind: the array is still read as one.
            (1041, -1, Kind::Other),
        ] {
            assert_eq!(value_type(oid, modifier), ValueType::array_of(element), "{oid}");
        }
        // An array that Debezium does not support, here of xml, is as the server writes it.
        assert_eq!(value_type(143, -1), ValueType::of(Kind::Other));
    }

    #[test]
    fn a_type_that_is_not_built_in_is_its_base_type_or_what_the_stream_names() {
        let facts = |oid, base_oid, base_modifier, is_text| TypeFacts {
            oid,
            base_oid,
            base_modifier,
            is_text,
        };
        let mut types = Types::default();
        let asked = [20_001, 20_002, 20_003, 20_004, 20_005, 20_006];
        assert!(asked.iter().all(|oid| types.is_unknown(*oid)) && !types.is_unknown(25));
        assert_eq!(types.resolve(20_001, -1), ValueType::default());
        let found = [
            facts(20_001, 17, -1, false),
            facts(20_002, 1700, (10 << 16 | 2) + 4, false),
            // A domain over an array, an enum, and citext.
            facts(20_003, 1007, -1, false),
            facts(20_004, 20_004, -1, false),
            facts(20_005, 20_005, -1, true),
        ];
        types.add_found(&asked, &found);
        assert!(!asked.iter().any(|oid| types.is_unknown(*oid)), "each type is asked for once");
        // The modifier of a domain is in the catalog, not in the message.
        for (oid, expected) in [
            (20_001, ValueType::of(Kind::Bytea)),
            (20_002, ValueType::of(Kind::Numeric { scale: Some(2) })),
            (20_003, ValueType::array_of(Kind::Int)),
            (20_004, ValueType::of(Kind::Other)),
            (20_005, ValueType::of(Kind::Text)),
            (20_006, ValueType::default()),
        ] {
            assert_eq!(types.resolve(oid, 77), expected, "{oid}");
        }
        types.add_named(&TypeName { id: 20_006, schema: "", name: "timestamp" });
        assert_eq!(types.resolve(20_006, 3), ValueType::of(Kind::Timestamp { digits: 3 }));
        // A type of a schema of its own says nothing.
        types.add_named(&TypeName { id: 20_007, schema: "public", name: "bytea" });
        assert_eq!(types.resolve(20_007, -1), ValueType::default());
    }
}
