//! An entry of a stream: its fields, and how it is added.

use super::resp;
use super::spec::{Storing, Trim};
use crate::record_batch::QueuedRecord;
use std::time::{SystemTime, UNIX_EPOCH};

/// Fields of an entry at most. A script has room for about 8,000 words of one command.
pub(super) const HEADERS_MAX: usize = 1_000;

/// Fields that are no headers.
const FIELDS: [&str; 4] = ["key", "value", "timestamp", "partition"];

/// Before the name of a header that is the name of another field, or begins with this itself.
const HEADER_PREFIX: &str = "header:";

/// How entries are added: the options of XADD, which are the same for all entries of a call.
///
/// An entry in the call of a script is the number of its key, the number of words that follow, and these: the words of
/// XADD behind the key. The script hands them to XADD as they are: to collect them in a table takes the server a fifth
/// more time for each event.
pub(super) struct EntryWords {
    options: Vec<String>,
}

impl EntryWords {
    /// The options of now: a limit on age is a time.
    pub(super) fn new(storing: &Storing) -> Self {
        let mut options = Vec::new();
        if !storing.creates {
            options.push("NOMKSTREAM".to_owned());
        }
        let limit = match storing.trim {
            Trim::Nothing => None,
            Trim::Length(length) => Some(("MAXLEN", length.to_string())),
            Trim::Age(age) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Some(("MINID", now.saturating_sub(age).as_millis().to_string()))
            }
        };
        if let Some((kind, limit)) = limit {
            options.extend([kind.to_owned(), "~".to_owned(), limit]);
        }
        Self { options }
    }

    /// Words of XADD behind the key: the options, `*` for an ID of the server, and the fields.
    fn of_xadd(&self, record: &QueuedRecord<'_>) -> usize {
        self.options.len() + 1 + field_words(record)
    }

    /// Words of an entry in the call of a script.
    pub(super) fn count(&self, record: &QueuedRecord<'_>) -> usize {
        2 + self.of_xadd(record)
    }

    /// Adds an entry to the call of a script. `key`: the number of its stream among the keys of the call.
    pub(super) fn encode(&self, out: &mut Vec<u8>, record: &QueuedRecord<'_>, key: usize) {
        resp::number(out, key as u64);
        resp::number(out, self.of_xadd(record) as u64);
        for option in &self.options {
            resp::word(out, option.as_bytes());
        }
        resp::word(out, b"*");
        fields(out, record);
    }
}

fn field_words(record: &QueuedRecord<'_>) -> usize {
    let of_headers = record.headers.filter(|header| header.value.is_some()).count();
    let others = [
        record.key.is_some(),
        record.value.is_some(),
        record.timestamp_ms.is_some(),
        record.partition.is_some(),
    ];
    2 * (of_headers + others.into_iter().filter(|is_there| *is_there).count())
}

/// The fields of an entry. A header without a value is no field, because a field always has a value.
fn fields(out: &mut Vec<u8>, record: &QueuedRecord<'_>) {
    let mut field = |name: &str, value: &[u8]| {
        resp::word(out, name.as_bytes());
        resp::word(out, value);
    };
    if let Some(key) = record.key {
        field("key", key);
    }
    if let Some(time) = record.timestamp_ms {
        field("timestamp", time.to_string().as_bytes());
    }
    if let Some(partition) = record.partition {
        field("partition", partition.to_string().as_bytes());
    }
    for header in record.headers {
        let Some(value) = header.value else { continue };
        if FIELDS.contains(&header.name) || header.name.starts_with(HEADER_PREFIX) {
            field(&format!("{HEADER_PREFIX}{}", header.name), value);
        } else {
            field(header.name, value);
        }
    }
    if let Some(value) = record.value {
        field("value", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn options_say_what_is_created_and_removed() {
        let storing = Storing {
            in_transactions: false,
            creates: true,
            trim: Trim::Nothing,
            replicas: 0,
            replica_timeout: Duration::from_secs(1),
        };
        let trimmed = Storing { creates: false, trim: Trim::Length(5), ..storing };
        assert_eq!(EntryWords::new(&trimmed).options.join(" "), "NOMKSTREAM MAXLEN ~ 5");
        let aged = Storing { trim: Trim::Age(Duration::from_mins(1)), ..storing };
        let options = EntryWords::new(&aged).options;
        assert_eq!(&options[..2], ["MINID", "~"]);
        let from: u128 = options[2].parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        assert!(now - from >= 60_000 && now - from < 90_000);
    }
}
