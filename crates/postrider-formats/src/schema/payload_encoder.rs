//! Encoding without a registry, for programs that embed Postrider and for measurements.

use super::encoder::{Encoding, SubjectSchema};
use super::framing::SchemaId;
use super::registry::{ReferencedSchema, RegisteredSchema, SchemaKind};

/// The languages of schemas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaLanguage {
    /// JSON documents become Avro.
    Avro,
    /// JSON documents become Protobuf.
    Protobuf,
    /// JSON documents are validated.
    JsonSchema,
}

/// Makes of JSON documents what `format.encode` publishes, without the id of a schema.
#[derive(Debug)]
pub struct PayloadEncoder(SubjectSchema);

impl PayloadEncoder {
    /// Reads a schema. `references`: the names and the texts of schemas that it refers to, each behind those that it
    /// needs itself.
    ///
    /// # Errors
    /// Why the schema can't be used, with the path in the schema: a clause.
    pub fn new(
        language: SchemaLanguage,
        schema: &str,
        references: &[(&str, &str)],
    ) -> Result<Self, String> {
        let (kind, encoding) = match language {
            SchemaLanguage::Avro => (SchemaKind::Avro, Encoding::Avro),
            SchemaLanguage::Protobuf => (SchemaKind::Protobuf, Encoding::Protobuf),
            SchemaLanguage::JsonSchema => (SchemaKind::JsonSchema, Encoding::JsonSchema),
        };
        let reference = |&(name, text): &(&str, &str)| ReferencedSchema {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let registered = RegisteredSchema {
            id: SchemaId { id: 0, guid: None },
            kind,
            text: schema.to_owned(),
            references: references.iter().map(reference).collect(),
        };
        SubjectSchema::compile(registered, encoding).map(Self)
    }

    /// Adds an encoded document to `out`; with a JSON Schema nothing is added. `event_type` is the name of the message,
    /// which a schema of Protobuf with several messages needs.
    ///
    /// # Errors
    /// The document does not fit: the path in it and what is wrong there, without a value. `out` has a part of it then.
    pub fn encode(
        &self,
        document: &[u8],
        event_type: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let encoded = self.0.encode(document, event_type, out);
        encoded.map(drop).map_err(|misfit| misfit.to_string())
    }
}
