//! Protobuf: schemas, and JSON documents as messages, by the JSON mapping of Protobuf. Strict: an unknown member is
//! refused, and a number is never rounded into a type for whole numbers.

mod message_writer;
mod protobuf_schema;
mod scalar;
mod well_known;
mod wire;

pub(super) use protobuf_schema::ProtobufSchema;

#[cfg(test)]
mod tests;
