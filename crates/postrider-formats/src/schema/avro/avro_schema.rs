//! Reads a schema.

use super::avro_type::{AvroField, AvroType, TypeIndex};
use super::avro_writer;
use crate::schema::json::Json;
use crate::schema::misfit::{Misfit, shown_name};
use crate::schema::moment_text::TimeUnit;
use crate::schema::registry::ReferencedSchema;
use std::collections::HashMap;

/// The most types of a schema with its references.
const TYPES_MAX: usize = 20_000;

/// The largest `fixed`. Unit: bytes.
const FIXED_BYTES_MAX: usize = 1 << 20;

/// The most digits of a decimal.
const PRECISION_MAX: usize = 1_000;

/// All defaults of a schema together. Unit: bytes.
const DEFAULT_BYTES_MAX: usize = 1 << 20;

/// A schema, ready to write documents with.
#[derive(Debug)]
pub(crate) struct AvroSchema {
    pub(super) types: Vec<AvroType>,
    pub(super) root: TypeIndex,
}

impl AvroSchema {
    /// Reads a schema, behind the schemas that it refers to.
    ///
    /// # Errors
    /// The schema is none. The path is that in the schema.
    pub(crate) fn parse(references: &[ReferencedSchema], text: &str) -> Result<Self, Misfit> {
        let mut parser = AvroParser::default();
        for reference in references {
            parser.document(&reference.text)?;
        }
        let root = parser.document(text)?;
        if matches!(parser.types.get(root), Some(AvroType::Bytes)) {
            // Confluent's programs write such a value without its length, and others with it.
            let words = "a schema of type bytes as a whole is not supported: let it be in a record";
            return Err(Misfit::new(words));
        }
        let mut schema = Self { types: parser.types, root };
        schema.write_defaults()?;
        Ok(schema)
    }

    /// Adds a document in the binary form. `out` has a part of it after an error.
    ///
    /// # Errors
    /// The document does not fit.
    pub(crate) fn write(&self, document: &[u8], out: &mut Vec<u8>) -> Result<(), Misfit> {
        let json = Json::parse(document)?;
        avro_writer::write_document((&self.types, self.root), &json, document.len(), out)
    }

    /// The defaults in the binary form.
    fn write_defaults(&mut self) -> Result<(), Misfit> {
        let mut written: Vec<(TypeIndex, usize, Vec<u8>)> = Vec::new();
        let mut bytes = 0;
        for (index, of) in self.types.iter().enumerate() {
            let AvroType::Record { name, fields } = of else { continue };
            for (at, field) in fields.iter().enumerate() {
                let Some(text) = &field.default_text else { continue };
                let mut out = Vec::new();
                let json = Json::parse_text(text)?;
                avro_writer::write_default(&self.types, field.of, &json, &mut out).map_err(
                    |misfit| {
                        let (record, field) = (shown_name(name), shown_name(&field.name));
                        Misfit::new(format!("default of {record}.{field}: {misfit}"))
                    },
                )?;
                bytes += out.len();
                if bytes > DEFAULT_BYTES_MAX {
                    let words = format!("defaults have more than {DEFAULT_BYTES_MAX} bytes");
                    return Err(Misfit::new(words));
                }
                written.push((index, at, out));
            }
        }
        for (index, at, out) in written {
            if let Some(AvroType::Record { fields, .. }) = self.types.get_mut(index)
                && let Some(field) = fields.get_mut(at)
            {
                field.default = Some(out);
            }
        }
        Ok(())
    }
}

/// What is known while schemas are read.
#[derive(Default)]
struct AvroParser {
    types: Vec<AvroType>,
    /// Types by their full names.
    names: HashMap<String, TypeIndex>,
}

fn no_schema(what: &str) -> Misfit {
    Misfit::new(format!("the Avro schema is wrong: {what}"))
}

fn required<'j>(json: &'j Json<'_>, member: &str) -> Result<&'j Json<'j>, Misfit> {
    json.get(member).ok_or_else(|| no_schema(&format!("member {member:?} is missing")))
}

fn required_text<'j>(json: &'j Json<'_>, member: &str) -> Result<&'j str, Misfit> {
    let text = required(json, member)?.as_text();
    text.ok_or_else(|| no_schema(&format!("member {member:?} is no string")))
}

fn number(json: &Json<'_>, member: &str) -> Option<usize> {
    let Some(Json::Number(text)) = json.get(member) else { return None };
    text.parse().ok()
}

impl AvroParser {
    fn document(&mut self, text: &str) -> Result<TypeIndex, Misfit> {
        // A schema of one name may be written without quotation marks.
        match Json::parse_text(text) {
            Ok(json) => self.schema(&json, ""),
            Err(misfit) => Err(no_schema(&misfit.to_string())),
        }
    }

    fn add(&mut self, of: AvroType) -> Result<TypeIndex, Misfit> {
        if self.types.len() >= TYPES_MAX {
            return Err(no_schema(&format!("it has more than {TYPES_MAX} types")));
        }
        self.types.push(of);
        Ok(self.types.len() - 1)
    }

    /// A type. `space` is the namespace of what it is in.
    fn schema(&mut self, json: &Json<'_>, space: &str) -> Result<TypeIndex, Misfit> {
        match json {
            Json::Text(name) => self.named(name, space),
            Json::Array(branches) => self.union(branches, space),
            Json::Object(_) => self.object(json, space),
            Json::Null | Json::Bool(_) | Json::Number(_) => {
                Err(no_schema(&format!("a type is a {}", json.type_name())))
            }
        }
    }

    fn named(&mut self, name: &str, space: &str) -> Result<TypeIndex, Misfit> {
        if let Some(primitive) = primitive(name) {
            return self.add(primitive);
        }
        let full = full_name(name, space);
        // A name without a namespace may also be one of the null namespace, as other readers have it.
        let found = self.names.get(&full).or_else(|| self.names.get(name));
        found.copied().ok_or_else(|| no_schema(&format!("type {} is unknown", shown_name(name))))
    }

    fn union(&mut self, branches: &[Json<'_>], space: &str) -> Result<TypeIndex, Misfit> {
        let mut of = Vec::with_capacity(branches.len());
        for branch in branches {
            let index = self.schema(branch, space)?;
            if matches!(self.types.get(index), Some(AvroType::Union(_))) {
                return Err(no_schema("a union is in a union"));
            }
            of.push(index);
        }
        if of.is_empty() {
            return Err(no_schema("a union is empty"));
        }
        self.add(AvroType::Union(of))
    }

    fn object(&mut self, json: &Json<'_>, space: &str) -> Result<TypeIndex, Misfit> {
        let of = required(json, "type")?;
        let Json::Text(kind) = of else { return self.schema(of, space) };
        match &**kind {
            "array" => {
                let items = self.schema(required(json, "items")?, space)?;
                self.add(AvroType::Array(items))
            }
            "map" => {
                let values = self.schema(required(json, "values")?, space)?;
                self.add(AvroType::Map(values))
            }
            "record" | "error" => self.record(json, space),
            "enum" => self.enumeration(json, space),
            "fixed" => self.fixed(json, space),
            name => match primitive(name) {
                Some(primitive) => self.add(logical(primitive, json)),
                None => self.named(name, space),
            },
        }
    }

    fn define(&mut self, name: &str, of: AvroType) -> Result<TypeIndex, Misfit> {
        let index = self.add(of)?;
        if self.names.insert(name.to_owned(), index).is_some() {
            return Err(no_schema(&format!("type {} occurs twice", shown_name(name))));
        }
        Ok(index)
    }

    fn record(&mut self, json: &Json<'_>, space: &str) -> Result<TypeIndex, Misfit> {
        let (name, space) = defined_name(json, space)?;
        // Known by its name before its fields, which may be of this type.
        let empty = AvroType::Record { name: name.clone(), fields: Vec::new() };
        let index = self.define(&name, empty)?;
        let Json::Array(members) = required(json, "fields")? else {
            return Err(no_schema("member \"fields\" is no array"));
        };
        let mut fields: Vec<AvroField> = Vec::with_capacity(members.len());
        for member in members {
            let field = required_text(member, "name")?;
            if fields.iter().any(|known| known.name == field) {
                return Err(no_schema(&format!("field {} occurs twice", shown_name(field))));
            }
            let of = self.schema(required(member, "type")?, &space)?;
            let default_text = member.get("default").map(|default| {
                let mut text = String::new();
                default.write(&mut text);
                text
            });
            fields.push(AvroField { name: field.to_owned(), of, default_text, default: None });
        }
        if let Some(of) = self.types.get_mut(index) {
            *of = AvroType::Record { name, fields };
        }
        Ok(index)
    }

    fn enumeration(&mut self, json: &Json<'_>, space: &str) -> Result<TypeIndex, Misfit> {
        let (name, _) = defined_name(json, space)?;
        let Json::Array(members) = required(json, "symbols")? else {
            return Err(no_schema("member \"symbols\" is no array"));
        };
        let symbols: Option<Vec<String>> =
            members.iter().map(|symbol| symbol.as_text().map(str::to_owned)).collect();
        let symbols = symbols.ok_or_else(|| no_schema("a symbol is no string"))?;
        self.define(&name.clone(), AvroType::Enum { name, symbols })
    }

    fn fixed(&mut self, json: &Json<'_>, space: &str) -> Result<TypeIndex, Misfit> {
        let (name, _) = defined_name(json, space)?;
        let size = number(json, "size").filter(|size| *size <= FIXED_BYTES_MAX);
        let size = size.ok_or_else(|| no_schema("the size of a fixed is missing or too large"))?;
        let of = match json.get("logicalType").and_then(Json::as_text) {
            Some("decimal") => decimal(json, Some((name.clone(), size))),
            Some("uuid") if size == 16 => Some(AvroType::Uuid(Some(name.clone()))),
            Some("duration") if size == 12 => Some(AvroType::Duration(name.clone())),
            Some(_) | None => None,
        };
        self.define(&name.clone(), of.unwrap_or(AvroType::Fixed { name, size }))
    }
}

fn primitive(name: &str) -> Option<AvroType> {
    Some(match name {
        "null" => AvroType::Null,
        "boolean" => AvroType::Boolean,
        "int" => AvroType::Int,
        "long" => AvroType::Long,
        "float" => AvroType::Float,
        "double" => AvroType::Double,
        "bytes" => AvroType::Bytes,
        "string" => AvroType::Text,
        _ => return None,
    })
}

/// The logical type of a primitive one. One that is not known, or not of this type, has no meaning by the
/// specification.
fn logical(of: AvroType, json: &Json<'_>) -> AvroType {
    let Some(name) = json.get("logicalType").and_then(Json::as_text) else { return of };
    let timestamp = |unit, local| AvroType::Timestamp { unit, local };
    match (&of, name) {
        (AvroType::Bytes, "decimal") => decimal(json, None).unwrap_or(of),
        (AvroType::Text, "uuid") => AvroType::Uuid(None),
        (AvroType::Int, "date") => AvroType::Date,
        (AvroType::Int, "time-millis") => AvroType::TimeOfDay(TimeUnit::Millis),
        (AvroType::Long, "time-micros") => AvroType::TimeOfDay(TimeUnit::Micros),
        (AvroType::Long, "timestamp-millis") => timestamp(TimeUnit::Millis, false),
        (AvroType::Long, "timestamp-micros") => timestamp(TimeUnit::Micros, false),
        (AvroType::Long, "timestamp-nanos") => timestamp(TimeUnit::Nanos, false),
        (AvroType::Long, "local-timestamp-millis") => timestamp(TimeUnit::Millis, true),
        (AvroType::Long, "local-timestamp-micros") => timestamp(TimeUnit::Micros, true),
        (AvroType::Long, "local-timestamp-nanos") => timestamp(TimeUnit::Nanos, true),
        _ => of,
    }
}

fn decimal(json: &Json<'_>, fixed: Option<(String, usize)>) -> Option<AvroType> {
    let precision =
        number(json, "precision").filter(|digits| (1..=PRECISION_MAX).contains(digits))?;
    let scale = if json.get("scale").is_some() { number(json, "scale")? } else { 0 };
    let scale = u32::try_from(scale).ok().filter(|_| scale <= precision)?;
    Some(AvroType::Decimal { fixed, precision, scale })
}

/// The full name of a type that is defined here, and the namespace of what is in it.
fn defined_name(json: &Json<'_>, space: &str) -> Result<(String, String), Misfit> {
    let name = required_text(json, "name")?;
    let space = json.get("namespace").and_then(Json::as_text).unwrap_or(space);
    let full = full_name(name, space);
    let space = full.rsplit_once('.').map_or("", |(space, _)| space).to_owned();
    Ok((full, space))
}

fn full_name(name: &str, space: &str) -> String {
    if name.contains('.') || space.is_empty() {
        name.trim_start_matches('.').to_owned()
    } else {
        format!("{space}.{name}")
    }
}
