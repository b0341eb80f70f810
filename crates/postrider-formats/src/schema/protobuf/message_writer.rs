//! Writes a document as a message, guided by its descriptor.

use super::well_known;
use super::wire::{Wire, push_delimited, push_tag, push_varint, zigzag};
use crate::schema::decimal::Decimal;
use crate::schema::json::Json;
use crate::schema::misfit::Misfit;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use std::borrow::Cow;
use std::ops::RangeInclusive;

/// More than every type for whole numbers holds.
const WHOLE: RangeInclusive<i128> = -(1 << 64)..=1 << 64;

/// Base64 with or without padding.
const BASE_64: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Adds a message without its length.
pub(super) fn write_message(
    message: &MessageDescriptor,
    json: &Json<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    if let Some(written) = well_known::write(message, json, out) {
        return written;
    }
    let Json::Object(members) = json else {
        let expected = format!("message {}", message.name());
        return Err(Misfit::expected(&expected, json.type_name()));
    };
    let mut found: Vec<u32> = Vec::with_capacity(members.len());
    let mut one_ofs: Vec<String> = Vec::new();
    for (name, value) in members {
        let field =
            message.get_field_by_json_name(name).or_else(|| message.get_field_by_name(name));
        let Some(field) = field else {
            let words = "the message has no such field, and nothing is left out";
            return Err(Misfit::new(words).in_member(name));
        };
        let written = member(&field, value, &mut found, &mut one_ofs, out);
        written.map_err(|misfit| misfit.in_member(name))?;
    }
    let missing =
        message.fields().find(|field| field.is_required() && !found.contains(&field.number()));
    match missing {
        Some(field) => Err(Misfit::new("the field is required").in_member(field.name())),
        None => Ok(()),
    }
}

/// Writes the field of a member. A null is a field that is not set, by the JSON mapping.
fn member(
    field: &FieldDescriptor,
    value: &Json<'_>,
    found: &mut Vec<u32>,
    one_ofs: &mut Vec<String>,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    if matches!(value, Json::Null) && !well_known::takes_null(&field.kind()) {
        return Ok(());
    }
    // By its own name and by that of JSON.
    if found.contains(&field.number()) {
        return Err(Misfit::new("the field occurs twice"));
    }
    found.push(field.number());
    if let Some(one_of) = field.containing_oneof().filter(|one_of| !one_of.is_synthetic()) {
        if one_ofs.iter().any(|known| known == one_of.name()) {
            return Err(Misfit::new(format!("oneof {} is set twice", one_of.name())));
        }
        one_ofs.push(one_of.name().to_owned());
    }
    if field.is_map() { map(field, value, out) } else { write_field(field, value, out) }
}

fn write_field(field: &FieldDescriptor, value: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    if !field.is_list() {
        return single(field, value, field.supports_presence(), out);
    }
    let Json::Array(items) = value else {
        return Err(Misfit::expected("array", value.type_name()));
    };
    if !field.is_packed() {
        return items
            .iter()
            .try_for_each(|item| single(field, item, true, out))
            .map_err(Misfit::in_item);
    }
    let mut packed = Vec::new();
    for item in items {
        scalar(&field.kind(), item, &mut packed).map_err(Misfit::in_item)?;
    }
    if !packed.is_empty() {
        push_tag(field.number(), Wire::Delimited, out);
        push_delimited(&packed, out);
    }
    Ok(())
}

fn map(field: &FieldDescriptor, value: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let (Json::Object(members), Kind::Message(entry)) = (value, field.kind()) else {
        return Err(Misfit::expected("object", value.type_name()));
    };
    let (key_field, value_field) = (entry.map_entry_key_field(), entry.map_entry_value_field());
    for (name, value) in members {
        let mut bytes = Vec::new();
        let key = map_key(&key_field.kind(), name);
        single(&key_field, &key, true, &mut bytes)
            .and_then(|()| single(&value_field, value, true, &mut bytes))
            .map_err(Misfit::in_entry)?;
        push_tag(field.number(), Wire::Delimited, out);
        push_delimited(&bytes, out);
    }
    Ok(())
}

/// The key of a map, which is always a string in JSON.
fn map_key<'a>(kind: &Kind, name: &'a str) -> Json<'a> {
    match (kind, name) {
        (Kind::Bool, "true") => Json::Bool(true),
        (Kind::Bool, "false") => Json::Bool(false),
        (_, name) => Json::Text(Cow::Borrowed(name)),
    }
}

/// Writes one value with its tag. `present`: also if it is the default.
fn single(
    field: &FieldDescriptor,
    value: &Json<'_>,
    present: bool,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    if field.is_group() {
        return Err(Misfit::new("groups of Protobuf are not supported"));
    }
    let kind = field.kind();
    let begin = out.len();
    push_tag(field.number(), wire(&kind), out);
    let of_value = out.len();
    scalar(&kind, value, out)?;
    // Without presence a default is what is not there.
    let is_default = out.get(of_value..).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    if !present && is_default && !matches!(kind, Kind::Message(_)) {
        out.truncate(begin);
    }
    Ok(())
}

fn wire(kind: &Kind) -> Wire {
    match kind {
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => Wire::Fixed64,
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => Wire::Fixed32,
        Kind::String | Kind::Bytes | Kind::Message(_) => Wire::Delimited,
        Kind::Int32
        | Kind::Int64
        | Kind::Uint32
        | Kind::Uint64
        | Kind::Sint32
        | Kind::Sint64
        | Kind::Bool
        | Kind::Enum(_) => Wire::Varint,
    }
}

/// Writes a value without its tag.
pub(super) fn scalar(kind: &Kind, json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
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
        Kind::Message(message) => {
            let mut bytes = Vec::new();
            write_message(message, json, &mut bytes)?;
            push_delimited(&bytes, out);
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
