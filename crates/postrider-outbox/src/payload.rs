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
        member(envelope, row.extent(*field), row.kind(*field), row, scratch)?;
    }
    scratch.push(b'}');
    Some(Span::since(start, scratch))
}

/// The text of a JSON object or array. What the column's type does not promise is read.
fn is_json(text: &[u8], kind: Kind) -> bool {
    let reads = || serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
    matches!(text.first(), Some(b'{' | b'['))
        && (kind == Kind::Json || (matches!(kind, Kind::Text | Kind::Other) && reads()))
}

/// One value as JSON. With `payload.envelope_json` numbers, booleans and JSON stand as they are, bytes in base64, all
/// else is a string as PostgreSQL renders it; without, everything is as Debezium writes it.
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
    if !envelope.json {
        return debezium::append_member(kind, text, out);
    }
    // NaN and Infinity are no JSON numbers.
    let is_number = kind == Kind::Int
        || (matches!(kind, Kind::Float4 | Kind::Float8)
            && text.last().is_some_and(u8::is_ascii_digit));
    if is_number || kind == Kind::Json {
        out.extend_from_slice(text);
    } else if kind == Kind::Bool {
        out.extend_from_slice(if text == b"t" { b"true" } else { b"false" });
    } else if kind == Kind::Bytea {
        let mut bytes = Vec::new();
        append_bytea(text, &mut bytes)?;
        out.push(b'"');
        append_base64(&bytes, out);
        out.push(b'"');
    } else {
        super::json::append_string(text, out);
    }
    Some(())
}
