//! Writes a document as a message, guided by its descriptor.

use super::wire::{Wire, push_delimited, push_tag};
use super::{scalar, well_known};
use crate::schema::json::Json;
use crate::schema::misfit::Misfit;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use std::borrow::Cow;

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
        scalar::write(&field.kind(), item, &mut packed).map_err(Misfit::in_item)?;
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
    write_value(&kind, value, out)?;
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
fn write_value(kind: &Kind, json: &Json<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let Kind::Message(message) = kind else { return scalar::write(kind, json, out) };
    let mut bytes = Vec::new();
    write_message(message, json, &mut bytes)?;
    push_delimited(&bytes, out);
    Ok(())
}
