//! The types of an Avro schema.

use crate::schema::moment_text::TimeUnit;

/// A type of a schema, by its index: types may contain themselves.
pub(super) type TypeIndex = usize;

/// A type. A logical type that the specification knows is one of its own; others are the type below them.
#[derive(Debug)]
pub(super) enum AvroType {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    Text,
    Array(TypeIndex),
    Map(TypeIndex),
    Union(Vec<TypeIndex>),
    Fixed {
        name: String,
        size: usize,
    },
    Enum {
        name: String,
        symbols: Vec<String>,
    },
    Record {
        name: String,
        fields: Vec<AvroField>,
    },
    /// A number of `bytes`, or of a `fixed` with its name and size.
    Decimal {
        fixed: Option<(String, usize)>,
        precision: usize,
        scale: u32,
    },
    /// A `string`, or a `fixed` of 16 bytes with its name.
    Uuid(Option<String>),
    /// An `int`.
    Date,
    /// An `int` for milliseconds, a `long` for microseconds.
    TimeOfDay(TimeUnit),
    /// A `long`.
    Timestamp {
        unit: TimeUnit,
        local: bool,
    },
    /// A `fixed` of 12 bytes.
    Duration(String),
}

/// A field of a record.
#[derive(Debug)]
pub(super) struct AvroField {
    pub(super) name: String,
    pub(super) of: TypeIndex,
    /// The default as JSON text.
    pub(super) default_text: Option<String>,
    /// The default in the binary form. Written when all types are known.
    pub(super) default: Option<Vec<u8>>,
}

impl AvroType {
    /// The type in words, for messages.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Boolean => "boolean".to_owned(),
            Self::Int => "int".to_owned(),
            Self::Long => "long".to_owned(),
            Self::Float => "float".to_owned(),
            Self::Double => "double".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Array(_) => "array".to_owned(),
            Self::Map(_) => "map".to_owned(),
            Self::Union(_) => "union".to_owned(),
            Self::Fixed { name, .. } => format!("fixed {name}"),
            Self::Enum { name, .. } => format!("enum {name}"),
            Self::Record { name, .. } => format!("record {name}"),
            Self::Decimal { .. } => "decimal".to_owned(),
            Self::Uuid(_) => "uuid".to_owned(),
            Self::Date => "date".to_owned(),
            Self::TimeOfDay(unit) => format!("time-{}", unit.name()),
            Self::Timestamp { unit, local } => {
                let local = if *local { "local-" } else { "" };
                format!("{local}timestamp-{}", unit.name())
            }
            Self::Duration(_) => "duration".to_owned(),
        }
    }

    /// The name of the type as a branch of a union, in the JSON form of Avro.
    pub(super) fn branch_name(&self) -> &str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Int | Self::Date | Self::TimeOfDay(TimeUnit::Millis) => "int",
            Self::Long
            | Self::TimeOfDay(TimeUnit::Micros | TimeUnit::Nanos)
            | Self::Timestamp { .. } => "long",
            Self::Float => "float",
            Self::Double => "double",
            Self::Bytes | Self::Decimal { fixed: None, .. } => "bytes",
            Self::Text | Self::Uuid(None) => "string",
            Self::Array(_) => "array",
            Self::Map(_) => "map",
            // Unions have no union in them.
            Self::Union(_) => "",
            Self::Fixed { name, .. }
            | Self::Enum { name, .. }
            | Self::Record { name, .. }
            | Self::Decimal { fixed: Some((name, _)), .. }
            | Self::Uuid(Some(name))
            | Self::Duration(name) => name,
        }
    }
}
