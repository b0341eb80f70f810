//! Which topics are not those that they were. One that is deleted and made anew keeps its name and has another id.
//!
//! librdkafka does not notice what came between, if it was asked for nothing meanwhile. It then believes none of the
//! new leaders, whose epochs begin at 0 again and so are older than those it knows, and sends to the former ones for
//! ever (its issue 4898, open; seen with 2.12.1:
//! `kafka_astray::topic_that_is_made_anew_with_another_leader_gets_its_records`). And no partition of the topic knows
//! the producer that was introduced to those of before. Only another producer helps.
//!
//! Owns the ids that were last heard. They outlive the producers: at worst new ones are made once too often.

use super::native::TopicId;
use std::collections::BTreeMap;

/// Topics whose id is remembered. A further one that is made anew goes on when the producers are given up for what they
/// do not do (`keeper::GIVE_UP`).
const TOPICS_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Ids {
    known: BTreeMap<String, TopicId>,
}

impl Ids {
    /// Whether a topic that has this id now had another one before.
    pub(super) fn changed(&mut self, topic: &str, id: TopicId) -> bool {
        if let Some(known) = self.known.get_mut(topic) {
            return std::mem::replace(known, id) != id;
        }
        if self.known.len() < TOPICS_MAX {
            self.known.insert(topic.to_owned(), id);
        }
        false
    }
}
