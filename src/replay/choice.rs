//! Which events of a source belong to a replay.

use super::request::{From, Request, Until};
use crate::event::{Aggregate, PgTime};
use std::collections::BTreeMap;

/// What is asked of an event. Where the source begins and ends is the plan's.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    since: Option<PgTime>,
    until: Option<PgTime>,
    /// Each id that is asked for, and whether it was met.
    ids: BTreeMap<String, bool>,
    aggregate: Option<(String, String)>,
}

impl Choice {
    /// `found`: ids that were met before this run.
    pub(super) fn new(request: &Request, found: &[String]) -> Self {
        let since = match request.from {
            From::Since(time) => Some(time),
            From::Bookmark(_) | From::Lsn { .. } | From::Anywhere => None,
        };
        let until = match request.until {
            Some(Until::Time(time)) => Some(time),
            Some(Until::Lsn(_)) | None => None,
        };
        let met = |id: &String| (id.clone(), found.contains(id));
        let ids = request.ids.iter().map(met).collect();
        Self { since, until, ids, aggregate: request.aggregate.clone() }
    }

    /// The same for a source that has its own times.
    pub(super) fn without_times(self) -> Self {
        Self { since: None, until: None, ..self }
    }

    /// Whether an event belongs.
    pub(super) fn takes(
        &mut self,
        id: &str,
        aggregate: Option<Aggregate<'_>>,
        committed: PgTime,
    ) -> bool {
        if self.since.is_some_and(|since| committed < since)
            || self.until.is_some_and(|until| committed >= until)
        {
            return false;
        }
        if let Some((kind, of)) = &self.aggregate
            && aggregate.is_none_or(|aggregate| {
                ![(aggregate.kind, kind), (aggregate.id, of)]
                    .into_iter()
                    .all(|(text, asked)| text == asked || unfilled(text) == asked)
            })
        {
            return false;
        }
        if self.ids.is_empty() {
            return true;
        }
        let asked = if self.ids.contains_key(id) { id } else { unfilled(id) };
        self.ids.get_mut(asked).is_some_and(|met| {
            *met = true;
            true
        })
    }

    /// The ids that were met.
    pub(super) fn met(&self) -> Vec<String> {
        self.ids.iter().filter(|(_, met)| **met).map(|(id, _)| id.clone()).collect()
    }

    /// The ids that were not.
    pub(super) fn missing(&self) -> Vec<String> {
        self.ids.iter().filter(|(_, met)| !**met).map(|(id, _)| id.clone()).collect()
    }
}

/// A text without the blanks that fill a `char(n)` up: who asks for a value need not write them.
fn unfilled(text: &str) -> &str {
    text.trim_end_matches(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::SourceChoice;

    fn request() -> Request {
        Request {
            from: From::Since(PgTime { micros: 10 }),
            until: Some(Until::Time(PgTime { micros: 20 })),
            ids: vec!["a".to_owned(), "b".to_owned()],
            aggregate: Some(("order".to_owned(), "1".to_owned())),
            to: None,
            include_parked: false,
            source: SourceChoice::Auto,
        }
    }

    #[test]
    fn an_event_belongs_when_time_aggregate_and_id_fit() {
        let mut choice = Choice::new(&request(), &[]);
        let order = Some(Aggregate { kind: "order", id: "1" });
        let other = Some(Aggregate { kind: "order", id: "2" });
        let at = |micros| PgTime { micros };
        assert!(choice.takes("a", order, at(10)));
        assert!(!choice.takes("a", order, at(9)) && !choice.takes("a", order, at(20)));
        assert!(!choice.takes("b", other, at(15)) && !choice.takes("b", None, at(15)));
        assert!(!choice.takes("c", order, at(15)));
        assert_eq!((choice.met(), choice.missing()), (vec!["a".into()], vec!["b".into()]));
        assert_eq!(Choice::new(&request(), &["b".to_owned()]).missing(), ["a"]);
        let filled = Some(Aggregate { kind: "order     ", id: "1  " });
        assert!(choice.takes("b   ", filled, at(15)), "char(n) is filled up with blanks");
        assert!(!choice.takes(" b", filled, at(15)));
        assert_eq!(choice.missing(), Vec::<String>::new());
        assert!(choice.without_times().takes("b", order, at(99)));
    }
}
