//! Google's own types, which have a form of their own in JSON.

use super::scalar::{self, text};
use super::wire::{Wire, push_delimited, push_tag, push_varint};
use crate::schema::decimal::Decimal;
use crate::schema::json::Json;
use crate::schema::misfit::Misfit;
use crate::schema::moment_text::{TimeUnit, timestamp};
use prost_reflect::{EnumDescriptor, Kind, MessageDescriptor};

const PACKAGE: &str = "google.protobuf.";

/// Seconds of the longest duration, by the definition of the type.
const DURATION_SECONDS_MAX: i128 = 315_576_000_000;

/// Whole numbers up to this are exact in a float of 64 bits.
const EXACT_MAX: i128 = 1 << 53;

/// Whether null is a value of the type, and not the absence of one.
pub(super) fn takes_null(kind: &Kind) -> bool {
    let of_message = kind.as_message().map(MessageDescriptor::full_name);
    let of_enum = kind.as_enum().map(EnumDescriptor::full_name);
    of_message == Some("google.protobuf.Value") || of_enum == Some("google.protobuf.NullValue")
}

/// Writes a message of one of these types. `None` for any other message.
pub(super) fn write(
    message: &MessageDescriptor,
    json: &Json<'_>,
    out: &mut Vec<u8>,
) -> Option<Result<(), Misfit>> {
    Some(match message.full_name().strip_prefix(PACKAGE)? {
        "Timestamp" => of_timestamp(json, out),
        "Duration" => of_duration(json, out),
        "FieldMask" => of_mask(json, out),
        "Struct" => of_struct(json, out),
        "ListValue" => of_list(json, out),
        "Value" => of_value(json, out),
        "DoubleValue" | "FloatValue" | "Int64Value" | "UInt64Value" | "Int32Value"
        | "UInt32Value" | "BoolValue" | "StringValue" | "BytesValue" => wrapper(message, json, out),
        "Any" => Err(Misfit::new("google.protobuf.Any is not supported")),
        _ => return None,
    })
}

/// Seconds and nanoseconds.
fn push_seconds(seconds: i64, nanoseconds: i32, out: &mut Vec<u8>) {
    if seconds != 0 {
        push_tag(1, Wire::Varint, out);
        push_varint(seconds.cast_unsigned(), out);
    }
    if nanoseconds != 0 {
        push_tag(2, Wire::Varint, out);
        push_varint(i64::from(nanoseconds).cast_unsigned(), out);
    }
}

fn of_timestamp(json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let text = text(json, "google.protobuf.Timestamp")?;
    // Microseconds reach to all years; nanoseconds only to 2262.
    match timestamp(text, TimeUnit::Micros) {
        Ok(micros) => {
            let nanoseconds =
                i32::try_from(micros.rem_euclid(1_000_000)).unwrap_or_default() * 1_000;
            push_seconds(micros.div_euclid(1_000_000), nanoseconds, out);
        }
        Err(misfit) => {
            let nanos = timestamp(text, TimeUnit::Nanos).map_err(|_other| misfit)?;
            let nanoseconds = i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or_default();
            push_seconds(nanos.div_euclid(1_000_000_000), nanoseconds, out);
        }
    }
    Ok(())
}

/// `"1.5s"`.
fn of_duration(json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let wrong = || Misfit::new("expected a duration such as \"1.5s\"");
    let text = text(json, "google.protobuf.Duration")?.strip_suffix('s').ok_or_else(wrong)?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
    // The number, with nine more digits before its point.
    let shifted = format!("{text}e9");
    let number = Decimal::parse(&shifted).filter(|_| is_plain).ok_or_else(wrong)?;
    let most = DURATION_SECONDS_MAX * 1_000_000_000;
    let nanoseconds = number.whole(-most..=most)?;
    let seconds = i64::try_from(nanoseconds / 1_000_000_000).map_err(|_outside| wrong())?;
    let rest = i32::try_from(nanoseconds % 1_000_000_000).map_err(|_outside| wrong())?;
    push_seconds(seconds, rest, out);
    Ok(())
}

/// Paths with commas, in the spelling of JSON.
fn of_mask(json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    for path in text(json, "google.protobuf.FieldMask")?.split(',').filter(|path| !path.is_empty())
    {
        if path.contains('_') {
            return Err(Misfit::new("a path of a FieldMask is written in lowerCamelCase"));
        }
        let mut name = String::with_capacity(path.len() + 4);
        for c in path.chars() {
            if c.is_ascii_uppercase() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        push_tag(1, Wire::Delimited, out);
        push_delimited(name.as_bytes(), out);
    }
    Ok(())
}

/// The one field of a wrapper.
fn wrapper(message: &MessageDescriptor, json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let Some(field) = message.get_field(1) else { return Ok(()) };
    let kind = field.kind();
    let mut bytes = Vec::new();
    scalar::write(&kind, json, &mut bytes)?;
    if bytes.iter().any(|byte| *byte != 0) {
        let wire = match kind.wire_type() {
            prost_reflect::prost::encoding::WireType::ThirtyTwoBit => Wire::Fixed32,
            prost_reflect::prost::encoding::WireType::SixtyFourBit => Wire::Fixed64,
            prost_reflect::prost::encoding::WireType::Varint => Wire::Varint,
            prost_reflect::prost::encoding::WireType::LengthDelimited
            | prost_reflect::prost::encoding::WireType::StartGroup
            | prost_reflect::prost::encoding::WireType::EndGroup => Wire::Delimited,
        };
        push_tag(1, wire, out);
        out.extend_from_slice(&bytes);
    }
    Ok(())
}

fn of_struct(json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let Json::Object(members) = json else {
        return Err(Misfit::expected("google.protobuf.Struct", json.type_name()));
    };
    for (name, value) in members {
        let mut entry = Vec::new();
        push_tag(1, Wire::Delimited, &mut entry);
        push_delimited(name.as_bytes(), &mut entry);
        push_value(2, value, &mut entry).map_err(Misfit::in_entry)?;
        push_tag(1, Wire::Delimited, out);
        push_delimited(&entry, out);
    }
    Ok(())
}

fn of_list(json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let Json::Array(items) = json else {
        return Err(Misfit::expected("google.protobuf.ListValue", json.type_name()));
    };
    items.iter().try_for_each(|item| push_value(1, item, out)).map_err(Misfit::in_item)
}

fn push_value(number: u32, json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let mut bytes = Vec::new();
    of_value(json, &mut bytes)?;
    push_tag(number, Wire::Delimited, out);
    push_delimited(&bytes, out);
    Ok(())
}

fn of_value(json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    match json {
        Json::Null => {
            push_tag(1, Wire::Varint, out);
            out.push(0);
        }
        Json::Number(text) => {
            // The type has no other number than a float.
            let whole =
                Decimal::parse(text).and_then(|number| number.whole(i128::MIN..=i128::MAX).ok());
            let value: f64 = text.parse().unwrap_or(f64::INFINITY);
            if !value.is_finite() || whole.is_some_and(|whole| whole.abs() > EXACT_MAX) {
                let words =
                    "google.protobuf.Value has floats only, and the number is not exact as one";
                return Err(Misfit::new(words));
            }
            push_tag(2, Wire::Fixed64, out);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Json::Text(text) => {
            push_tag(3, Wire::Delimited, out);
            push_delimited(text.as_bytes(), out);
        }
        Json::Bool(value) => {
            push_tag(4, Wire::Varint, out);
            out.push(u8::from(*value));
        }
        Json::Object(_) => {
            let mut bytes = Vec::new();
            of_struct(json, &mut bytes)?;
            push_tag(5, Wire::Delimited, out);
            push_delimited(&bytes, out);
        }
        Json::Array(_) => {
            let mut bytes = Vec::new();
            of_list(json, &mut bytes)?;
            push_tag(6, Wire::Delimited, out);
            push_delimited(&bytes, out);
        }
    }
    Ok(())
}
