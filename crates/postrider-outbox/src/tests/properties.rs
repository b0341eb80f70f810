//! Whatever a row holds, the answer is a record or an error: never a panic, and never more than the row gave.

use super::support::{AT, insert, relation};
use crate::{Extra, Layout, Mapper, OutboxSpec, Placement, Replace, Role, StandardHeaders};
use pg_replication::pgoutput::{Message, decode};
use proptest::prelude::*;

/// Types whose text is read, and two that are not.
const OIDS: [u32; 16] =
    [16, 17, 20, 25, 114, 700, 701, 1082, 1083, 1114, 1184, 1186, 1700, 2950, 3802, 9999];

fn spec(layout: Layout, envelope: bool) -> OutboxSpec {
    let mut spec = OutboxSpec::for_layout(layout);
    let place = |placement: &dyn Fn(String) -> Placement, column: &str| Extra {
        column: column.to_owned(),
        placement: placement(column.to_owned()),
        may_lack: false,
    };
    spec.extra.push(place(&Placement::Header, "first"));
    if envelope {
        spec.extra.push(place(&Placement::Envelope, "second"));
    }
    spec.columns.push((Role::Trace, "first".to_owned()));
    spec.topic = format!("a.{}", spec.topic);
    spec.replace = Some(Replace { pattern: "(.)(.*)".to_owned(), with: "x$2".to_owned() });
    spec.standard_headers = StandardHeaders { event_type: true, position: true };
    spec
}

fn value() -> impl Strategy<Value = Option<String>> {
    prop::option::weighted(
        0.9,
        prop_oneof![
            any::<String>(),
            "[a-z0-9._-]{0,8}",
            r#"\{"[a-z]{0,3}": ?("[^"]{0,3}"|-?[0-9]{1,9}|null|\[\])\}"#,
            r"-?[0-9]{1,40}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
            r"[0-9]{4,6}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([+-][0-9]{2})?)?( BC)?",
            r"(-?[0-9]{1,9} (year|mons|days) )?-?[0-9]{1,9}:[0-9]{2}:[0-9]{2}",
            r"\\x([0-9a-f]{2}){0,6}",
        ],
    )
}

proptest! {
    #![proptest_config(ProptestConfig { fork: false, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_row_is_a_record_or_an_error(
        layout in prop::sample::select(Layout::ALL.to_vec()),
        envelope: bool,
        rows in prop::collection::vec(prop::collection::vec(value(), 24), 1..3),
        oids in prop::collection::vec(prop::sample::select(OIDS.to_vec()), 24),
        modifier in prop_oneof![Just(-1), 0..8_i32, any::<i32>()],
    ) {
        let spec = spec(layout, envelope);
        let names: Vec<String> = spec.required_columns().into_iter().map(str::to_owned).collect();
        let mut mapper = Mapper::new(spec.clone()).unwrap();
        let columns = |row: &[Option<String>]| {
            let cells = names.iter().zip(&oids).zip(row.to_vec());
            cells.map(|((name, oid), value)| (name.clone(), *oid, value)).collect::<Vec<_>>()
        };
        for row in &rows {
            let columns = columns(row);
            let columns: Vec<_> = columns
                .iter()
                .map(|(name, oid, value)| (name.as_str(), *oid, modifier, value.as_deref()))
                .collect();
            let described = relation(7, "public", layout.table(), &columns);
            let Message::Relation(described) = decode(&described).unwrap() else { unreachable!() };
            if mapper.relation(&described).is_err() {
                continue;
            }
            let bytes = insert(7, &columns);
            let Message::Insert(row) = decode(&bytes).unwrap() else { unreachable!() };
            if let Ok(Some(mapped)) = mapper.insert(&row, AT) {
                let record = mapped.record();
                prop_assert!((1..=249).contains(&record.topic.len()));
                prop_assert!(record.headers.len() >= 4);
                prop_assert!(record.timestamp_ms.is_none_or(|ms| ms > 0));
            }
        }
    }
}
