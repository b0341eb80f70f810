//! One record as one line of JSON.
//!
//! `{"topic":…,"partition":…,"key":…,"headers":[[name,value]…],"timestamp":…,"value":…}`. Bytes that are not UTF-8
//! stand in base64, and the line says so: `"encoding":"base64"` for the value, `"key_encoding"` for the key, a third
//! member for a header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postrider_core::record::{Header, Record};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::borrow::Cow;

const BASE64: &str = "base64";

#[derive(Serialize)]
struct Line<'a> {
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_encoding: Option<&'static str>,
    headers: Headers<'a>,
    timestamp: Option<i64>,
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

/// Pairs in order: names may repeat, so an object would lose some.
struct Headers<'a>(&'a [Header<'a>]);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for header in self.0 {
            match text(header.value) {
                (value, None) => list.serialize_element(&(header.name, value))?,
                (value, Some(encoding)) => {
                    list.serialize_element(&(header.name, value, encoding))?;
                }
            }
        }
        list.end()
    }
}

/// Bytes as text, and how they were made text.
fn text(bytes: Option<&[u8]>) -> (Option<Cow<'_, str>>, Option<&'static str>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => (None, None),
        Some((_, Ok(text))) => (Some(Cow::Borrowed(text)), None),
        Some((bytes, Err(_))) => (Some(Cow::Owned(STANDARD.encode(bytes))), Some(BASE64)),
    }
}

/// Appends the record and a newline.
pub(super) fn append(record: &Record<'_>, lines: &mut Vec<u8>) {
    let (key, key_encoding) = text(record.key);
    let (value, encoding) = text(record.value);
    let line = Line {
        topic: record.topic,
        partition: record.partition,
        key,
        key_encoding,
        headers: Headers(record.headers),
        timestamp: record.timestamp_ms,
        value,
        encoding,
    };
    // Strings and numbers into memory: serde_json has no error for that.
    let written = serde_json::to_writer(&mut *lines, &line);
    assert!(written.is_ok(), "a record of strings and numbers is always JSON");
    lines.push(b'\n');
}
