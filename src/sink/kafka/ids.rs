//! Which topics are not those that they were. One that is deleted and made anew keeps its name and has another id.
//!
//! librdkafka does not notice what came between, if it was asked for nothing meanwhile. It then believes none of the
//! new leaders, whose epochs begin at 0 again and so are older than those it knows, and sends to the former ones for
//! ever (its issue 4898, open; seen with 2.12.1:
//! `kafka_astray::topic_that_is_made_anew_with_another_leader_gets_its_records`). And no partition of the topic knows
//! the producer that was introduced to those of before. Only another producer helps.
//!
//! Owns the ids that were heard. Brokers may answer that lag behind one another: a topic never gets a former id back,
//! so the former one says nothing.

use super::native::TopicId;
use std::collections::BTreeMap;

/// Topics whose id is remembered. Of a further one nothing is noticed but that nothing is acknowledged
/// ([`stall`](super::stall)).
const TOPICS_MAX: usize = 10_000;

#[derive(Default)]
struct Known {
    id: Option<TopicId>,
    former: Option<TopicId>,
}

#[derive(Default)]
pub(super) struct Ids {
    topics: BTreeMap<String, Known>,
}

impl Ids {
    /// A topic has this id: whether it is another one than it had. Then new producers are made, and so the other topics
    /// may be what they are from here on.
    pub(super) fn changed(&mut self, topic: &str, id: TopicId) -> bool {
        if self.topics.len() == TOPICS_MAX && !self.topics.contains_key(topic) {
            return false;
        }
        let known = self.topics.entry(topic.to_owned()).or_default();
        if known.former == Some(id) {
            return false;
        }
        let former = known.id.replace(id).filter(|before| *before != id);
        if former.is_none() {
            return false;
        }
        known.former = former;
        for (name, other) in &mut self.topics {
            if name != topic {
                other.id = None;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_that_is_made_anew_is_noticed_once() {
        let mut ids = Ids::default();
        let [old, new, newer] = [1, 2, 3].map(TopicId::number);
        assert!(!ids.changed("a", old));
        assert!(!ids.changed("a", old));
        assert!(ids.changed("a", new));
        assert!(!ids.changed("a", old), "a broker that lags behind");
        assert!(!ids.changed("a", new));
        assert!(ids.changed("a", newer));
    }

    /// All of a cluster that was exchanged: the producers that are made for the first know no other of before.
    #[test]
    fn topics_that_are_made_anew_together_cost_one_set_of_producers() {
        let mut ids = Ids::default();
        let [old, new] = [1, 2].map(TopicId::number);
        for topic in ["a", "b", "c"] {
            assert!(!ids.changed(topic, old));
        }
        let changed = ["a", "b", "c", "a", "b"].map(|topic| ids.changed(topic, new));
        assert_eq!(changed, [true, false, false, false, false]);
        assert!(!ids.changed("a", old), "a broker that lags behind");
    }
}
