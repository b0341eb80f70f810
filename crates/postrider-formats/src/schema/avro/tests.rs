use super::AvroSchema;
use crate::schema::registry::ReferencedSchema;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The document in the binary form, or what is wrong.
fn written(schema: &str, document: &str) -> Result<String, String> {
    let schema = AvroSchema::parse(&[], schema).map_err(|misfit| misfit.to_string())?;
    let mut out = Vec::new();
    schema.write(document.as_bytes(), &mut out).map_err(|misfit| misfit.to_string())?;
    Ok(hex(&out))
}

fn of(schema: &str, document: &str) -> String {
    written(schema, document).unwrap_or_else(|error| panic!("{schema} {document}: {error}"))
}

fn error(schema: &str, document: &str) -> String {
    written(schema, document).unwrap_err()
}

/// The examples of the specification, and the bounds.
#[test]
fn primitive_types_are_written_as_the_specification_says() {
    for (schema, document, bytes) in [
        ("\"null\"", "null", ""),
        ("\"boolean\"", "true", "01"),
        ("\"int\"", "0", "00"),
        ("\"int\"", "-1", "01"),
        ("\"int\"", "1", "02"),
        ("\"int\"", "-64", "7f"),
        ("\"int\"", "64", "8001"),
        ("\"int\"", "-2147483648", "ffffffff0f"),
        ("\"long\"", "9223372036854775807", "feffffffffffffffff01"),
        ("\"long\"", "-9223372036854775808", "ffffffffffffffffff01"),
        ("\"long\"", "9007199254740993", "8280808080808020"),
        ("\"long\"", "1.50e1", "1e"),
        ("\"float\"", "1.5", "0000c03f"),
        ("\"double\"", "-2", "00000000000000c0"),
        ("\"double\"", "\"NaN\"", "000000000000f87f"),
        ("\"string\"", "\"foo\"", "06666f6f"),
        (
            r#"{"type": "record", "name": "R", "fields": [{"name": "b", "type": "bytes"}]}"#,
            r#"{"b": "\u00ff\u0000"}"#,
            "04ff00",
        ),
        (r#"{"type": "fixed", "name": "F", "size": 2}"#, r#""\u0001ÿ""#, "01ff"),
        (r#"{"type": "enum", "name": "E", "symbols": ["A", "B"]}"#, "\"B\"", "02"),
        (r#"{"type": "array", "items": "long"}"#, "[3, 27]", "04063600"),
        (r#"{"type": "array", "items": "long"}"#, "[]", "00"),
        (r#"{"type": "map", "values": "int"}"#, r#"{"a": 1}"#, "0202610200"),
    ] {
        assert_eq!(of(schema, document), bytes, "{schema} {document}");
    }
}

#[test]
fn numbers_that_a_type_can_not_hold_are_refused() {
    let outside = "$: the number is out of the range of the type";
    for (schema, document) in [
        ("\"int\"", "2147483648"),
        ("\"long\"", "9223372036854775808"),
        ("\"long\"", "1e400000000000000000000"),
        ("\"float\"", "1e39"),
        ("\"double\"", "1e400"),
    ] {
        assert_eq!(error(schema, document), outside, "{schema} {document}");
    }
    let places = "$: expected a whole number, found one with decimal places";
    assert_eq!(error("\"long\"", "0.5"), places);
    assert_eq!(error("\"long\"", "\"1\""), "$: expected long, found string");
    assert_eq!(error("\"string\"", "1"), "$: expected string, found number");
    assert_eq!(error("\"boolean\"", "0"), "$: expected boolean, found number");
    assert_eq!(error("\"null\"", "{}"), "$: expected null, found object");
}

const ORDER: &str = r#"{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": null},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "count", "type": "int", "default": 1}]}}, "default": [{"price": "\u0005"}]},
    {"name": "next", "type": ["null", "Order"], "default": null}]}"#;

#[test]
fn records_have_their_fields_in_the_order_of_the_schema_with_defaults_for_missing_ones() {
    let lines = "02 02 05 02 00".replace(' ', "");
    assert_eq!(of(ORDER, r#"{"id": 1}"#), format!("0200{lines}00"));
    assert_eq!(of(ORDER, r#"{"lines": [], "note": "x", "id": 1}"#), "020202780000");
    let nested = r#"{"id": 1, "lines": [], "next": {"id": 2, "lines": []}}"#;
    assert_eq!(of(ORDER, nested), "0200000204000000");
    let missing = "$.id: the member is missing, and the schema has no default for it";
    assert_eq!(error(ORDER, "{}"), missing);
    let unknown = "$.lines[].cost: the schema has no such field, and nothing is left out";
    assert_eq!(error(ORDER, r#"{"id": 1, "lines": [{"price": 1, "cost": 1}]}"#), unknown);
    let places = "$.lines[].price: the number has more than 2 decimal places";
    assert_eq!(error(ORDER, r#"{"id": 1, "lines": [{"price": 0.001}]}"#), places);
    assert_eq!(error(ORDER, "[]"), "$: expected record shop.Order, found array");
    let twice = r#"{"id": 1, "id": 1}"#;
    assert_eq!(error(ORDER, twice), "${}: a member occurs twice");
}

/// Nothing of a document is in an error, whatever does not fit.
#[test]
fn errors_have_no_value_of_the_document() {
    let documents = [
        r#"{"id": "4711secret"}"#,
        r#"{"id": 4711.5}"#,
        r#"{"id": 1, "note": 4711}"#,
        r#"{"id": 1, "lines": [{"price": "4711secret"}]}"#,
        r#"{"id": 1, "secret 4711": 1}"#,
        r#"{"id": 1, "next": {"4711": 4711}}"#,
        r#"4711"#,
        r#"{"id": 4711"#,
    ];
    for document in documents {
        let error = error(ORDER, document);
        assert!(!error.contains("4711") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn a_union_takes_the_branch_that_the_value_is_of_or_that_it_names() {
    let union = r#"["null", "double", "long", "string", {"type": "map", "values": "long"},
        {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "long"}]}]"#;
    assert_eq!(of(union, "null"), "00");
    // A whole number is exact as a long.
    assert_eq!(of(union, "9007199254740993"), "048280808080808020");
    assert_eq!(of(union, "1.0"), "02000000000000f03f");
    assert_eq!(of(union, "\"a\""), "060261");
    assert_eq!(of(union, r#"{"x": 1}"#), "080202780200");
    assert_eq!(of(union, r#"{"a.R": {"x": 1}}"#), "0a02");
    assert_eq!(of(union, r#"{"double": 1}"#), "02000000000000f03f");
    assert_eq!(of(union, r#"{"long": 1}"#), "0402");
    assert_eq!(
        error(union, "true"),
        "$: expected null or double or long or string or map or record a.R, found boolean"
    );
    // The member of a map that is called like a branch.
    assert_eq!(
        of(r#"["string", {"type": "map", "values": "long"}]"#, r#"{"string": 1}"#),
        "02020c737472696e670200"
    );
    let times = r#"["null", {"type": "long", "logicalType": "timestamp-micros"}, "double", "int"]"#;
    assert_eq!(of(times, "2147483647"), "06feffffff0f");
    assert_eq!(of(times, "0.5"), "04000000000000e03f");
    assert_eq!(of(times, "\"1970-01-01T00:00:00.000001Z\""), "0202");
    let optional =
        r#"{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "long"]}]}"#;
    assert_eq!(error(optional, r#"{"x": "1"}"#), "$.x: expected null or long, found string");
    assert_eq!(
        error(optional, r#"{"x": 0.5}"#),
        "$.x: expected a whole number, found one with decimal places"
    );
}

#[test]
fn logical_types_take_texts_and_numbers() {
    let logical = |of: &str, name: &str| format!(r#"{{"type": "{of}", "logicalType": "{name}"}}"#);
    for (schema, document, bytes) in [
        (logical("int", "date"), "\"1970-01-02\"", "02"),
        (logical("int", "date"), "1", "02"),
        (logical("int", "time-millis"), "\"00:00:00.001\"", "02"),
        (logical("long", "time-micros"), "\"00:00:00.000001\"", "02"),
        (logical("long", "timestamp-millis"), "\"1970-01-01T00:00:00.001Z\"", "02"),
        (logical("long", "timestamp-micros"), "\"1970-01-01T01:00:00.000001+01:00\"", "02"),
        (logical("long", "timestamp-nanos"), "\"1970-01-01 00:00:00.000000001+00\"", "02"),
        (logical("long", "local-timestamp-millis"), "\"1970-01-01T00:00:00.001\"", "02"),
        (logical("long", "unknown"), "1", "02"),
        (
            logical("string", "uuid"),
            "\"123e4567-e89b-12d3-a456-426614174000\"",
            "4831323365343536372d653839622d313264332d613435362d343236363134313734303030",
        ),
        (
            r#"{"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}"#.to_owned(),
            "\"123e4567-e89b-12d3-a456-426614174000\"",
            "123e4567e89b12d3a456426614174000",
        ),
        (
            r#"{"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 1}"#
                .to_owned(),
            "\"-0.3\"",
            "fffffffd",
        ),
        (
            r#"{"type": "fixed", "name": "P", "size": 12, "logicalType": "duration"}"#.to_owned(),
            r#"{"months": 1, "millis": 4294967295}"#,
            "0100000000000000ffffffff",
        ),
    ] {
        assert_eq!(of(&schema, document), bytes, "{schema} {document}");
    }
    for (schema, document) in [
        (logical("int", "date"), "\"1970-01-02T00:00:00\""),
        (logical("long", "timestamp-millis"), "\"1970-01-01T00:00:00.0001Z\""),
        (logical("long", "timestamp-millis"), "\"1970-01-01T00:00:00\""),
        (logical("string", "uuid"), "\"123e4567\""),
        (logical("long", "timestamp-millis"), "true"),
    ] {
        assert!(written(&schema, document).is_err(), "{schema} {document}");
    }
}

#[test]
fn names_are_resolved_in_their_namespaces_and_references() {
    let item = r#"{"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "n", "type": "int"}]}"#;
    let order = r#"{"type": "record", "name": "shop.Order", "fields": [
        {"name": "a", "type": "Item"}, {"name": "b", "type": "shop.Item"}, {"name": "c", "type": {"type": "Item"}}]}"#;
    let reference = ReferencedSchema { name: "shop.Item".to_owned(), text: item.to_owned() };
    let schema = AvroSchema::parse(&[reference], order).unwrap();
    let mut out = Vec::new();
    schema.write(br#"{"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}"#, &mut out).unwrap();
    assert_eq!(hex(&out), "020406");
    let error = AvroSchema::parse(&[], order).unwrap_err().to_string();
    assert_eq!(error, "$: the Avro schema is wrong: type Item is unknown");
}

#[test]
fn schemas_that_are_none_are_refused() {
    for schema in [
        "",
        "1",
        "\"unknown\"",
        "[]",
        r#"["null", ["null"]]"#,
        r#"{"type": "record", "name": "R"}"#,
        r#"{"type": "record", "fields": []}"#,
        r#"{"type": "array"}"#,
        r#"{"type": "fixed", "name": "F", "size": -1}"#,
        r#"{"type": "fixed", "name": "F", "size": 99999999999}"#,
        r#"{"type": "enum", "name": "E", "symbols": [1]}"#,
        r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}"#,
        r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "R", "default": {}}]}"#,
        r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}"#,
        r#"[{"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 1}]"#,
        "\"bytes\"",
    ] {
        assert!(AvroSchema::parse(&[], schema).is_err(), "{schema}");
    }
}

/// Each level of the document fits both branches but for its innermost value.
#[test]
fn a_document_that_fits_unions_in_many_ways_ends() {
    let schema = r#"{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A",
        {"type": "record", "name": "B", "fields": [{"name": "x", "type": ["null", "A", "B"]}]}]}]}"#;
    let document = format!("{}true{}", "{\"x\":".repeat(60), "}".repeat(60));
    let error = error(schema, &document);
    assert!(error.ends_with("the document fits branches of unions in too many ways"), "{error}");
}

/// Any bytes are a document or an error, and the depth of both is bounded.
#[test]
fn deep_documents_are_refused() {
    let list = r#"{"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"], "default": null}]}"#;
    let nested = |levels: usize| format!("{}{{}}{}", "{\"n\":".repeat(levels), "}".repeat(levels));
    assert_eq!(of(list, &nested(90)), "02".repeat(90) + "00");
    assert!(error(list, &nested(101)).contains("nested deeper than 100 levels"));
}
