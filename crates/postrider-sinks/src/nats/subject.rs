//! Subjects: what a topic becomes, and which subjects a stream takes.
//!
//! A `.` of the topic separates tokens. Inside of a token every byte that has a meaning in NATS is percent-encoded, so
//! the text of an event can neither become a wildcard nor a command of the protocol. Two topics never become one
//! subject.

use postrider_core::sink::NameRule;

/// The longest subject. A line of the protocol has 4,096 bytes, and names the reply and two sizes too.
const SUBJECT_BYTES_MAX: usize = 1_024;

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// The rule for topics.
pub(super) const NAMES: NameRule = NameRule {
    allows: is_topic,
    owner: "NATS",
    words: "tokens separated by \".\", none of them empty, and 1,024 bytes at most",
};

/// Whether a topic can be a subject.
fn is_topic(topic: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(topic) else { return false };
    let length: usize = text.bytes().enumerate().map(|(at, byte)| width(at, byte)).sum();
    length <= SUBJECT_BYTES_MAX && text.split('.').all(|token| !token.is_empty())
}

/// Whether the byte is encoded. A subject that begins with `$` is the server's own: `$JS.API.STREAM.PURGE.EVENTS`.
fn is_encoded(at: usize, byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b'*' | b'>' | b'%' | 0x7F) || (at == 0 && byte == b'$')
}

fn width(at: usize, byte: u8) -> usize {
    if is_encoded(at, byte) { 3 } else { 1 }
}

/// Appends the subject of a topic.
pub(super) fn encode(topic: &str, out: &mut Vec<u8>) {
    for (at, byte) in topic.bytes().enumerate() {
        if is_encoded(at, byte) {
            let digit = |number: u8| DIGITS.get(usize::from(number)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 0xF)]);
        } else {
            out.push(byte);
        }
    }
}

/// The subject of a topic, as text.
pub(super) fn encoded(topic: &str) -> String {
    let mut out = Vec::with_capacity(topic.len());
    encode(topic, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Whether a pattern of a stream's subjects takes a subject.
pub(super) fn covers(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    let mut patterns = pattern.split('.');
    loop {
        match (patterns.next(), tokens.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(wanted), Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bytes_with_a_meaning_are_encoded() {
        for (topic, subject) in [
            ("orders", "orders"),
            ("orders.created.7", "orders.created.7"),
            ("a b", "a%20b"),
            ("a\r\nPUB b 1", "a%0D%0APUB%20b%201"),
            ("a.*", "a.%2A"),
            (">", "%3E"),
            ("100%", "100%25"),
            ("$JS.API.STREAM.PURGE.EVENTS", "%24JS.API.STREAM.PURGE.EVENTS"),
            ("price.$", "price.$"),
            ("größe", "größe"),
        ] {
            assert!((NAMES.allows)(topic.as_bytes()), "{topic}");
            assert_eq!(encoded(topic), subject);
        }
    }

    #[test]
    fn topics_with_an_empty_token_are_no_subjects() {
        for topic in ["", ".", "..", "a.", ".a", "a..b"] {
            assert!(!(NAMES.allows)(topic.as_bytes()), "{topic}");
        }
        assert!((NAMES.allows)("x".repeat(1_024).as_bytes()));
        assert!(!(NAMES.allows)("x".repeat(1_025).as_bytes()));
        assert!(!(NAMES.allows)(" ".repeat(342).as_bytes()), "its subject is longer");
    }

    #[test]
    fn two_topics_never_become_one_subject() {
        let topics = ["a b", "a%20b", "a%2520b", "a.b", "a*b", "a%2Ab", "$a", "%24a"];
        let subjects: HashSet<String> = topics.iter().map(|topic| encoded(topic)).collect();
        assert_eq!(subjects.len(), topics.len());
    }

    #[test]
    fn patterns_take_what_the_server_takes() {
        for (pattern, subject, takes) in [
            ("orders", "orders", true),
            ("orders", "orders.a", false),
            ("orders.>", "orders.a.b", true),
            ("orders.>", "orders", false),
            ("orders.*", "orders.a", true),
            ("orders.*", "orders.a.b", false),
            ("*.created", "orders.created", true),
            (">", "anything", true),
        ] {
            assert_eq!(covers(pattern, subject), takes, "{pattern} {subject}");
        }
    }
}
