//! A topic's template as text and columns, for whoever wants to know the topics before the events.

use super::layout::{Layout, Role};
use super::replace::Rewrite;
use super::span::Span;
use super::spec::OutboxSpec;
use super::template;

/// A piece of a template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopicPiece {
    /// Text as it is.
    Text(String),
    /// The first of these columns that is not NULL.
    Columns(Vec<String>),
}

impl OutboxSpec {
    /// The pieces of the topic, before `route.replace` is applied to it; `None` if the template can't be read.
    pub fn topic_pieces(&self) -> Option<Vec<TopicPiece>> {
        let pieces = template::pieces(&self.topic)?.into_iter().map(|piece| match piece {
            template::Raw::Text(text) => Some(TopicPiece::Text(text)),
            template::Raw::Field(names) => names
                .iter()
                .map(|name| self.column_called(name))
                .collect::<Option<_>>()
                .map(TopicPiece::Columns),
        });
        let mut pieces: Vec<TopicPiece> = pieces.collect::<Option<_>>()?;
        let is_columns = |piece: &TopicPiece| matches!(piece, TopicPiece::Columns(_));
        // With layout debezium the pattern is matched against the fields alone.
        if self.replace.is_some()
            && self.layout == Layout::Debezium
            && pieces.iter().any(is_columns)
        {
            pieces.retain(is_columns);
        }
        Some(pieces)
    }

    /// What `route.replace` makes of topics; they stay as they are without it, and where its pattern does not match.
    pub fn replaced(&self, topics: Vec<String>) -> Vec<String> {
        let Some(Ok(mut rewrite)) = self.replace.as_ref().map(Rewrite::compile) else {
            return topics;
        };
        let mut replaced: Vec<String> = Vec::new();
        for topic in topics {
            let mut scratch = Vec::new();
            let made = match rewrite.apply(topic.as_bytes(), &mut scratch) {
                Some(Span::Scratch(made)) => {
                    String::from_utf8_lossy(made.of(&scratch)).into_owned()
                }
                Some(Span::Null | Span::Row(_) | Span::Fixed(_)) | None => topic,
            };
            if !replaced.contains(&made) {
                replaced.push(made);
            }
        }
        replaced
    }

    /// The one topic of a template without fields.
    pub fn constant_topic(&self) -> Option<String> {
        let pieces = self.topic_pieces()?.into_iter();
        let text = |piece| match piece {
            TopicPiece::Text(text) => Some(text),
            TopicPiece::Columns(_) => None,
        };
        let topic: String = pieces.map(text).collect::<Option<_>>()?;
        self.replaced(vec![topic]).pop()
    }

    /// The column a template means by `name`: as `route` has it.
    fn column_called(&self, name: &str) -> Option<String> {
        let role = || Role::from_name(name).and_then(|role| self.column(role));
        let itself = || {
            let extra = self.extras().map(|extra| extra.column.as_str());
            self.roles().map(|(_, column)| column).chain(extra).find(|column| *column == name)
        };
        let layouts = || self.layout.role(name).and_then(|role| self.column(role));
        role().or_else(itself).or_else(layouts).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replace;

    #[test]
    fn a_topic_is_told_in_text_and_columns() {
        let mut spec = OutboxSpec::for_layout(Layout::Debezium);
        let text = |text: &str| TopicPiece::Text(text.to_owned());
        let columns =
            |names: &[&str]| TopicPiece::Columns(names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(
            spec.topic_pieces(),
            Some(vec![text("outbox.event."), columns(&["aggregatetype"])])
        );
        spec.topic = "a{{{type|aggregate_id}.x".to_owned();
        assert_eq!(
            spec.topic_pieces(),
            Some(vec![text("a{"), columns(&["type", "aggregateid"]), text(".x")])
        );
        spec.topic = "{nobody}".to_owned();
        assert_eq!(spec.topic_pieces(), None);
    }

    /// The topics that `check` asks the broker about are those of the records.
    #[test]
    fn topics_are_known_with_a_replacement_too() {
        let replace = |pattern: &str, with: &str| {
            Some(Replace { pattern: pattern.to_owned(), with: with.to_owned() })
        };
        let columns = |name: &str| TopicPiece::Columns(vec![name.to_owned()]);
        let mut debezium = OutboxSpec::for_layout(Layout::Debezium);
        debezium.replace = replace("(.*)[.]v[0-9]+", "events.$1");
        assert_eq!(
            debezium.topic_pieces(),
            Some(vec![columns("aggregatetype")]),
            "without its own text"
        );
        let seen = ["order.v1", "order.v2", "plain"].map(str::to_owned).to_vec();
        assert_eq!(debezium.replaced(seen), ["events.order", "plain"]);
        assert_eq!(debezium.constant_topic(), None);
        let mut ours = OutboxSpec {
            topic: "a.{aggregate_type}".to_owned(),
            ..OutboxSpec::for_layout(Layout::Postrider)
        };
        ours.replace = replace("a[.](.*)", "b.$1");
        assert_eq!(ours.topic_pieces().map(|pieces| pieces.len()), Some(2), "the whole topic");
        ours.topic = "a.x".to_owned();
        assert_eq!(ours.constant_topic().as_deref(), Some("b.x"));
    }
}
