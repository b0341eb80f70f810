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
    /// may be what they are from here on. Not where it is not `due`: then that is found when it is asked for again.
    pub(super) fn changed(&mut self, topic: &str, id: TopicId, due: bool) -> bool {
        if self.topics.len() == TOPICS_MAX && !self.topics.contains_key(topic) {
            return false;
        }
        let known = self.topics.entry(topic.to_owned()).or_default();
        if known.former == Some(id) || *known.id.get_or_insert(id) == id || !due {
            return false;
        }
        known.former = known.id.replace(id);
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
        assert!(!ids.changed("a", old, true));
        assert!(!ids.changed("a", old, true));
        assert!(ids.changed("a", new, true));
        assert!(!ids.changed("a", old, true), "a broker that lags behind");
        assert!(!ids.changed("a", new, true));
        assert!(ids.changed("a", newer, true));
    }

    /// Behind a topic that was made anew all are asked for, just then: what is heard of them counts.
    #[test]
    fn what_is_heard_before_it_is_due_is_remembered_and_not_lost() {
        let mut ids = Ids::default();
        let [old, new] = [1, 2].map(TopicId::number);
        assert!(!ids.changed("a", old, false));
        assert!(!ids.changed("a", new, false));
        assert!(ids.changed("a", new, true));
    }

    /// All of a cluster that was exchanged: the producers that are made for the first know no other of before.
    #[test]
    fn topics_that_are_made_anew_together_cost_one_set_of_producers() {
        let mut ids = Ids::default();
        let [old, new] = [1, 2].map(TopicId::number);
        for topic in ["a", "b", "c"] {
            assert!(!ids.changed(topic, old, true));
        }
        let changed = ["a", "b", "c", "a", "b"].map(|topic| ids.changed(topic, new, true));
        assert_eq!(changed, [true, false, false, false, false]);
        assert!(!ids.changed("a", old, true), "a broker that lags behind");
    }
}
