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
            1700 => Self::Numeric { scale: scale(modifier) },
            2950 => Self::Uuid,
            _ => Self::Other,
        }
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
            | Self::Interval => false,
        }
    }

    /// Whether a value may be a time without a zone. Of a domain only its values say so.
    pub(super) fn lacks_zone(self) -> bool {
        matches!(self, Self::Timestamp { .. } | Self::Date | Self::Text)
    }

    /// Whether a value can be a JSON object.
    pub(super) fn can_be_object(self) -> bool {
        matches!(self, Self::Json | Self::Text | Self::Other)
    }
}

/// The scale in a `numeric`'s modifier: `((precision << 16) | (scale & 0x7ff)) + 4` (`numeric.c`). A scale below zero
/// prints as none.
fn scale(modifier: i32) -> Option<u8> {
    let packed = modifier.checked_sub(4).filter(|packed| *packed >= 0)?;
    let scale = packed & 0x7ff;
    Some(u8::try_from(scale).unwrap_or(0))
}
