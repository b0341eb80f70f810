//! Numbers, texts, bytes and enums of Protobuf, by the JSON mapping.

use super::wire::{push_delimited, push_varint, zigzag};
use crate::schema::decimal::Decimal;
use crate::schema::json::Json;
use crate::schema::misfit::Misfit;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost_reflect::{EnumDescriptor, Kind};
use std::ops::RangeInclusive;

/// More than every type for whole numbers holds.
const WHOLE: RangeInclusive<i128> = -(1 << 64)..=1 << 64;

/// Base64 with or without padding.
const BASE_64: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Adds a value without its tag. Not for messages.
pub(super) fn write(kind: &Kind, json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    match kind {
        Kind::Int32 => {
            push_varint(i64::from(whole::<i32>(json, "int32")?).cast_unsigned(), out);
        }
        Kind::Int64 => push_varint(whole::<i64>(json, "int64")?.cast_unsigned(), out),
        Kind::Uint32 => push_varint(u64::from(whole::<u32>(json, "uint32")?), out),
        Kind::Uint64 => push_varint(whole::<u64>(json, "uint64")?, out),
        Kind::Sint32 => push_varint(zigzag(i64::from(whole::<i32>(json, "sint32")?)), out),
        Kind::Sint64 => push_varint(zigzag(whole::<i64>(json, "sint64")?), out),
        Kind::Fixed32 => out.extend(whole::<u32>(json, "fixed32")?.to_le_bytes()),
        Kind::Fixed64 => out.extend(whole::<u64>(json, "fixed64")?.to_le_bytes()),
        Kind::Sfixed32 => out.extend(whole::<i32>(json, "sfixed32")?.to_le_bytes()),
        Kind::Sfixed64 => out.extend(whole::<i64>(json, "sfixed64")?.to_le_bytes()),
        Kind::Double => out.extend(double(json)?.to_le_bytes()),
        Kind::Float => out.extend(float(json)?.to_le_bytes()),
        Kind::Bool => {
            let Json::Bool(value) = json else {
                return Err(Misfit::expected("bool", json.type_name()));
            };
            out.push(u8::from(*value));
        }
        Kind::String => push_delimited(text(json, "string")?.as_bytes(), out),
        Kind::Bytes => push_delimited(&base_64(json)?, out),
        Kind::Enum(of) => push_varint(i64::from(symbol(of, json)?).cast_unsigned(), out),
        // A message is no scalar.
        Kind::Message(message) => {
            return Err(Misfit::expected(message.name(), json.type_name()));
        }
    }
    Ok(())
}

pub(super) fn text<'j>(json: &'j Json<'_>, expected: &str) -> Result<&'j str, Misfit> {
    json.as_text().ok_or_else(|| Misfit::expected(expected, json.type_name()))
}

/// A whole number, as a number or as a string.
fn whole<T: TryFrom<i128>>(json: &Json<'_>, expected: &str) -> Result<T, Misfit> {
    let text = match json {
        Json::Number(text) => text,
        Json::Text(text) => &**text,
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
            return Err(Misfit::expected(expected, json.type_name()));
        }
    };
    let wrong = || Misfit::expected(expected, "a string that is no number");
    let number = Decimal::parse(text).ok_or_else(wrong)?.whole(WHOLE)?;
    T::try_from(number).map_err(|_outside| too_large())
}

fn double(json: &Json<'_>) -> Result<f64, Misfit> {
    match float_text(json, "double")? {
        "NaN" => Ok(f64::NAN),
        "Infinity" => Ok(f64::INFINITY),
        "-Infinity" => Ok(f64::NEG_INFINITY),
        text => text.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(too_large),
    }
}

fn float(json: &Json<'_>) -> Result<f32, Misfit> {
    match float_text(json, "float")? {
        "NaN" => Ok(f32::NAN),
        "Infinity" => Ok(f32::INFINITY),
        "-Infinity" => Ok(f32::NEG_INFINITY),
        text => text.parse().ok().filter(|value: &f32| value.is_finite()).ok_or_else(too_large),
    }
}

/// The text of a float: by the grammar of JSON, or one of the three that JSON has no number for.
fn float_text<'j>(json: &'j Json<'_>, expected: &str) -> Result<&'j str, Misfit> {
    let text = match json {
        Json::Number(text) => text,
        Json::Text(text) => &**text,
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
            return Err(Misfit::expected(expected, json.type_name()));
        }
    };
    let is_special = matches!(text, "NaN" | "Infinity" | "-Infinity");
    if is_special || Decimal::parse(text).is_some() {
        Ok(text)
    } else {
        Err(Misfit::expected(expected, "a string that is no number"))
    }
}

fn too_large() -> Misfit {
    Misfit::new("the number is out of the range of the type")
}

fn base_64(json: &Json<'_>) -> Result<Vec<u8>, Misfit> {
    let text = text(json, "bytes")?;
    let alphabet =
        if text.contains(['-', '_']) { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    let decoded = GeneralPurpose::new(alphabet, BASE_64).decode(text);
    decoded.map_err(|_invalid| Misfit::new("expected bytes as base64"))
}

fn symbol(of: &EnumDescriptor, json: &Json<'_>) -> Result<i32, Misfit> {
    if let Json::Text(name) = json
        && let Some(value) = of.get_value_by_name(name)
    {
        return Ok(value.number());
    }
    match json {
        // A newer writer may have a value that this schema does not name. The form has a number for it.
        Json::Number(_) => whole(json, "enum"),
        Json::Null if of.full_name() == "google.protobuf.NullValue" => Ok(0),
        Json::Text(_) => Err(Misfit::new("the string is no value of the enum")),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
            Err(Misfit::expected(&format!("enum {}", of.name()), json.type_name()))
        }
    }
}
