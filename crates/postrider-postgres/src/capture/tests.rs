//! Histories of tables as frames of the stream, through the assembler, to a consumer.

mod changes;
mod consumer;
mod histories;
mod records;
mod support;
