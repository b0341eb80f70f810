//! The text of a value as JSON, as `to_jsonb` writes the value.
//!
//! A number stays the text that the server has sent, so it keeps every digit. An array or a row whose text does not
//! have the shape that the catalog describes is written as a string: its type was changed since.

/// How the text of a value becomes JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum JsonShape {
    /// A string.
    Text,
    /// `t` or `f`.
    Bool,
    /// A number.
    Number,
    /// JSON.
    Json,
    /// A time with a date, with or without a zone.
    Timestamp,
    /// An array.
    Array {
        /// The shape of the elements.
        element: Box<JsonShape>,
        /// What is between them.
        delimiter: u8,
    },
    /// Elements with spaces between them.
    Vector {
        /// The shape of the elements.
        element: Box<JsonShape>,
    },
    /// A row.
    Record {
        /// The fields: name in quotes with a colon, and shape.
        fields: Vec<(Vec<u8>, JsonShape)>,
    },
}

/// A value is not UTF-8, which a database in `SQL_ASCII` allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotUtf8;

/// Appends a value; `None` is `null`.
pub(super) fn push_value(
    shape: &JsonShape,
    text: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), NotUtf8> {
    let Some(text) = text else {
        out.extend_from_slice(b"null");
        return Ok(());
    };
    let start = out.len();
    let written = match shape {
        JsonShape::Text => false,
        JsonShape::Bool => push_bool(text, out),
        JsonShape::Number => push_number(text, out),
        JsonShape::Json => push_json(text, out)?,
        JsonShape::Timestamp => push_timestamp(text, out),
        JsonShape::Array { element, delimiter } => {
            ArrayText { rest: text, delimiter: *delimiter, element }.push(out)?
        }
        JsonShape::Vector { element } => push_vector(text, element, out)?,
        JsonShape::Record { fields } => push_record(text, fields, out)?,
    };
    if !written {
        out.truncate(start);
        push_string(text, out)?;
    }
    Ok(())
}

/// Appends a string with quotes.
pub(super) fn push_string(text: &[u8], out: &mut Vec<u8>) -> Result<(), NotUtf8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    checked(text)?;
    out.push(b'"');
    let mut rest = text;
    while let Some(plain) =
        rest.iter().position(|byte| *byte < b' ' || matches!(byte, b'"' | b'\\'))
    {
        let (before, after) = rest.split_at(plain);
        out.extend_from_slice(before);
        let Some((byte, after)) = after.split_first() else { break };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0C => out.extend_from_slice(b"\\f"),
            other => {
                let digit = |of: u8| DIGITS.get(usize::from(of)).copied().unwrap_or(b'0');
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[digit(other >> 4), digit(other & 0xF)]);
            }
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
    Ok(())
}

/// A name as the name of a member: in quotes, with a colon.
pub(super) fn member_name(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 3);
    // A `str` is UTF-8.
    push_string(name.as_bytes(), &mut out).unwrap_or_default();
    out.push(b':');
    out
}

/// Length of a text as a JSON string, with its quotes. Unit: bytes.
pub(super) fn string_bytes(text: &[u8]) -> usize {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C => 2,
        0..b' ' => 6,
        _ => 1,
    };
    2 + text.iter().map(escaped).sum::<usize>()
}

fn checked(text: &[u8]) -> Result<(), NotUtf8> {
    if text.is_ascii() || std::str::from_utf8(text).is_ok() { Ok(()) } else { Err(NotUtf8) }
}

fn push_bool(text: &[u8], out: &mut Vec<u8>) -> bool {
    match text {
        b"t" => out.extend_from_slice(b"true"),
        b"f" => out.extend_from_slice(b"false"),
        _ => return false,
    }
    true
}

/// `NaN` and `Infinity` are no numbers of JSON.
fn push_number(text: &[u8], out: &mut Vec<u8>) -> bool {
    let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let is_number = text.last().is_some_and(u8::is_ascii_digit) && text.iter().all(digits);
    if is_number {
        out.extend_from_slice(text);
    }
    is_number
}

fn push_json(text: &[u8], out: &mut Vec<u8>) -> Result<bool, NotUtf8> {
    checked(text)?;
    out.extend_from_slice(text);
    Ok(!text.is_empty())
}

/// ISO 8601: a `T` between date and time, and minutes in the zone.
fn push_timestamp(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(space) = text.iter().position(|byte| *byte == b' ') else { return false };
    let (date, time) = text.split_at(space);
    let Some((time, era)) = time.get(1..).map(|time| {
        let end = time.iter().position(|byte| *byte == b' ').unwrap_or(time.len());
        time.split_at(end)
    }) else {
        return false;
    };
    if !time.first().is_some_and(u8::is_ascii_digit) || !text.is_ascii() {
        return false;
    }
    out.push(b'"');
    out.extend_from_slice(date);
    out.push(b'T');
    out.extend_from_slice(time);
    let zone = time.iter().position(|byte| matches!(byte, b'+' | b'-'));
    if zone.is_some_and(|zone| time.len() - zone == "+00".len()) {
        out.extend_from_slice(b":00");
    }
    out.extend_from_slice(era);
    out.push(b'"');
    true
}

/// The text of an array: `{1,NULL,"a b"}`, `[0:1]={{1,2},{3,4}}`.
struct ArrayText<'a> {
    rest: &'a [u8],
    delimiter: u8,
    element: &'a JsonShape,
}

impl ArrayText<'_> {
    /// Appends the array; `false` if the text is not one.
    fn push(mut self, out: &mut Vec<u8>) -> Result<bool, NotUtf8> {
        if self.rest.first() == Some(&b'[') {
            let Some(equals) = self.rest.iter().position(|byte| *byte == b'=') else {
                return Ok(false);
            };
            self.rest = self.rest.get(equals + 1..).unwrap_or_default();
        }
        Ok(self.push_dimension(out, 0)? && self.rest.is_empty())
    }

    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn push_dimension(&mut self, out: &mut Vec<u8>, depth: usize) -> Result<bool, NotUtf8> {
        // The server has at most 6 dimensions (`MAXDIM`).
        if depth >= 6 || self.next() != Some(b'{') {
            return Ok(false);
        }
        out.push(b'[');
        if self.rest.first() == Some(&b'}') {
            self.next();
            out.push(b']');
            return Ok(true);
        }
        loop {
            let pushed = match self.rest.first() {
                Some(b'{') => self.push_dimension(out, depth + 1)?,
                Some(b'"') => self.push_quoted(out)?,
                Some(_) => self.push_plain(out)?,
                None => false,
            };
            match self.next() {
                Some(b'}') if pushed => {
                    out.push(b']');
                    return Ok(true);
                }
                Some(byte) if pushed && byte == self.delimiter => out.push(b','),
                Some(_) | None => return Ok(false),
            }
        }
    }

    fn push_quoted(&mut self, out: &mut Vec<u8>) -> Result<bool, NotUtf8> {
        self.next();
        let mut text = Vec::new();
        loop {
            match self.next() {
                Some(b'"') => break,
                Some(b'\\') => match self.next() {
                    Some(byte) => text.push(byte),
                    None => return Ok(false),
                },
                Some(byte) => text.push(byte),
                None => return Ok(false),
            }
        }
        push_value(self.element, Some(&text), out)?;
        Ok(true)
    }

    fn push_plain(&mut self, out: &mut Vec<u8>) -> Result<bool, NotUtf8> {
        let ends = |byte: &u8| *byte == self.delimiter || *byte == b'}';
        let end = self.rest.iter().position(ends).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        push_value(self.element, Some(text).filter(|text| *text != b"NULL"), out)?;
        Ok(!text.is_empty())
    }
}

/// `int2vector` and `oidvector`: numbers with spaces between them.
fn push_vector(text: &[u8], element: &JsonShape, out: &mut Vec<u8>) -> Result<bool, NotUtf8> {
    out.push(b'[');
    let parts = text.split(|byte| *byte == b' ').filter(|part| !part.is_empty());
    for (at, part) in parts.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_value(element, Some(part), out)?;
    }
    out.push(b']');
    Ok(true)
}

/// The text of a row: `(1,"a b",)`. Nothing between two commas is NULL.
fn push_record(
    text: &[u8],
    fields: &[(Vec<u8>, JsonShape)],
    out: &mut Vec<u8>,
) -> Result<bool, NotUtf8> {
    let Some(mut rest) = text.strip_prefix(b"(").and_then(|text| text.strip_suffix(b")")) else {
        return Ok(false);
    };
    out.push(b'{');
    for (at, (name, shape)) in fields.iter().enumerate() {
        if at > 0 {
            let Some(after) = rest.strip_prefix(b",") else { return Ok(false) };
            rest = after;
            out.push(b',');
        }
        let (field, after) = record_field(rest);
        rest = after;
        out.extend_from_slice(name);
        push_value(shape, field.as_deref(), out)?;
    }
    out.push(b'}');
    Ok(rest.is_empty())
}

/// The first field of the rest of a row, and what follows it.
fn record_field(text: &[u8]) -> (Option<Vec<u8>>, &[u8]) {
    let mut field: Option<Vec<u8>> = None;
    let mut quoted = false;
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b',' && !quoted {
            break;
        }
        let content = field.get_or_insert_default();
        rest = after;
        match (byte, after.split_first()) {
            (b'"', Some((b'"', after))) if quoted => {
                content.push(b'"');
                rest = after;
            }
            (b'"', _) => quoted = !quoted,
            (b'\\', Some((next, after))) => {
                content.push(*next);
                rest = after;
            }
            (other, _) => content.push(other),
        }
    }
    (field, rest)
}

/// The value of the member that `name` (a string with quotes, and a colon) begins, of a JSON object that this module's
/// caller has written: without white space between the members.
pub(super) fn member<'j>(object: &'j [u8], name: &[u8]) -> Option<&'j [u8]> {
    let mut rest = object.strip_prefix(b"{")?;
    loop {
        let found = rest.starts_with(name);
        let colon = string_end(rest)?;
        rest = rest.get(colon + 1..)?;
        let end = value_end(rest);
        let (value, after) = rest.split_at(end);
        if found {
            return Some(value);
        }
        rest = after.strip_prefix(b",")?;
    }
}

/// Length of the string that `text` begins with.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    let ends = |byte: &u8| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    };
    text.get(1..)?.iter().position(ends).map(|end| end + 2)
}

/// Length of the value that `text` begins with: up to the comma or brace that ends its member.
fn value_end(text: &[u8]) -> usize {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.iter().enumerate() {
        if quoted {
            quoted = *byte != b'"' || escaped;
            escaped = *byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => (quoted, escaped) = (true, false),
            b'{' | b'[' => depth += 1,
            b'}' | b',' if depth == 0 => return at,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(shape: &JsonShape, text: &str) -> String {
        let mut out = Vec::new();
        push_value(shape, Some(text.as_bytes()), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn array(element: JsonShape) -> JsonShape {
        JsonShape::Array { element: Box::new(element), delimiter: b',' }
    }

    #[test]
    fn a_value_is_written_by_the_shape_of_its_type() {
        for (shape, text, expected) in [
            (JsonShape::Bool, "t", "true"),
            (JsonShape::Bool, "f", "false"),
            (
                JsonShape::Number,
                "-12345678901234567890.0123456789000",
                "-12345678901234567890.0123456789000",
            ),
            (JsonShape::Number, "1e+20", "1e+20"),
            (JsonShape::Number, "NaN", "\"NaN\""),
            (JsonShape::Number, "-Infinity", "\"-Infinity\""),
            (JsonShape::Json, "{\"a\": [1, null]}", "{\"a\": [1, null]}"),
            (JsonShape::Text, "a\"b\\c\n\u{1}\u{7f}ä", "\"a\\\"b\\\\c\\n\\u0001\u{7f}ä\""),
            (JsonShape::Timestamp, "2026-10-25 02:30:00.5", "\"2026-10-25T02:30:00.5\""),
            (JsonShape::Timestamp, "2026-10-25 02:30:00+00", "\"2026-10-25T02:30:00+00:00\""),
            (JsonShape::Timestamp, "2026-10-25 02:30:00-03:30", "\"2026-10-25T02:30:00-03:30\""),
            (JsonShape::Timestamp, "0044-03-15 12:00:00+00 BC", "\"0044-03-15T12:00:00+00:00 BC\""),
            (JsonShape::Timestamp, "-infinity", "\"-infinity\""),
        ] {
            assert_eq!(json(&shape, text), expected, "{text}");
        }
        let mut out = Vec::new();
        push_value(&JsonShape::Text, None, &mut out).unwrap();
        assert_eq!(out, b"null");
        assert_eq!(push_value(&JsonShape::Text, Some(b"\xE4"), &mut out), Err(NotUtf8));
    }

    #[test]
    fn arrays_and_rows_are_nested_and_other_texts_are_strings() {
        let field = |name: &str, shape| (format!("\"{name}\":").into_bytes(), shape);
        let row = || JsonShape::Record {
            fields: vec![
                field("n", JsonShape::Number),
                field("t", JsonShape::Text),
                field("b", JsonShape::Bool),
            ],
        };
        for (shape, text, expected) in [
            (array(JsonShape::Number), "{}", "[]"),
            (array(JsonShape::Number), "{1,NULL,NaN}", "[1,null,\"NaN\"]"),
            (array(JsonShape::Number), "[0:1]={{1,2},{3,4}}", "[[1,2],[3,4]]"),
            (array(JsonShape::Text), r#"{a,"NULL","b \"c\\",""}"#, r#"["a","NULL","b \"c\\",""]"#),
            (array(JsonShape::Json), r#"{"{\"a\": \"b\"}",null}"#, r#"[{"a": "b"},null]"#),
            (array(JsonShape::Timestamp), "{\"2026-10-25 02:30:00\"}", "[\"2026-10-25T02:30:00\"]"),
            (row(), r#"(1,"a ""b"" \\",t)"#, r#"{"n":1,"t":"a \"b\" \\","b":true}"#),
            (row(), r#"(,"",)"#, r#"{"n":null,"t":"","b":null}"#),
            (array(row()), r#"{"(1,x,f)"}"#, r#"[{"n":1,"t":"x","b":false}]"#),
            (JsonShape::Vector { element: Box::new(JsonShape::Number) }, "1 2", "[1,2]"),
            // The type has another field since, and is no array any more.
            (row(), "(1,x)", "\"(1,x)\""),
            (row(), "(1,x,t,2)", "\"(1,x,t,2)\""),
            (array(JsonShape::Number), "{1,2", "\"{1,2\""),
            (array(JsonShape::Number), "x", "\"x\""),
        ] {
            assert_eq!(json(&shape, text), expected, "{text}");
        }
    }

    #[test]
    fn a_string_has_the_length_that_is_counted() {
        for text in ["", "a", "\"\\\n\u{1}ä\t\u{8}\u{c}\r"] {
            let mut out = Vec::new();
            push_string(text.as_bytes(), &mut out).unwrap();
            assert_eq!(out.len(), string_bytes(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn a_member_is_found_among_values_of_all_kinds() {
        let object = br#"{"a":{"b":"}, \"c\":1"},"x\"":[1,"]"],"c":"it\\","d":null}"#;
        let of = |name: &[u8]| {
            member(object, name).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        assert_eq!(of(br#""a":"#).as_deref(), Some(r#"{"b":"}, \"c\":1"}"#));
        assert_eq!(of(br#""x\"":"#).as_deref(), Some(r#"[1,"]"]"#));
        assert_eq!(of(br#""c":"#).as_deref(), Some(r#""it\\""#));
        assert_eq!(of(br#""d":"#).as_deref(), Some("null"));
        assert_eq!(of(br#""b":"#), None);
        assert_eq!(member(b"{}", br#""a":"#), None);
    }
}
