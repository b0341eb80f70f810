//! A record's value: the payload's bytes, or an object around them.

use super::debezium;
use super::route::Envelope;
use super::span::{Extent, FieldId, Row, Span};
use super::types::Kind;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the bytes of a `bytea` in hex format, `\x6869`; `None` where it is in another.
pub(super) fn append_bytea(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (pairs, []) = text.strip_prefix(b"\\x")?.as_chunks::<2>() else {
        return None;
    };
    out.reserve(pairs.len());
    for [high, low] in pairs {
        out.push((nibble(*high)? << 4) | nibble(*low)?);
    }
    Some(())
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Appends base64 with padding, RFC 4648 section 4.
pub(super) fn append_base64(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let mut group = [0_u8; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let [a, b, c] = group;
        let sextets = [a >> 2, (a & 3) << 4 | b >> 4, (b & 15) << 2 | c >> 6, c & 63];
        for (at, sextet) in sextets.into_iter().enumerate() {
            out.push(if at <= chunk.len() { BASE64[usize::from(sextet)] } else { b'=' });
        }
    }
}

/// Writes the object around a payload, which lies at `payload`.
pub(super) fn wrap(
    envelope: &Envelope,
    payload: Option<Extent>,
    payload_field: FieldId,
    row: &Row<'_>,
    fixed: &str,
    scratch: &mut Vec<u8>,
) -> Option<Span> {
    let start = scratch.len();
    scratch.extend_from_slice(envelope.open.of(fixed.as_bytes()));
    let text = payload.map(|extent| row.at(extent)).filter(|_| envelope.expand);
    match text.filter(|text| is_json(text, row.kind(payload_field))) {
        Some(json) => scratch.extend_from_slice(json),
        None => member(envelope, payload, row.kind(payload_field), row, scratch)?,
    }
    for (name, field) in envelope.placed.iter().filter(|(_, field)| row.has(*field)) {
        scratch.extend_from_slice(name.of(fixed.as_bytes()));
        if envelope.json || debezium::member(row, *field, scratch).is_none() {
            member(envelope, row.extent(*field), row.kind(*field), row, scratch)?;
        }
    }
    scratch.push(b'}');
    Some(Span::since(start, scratch))
}

/// The text of a JSON object or array. What the column's type does not promise is read.
fn is_json(text: &[u8], kind: Kind) -> bool {
    let begins = matches!(text.first(), Some(b'{' | b'['));
    begins
        && match kind {
            Kind::Json => true,
            Kind::Text | Kind::Other => {
                serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
            }
            Kind::Bool
            | Kind::Bytea
            | Kind::Int
            | Kind::Float4
            | Kind::Float8
            | Kind::Numeric { .. }
            | Kind::Uuid
            | Kind::Date
            | Kind::Time { .. }
            | Kind::Timestamp { .. }
            | Kind::Timestamptz { .. }
            | Kind::Interval => false,
        }
}

/// One value as JSON: numbers and booleans as they are, JSON as the configuration says, bytes in base64, else a string.
fn member(
    envelope: &Envelope,
    value: Option<Extent>,
    kind: Kind,
    row: &Row<'_>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let Some(extent) = value else {
        out.extend_from_slice(b"null");
        return Some(());
    };
    let text = row.at(extent);
    match kind {
        Kind::Json if envelope.json => out.extend_from_slice(text),
        Kind::Bool => out.extend_from_slice(if text == b"t" { b"true" } else { b"false" }),
        Kind::Int => out.extend_from_slice(text),
        // NaN and Infinity are no JSON numbers.
        Kind::Float4 | Kind::Float8 if text.last().is_some_and(u8::is_ascii_digit) => {
            out.extend_from_slice(text);
        }
        Kind::Bytea => {
            let mut bytes = Vec::new();
            append_bytea(text, &mut bytes)?;
            out.push(b'"');
            append_base64(&bytes, out);
            out.push(b'"');
        }
        Kind::Json
        | Kind::Float4
        | Kind::Float8
        | Kind::Numeric { .. }
        | Kind::Text
        | Kind::Uuid
        | Kind::Date
        | Kind::Time { .. }
        | Kind::Timestamp { .. }
        | Kind::Timestamptz { .. }
        | Kind::Interval
        | Kind::Other => super::json::append_string(text, out),
    }
    Some(())
}
