//! Schemas of events: the id of its schema with each record, and its encoding in Avro or Protobuf, or validation by a
//! JSON Schema. The schemas are those of a registry with Confluent's interface.
//!
//! The [step](schema_step) runs on the pipeline's thread and never waits. What it does not know it asks of a
//! [thread](registry_worker) by a [cache](subject_cache). A schema that is known is used for ever, or until a newer
//! version of its subject is there, whether the registry answers or not.

mod avro;
mod decimal;
mod encoder;
mod framing;
#[cfg(test)]
mod fuzz;
mod json;
mod json_schema;
mod misfit;
mod moment_text;
mod payload_encoder;
mod protobuf;
mod registry;
mod registry_check;
mod registry_worker;
mod schema_config;
mod schema_step;
mod subject;
mod subject_cache;

pub use payload_encoder::{PayloadEncoder, SchemaLanguage};
pub(crate) use schema_config::SchemaConfig;
