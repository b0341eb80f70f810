//! Reads a schema, and finds the message of an event.

use super::message_writer;
use crate::schema::json::Json;
use crate::schema::misfit::{Misfit, shown_name};
use crate::schema::registry::ReferencedSchema;
use prost_reflect::{DescriptorPool, FileDescriptor, MessageDescriptor};
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};
use protox::{Compiler, Error};
use std::collections::HashMap;

/// The name of the file with the schema. No reference is called so.
const MAIN: &str = "postrider/schema.of.subject.proto";

/// The longest words of the compiler that are repeated. Unit: bytes.
const WORDS_BYTES_MAX: usize = 200;

/// A schema, ready to write messages with.
#[derive(Debug)]
pub(crate) struct ProtobufSchema {
    file: FileDescriptor,
}

impl ProtobufSchema {
    /// Reads a schema. Its imports are the references, by their names, and Google's own types.
    ///
    /// # Errors
    /// The schema is none.
    pub(crate) fn parse(references: &[ReferencedSchema], text: &str) -> Result<Self, Misfit> {
        let texts = references.iter().map(|other| (other.name.clone(), other.text.clone()));
        let texts = texts.chain([(MAIN.to_owned(), text.to_owned())]).collect();
        let mut resolver = ChainFileResolver::new();
        resolver.add(SchemaTexts(texts));
        resolver.add(GoogleFileResolver::new());
        let mut compiler = Compiler::with_file_resolver(resolver);
        compiler.include_imports(true);
        compiler.open_file(MAIN).map_err(|error| {
            let words = error.to_string();
            let end = words.floor_char_boundary(WORDS_BYTES_MAX);
            let shown = words.get(..end).unwrap_or_default();
            Misfit::new(format!("the schema of Protobuf can't be used: {shown}"))
        })?;
        let pool: DescriptorPool = compiler.descriptor_pool();
        let file = pool.get_file_by_name(MAIN).filter(|file| file.messages().len() > 0);
        let file = file.ok_or_else(|| Misfit::new("the schema of Protobuf has no message"))?;
        Ok(Self { file })
    }

    /// Adds a document as a message. Returns the indexes of the message.
    ///
    /// # Errors
    /// The document does not fit, or it is not known which message it is.
    pub(crate) fn write(
        &self,
        document: &[u8],
        event_type: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Result<Vec<u32>, Misfit> {
        let (index, message) = self.message(event_type)?;
        message_writer::write_message(&message, &Json::parse(document)?, out)?;
        Ok(vec![index])
    }

    /// The indexes of the event's message.
    ///
    /// # Errors
    /// It is not known which message it is.
    pub(crate) fn index(&self, event_type: Option<&str>) -> Result<Vec<u32>, Misfit> {
        self.message(event_type).map(|(index, _)| vec![index])
    }

    /// The message that has the event's type as its name, or the only one.
    fn message(&self, event_type: Option<&str>) -> Result<(u32, MessageDescriptor), Misfit> {
        let mut all = self.file.messages();
        if let (1, Some(only)) = (all.len(), all.next()) {
            return Ok((0, only));
        }
        let name = event_type.unwrap_or_default();
        let is_named =
            |message: &MessageDescriptor| message.full_name() == name || message.name() == name;
        let found = (0..).zip(self.file.messages()).find(|(_, message)| is_named(message));
        found.ok_or_else(|| {
            let name = if name.is_empty() { "none" } else { shown_name(name) };
            let words = "the schema has several messages, and the event's type names none of them";
            Misfit::new(format!("{words}: {name}"))
        })
    }
}

/// The texts of files, by the names that imports have.
struct SchemaTexts(HashMap<String, String>);

impl FileResolver for SchemaTexts {
    fn open_file(&self, name: &str) -> Result<File, Error> {
        match self.0.get(name) {
            Some(text) => File::from_source(name, text),
            None => Err(Error::file_not_found(name)),
        }
    }
}
