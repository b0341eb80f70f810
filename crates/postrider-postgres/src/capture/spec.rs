//! What is captured: tables, columns, and when the changes of a table become a sequence of documents.

pub use crate::names::CapturedTable;
use postrider_core::event::Position;

/// Maximum number of captured tables of a pipeline.
pub const TABLES_MAX: usize = 100;

/// Bounds of [`CaptureSpec::inline_threshold_rows`]. Unit: rows.
pub const THRESHOLD_ROWS: std::ops::RangeInclusive<u32> = 1..=100_000;

/// Lowest value of [`CaptureSpec::chunk_bytes`]. Unit: bytes.
pub const CHUNK_BYTES_MIN: usize = 64 << 10;

/// The tables whose changes become events, and the size of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CaptureSpec {
    /// The tables, at most [`TABLES_MAX`].
    pub tables: Vec<CapturedTable>,
    /// Inserted and deleted rows of a document, together; with more the changes become a sequence of documents. An
    /// UPDATE of one row is two rows that are never divided, so a document has up to two rows with a value of 1.
    pub inline_threshold_rows: u32,
    /// Size of a document; with more the changes become a sequence. One changed row is never divided. Unit: bytes.
    pub chunk_bytes: usize,
}

/// The version of the rule by which changes become documents. It is raised with every change of the rule.
const RULE_VERSION: u8 = 1;

/// Number of the low bits of a stored ordinal that are the ordinal itself.
const ORDINAL_BITS: u32 = 32;

impl CaptureSpec {
    /// The aggregate type of the events of `table`: its name, with the schema in front if another captured table has
    /// the same name.
    pub fn aggregate_type(&self, table: &CapturedTable) -> String {
        let same = self.tables.iter().filter(|other| other.name.name == table.name.name);
        if same.count() > 1 { table.qualified() } else { table.name.name.clone() }
    }

    /// A position within a transaction as it is stored: the ordinal has the number of this specification in its upper
    /// bits. A document covers the rows since the document before it, so a position within a transaction says which
    /// rows are published only together with the specification under which the documents were made. A position at the
    /// beginning of a transaction (ordinal 0) is stored too, for the number alone.
    ///
    /// `absolute`: how the documents of the transaction are made ([`DeltaAssembler::set_absolute`]), which divides them
    /// in other places.
    ///
    /// [`DeltaAssembler::set_absolute`]: super::DeltaAssembler::set_absolute
    #[must_use]
    pub fn stored(&self, position: Position, absolute: bool) -> Position {
        // No transaction has so many changes. If one had, it would be published again from its beginning.
        let ordinal = if Self::is_untagged(position) { position.ordinal } else { 0 };
        let tag = u64::from(self.number()) << 1 | u64::from(absolute);
        Position { ordinal: ordinal | tag << ORDINAL_BITS, ..position }
    }

    /// The position that [`stored`](Self::stored) made, and whether its documents are absolute; `None` if another
    /// specification made it. Then the transaction is published again from its beginning.
    pub fn resumed(&self, stored: Position) -> Option<(Position, bool)> {
        let tag = stored.ordinal >> ORDINAL_BITS;
        let ordinal = stored.ordinal & ((1 << ORDINAL_BITS) - 1);
        (tag >> 1 == u64::from(self.number()))
            .then_some((Position { ordinal, ..stored }, tag & 1 == 1))
    }

    /// Whether a stored position was counted without a specification of captured tables.
    pub fn is_untagged(stored: Position) -> bool {
        stored.ordinal >> ORDINAL_BITS == 0
    }

    /// Whether a stored position is within a transaction, whoever counted it.
    pub fn is_within(stored: Position) -> bool {
        stored.ordinal & ((1 << ORDINAL_BITS) - 1) > 0
    }

    /// The number of this specification: another specification has another one.
    fn number(&self) -> u32 {
        let mut number = SettingsNumber::default();
        number.add(&[RULE_VERSION]);
        number.add(&self.inline_threshold_rows.to_be_bytes());
        number.add(&u64::try_from(self.chunk_bytes).unwrap_or(u64::MAX).to_be_bytes());
        for CapturedTable { name, columns } in &self.tables {
            number.add(name.schema.as_bytes());
            number.add(name.name.as_bytes());
            number.add(if columns.is_some() { b"columns" } else { b"all" });
            for column in columns.iter().flatten() {
                number.add(column.as_bytes());
            }
        }
        number.get()
    }
}

/// A number of 30 bits, and not 0, for settings: other settings have another one. It is stored with positions that
/// belong to the settings, so it is the same in every build (FNV-1a).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettingsNumber(u32);

impl Default for SettingsNumber {
    fn default() -> Self {
        Self(0x811C_9DC5)
    }
}

impl SettingsNumber {
    /// Adds the value of a setting.
    pub fn add(&mut self, value: &[u8]) {
        for byte in value.iter().chain(&[0]) {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    /// The number.
    fn get(self) -> u32 {
        ((self.0 ^ self.0 >> 30) & 0x3FFF_FFFF).max(1)
    }

    /// A stored position within a transaction with this number in the upper bits of its ordinal, beside the number of a
    /// [`CaptureSpec`] that may be there. Called with the result, it returns the position without the number.
    #[must_use]
    pub fn toggled(self, stored: Position) -> Position {
        Position { ordinal: stored.ordinal ^ u64::from(self.get()) << (ORDINAL_BITS + 1), ..stored }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::TableName;
    use postrider_core::offset::Offset;

    fn table(schema: &str, name: &str) -> CapturedTable {
        CapturedTable { name: TableName::new(schema, name), columns: None }
    }

    fn spec(tables: &[CapturedTable]) -> CaptureSpec {
        let tables = tables.to_vec();
        CaptureSpec { tables, inline_threshold_rows: 1000, chunk_bytes: 1 << 20 }
    }

    #[test]
    fn two_tables_of_one_name_have_their_schema_in_the_aggregate_type() {
        let (one, other, third) = (table("a", "orders"), table("b", "orders"), table("a", "x"));
        let spec = spec(&[one.clone(), other.clone(), third.clone()]);
        assert_eq!(spec.aggregate_type(&one), "a.orders");
        assert_eq!(spec.aggregate_type(&other), "b.orders");
        assert_eq!(spec.aggregate_type(&third), "x");
        assert_eq!(third.qualified(), "a.x");
    }

    #[test]
    fn a_position_within_a_transaction_is_valid_for_the_specification_that_counted_it_only() {
        let of = |ordinal| Position { commit: Offset::new(77), ordinal };
        let spec = spec(&[table("public", "orders")]);
        let stored = spec.stored(of(5), false);
        assert!(stored.ordinal <= i64::MAX.cast_unsigned(), "it is stored as a signed number");
        assert_eq!(spec.resumed(stored), Some((of(5), false)));
        assert_eq!(spec.resumed(spec.stored(of(0), true)), Some((of(0), true)));
        let mut others = vec![spec.clone(), spec.clone(), spec.clone(), spec.clone()];
        others[0].inline_threshold_rows = 999;
        others[1].chunk_bytes += 1;
        others[2].tables.push(table("public", "lines"));
        others[3].tables[0].columns = Some(vec!["id".to_owned()]);
        for other in others {
            assert_eq!(other.resumed(stored), None, "{other:?}");
        }
        assert!(CaptureSpec::is_untagged(of(5)) && !CaptureSpec::is_untagged(stored));
        // An outbox has counted it; and no transaction has so many changes.
        assert_eq!(spec.resumed(of(5)), None);
        assert_eq!(spec.resumed(spec.stored(of(1 << 32), false)), Some((of(0), false)));
    }
}
