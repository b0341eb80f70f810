//! The schema, held against a validator that shares no code with it.

use super::*;

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn json_of(toml: &str) -> Value {
    let table: toml::Table = toml::from_str(toml).unwrap();
    serde_json::to_value(table).unwrap()
}

/// The small file with one more line, in the pipeline's table where it is the pipeline's.
fn with_line(line: &str) -> Value {
    json_of(&match line.strip_prefix("pipelines.orders.") {
        Some(line) => format!("{SMALL}{line}\n"),
        None => format!("{line}\n{SMALL}"),
    })
}

const SMALL: &str = r#"
[pipelines.orders]
source.url = "postgresql://postrider@localhost/app"
outbox.table = "outbox"
sink.brokers = "localhost:9092"
"#;

#[test]
fn the_schema_is_a_schema() {
    jsonschema::meta::validate(&schema()).unwrap();
}

#[test]
fn the_reference_file_fits_the_schema() {
    for text in [REFERENCE, &uncommented(), SMALL] {
        let errors: Vec<_> = validator()
            .iter_errors(&json_of(text))
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, Vec::<String>::new());
    }
}

#[test]
fn what_the_reader_refuses_does_not_fit() {
    let validator = validator();
    for line in [
        "shutdown_grace = 10",
        "shutdown_grace = \"soon\"",
        "nonsense = 1",
        "admin.redy_lag_max = \"1s\"",
        "pipelines.orders.flow.in_flight_events = 0",
        "pipelines.orders.flow.in_flight_bytes = \"64\"",
        "pipelines.orders.sink.kind = \"mqtt\"",
        "pipelines.orders.sink.nonsense = 1",
        "pipelines.orders.outbox.extra.tenant = { heder = \"x\" }",
        "pipelines.orders.route.standard_headers = [\"id\"]",
        "pipelines.orders.route.replace.pattern = \"a\"",
        "pipelines.orders.outbox.columns.id = 1",
        "[pipelines.bills]\noutbox.table = \"bills\"",
    ] {
        assert!(!validator.is_valid(&with_line(line)), "{line}");
    }
    for line in [
        "shutdown_grace = \"${GRACE}\"",
        "pipelines.orders.sink.kind = \"${KIND:-kafka}\"",
        "pipelines.orders.sink.properties = { \"linger.ms\" = 1, socket.keepalive.enable = true }",
    ] {
        assert!(validator.is_valid(&with_line(line)), "{line}");
    }
}

#[test]
fn every_key_is_described() {
    fn undescribed(path: &str, schema: &Value, found: &mut Vec<String>) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if schema["description"].is_null() && schema["type"] != "object" {
                found.push(path.clone());
            }
            undescribed(&path, schema, found);
        }
        let others = &schema["additionalProperties"];
        if others.is_object() {
            undescribed(&format!("{path}.*"), others, found);
        }
    }
    let mut found = Vec::new();
    undescribed("", &schema(), &mut found);
    // The parts of an inline table are described with it.
    found.retain(|path| !path.contains(".extra.*.") && !path.contains(".backoff."));
    assert_eq!(found, Vec::<String>::new());
}
