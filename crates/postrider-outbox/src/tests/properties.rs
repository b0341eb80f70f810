//! Whatever a row holds, the answer is a record or an error: never a panic, and never more than the row gave.

use super::support::{describe, map_row, row};
use crate::{Extra, Layout, Mapper, OutboxSpec, Placement, Replace, Role, StandardHeaders};
use postrider_core::row::{Kind, ValueType};
use proptest::prelude::*;

/// Types whose text is read, others, and arrays of both.
fn value_type() -> impl Strategy<Value = ValueType> {
    let kind = prop_oneof![
        prop::sample::select(vec![
            Kind::Bool,
            Kind::Bytea,
            Kind::Int,
            Kind::Text,
            Kind::Json,
            Kind::Float4,
            Kind::Float8,
            Kind::Date,
            Kind::Interval,
            Kind::Uuid,
            Kind::TimeTz,
            Kind::Money,
            Kind::Oid,
            Kind::Point,
            Kind::Other,
        ]),
        (0..=6_u8).prop_map(|digits| Kind::Time { digits }),
        (0..=6_u8).prop_map(|digits| Kind::Timestamp { digits }),
        (0..=6_u8).prop_map(|digits| Kind::Timestamptz { digits }),
        any::<Option<u8>>().prop_map(|scale| Kind::Numeric { scale }),
        any::<i32>().prop_map(|length| Kind::Bit { length }),
    ];
    let flag = |weight| prop::bool::weighted(weight);
    (kind, flag(0.1), flag(0.9)).prop_map(|(kind, array, known)| ValueType { kind, array, known })
}

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
    spec.standard_headers = StandardHeaders { event_type: true, position: true, source: true };
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
        types in prop::collection::vec(value_type(), 24),
    ) {
        let spec = spec(layout, envelope);
        let names: Vec<String> = spec.required_columns().into_iter().map(str::to_owned).collect();
        let mut mapper = Mapper::new(spec.clone()).unwrap();
        for values in &rows {
            let cells = names.iter().zip(&types).zip(values);
            let columns: Vec<_> =
                cells.map(|((name, of), value)| (name.as_str(), *of, value.as_deref())).collect();
            if describe(&mut mapper, 7, ("public", layout.table()), &columns).is_err() {
                continue;
            }
            if let Ok(Some(mapped)) = map_row(&mut mapper, &row(7, &columns)) {
                let record = mapped.record();
                prop_assert!((1..=249).contains(&record.topic.len()));
                prop_assert!(record.headers.len() >= 4);
                prop_assert!(record.timestamp_ms.is_none_or(|ms| ms > 0));
            }
        }
    }
}
