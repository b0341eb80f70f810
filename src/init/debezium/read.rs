//! Reads the options of a connector's configuration: JSON or Java properties, of Kafka Connect, Debezium Server or the
//! embedded engine.

use crate::init::InitError;
use serde_json::Value;

/// Size of a connector's configuration at most. Unit: bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// The program that a configuration is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flavour {
    /// Kafka Connect, or the embedded engine, which has the same names.
    Connect,
    /// Debezium Server.
    Server,
}

/// One option.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// The name in the file.
    pub(super) name: String,
    /// The name in Kafka Connect; options that only Debezium Server has keep their `debezium.`.
    pub(super) option: String,
    /// The value; may be a secret.
    pub(super) value: String,
}

/// Reads the options, in the order of the file.
pub(super) fn read(text: &str) -> Result<(Flavour, Vec<Given>), InitError> {
    let text = text.trim_start_matches('\u{feff}');
    let pairs = if text.trim_start().starts_with('{') { json(text)? } else { properties(text)? };
    let is_server = pairs.iter().any(|(name, _)| name.starts_with("debezium.source."));
    let flavour = if is_server { Flavour::Server } else { Flavour::Connect };
    let mut given: Vec<Given> = Vec::new();
    for (name, value) in pairs {
        let option = if is_server { of_server(&name).to_owned() } else { name.clone() };
        // As in Java, the last of two values is used.
        given.retain(|earlier| earlier.option != option);
        given.push(Given { name, option, value });
    }
    Ok((flavour, given))
}

fn of_server(name: &str) -> &str {
    const SAME: [&str; 3] = ["transforms", "predicates", "converters"];
    let Some(rest) = name.strip_prefix("debezium.") else { return name };
    if let Some(option) = rest.strip_prefix("source.") {
        return option;
    }
    if let Some(option) = rest.strip_prefix("sink.kafka.producer.") {
        // The same as the option of Kafka Connect, except for one part of the name.
        let start = name.len() - option.len() - "producer.".len();
        return name.get(start..).unwrap_or(name);
    }
    let is = |first: &&str| {
        rest.strip_prefix(*first).is_some_and(|more| more.is_empty() || more.starts_with('.'))
    };
    if SAME.iter().any(is) { rest } else { name }
}

fn unreadable(what: impl Into<String>) -> InitError {
    InitError::Unreadable { what: what.into() }
}

/// `{"name": …, "config": {…}}`, or the options alone.
fn json(text: &str) -> Result<Vec<(String, String)>, InitError> {
    // The text of the error may contain a part of a value, so only the position is reported.
    let value: Value = serde_json::from_str(text).map_err(|error| {
        unreadable(format!("invalid JSON at line {}, column {}", error.line(), error.column()))
    })?;
    let no_object = || unreadable("the JSON is not an object of options");
    let all = value.as_object().ok_or_else(no_object)?;
    let mut pairs = Vec::new();
    let options = match all.get("config") {
        Some(config) => {
            if let Some(name) = all.get("name").and_then(Value::as_str) {
                pairs.push(("name".to_owned(), name.to_owned()));
            }
            config.as_object().ok_or_else(no_object)?
        }
        None => all,
    };
    for (name, value) in options {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Array(_) | Value::Object(_) => {
                return Err(unreadable(format!("option \"{name}\" is not a string")));
            }
        };
        pairs.push((name.clone(), text));
    }
    Ok(pairs)
}

/// `java.util.Properties`: `=`, `:` or white space between name and value, `\` at the end of a line continues it, `#`
/// and `!` begin a comment.
fn properties(text: &str) -> Result<Vec<(String, String)>, InitError> {
    let mut pairs = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while line.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
            line.pop();
            match lines.next() {
                Some((next, _)) => line.push_str(next.trim_start()),
                None => break,
            }
        }
        let (name, value) = split(&line);
        let unescape = |text: &str| {
            unescaped(text).ok_or_else(|| unreadable(format!("an invalid \\u in line {number}")))
        };
        let name = unescape(name)?;
        if name.is_empty() {
            return Err(unreadable(format!("line {number} is not a property")));
        }
        pairs.push((name, unescape(value)?.trim_end().to_owned()));
    }
    if pairs.is_empty() { Err(unreadable("the file has no options")) } else { Ok(pairs) }
}

/// Name and value, still escaped.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '=' | ':' | ' ' | '\t' => {
                let (name, rest) = line.split_at_checked(at).unwrap_or((line, ""));
                let rest = rest.trim_start();
                let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
                return (name, rest.trim_start());
            }
            _ => {}
        }
    }
    (line, "")
}

fn unescaped(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                plain.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
            }
            Some(other) => plain.push(other),
            None => {}
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        read(text).unwrap().1.into_iter().map(|given| (given.option, given.value)).collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn properties_are_read_as_java_reads_them() {
        let text = "# a comment\n! another\n\na=1\n  b : two words  \nc three\nd\\:e=f\\\n   g\nh=\\u00e9\\t\ni=\n\
                    j=a=b\na=2\n\
                    k=(.*)\\\\.v\n";
        let expected = [
            ("b", "two words"),
            ("c", "three"),
            ("d:e", "fg"),
            ("h", "é"),
            ("i", ""),
            ("j", "a=b"),
            ("a", "2"),
            ("k", "(.*)\\.v"),
        ];
        assert_eq!(pairs(text), owned(&expected));
    }

    #[test]
    fn json_is_read_with_and_without_its_wrapper() {
        let expected = owned(&[("name", "x"), ("tasks.max", "1"), ("a", "true")]);
        assert_eq!(
            pairs(r#"{"name": "x", "config": {"tasks.max": 1, "a": true, "b": null}}"#),
            expected
        );
        assert_eq!(pairs(r#"{"name": "x", "tasks.max": "1", "a": true}"#), expected);
    }

    #[test]
    fn options_of_debezium_server_have_the_names_of_kafka_connect() {
        let text = "debezium.source.database.hostname=h\ndebezium.transforms=outbox\n\
                    debezium.transforms.outbox.type=x\n\
                    debezium.sink.type=kafka\ndebezium.sink.kafka.producer.acks=all\nquarkus.log.level=INFO\n";
        let (flavour, given) = read(text).unwrap();
        assert_eq!(flavour, Flavour::Server);
        let options: Vec<_> = given.iter().map(|given| given.option.as_str()).collect();
        let expected = [
            "database.hostname",
            "transforms",
            "transforms.outbox.type",
            "debezium.sink.type",
            "producer.acks",
            "quarkus.log.level",
        ];
        assert_eq!(options, expected);
    }

    #[test]
    fn what_is_neither_is_refused_without_its_text() {
        for text in ["", "{\"a\": hush}", "{\"a\": [\"hush\"]}", "[]", "a=\\uhush", "=hush"] {
            if let Err(error) = read(text) {
                assert!(!error.to_string().contains("hush"), "{error}");
            }
        }
        assert!(read("").is_err());
        assert!(read("{\"a\": [1]}").is_err());
    }
}
