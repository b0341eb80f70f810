//! `kind = "redis"`: streams of Redis and Valkey, in order, at least once or exactly once.
//!
//! Events are added by a script ([`script`]) that stores the pipeline's progress in the same step. The progress fences
//! off connections and processes that were replaced, and says after a lost connection what is stored, so that nothing
//! of it is sent again.
//!
//! With `delivery = "exactly-once"` the script adds the events of a transaction and the pipeline's progress, so both
//! are stored or neither: [`transaction_sink`], [`transaction_writer`], [`commit`].
//!
//! [`worker`] sends and settles; [`chain`] has the numbers of the records of a hash slot; [`link`] has the connections,
//! which speak the protocol themselves ([`resp`], [`connection`]).
//!
//! [`RedisConsumer`] reads streams in a consumer group, over the same connections, for `postrider inbox run`.

mod chain;
mod commit;
mod config;
mod connection;
mod consumer;
mod entry;
mod held;
mod link;
mod looks;
mod preflight;
mod problem;
mod rejected_streams;
mod resp;
mod script;
mod sink;
mod slots;
mod spec;
mod transaction_sink;
mod transaction_writer;
mod worker;

pub use config::RedisConfig;
pub use consumer::{
    RedisConsumer, RedisConsumerProblem, RedisDelivery, RedisLook, RedisLoss, RedisStart,
    StreamsWanted,
};

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Redis;

impl SinkKind for Redis {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(RedisConfig::read(keys))
    }

    fn reference(&self) -> &'static str {
        include_str!("reference.toml")
    }

    fn first_file(&self) -> FirstFile {
        FirstFile { keys: &[], tables: FIRST_FILE_TABLES }
    }
}

const FIRST_FILE_TABLES: &[FirstFileTable] =
    &[FirstFileTable { path: "redis", comment: "The server of the streams.", keys: &["servers"] }];
