//! The column types that change how a value is written. All others are text as PostgreSQL renders it.

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
    /// With the scale, where one is declared.
    Numeric {
        scale: Option<u8>,
    },
    Json,
    Text,
    Uuid,
    Date,
    /// With the digits of the seconds' fraction that the column declares.
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
    /// `bit` and `bit varying`, with the length that is declared; 0 where none is.
    Bit {
        length: i32,
    },
    /// Of elements whose type is known here.
    Array {
        /// The element's type.
        element: u32,
        /// The column's type modifier, which is the element's.
        modifier: i32,
    },
    /// Anything else, domains among them.
    #[default]
    Other,
}

impl Kind {
    pub(super) fn of(oid: u32, modifier: i32) -> Self {
        let digits = u8::try_from(modifier).ok().filter(|digits| *digits <= 6).unwrap_or(6);
        match oid {
            16 => Self::Bool,
            17 => Self::Bytea,
            20 | 21 | 23 => Self::Int,
            25 | 1042 | 1043 => Self::Text,
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

    /// Whether a value is written as PostgreSQL renders it, wherever it goes.
    #[inline]
    pub(super) fn is_verbatim(self) -> bool {
        matches!(self, Self::Int | Self::Oid | Self::Json | Self::Text | Self::Uuid | Self::Other)
    }

    /// Whether a value is no string in JSON: a number or a boolean.
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

    /// Whether a value can be a JSON object.
    pub(super) fn can_be_object(self) -> bool {
        matches!(self, Self::Json | Self::Text | Self::Other)
    }
}

/// The type of the elements of an array type; `None` where it is none, or one of which Debezium makes nothing.
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
