//! Writes a document in the binary form, guided by the schema.

use super::avro_type::{AvroField, AvroType, TypeIndex};
use crate::schema::decimal::{Decimal, sign_extended};
use crate::schema::framing::uuid_bytes;
use crate::schema::json::Json;
use crate::schema::misfit::Misfit;
use crate::schema::moment_text::{self, TimeUnit};

/// How deep types may be nested in a document. Each level of JSON is a type and a union at most. Unit: levels.
const DEPTH_MAX: usize = 300;

/// Values that are written for each byte of a document. Only branches of unions that fit late need more than one, and a
/// document must not let a relay try all combinations of them.
const ATTEMPTS_FOR_BYTE: usize = 20;
const ATTEMPTS_AT_LEAST: usize = 10_000;

/// The members of a duration, in the order of the binary form.
const DURATION_PARTS: [&str; 3] = ["months", "days", "millis"];

/// Branches of a union that a message names.
const BRANCHES_SHOWN: usize = 8;

/// Adds a document.
pub(super) fn write_document(
    (types, root): (&[AvroType], TypeIndex),
    json: &Json<'_>,
    bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    let attempts = bytes.saturating_mul(ATTEMPTS_FOR_BYTE).max(ATTEMPTS_AT_LEAST);
    AvroWriter { types, of_schema: false, attempts, out }.write(root, json, 0)
}

/// Adds the default of a field.
pub(super) fn write_default(
    types: &[AvroType],
    of: TypeIndex,
    json: &Json<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    let attempts = ATTEMPTS_AT_LEAST;
    AvroWriter { types, of_schema: true, attempts, out }.write(of, json, 0)
}

struct AvroWriter<'w> {
    types: &'w [AvroType],
    /// It is a default of the schema: a logical type is written as the type below it, by the specification.
    of_schema: bool,
    /// Values that may still be written.
    attempts: usize,
    out: &'w mut Vec<u8>,
}

fn too_many_ways() -> Misfit {
    Misfit::new("the document fits branches of unions in too many ways")
}

fn expected(of: &AvroType, found: &Json<'_>) -> Misfit {
    Misfit::expected(&of.words(), found.type_name())
}

impl<'w> AvroWriter<'w> {
    fn write(&mut self, index: TypeIndex, json: &Json<'_>, depth: usize) -> Result<(), Misfit> {
        let types: &'w [AvroType] = self.types;
        let Some(of) = types.get(index) else { return Ok(()) };
        if depth > DEPTH_MAX {
            return Err(Misfit::new(format!("types are nested deeper than {DEPTH_MAX} levels")));
        }
        self.attempts = self.attempts.checked_sub(1).ok_or_else(too_many_ways)?;
        match (of, json) {
            (AvroType::Null, Json::Null) => Ok(()),
            (AvroType::Boolean, Json::Bool(value)) => {
                self.out.push(u8::from(*value));
                Ok(())
            }
            (AvroType::Int, Json::Number(text)) => self.whole(text, true),
            (AvroType::Long, Json::Number(text)) => self.whole(text, false),
            (AvroType::Float, _) => self.float(of, json),
            (AvroType::Double, _) => self.double(of, json),
            (AvroType::Text, Json::Text(text)) => {
                self.bytes(text.as_bytes());
                Ok(())
            }
            (AvroType::Bytes, Json::Text(text)) => {
                let bytes = bytes_of_characters(text)?;
                self.bytes(&bytes);
                Ok(())
            }
            (AvroType::Fixed { size, .. }, Json::Text(text)) => self.fixed(text, *size),
            (AvroType::Enum { symbols, .. }, Json::Text(text)) => self.symbol(symbols, text),
            (AvroType::Array(items), Json::Array(values)) => self.array(*items, values, depth),
            (AvroType::Map(values), Json::Object(members)) => {
                self.block(members.len());
                for (name, value) in members {
                    self.bytes(name.as_bytes());
                    self.write(*values, value, depth + 1).map_err(Misfit::in_entry)?;
                }
                self.end_block();
                Ok(())
            }
            (AvroType::Record { fields, .. }, Json::Object(members)) => {
                self.record(fields, members, json, depth)
            }
            (AvroType::Union(branches), _) => self.union(branches, json, depth),
            (
                AvroType::Decimal { .. }
                | AvroType::Uuid(_)
                | AvroType::Date
                | AvroType::TimeOfDay(_)
                | AvroType::Timestamp { .. }
                | AvroType::Duration(_),
                _,
            ) => {
                if self.of_schema {
                    self.below_logical(of, json)
                } else {
                    self.logical(of, json)
                }
            }
            (_, _) => Err(expected(of, json)),
        }
    }

    // Parts of the binary form.

    /// A whole number: zigzag, then seven bits a byte, the least significant first.
    fn long(&mut self, number: i64) {
        let mut rest = (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned();
        while rest >= 0x80 {
            self.out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        self.out.push((rest & 0x7f) as u8);
    }

    fn length(&mut self, length: usize) {
        self.long(i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.out.extend_from_slice(bytes);
    }

    /// Begins the one block of an array or map.
    fn block(&mut self, count: usize) {
        if count > 0 {
            self.length(count);
        }
    }

    /// No further block follows.
    fn end_block(&mut self) {
        self.out.push(0);
    }

    // Types.

    fn whole(&mut self, text: &str, is_int: bool) -> Result<(), Misfit> {
        // The common case: few digits, nothing else.
        let number = match text.parse::<i64>() {
            Ok(number) if !is_int || i32::try_from(number).is_ok() => number,
            Ok(_) | Err(_) => {
                let range = if is_int {
                    i128::from(i32::MIN)..=i128::from(i32::MAX)
                } else {
                    i128::from(i64::MIN)..=i128::from(i64::MAX)
                };
                let decimal = Decimal::parse(text).ok_or_else(|| Misfit::new("no number"))?;
                i64::try_from(decimal.whole(range)?).unwrap_or_default()
            }
        };
        self.long(number);
        Ok(())
    }

    fn float(&mut self, of: &AvroType, json: &Json<'_>) -> Result<(), Misfit> {
        let value = match json {
            Json::Number(text) => text.parse::<f32>().ok().filter(|value| value.is_finite()),
            Json::Text(text) => special(text).map(|(_, value)| value),
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
        };
        let value = value.ok_or_else(|| out_of_range_or(of, json))?;
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn double(&mut self, of: &AvroType, json: &Json<'_>) -> Result<(), Misfit> {
        let value = match json {
            Json::Number(text) => text.parse::<f64>().ok().filter(|value| value.is_finite()),
            Json::Text(text) => special(text).map(|(value, _)| value),
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
        };
        let value = value.ok_or_else(|| out_of_range_or(of, json))?;
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn fixed(&mut self, text: &str, size: usize) -> Result<(), Misfit> {
        let bytes = bytes_of_characters(text)?;
        if bytes.len() != size {
            return Err(Misfit::new(format!("expected {size} bytes, each as one character")));
        }
        self.out.extend_from_slice(&bytes);
        Ok(())
    }

    fn symbol(&mut self, symbols: &[String], text: &str) -> Result<(), Misfit> {
        let index = symbols.iter().position(|symbol| symbol == text);
        let index = index.ok_or_else(|| Misfit::new("the string is no symbol of the enum"))?;
        self.length(index);
        Ok(())
    }

    fn array(&mut self, items: TypeIndex, values: &[Json<'_>], depth: usize) -> Result<(), Misfit> {
        self.block(values.len());
        for value in values {
            self.write(items, value, depth + 1).map_err(Misfit::in_item)?;
        }
        self.end_block();
        Ok(())
    }

    fn record(
        &mut self,
        fields: &[AvroField],
        members: &[(std::borrow::Cow<'_, str>, Json<'_>)],
        json: &Json<'_>,
        depth: usize,
    ) -> Result<(), Misfit> {
        let mut found = 0;
        for (index, field) in fields.iter().enumerate() {
            // Writers mostly keep the order of the schema.
            let in_place = members.get(index).filter(|(name, _)| *name == field.name);
            let value = in_place.map(|(_, value)| value).or_else(|| json.get(&field.name));
            if let Some(value) = value {
                found += 1;
                let written = self.write(field.of, value, depth + 1);
                written.map_err(|misfit| misfit.in_member(&field.name))?;
                continue;
            }
            match (&field.default, &field.default_text) {
                (Some(default), _) => self.out.extend_from_slice(default),
                // A default of the schema that needs another one.
                (None, Some(text)) => {
                    let default = Json::parse_text(text)?;
                    let written = self.write_default_of(field.of, &default, depth + 1);
                    written.map_err(|misfit| misfit.in_member(&field.name))?;
                }
                (None, None) => {
                    let words = "the member is missing, and the schema has no default for it";
                    return Err(Misfit::new(words).in_member(&field.name));
                }
            }
        }
        if found < members.len() {
            let unknown =
                members.iter().find(|(name, _)| !fields.iter().any(|field| field.name == **name));
            let name = unknown.map_or("", |(name, _)| name);
            let words = "the schema has no such field, and nothing is left out";
            return Err(Misfit::new(words).in_member(name));
        }
        Ok(())
    }

    fn write_default_of(
        &mut self,
        of: TypeIndex,
        json: &Json<'_>,
        depth: usize,
    ) -> Result<(), Misfit> {
        let outer = std::mem::replace(&mut self.of_schema, true);
        let written = self.write(of, json, depth);
        self.of_schema = outer;
        written
    }

    /// Writes the first branch that fits: one that the document names, or else one that the value is of.
    fn union(
        &mut self,
        branches: &[TypeIndex],
        json: &Json<'_>,
        depth: usize,
    ) -> Result<(), Misfit> {
        let types = self.types;
        let candidates = |fits: &dyn Fn(&AvroType) -> bool| -> Vec<(usize, TypeIndex)> {
            let all = branches.iter().copied().enumerate();
            all.filter(|(_, branch)| types.get(*branch).is_some_and(fits)).collect()
        };
        if let Json::Object(members) = json
            && let [(name, value)] = &members[..]
            && let [(position, branch)] = candidates(&|of| of.branch_name() == name)[..]
            && !self.of_schema
        {
            let begin = self.out.len();
            self.length(position);
            let written = self.write(branch, value, depth + 1);
            // A record or map may have one member that is called like a branch.
            let is_plain = candidates(&|of| takes(of, json, false)).is_empty();
            if written.is_ok() || is_plain {
                return written;
            }
            self.out.truncate(begin);
        }
        let mut order = candidates(&|of| takes(of, json, self.of_schema));
        if let Json::Number(text) = json {
            let is_whole = text.parse::<i64>().is_ok();
            order.sort_by_key(|(_, branch)| types.get(*branch).map(|of| rank(of, is_whole)));
        }
        let mut deepest: Option<Misfit> = None;
        for (position, branch) in order {
            let begin = self.out.len();
            self.length(position);
            match self.write(branch, json, depth + 1) {
                Ok(()) => return Ok(()),
                Err(misfit) => {
                    self.out.truncate(begin);
                    if self.attempts == 0 {
                        return Err(too_many_ways());
                    }
                    let is_deeper = |known: &Misfit| misfit.depth() > known.depth();
                    if deepest.as_ref().is_none_or(is_deeper) {
                        deepest = Some(misfit);
                    }
                }
            }
        }
        // The branch that fits best says what is wrong.
        Err(deepest.unwrap_or_else(|| self.no_branch(branches, json)))
    }

    fn no_branch(&self, branches: &[TypeIndex], json: &Json<'_>) -> Misfit {
        let shown = branches.iter().take(BRANCHES_SHOWN);
        let mut words: Vec<String> =
            shown.filter_map(|branch| self.types.get(*branch)).map(AvroType::words).collect();
        if branches.len() > BRANCHES_SHOWN {
            words.push("…".to_owned());
        }
        Misfit::expected(&words.join(" or "), json.type_name())
    }

    fn logical(&mut self, of: &AvroType, json: &Json<'_>) -> Result<(), Misfit> {
        let number_or_text = |reads: &dyn Fn(&str) -> Result<i64, Misfit>| match json {
            Json::Text(text) => reads(text).map(Some),
            Json::Number(_) => Ok(None),
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
                Err(expected(of, json))
            }
        };
        let number = match of {
            AvroType::Decimal { fixed, precision, scale } => {
                return self.decimal(fixed.as_ref(), *precision, *scale, (of, json));
            }
            AvroType::Uuid(fixed) => return self.uuid(fixed.is_some(), (of, json)),
            AvroType::Duration(_) => return self.duration((of, json)),
            AvroType::Date => number_or_text(&moment_text::days)?,
            AvroType::TimeOfDay(unit) => {
                number_or_text(&|text| moment_text::time_of_day(text, *unit))?
            }
            AvroType::Timestamp { unit, local: false } => {
                number_or_text(&|text| moment_text::timestamp(text, *unit))?
            }
            AvroType::Timestamp { unit, local: true } => {
                number_or_text(&|text| moment_text::local_timestamp(text, *unit))?
            }
            AvroType::Null
            | AvroType::Boolean
            | AvroType::Int
            | AvroType::Long
            | AvroType::Float
            | AvroType::Double
            | AvroType::Bytes
            | AvroType::Text
            | AvroType::Array(_)
            | AvroType::Map(_)
            | AvroType::Union(_)
            | AvroType::Fixed { .. }
            | AvroType::Enum { .. }
            | AvroType::Record { .. } => return Err(expected(of, json)),
        };
        match number {
            Some(number) => {
                self.long(number);
                Ok(())
            }
            None => self.below_logical(of, json),
        }
    }

    /// The type below a logical one.
    fn below_logical(&mut self, of: &AvroType, json: &Json<'_>) -> Result<(), Misfit> {
        match (of, json) {
            (AvroType::Date | AvroType::TimeOfDay(TimeUnit::Millis), Json::Number(text)) => {
                self.whole(text, true)
            }
            (AvroType::TimeOfDay(_) | AvroType::Timestamp { .. }, Json::Number(text)) => {
                self.whole(text, false)
            }
            (AvroType::Decimal { fixed: Some((_, size)), .. }, Json::Text(text)) => {
                self.fixed(text, *size)
            }
            (AvroType::Uuid(Some(_)), Json::Text(text)) => self.fixed(text, 16),
            (AvroType::Duration(_), Json::Text(text)) => self.fixed(text, 12),
            (AvroType::Decimal { fixed: None, .. }, Json::Text(text)) => {
                let bytes = bytes_of_characters(text)?;
                self.bytes(&bytes);
                Ok(())
            }
            (AvroType::Uuid(None), Json::Text(text)) => {
                self.bytes(text.as_bytes());
                Ok(())
            }
            (_, _) => Err(expected(of, json)),
        }
    }

    fn decimal(
        &mut self,
        fixed: Option<&(String, usize)>,
        precision: usize,
        scale: u32,
        (of, json): (&AvroType, &Json<'_>),
    ) -> Result<(), Misfit> {
        let text = match json {
            Json::Number(text) => text,
            Json::Text(text) => &**text,
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
                return Err(expected(of, json));
            }
        };
        let decimal = Decimal::parse(text)
            .ok_or_else(|| Misfit::new("expected a decimal number such as 12.50"))?;
        let bytes = decimal.unscaled_bytes(precision, scale)?;
        match fixed {
            None => self.bytes(&bytes),
            Some((_, size)) => {
                let bytes = sign_extended(&bytes, *size);
                let words = "the number is larger than the fixed of the schema";
                self.out.extend_from_slice(&bytes.ok_or_else(|| Misfit::new(words))?);
            }
        }
        Ok(())
    }

    fn uuid(&mut self, is_fixed: bool, (of, json): (&AvroType, &Json<'_>)) -> Result<(), Misfit> {
        let Json::Text(text) = json else { return Err(expected(of, json)) };
        let bytes = uuid_bytes(text).ok_or_else(|| {
            Misfit::new("expected a UUID such as 123e4567-e89b-12d3-a456-426614174000")
        })?;
        if is_fixed {
            self.out.extend_from_slice(&bytes);
        } else {
            self.bytes(text.as_bytes());
        }
        Ok(())
    }

    /// Three numbers: months, days, milliseconds.
    fn duration(&mut self, (of, json): (&AvroType, &Json<'_>)) -> Result<(), Misfit> {
        let Json::Object(members) = json else { return Err(expected(of, json)) };
        if let Some((name, _)) = members.iter().find(|(name, _)| !DURATION_PARTS.contains(&&**name))
        {
            let words = "a duration has the members months, days and millis";
            return Err(Misfit::new(words).in_member(name));
        }
        for part in DURATION_PARTS {
            let number = match json.get(part) {
                None => 0,
                Some(Json::Number(text)) => {
                    let decimal = Decimal::parse(text).ok_or_else(|| Misfit::new("no number"))?;
                    let number = decimal.whole(0..=i128::from(u32::MAX));
                    let number = number.map_err(|misfit| misfit.in_member(part))?;
                    u32::try_from(number).unwrap_or_default()
                }
                Some(other) => {
                    let misfit = Misfit::expected("a whole number", other.type_name());
                    return Err(misfit.in_member(part));
                }
            };
            self.out.extend_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }
}

fn out_of_range_or(of: &AvroType, json: &Json<'_>) -> Misfit {
    match json {
        Json::Number(_) => Misfit::new("the number is out of the range of the type"),
        Json::Null | Json::Bool(_) | Json::Text(_) | Json::Array(_) | Json::Object(_) => {
            expected(of, json)
        }
    }
}

/// The floats that JSON has no number for, as Avro's own programs write them.
fn special(text: &str) -> Option<(f64, f32)> {
    match text {
        "NaN" => Some((f64::NAN, f32::NAN)),
        "Infinity" => Some((f64::INFINITY, f32::INFINITY)),
        "-Infinity" => Some((f64::NEG_INFINITY, f32::NEG_INFINITY)),
        _ => None,
    }
}

/// Bytes as Avro has them in JSON: each character is a byte, up to U+00FF.
fn bytes_of_characters(text: &str) -> Result<Vec<u8>, Misfit> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    bytes.ok_or_else(|| {
        Misfit::new("bytes are written as characters up to U+00FF, and the string has others")
    })
}

/// In which order a number is tried as these types, whatever their order in the union: a whole number is exact as one,
/// `1.0` is written as a number with places, and a time is rather written as a text.
fn rank(of: &AvroType, is_whole: bool) -> u8 {
    match of {
        AvroType::Int | AvroType::Long => u8::from(!is_whole),
        AvroType::Decimal { .. } => u8::from(is_whole),
        AvroType::Float | AvroType::Double => 2 * u8::from(is_whole),
        AvroType::Null
        | AvroType::Boolean
        | AvroType::Bytes
        | AvroType::Text
        | AvroType::Array(_)
        | AvroType::Map(_)
        | AvroType::Union(_)
        | AvroType::Fixed { .. }
        | AvroType::Enum { .. }
        | AvroType::Record { .. }
        | AvroType::Uuid(_)
        | AvroType::Date
        | AvroType::TimeOfDay(_)
        | AvroType::Timestamp { .. }
        | AvroType::Duration(_) => 3,
    }
}

/// Whether a value of this JSON type may be one of the type. Whether it fits is tried.
fn takes(of: &AvroType, json: &Json<'_>, of_schema: bool) -> bool {
    match of {
        AvroType::Null => matches!(json, Json::Null),
        AvroType::Boolean => matches!(json, Json::Bool(_)),
        AvroType::Int | AvroType::Long => matches!(json, Json::Number(_)),
        AvroType::Float | AvroType::Double => match json {
            Json::Number(_) => true,
            Json::Text(text) => special(text).is_some(),
            Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => false,
        },
        AvroType::Date | AvroType::TimeOfDay(_) | AvroType::Timestamp { .. } => {
            matches!(json, Json::Number(_)) || (!of_schema && matches!(json, Json::Text(_)))
        }
        AvroType::Decimal { .. } => {
            matches!(json, Json::Text(_)) || (!of_schema && matches!(json, Json::Number(_)))
        }
        AvroType::Bytes
        | AvroType::Text
        | AvroType::Fixed { .. }
        | AvroType::Enum { .. }
        | AvroType::Uuid(_) => matches!(json, Json::Text(_)),
        AvroType::Array(_) => matches!(json, Json::Array(_)),
        AvroType::Map(_) | AvroType::Record { .. } | AvroType::Duration(_) => {
            matches!(json, Json::Object(_))
        }
        AvroType::Union(_) => false,
    }
}
