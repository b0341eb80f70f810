//! `protocol = "stream"`: streams of RabbitMQ, over the stream protocol.
//!
//! The pipeline's thread judges a record ([`amqp10`]) and queues it. The worker ([`worker`]) hands it to the publisher
//! of its stream ([`publisher`]), which has the records that are not confirmed ([`line`]) and a connection ([`link`],
//! [`codec`]). Another task looks streams up ([`look_up`]). `docs/sinks/rabbitmq.md` has what is promised.

mod amqp10;
mod codec;
mod inbox;
mod line;
mod link;
mod look_up;
mod preflight;
mod problem;
mod publisher;
mod reference;
mod shared;
mod sink;
mod worker;

pub(super) use preflight::{check, create};
pub(super) use sink::open;
