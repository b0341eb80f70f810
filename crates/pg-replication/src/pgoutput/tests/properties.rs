//! Encoded rows are decoded to the same values; random bytes never panic.

use crate::pgoutput::{Cell, Column, Message, decode};
use proptest::prelude::*;

fn encode(columns: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = b"I\0\0\0\x07N".to_vec();
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for column in columns {
        match column {
            None => bytes.push(b'n'),
            Some(value) => {
                bytes.push(b't');
                bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
                bytes.extend(value);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { fork: false, ..ProptestConfig::default() })]

    #[test]
    fn an_encoded_row_is_decoded_to_the_same_values(columns: Vec<Option<Vec<u8>>>) {
        let bytes = encode(&columns);
        let Message::Insert(insert) = decode(&bytes).unwrap() else { unreachable!() };
        prop_assert_eq!(insert.new.len(), columns.len());
        let expected: Vec<Column<'_>> = columns
            .iter()
            .map(|column| column.as_deref().map_or(Column::Null, Column::Text))
            .collect();
        prop_assert_eq!(insert.new.columns().collect::<Vec<_>>(), expected);
        for (cell, column) in insert.new.cells().zip(&columns) {
            match cell {
                Cell::Null => prop_assert!(column.is_none()),
                Cell::Text { start, len } => {
                    let found = &insert.new.bytes()[start..][..len];
                    prop_assert_eq!(Some(found), column.as_deref());
                }
                Cell::Other => prop_assert!(false),
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(
        tag in prop::sample::select(b"BCORYIUDTM".to_vec()),
        rest: Vec<u8>,
    ) {
        let bytes = [vec![tag], rest].concat();
        if let Ok(message) = decode(&bytes) {
            let printed = format!("{message:?}");
            prop_assert!(!printed.is_empty());
        }
    }
}
