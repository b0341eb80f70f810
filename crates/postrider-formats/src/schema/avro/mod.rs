//! Avro: schemas, and JSON documents in their binary form. Written from the specification of Avro 1.12.

mod avro_schema;
mod avro_type;
mod avro_writer;

pub(super) use avro_schema::AvroSchema;

#[cfg(test)]
mod tests;
