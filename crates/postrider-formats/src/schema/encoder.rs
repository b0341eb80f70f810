//! A schema of the registry, ready to encode events.

use super::avro::AvroSchema;
use super::json_schema::JsonSchema;
use super::misfit::Misfit;
use super::protobuf::ProtobufSchema;
use super::registry::{RegisteredSchema, SchemaKind};

/// What is made of the JSON of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Encoding {
    /// Nothing: the payload stays as it is, and only the schema's id is added.
    #[default]
    None,
    Avro,
    /// The payload stays as it is, and is validated.
    JsonSchema,
    Protobuf,
}

impl Encoding {
    /// In the configuration, in this order.
    pub(super) const WORDS: [&str; 4] = ["", "avro", "json-schema", "protobuf"];
    const ALL: [Self; 4] = [Self::None, Self::Avro, Self::JsonSchema, Self::Protobuf];

    pub(super) fn of(index: usize) -> Self {
        Self::ALL.get(index).copied().unwrap_or_default()
    }

    pub(super) fn name(self) -> &'static str {
        let index = Self::ALL.iter().position(|encoding| *encoding == self);
        index.and_then(|index| Self::WORDS.get(index)).copied().unwrap_or_default()
    }

    /// The language of the schemas. Without an encoding schemas of files are Avro.
    pub(super) fn schema_kind(self) -> SchemaKind {
        match self {
            Self::None | Self::Avro => SchemaKind::Avro,
            Self::JsonSchema => SchemaKind::JsonSchema,
            Self::Protobuf => SchemaKind::Protobuf,
        }
    }

    /// Whether the payload is another one than the application wrote.
    pub(super) fn changes(self) -> bool {
        match self {
            Self::None | Self::JsonSchema => false,
            Self::Avro | Self::Protobuf => true,
        }
    }
}

/// The schema of a subject.
#[derive(Debug)]
pub(super) struct SubjectSchema {
    pub(super) registered: RegisteredSchema,
    compiled: CompiledSchema,
}

#[derive(Debug)]
enum CompiledSchema {
    /// Payloads are not looked at.
    Opaque,
    /// Payloads are not looked at, and are messages of this schema.
    OpaqueProtobuf(ProtobufSchema),
    Avro(AvroSchema),
    JsonSchema(JsonSchema),
    Protobuf(ProtobufSchema),
}

impl SubjectSchema {
    /// Reads the schema.
    ///
    /// # Errors
    /// Why it can't be used: a clause.
    pub(super) fn compile(
        registered: RegisteredSchema,
        encoding: Encoding,
    ) -> Result<Self, String> {
        let (kind, needed) = (registered.kind, encoding.schema_kind());
        if encoding != Encoding::None && kind != needed {
            return Err(format!(
                "schema {} of the registry is of type {}, and format.encode = {:?} needs {}",
                registered.id.id,
                kind.name(),
                encoding.name(),
                needed.name()
            ));
        }
        let (references, text) = (&registered.references, &registered.text);
        let compiled = match encoding {
            // The id of such a schema is followed by the indexes of the message.
            Encoding::None if kind == SchemaKind::Protobuf => {
                ProtobufSchema::parse(references, text).map(CompiledSchema::OpaqueProtobuf)
            }
            Encoding::None => Ok(CompiledSchema::Opaque),
            Encoding::Avro => AvroSchema::parse(references, text).map(CompiledSchema::Avro),
            Encoding::JsonSchema => {
                JsonSchema::parse(references, text).map(CompiledSchema::JsonSchema)
            }
            Encoding::Protobuf => {
                ProtobufSchema::parse(references, text).map(CompiledSchema::Protobuf)
            }
        };
        match compiled {
            Ok(compiled) => Ok(Self { registered, compiled }),
            Err(misfit) => Err(format!("schema {} of the registry: {misfit}", registered.id.id)),
        }
    }

    /// Encodes a payload into `out`, if that changes it. Returns the indexes of the message of Protobuf.
    ///
    /// # Errors
    /// The payload does not fit. `out` has a part of it then.
    pub(super) fn encode(
        &self,
        payload: &[u8],
        event_type: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Vec<u32>>, Misfit> {
        match &self.compiled {
            CompiledSchema::Opaque => Ok(None),
            CompiledSchema::OpaqueProtobuf(schema) => schema.index(event_type).map(Some),
            CompiledSchema::Avro(schema) => schema.write(payload, out).map(|()| None),
            CompiledSchema::JsonSchema(schema) => schema.validate(payload).map(|()| None),
            CompiledSchema::Protobuf(schema) => schema.write(payload, event_type, out).map(Some),
        }
    }
}
