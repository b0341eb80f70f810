//! The column types that decide how a value is written. Values of other types are text as PostgreSQL renders it.
//!
//! A Relation message has the OID of a domain, not of its base type. The base type is in the catalog, and the owner of
//! a connection queries it ([`Types::unknown`]). For a type that is no longer in the catalog, the stream's Type message
//! has the name of the base type, without its modifier.

use pg_replication::pgoutput::TypeName;
use std::collections::{BTreeMap, BTreeSet};

/// A column's type, by OID (`src/include/catalog/pg_type.dat`) and type modifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kind {
    Bool,
    Bytea,
    /// `smallint`, `integer`, `bigint`.
    Int,
    /// `real`.
    Float4,
    /// `double precision`.
    Float8,
    /// With the scale, if one is declared.
    Numeric {
        scale: Option<u8>,
    },
    Json,
    Text,
    Uuid,
    Date,
    /// With the declared number of digits of the fraction of a second.
    Time {
        digits: u8,
    },
    Timestamp {
        digits: u8,
    },
    Timestamptz {
        digits: u8,
    },
    Interval,
    /// `time with time zone`.
    TimeTz,
    Money,
    Oid,
    Point,
    /// `bit` and `bit varying`, with the declared length; 0 if none is declared.
    Bit {
        length: i32,
    },
    /// An array of elements of a known type.
    Array {
        /// The element's type.
        element: u32,
        /// The column's type modifier, which is the element's.
        modifier: i32,
    },
    /// Anything else.
    #[default]
    Other,
}

impl Kind {
    /// The kind of a built-in type.
    pub(super) fn of(oid: u32, modifier: i32) -> Self {
        let digits = u8::try_from(modifier).ok().filter(|digits| *digits <= 6).unwrap_or(6);
        match oid {
            16 => Self::Bool,
            17 => Self::Bytea,
            20 | 21 | 23 => Self::Int,
            18 | 19 | 25 | 1042 | 1043 => Self::Text,
            114 | 3802 => Self::Json,
            700 => Self::Float4,
            701 => Self::Float8,
            1082 => Self::Date,
            1083 => Self::Time { digits },
            1114 => Self::Timestamp { digits },
            1184 => Self::Timestamptz { digits },
            1186 => Self::Interval,
            26 => Self::Oid,
            600 => Self::Point,
            790 => Self::Money,
            1266 => Self::TimeTz,
            1560 | 1562 => Self::Bit { length: modifier.max(0) },
            1700 => Self::Numeric { scale: scale(modifier) },
            2950 => Self::Uuid,
            _ => match element(oid) {
                Some(element) => Self::Array { element, modifier },
                None => Self::Other,
            },
        }
    }

    /// Whether a value is always written as PostgreSQL renders it.
    #[inline]
    pub(super) fn is_verbatim(self) -> bool {
        matches!(self, Self::Int | Self::Oid | Self::Json | Self::Text | Self::Uuid | Self::Other)
    }

    /// Whether a value is not a string in JSON.
    pub(super) fn is_bare(self) -> bool {
        match self {
            Self::Bool
            | Self::Int
            | Self::Oid
            | Self::Float4
            | Self::Float8
            | Self::Numeric { .. }
            | Self::Money
            | Self::Date
            | Self::Time { .. }
            | Self::Timestamp { .. }
            | Self::Interval
            | Self::Point
            | Self::Array { .. } => true,
            Self::Bit { length } => length == 1,
            Self::Bytea
            | Self::Json
            | Self::Text
            | Self::Uuid
            | Self::TimeTz
            | Self::Timestamptz { .. }
            | Self::Other => false,
        }
    }

    /// The type of an array's elements.
    pub(super) fn element(self) -> Option<Self> {
        let Self::Array { element, modifier } = self else { return None };
        Some(Self::of(element, modifier))
    }

    /// Whether a value can be the event's time.
    pub(super) fn can_be_time(self) -> bool {
        match self {
            Self::Text
            | Self::Date
            | Self::Timestamp { .. }
            | Self::Timestamptz { .. }
            | Self::Other => true,
            Self::Bool
            | Self::Bytea
            | Self::Int
            | Self::Float4
            | Self::Float8
            | Self::Numeric { .. }
            | Self::Json
            | Self::Uuid
            | Self::Time { .. }
            | Self::TimeTz
            | Self::Interval
            | Self::Money
            | Self::Oid
            | Self::Point
            | Self::Bit { .. }
            | Self::Array { .. } => false,
        }
    }

    /// Whether a value may be a time without a zone. For a domain, only the values show it.
    pub(super) fn lacks_zone(self) -> bool {
        matches!(self, Self::Timestamp { .. } | Self::Date | Self::Text)
    }

    /// Whether a value can be a JSON object.
    pub(super) fn can_be_object(self) -> bool {
        matches!(self, Self::Json | Self::Text | Self::Other)
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

/// The first OID of types that are not built in (`FirstGenbkiObjectId`). The stream has Type messages only for those.
const FIRST_NAMED: u32 = 10_000;

/// A type that is not built in, as in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeFacts {
    /// The type's OID.
    pub oid: u32,
    /// The OID of the base type below all domains; the type's own OID if it is not a domain.
    pub base_oid: u32,
    /// The modifier of the innermost domain, -1 for none.
    pub base_modifier: i32,
    /// Whether the base type is a kind of text (category `S`, such as `citext`).
    pub is_text: bool,
}

/// A column of a table, as in the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnType<'a> {
    /// The column's name.
    pub name: &'a str,
    /// The type as SQL writes it, for messages.
    pub type_name: &'a str,
    /// The OID of the base type below all domains.
    pub oid: u32,
    /// The modifier of the base type.
    pub modifier: i32,
    /// Whether the base type is a kind of text.
    pub is_text: bool,
}

/// A type, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Resolved {
    pub(super) kind: Kind,
    /// Whether the type is known, also if its kind is [`Kind::Other`].
    pub(super) known: bool,
}

impl Resolved {
    fn of(oid: u32, modifier: i32, is_text: bool) -> Self {
        let kind = if is_text { Kind::Text } else { Kind::of(oid, modifier) };
        Self { kind, known: true }
    }

    /// The type of a column of the catalog.
    pub(super) fn of_column(column: &ColumnType<'_>) -> Self {
        Self::of(column.oid, column.modifier, column.is_text)
    }

    /// Whether a value can be a time.
    pub(super) fn can_be_time(self) -> bool {
        self.kind.can_be_time() && !(self.known && self.kind == Kind::Other)
    }

    /// Whether a value can be a JSON object.
    pub(super) fn can_be_object(self) -> bool {
        self.kind.can_be_object() && !(self.known && self.kind == Kind::Other)
    }
}

/// The types of one connection that are not built in. Another server has other OIDs.
#[derive(Debug, Default)]
pub(super) struct Types {
    known: BTreeMap<u32, TypeFacts>,
    /// Types that the catalog did not have when it was queried.
    absent: BTreeSet<u32>,
    /// From Type messages: the OID of the built-in base type; 0 if it has no kind.
    named: BTreeMap<u32, u32>,
}

impl Types {
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether the catalog must be queried for the type.
    pub(super) fn unknown(&self, oid: u32) -> bool {
        oid >= FIRST_NAMED && !self.known.contains_key(&oid) && !self.absent.contains(&oid)
    }

    /// Adds what the catalog has of the types `asked`. The result stays valid, because the base type of a domain can't
    /// be changed.
    pub(super) fn learn(&mut self, asked: &[u32], found: &[TypeFacts]) {
        self.known.extend(found.iter().map(|facts| (facts.oid, *facts)));
        self.absent.extend(asked.iter().filter(|oid| !self.known.contains_key(oid)));
    }

    /// Processes a Type message. It has the OID of the type, and the name of the base type below its domains.
    pub(super) fn name(&mut self, of: &TypeName<'_>) {
        if of.schema.is_empty() {
            self.named.insert(of.id, built_in(of.name));
        }
    }

    pub(super) fn resolve(&self, oid: u32, modifier: i32) -> Resolved {
        if oid < FIRST_NAMED {
            return Resolved::of(oid, modifier, false);
        }
        if let Some(facts) = self.known.get(&oid) {
            return Resolved::of(facts.base_oid, facts.base_modifier, facts.is_text);
        }
        match self.named.get(&oid) {
            Some(base) => Resolved::of(*base, modifier, false),
            None => Resolved { kind: Kind::Other, known: false },
        }
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
