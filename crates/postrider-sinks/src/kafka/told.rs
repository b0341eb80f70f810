//! Problems that were reported and are not over: a report is not repeated with every check, and the end is reported
//! too.

use super::shared::Shared;
use super::trouble::{About, Trouble};
use crate::Post;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a trouble that lasts is told again.
const REPEAT: Duration = Duration::from_secs(5);
/// Topics whose trouble is remembered as told.
const TOPICS_MAX: usize = 1_000;

/// Troubles that were told and are not over, each with when.
pub(super) struct Told {
    shared: Arc<Shared>,
    /// Of the brokers.
    of_all: Option<(Trouble, Instant)>,
    /// Of each topic, until it is known.
    of_topics: BTreeMap<String, (Trouble, Instant)>,
}

impl Told {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, of_all: None, of_topics: BTreeMap::new() }
    }

    pub(super) const fn is_trouble(&self) -> bool {
        self.of_all.is_some()
    }

    pub(super) fn is_about(&self, about: About) -> bool {
        self.of_all.as_ref().is_some_and(|(told, _)| told.about == about)
    }

    pub(super) fn say(&mut self, trouble: Trouble) {
        if is_news(self.of_all.as_ref(), &trouble) {
            let Trouble { about: _, reason, hint } = trouble.clone();
            self.shared.mailbox.post(Post::Down { reason, hint, topic: None, missing: false });
            self.of_all = Some((trouble, Instant::now()));
        }
    }

    /// `missing`: the topic was never known.
    pub(super) fn say_of(&mut self, topic: String, trouble: Trouble, missing: bool) {
        if is_news(self.of_topics.get(&topic), &trouble) {
            let Trouble { about: _, reason, hint } = trouble.clone();
            let about = Some(topic.clone());
            self.shared.mailbox.post(Post::Down { reason, hint, topic: about, missing });
            if self.of_topics.len() == TOPICS_MAX {
                self.of_topics.clear();
            }
            self.of_topics.insert(topic, (trouble, Instant::now()));
        }
    }

    /// A trouble of this kind, if it was told, is over.
    pub(super) fn over(&mut self, about: About) {
        if self.is_about(about) {
            self.of_all = None;
            self.shared.mailbox.post(Post::Up { topic: None });
        }
    }

    /// The topic is known now.
    pub(super) fn over_for(&mut self, topic: String) {
        if self.of_topics.remove(&topic).is_some() {
            self.shared.mailbox.post(Post::Up { topic: Some(topic) });
        }
    }
}

/// Whether a trouble is told again. The hint names what is in trouble; the reason may carry times that change with
/// every try.
fn is_news(told: Option<&(Trouble, Instant)>, trouble: &Trouble) -> bool {
    told.is_none_or(|(told, at)| {
        (told.about, &told.hint) != (trouble.about, &trouble.hint) || at.elapsed() >= REPEAT
    })
}
