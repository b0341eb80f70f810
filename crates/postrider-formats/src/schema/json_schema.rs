//! Validation by a JSON Schema. The payload stays as it is.

use super::json::Json;
use super::misfit::Misfit;
use super::registry::ReferencedSchema;
use jsonschema::{Retrieve, Uri, Validator};
use serde_json::{Map, Number, Value};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;

/// What relative references are relative to. Nothing is fetched from there.
const BASE: &str = "postrider:///";

/// A compiled schema.
pub(super) struct JsonSchema(Validator);

impl JsonSchema {
    /// Reads a schema. Its references are those of the registry, and nothing else is fetched.
    ///
    /// # Errors
    /// The schema is none, or refers to one that the registry does not name.
    pub(super) fn parse(references: &[ReferencedSchema], text: &str) -> Result<Self, Misfit> {
        let mut others = HashMap::new();
        for reference in references {
            others.insert(reference.name.clone(), read(&reference.text)?);
        }
        let options = jsonschema::options().with_retriever(OfRegistry(others));
        // The words of the error may have parts of the schema, which are no secret.
        let schema = options.with_base_uri(BASE).build(&read(text)?).map_err(|error| {
            Misfit::new(format!("the JSON Schema can't be used: {}", error.masked()))
        })?;
        Ok(Self(schema))
    }

    /// Validates a document.
    ///
    /// # Errors
    /// It does not fit: with the path and the keyword, never with a value.
    pub(super) fn validate(&self, document: &[u8]) -> Result<(), Misfit> {
        let document = value(&Json::parse(document)?)?;
        let Err(error) = self.0.validate(&document) else { return Ok(()) };
        let words = format!("does not fit keyword {:?} of the JSON Schema", error.kind().keyword());
        let path = error.instance_path().to_string();
        let mut misfit = Misfit::new(words);
        for part in path.split('/').skip(1).collect::<Vec<_>>().into_iter().rev() {
            let is_index = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            misfit = if is_index { misfit.in_item() } else { misfit.in_member(part) };
        }
        Err(misfit)
    }
}

impl fmt::Debug for JsonSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonSchema").finish_non_exhaustive()
    }
}

fn read(text: &str) -> Result<Value, Misfit> {
    let wrong = |misfit: Misfit| Misfit::new(format!("the JSON Schema is no JSON: {misfit}"));
    Json::parse_text(text).and_then(|json| value(&json)).map_err(wrong)
}

/// The document for the validator, whose numbers are integers of 64 bits or floats. Only keywords see them so.
fn value(json: &Json<'_>) -> Result<Value, Misfit> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(text) => {
            let whole = text.parse::<i64>().map(Number::from);
            let whole = whole.or_else(|_not_signed| text.parse::<u64>().map(Number::from));
            let number = whole.ok().or_else(|| Number::from_f64(text.parse().ok()?));
            Value::Number(number.ok_or_else(|| Misfit::new("the number is too large"))?)
        }
        Json::Text(text) => Value::String(text.clone().into_owned()),
        Json::Array(items) => {
            let items: Result<Vec<Value>, Misfit> = items.iter().map(value).collect();
            Value::Array(items.map_err(Misfit::in_item)?)
        }
        Json::Object(members) => {
            let mut object = Map::with_capacity(members.len());
            for (name, member) in members {
                let member = value(member).map_err(|misfit| misfit.in_member(name))?;
                object.insert(name.clone().into_owned(), member);
            }
            Value::Object(object)
        }
    })
}

/// The schemas that the registry names as references.
struct OfRegistry(HashMap<String, Value>);

impl Retrieve for OfRegistry {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let uri = uri.as_str();
        let name = uri.strip_prefix(BASE).unwrap_or(uri);
        let found = self.0.get(name).or_else(|| self.0.get(uri));
        found.cloned().ok_or_else(|| "the registry names no such reference".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"type": "object", "required": ["id"], "additionalProperties": false,
        "properties": {"id": {"type": "integer"}, "items": {"type": "array", "items": {"$ref": "item.json"}}}}"#;

    fn schema() -> JsonSchema {
        let item =
            r#"{"type": "object", "properties": {"price": {"type": "number", "minimum": 0}}}"#;
        let reference = ReferencedSchema { name: "item.json".to_owned(), text: item.to_owned() };
        JsonSchema::parse(&[reference], SCHEMA).unwrap()
    }

    #[test]
    fn a_document_that_does_not_fit_is_refused_with_path_and_keyword_alone() {
        let schema = schema();
        let error = |text: &str| schema.validate(text.as_bytes()).unwrap_err().to_string();
        schema.validate(br#"{"id": 9007199254740993, "items": [{"price": 12.50}]}"#).unwrap();
        assert_eq!(error("{}"), "$: does not fit keyword \"required\" of the JSON Schema");
        assert_eq!(
            error(r#"{"id": 1, "items": [{"price": 1}, {"price": -4711}]}"#),
            "$.items[].price: does not fit keyword \"minimum\" of the JSON Schema"
        );
        assert_eq!(
            error(r#"{"id": 1, "card": "4711"}"#),
            "$: does not fit keyword \"additionalProperties\" of the JSON Schema"
        );
        assert_eq!(error(r#"{"id": 1, "id": 2}"#), "${}: a member occurs twice");
    }

    #[test]
    fn a_reference_that_the_registry_does_not_name_is_not_fetched() {
        let error = JsonSchema::parse(&[], SCHEMA).unwrap_err().to_string();
        assert!(error.contains("the JSON Schema can't be used"), "{error}");
        let remote = r#"{"$ref": "https://example.com/schema.json"}"#;
        assert!(JsonSchema::parse(&[], remote).is_err());
    }
}
