//! A topic's template as text and columns, for whoever wants to know the topics before the events.

use super::layout::Role;
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
    /// The topic's template; `None` where it is rewritten, or can't be read.
    pub fn topic_pieces(&self) -> Option<Vec<TopicPiece>> {
        if self.replace.is_some() {
            return None;
        }
        let pieces = template::pieces(&self.topic)?.into_iter().map(|piece| match piece {
            template::Raw::Text(text) => Some(TopicPiece::Text(text)),
            template::Raw::Field(names) => names
                .iter()
                .map(|name| self.column_called(name))
                .collect::<Option<_>>()
                .map(TopicPiece::Columns),
        });
        pieces.collect()
    }

    /// The one topic of a template without fields.
    pub fn constant_topic(&self) -> Option<String> {
        let pieces = self.topic_pieces()?.into_iter();
        let text = |piece| match piece {
            TopicPiece::Text(text) => Some(text),
            TopicPiece::Columns(_) => None,
        };
        pieces.map(text).collect()
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
    use crate::outbox::Layout;

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
}
