//! Which subject of the registry the schema of an event has.

use crate::words;
use postrider_core::record::{Record, Refusal};

/// The longest subject. Unit: bytes.
const BYTES_MAX: usize = 1_000;

/// A part of the rule.
#[derive(Clone, PartialEq, Eq, Debug)]
enum SubjectPart {
    Text(String),
    /// The record's topic.
    Topic,
    /// The event's type, header `type`.
    Type,
}

/// The rule. Its words are those of Confluent's programs, in which the name of the record is that of the schema. Here
/// it is the event's type, which is known before the schema is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SubjectRule {
    text: String,
    parts: Vec<SubjectPart>,
}

impl SubjectRule {
    /// Where the key is not given.
    pub(super) const DEFAULT: &str = "topic_name";

    /// Reads the rule.
    ///
    /// # Errors
    /// What is wrong: a clause.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let template = match text {
            "topic_name" => "{topic}-value",
            "record_name" => "{type}",
            "topic_record_name" => "{topic}-{type}",
            other => other,
        };
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((before, behind)) = rest.split_once('{') {
            let Some((name, after)) = behind.split_once('}') else {
                return Err("has a brace that is not closed".to_owned());
            };
            if !before.is_empty() {
                parts.push(SubjectPart::Text(before.to_owned()));
            }
            parts.push(match name {
                "topic" => SubjectPart::Topic,
                "type" => SubjectPart::Type,
                _ => {
                    let words = "expected topic_name, record_name, topic_record_name, or a text with \
                                 {topic} and {type}";
                    return Err(words.to_owned());
                }
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(SubjectPart::Text(rest.to_owned()));
        }
        if parts.is_empty() {
            return Err("must not be empty".to_owned());
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// As it is in the configuration.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the event's type is in it.
    pub(super) fn has_type(&self) -> bool {
        self.parts.contains(&SubjectPart::Type)
    }

    /// The subject of events of a topic, if it is known without an event.
    pub(super) fn of_topic(&self, topic: &str) -> Option<String> {
        let mut subject = String::new();
        for part in &self.parts {
            match part {
                SubjectPart::Text(text) => subject.push_str(text),
                SubjectPart::Topic => subject.push_str(topic),
                SubjectPart::Type => return None,
            }
        }
        Some(subject)
    }

    /// Writes the subject of an event in the place of what `into` has.
    ///
    /// # Errors
    /// The event has no type, and the rule needs one, or the subject is too long.
    pub(super) fn write(&self, record: &Record<'_>, into: &mut String) -> Result<(), Refusal> {
        into.clear();
        for part in &self.parts {
            into.push_str(match part {
                SubjectPart::Text(text) => text,
                SubjectPart::Topic => record.topic,
                SubjectPart::Type => {
                    let event_type = header_text(record, "type").filter(|name| !name.is_empty());
                    let words = "the event has no type, which format.registry.subject needs";
                    event_type.ok_or(Refusal::content(words))?
                }
            });
        }
        if into.len() > BYTES_MAX {
            let general = "the subject of the event is too long";
            let words = format!("the subject of the event has more than {BYTES_MAX} bytes");
            return Err(Refusal::content(words::keep(&words, general)));
        }
        Ok(())
    }
}

/// The text of a header of the record.
pub(super) fn header_text<'a>(record: &Record<'a>, name: &str) -> Option<&'a str> {
    let header = record.headers.iter().find(|header| header.name == name)?;
    std::str::from_utf8(header.value?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::record::Header;

    fn subject(rule: &str, event_type: Option<&[u8]>) -> Result<String, String> {
        let headers = [Header { name: "type", value: event_type }];
        let record = Record {
            topic: "shop.orders",
            partition: None,
            key: None,
            value: None,
            timestamp_ms: None,
            headers: &headers,
        };
        let mut subject = "of before".to_owned();
        let written = SubjectRule::parse(rule)?.write(&record, &mut subject);
        written.map(|()| subject).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn rules_name_subjects_as_confluent_s_programs_do() {
        let of = |rule| subject(rule, Some(b"OrderPaid")).unwrap();
        assert_eq!(of("topic_name"), "shop.orders-value");
        assert_eq!(of("record_name"), "OrderPaid");
        assert_eq!(of("topic_record_name"), "shop.orders-OrderPaid");
        assert_eq!(of("com.example.{type}"), "com.example.OrderPaid");
        assert_eq!(of(":.shop:{topic}-value"), ":.shop:shop.orders-value");
        assert_eq!(SubjectRule::parse("topic_name").unwrap().of_topic("a").unwrap(), "a-value");
        assert_eq!(SubjectRule::parse("record_name").unwrap().of_topic("a"), None);
    }

    #[test]
    fn an_event_without_type_and_other_rules_are_refused() {
        let words = "the event has no type, which format.registry.subject needs";
        assert_eq!(subject("record_name", None).unwrap_err(), words);
        assert_eq!(subject("{topic}-{type}", Some(b"")).unwrap_err(), words);
        for rule in ["", "{key}", "{topic", "a{}"] {
            assert!(SubjectRule::parse(rule).is_err(), "{rule}");
        }
        assert!(subject("record_name", Some(&[b'a'; 2000])).unwrap_err().contains("1000 bytes"));
    }
}
