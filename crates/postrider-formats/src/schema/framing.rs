//! How a record carries the id of its schema: Confluent's five bytes before the payload, or a header.
//!
//! The header of Kafka is that of Confluent's programs: byte 1 and the 16 bytes of the schema's GUID. A registry
//! without GUIDs has byte 0 and the id as four bytes there, which the same programs read too. With Protobuf the indexes
//! of the message follow. Other brokers have headers of text.

/// The header of Kafka.
pub(super) const HEADER: &str = "__value_schema_id";

/// The header of other brokers, where names with underscores at the beginning have a meaning or are refused.
pub(super) const TEXT_HEADER: &str = "schema-id";

/// The names of a schema in its registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SchemaId {
    /// Unique in the registry.
    pub(super) id: u32,
    /// Unique everywhere. Registries of other makers have none.
    pub(super) guid: Option<[u8; 16]>,
}

/// Where the id is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdPlace {
    /// A header, with bytes in it as Kafka has it, or with text.
    Header {
        /// Bytes.
        binary: bool,
    },
    /// Before the payload.
    Prefix,
}

impl IdPlace {
    /// The name of the header.
    pub(super) fn header(self) -> Option<&'static str> {
        match self {
            Self::Header { binary: true } => Some(HEADER),
            Self::Header { binary: false } => Some(TEXT_HEADER),
            Self::Prefix => None,
        }
    }
}

impl SchemaId {
    /// Adds what the place has. `message`: the indexes of a message of Protobuf.
    pub(super) fn write(&self, place: IdPlace, message: Option<&[u32]>, out: &mut Vec<u8>) {
        match (place, self.guid) {
            (IdPlace::Header { binary: false }, guid) => {
                let text = match guid {
                    Some(guid) => uuid_text(guid),
                    None => self.id.to_string(),
                };
                out.extend_from_slice(text.as_bytes());
                // The message is that of header `type`, and bytes are no text.
                return;
            }
            (IdPlace::Header { binary: true }, Some(guid)) => {
                out.push(1);
                out.extend_from_slice(&guid);
            }
            (IdPlace::Header { binary: true }, None) | (IdPlace::Prefix, _) => {
                out.push(0);
                out.extend_from_slice(&self.id.to_be_bytes());
            }
        }
        if let Some(indexes) = message {
            write_indexes(indexes, out);
        }
    }
}

/// The indexes of a message in its file, from the outside to the inside. The first message is one zero.
fn write_indexes(indexes: &[u32], out: &mut Vec<u8>) {
    let count = u32::try_from(indexes.len()).unwrap_or_default();
    if indexes == [0] {
        out.push(0);
        return;
    }
    for number in std::iter::once(count).chain(indexes.iter().copied()) {
        // Zigzag, which doubles a number that is not negative.
        let mut rest = u64::from(number) << 1;
        while rest >= 0x80 {
            out.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        out.push((rest & 0x7f) as u8);
    }
}

/// The bytes of a UUID in its usual form.
pub(super) fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let hyphens = [8, 13, 18, 23];
    let is_form = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| {
            if hyphens.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
    if !is_form {
        return None;
    }
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// The usual form of a UUID.
fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let part = |from, to| digits.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: &str = "89791762-2336-4186-9674-299b90a802e2";

    fn written(place: IdPlace, guid: Option<&str>, message: Option<&[u32]>) -> Vec<u8> {
        let guid = guid.map(|guid| uuid_bytes(guid).unwrap());
        let mut out = Vec::new();
        SchemaId { id: 0x0102_0304, guid }.write(place, message, &mut out);
        out
    }

    #[test]
    fn the_bytes_are_those_of_confluent_s_programs() {
        let header = IdPlace::Header { binary: true };
        assert_eq!(written(IdPlace::Prefix, Some(GUID), None), [0, 1, 2, 3, 4]);
        assert_eq!(written(IdPlace::Prefix, None, Some(&[0])), [0, 1, 2, 3, 4, 0]);
        assert_eq!(written(IdPlace::Prefix, None, Some(&[1, 0])), [0, 1, 2, 3, 4, 4, 2, 0]);
        assert_eq!(written(IdPlace::Prefix, None, Some(&[70])), [0, 1, 2, 3, 4, 2, 0x8c, 1]);
        assert_eq!(written(header, None, None), [0, 1, 2, 3, 4]);
        let with_guid = written(header, Some(GUID), Some(&[2]));
        assert_eq!(with_guid.len(), 19);
        assert_eq!(
            (with_guid[0], &with_guid[1..3], &with_guid[17..]),
            (1, &[0x89, 0x79][..], &[2, 4][..])
        );
        let text = IdPlace::Header { binary: false };
        assert_eq!(written(text, Some(GUID), Some(&[2])), GUID.as_bytes());
        assert_eq!(written(text, None, None), b"16909060");
    }

    #[test]
    fn only_the_usual_form_is_a_uuid() {
        assert!(uuid_bytes(GUID).is_some());
        for text in [
            "",
            "89791762233641869674299b90a802e2",
            "{89791762-2336-4186-9674-299b90a802}",
            "89791762-2336-4186-9674-299b90a802e+",
        ] {
            assert!(uuid_bytes(text).is_none(), "{text}");
        }
    }
}
