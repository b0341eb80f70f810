//! The encodings of databases. PostgreSQL converts rows and names to UTF-8, but sends the content of a logical message
//! as it is in WAL, in the encoding of the database.

use encoding_rs::Encoding as Rules;

/// The encoding of the content of logical messages.
#[derive(Clone, Copy, Debug)]
pub struct Encoding(Decoding);

#[derive(Clone, Copy, Debug)]
enum Decoding {
    /// UTF-8. Also `SQL_ASCII`, which is no encoding: its content is taken for UTF-8.
    Utf8,
    /// Each byte is the code point of a character.
    Latin1,
    /// The encoding of the Encoding Standard, which equals the server's.
    By(&'static Rules),
    /// As [`Decoding::By`], but bytes 0x80 to 0x9F are control characters, as in ISO 8859.
    Iso(&'static Rules),
}

/// The content is not text of the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotText;

impl Encoding {
    /// UTF-8.
    pub const UTF8: Self = Self(Decoding::Utf8);

    /// The encoding of that PostgreSQL name (`pg_encoding_to_char`). `None` for encodings that are not supported:
    /// `EUC_JIS_2004`, `EUC_TW` and `MULE_INTERNAL`; and `EUC_CN` and `KOI8U`, in which two characters of the Encoding
    /// Standard differ from PostgreSQL's.
    pub fn of(name: &str) -> Option<Self> {
        use encoding_rs as e;
        Some(Self(match name {
            "UTF8" | "SQL_ASCII" => Decoding::Utf8,
            "LATIN1" => Decoding::Latin1,
            "LATIN2" => Decoding::By(e::ISO_8859_2),
            "LATIN3" => Decoding::By(e::ISO_8859_3),
            "LATIN4" => Decoding::By(e::ISO_8859_4),
            "LATIN5" => Decoding::Iso(e::WINDOWS_1254),
            "LATIN6" => Decoding::By(e::ISO_8859_10),
            "LATIN7" => Decoding::By(e::ISO_8859_13),
            "LATIN8" => Decoding::By(e::ISO_8859_14),
            "LATIN9" => Decoding::By(e::ISO_8859_15),
            "LATIN10" => Decoding::By(e::ISO_8859_16),
            "ISO_8859_5" => Decoding::By(e::ISO_8859_5),
            "ISO_8859_6" => Decoding::By(e::ISO_8859_6),
            "ISO_8859_7" => Decoding::By(e::ISO_8859_7),
            "ISO_8859_8" => Decoding::By(e::ISO_8859_8),
            "KOI8R" => Decoding::By(e::KOI8_R),
            "WIN866" => Decoding::By(e::IBM866),
            "WIN874" => Decoding::By(e::WINDOWS_874),
            "WIN1250" => Decoding::By(e::WINDOWS_1250),
            "WIN1251" => Decoding::By(e::WINDOWS_1251),
            "WIN1252" => Decoding::By(e::WINDOWS_1252),
            "WIN1253" => Decoding::By(e::WINDOWS_1253),
            "WIN1254" => Decoding::By(e::WINDOWS_1254),
            "WIN1255" => Decoding::By(e::WINDOWS_1255),
            "WIN1256" => Decoding::By(e::WINDOWS_1256),
            "WIN1257" => Decoding::By(e::WINDOWS_1257),
            "WIN1258" => Decoding::By(e::WINDOWS_1258),
            "EUC_JP" => Decoding::By(e::EUC_JP),
            "EUC_KR" => Decoding::By(e::EUC_KR),
            _ => return None,
        }))
    }

    /// Converts `content` to UTF-8 in `text`, and returns `true`. Returns `false`, and writes nothing, if `content`
    /// needs no conversion.
    pub(crate) fn decode(self, content: &[u8], text: &mut String) -> Result<bool, NotText> {
        text.clear();
        // In every encoding that a database may have, ASCII characters have the bytes of ASCII.
        if matches!(self.0, Decoding::Utf8) || content.is_ascii() {
            return Ok(false);
        }
        match self.0 {
            Decoding::Utf8 => {}
            Decoding::Latin1 => text.extend(content.iter().map(|byte| char::from(*byte))),
            Decoding::By(rules) => append(rules, content, text)?,
            Decoding::Iso(rules) => {
                for byte in content {
                    match byte {
                        0x80..=0x9F => text.push(char::from(*byte)),
                        byte => append(rules, &[*byte], text)?,
                    }
                }
            }
        }
        Ok(true)
    }
}

fn append(rules: &'static Rules, content: &[u8], text: &mut String) -> Result<(), NotText> {
    let decoded = rules.decode_without_bom_handling_and_without_replacement(content);
    text.push_str(&decoded.ok_or(NotText)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(name: &str, content: &[u8]) -> Result<String, NotText> {
        let mut text = String::new();
        let other = Encoding::of(name).unwrap().decode(content, &mut text)?;
        Ok(if other { text } else { String::from_utf8_lossy(content).into_owned() })
    }

    #[test]
    fn content_is_read_by_the_databases_encoding() {
        assert_eq!(decoded("LATIN1", b"caf\xe9 \x85").as_deref(), Ok("caf\u{e9} \u{85}"));
        assert_eq!(decoded("WIN1252", b"\x80").as_deref(), Ok("\u{20ac}"));
        assert_eq!(decoded("LATIN5", b"\xfd\x80").as_deref(), Ok("\u{131}\u{80}"));
        assert_eq!(decoded("EUC_JP", b"\xa4\xa2").as_deref(), Ok("\u{3042}"));
        assert_eq!(decoded("EUC_JP", b"\xff\xff"), Err(NotText));
        assert_eq!(decoded("UTF8", "é".as_bytes()).as_deref(), Ok("é"));
    }

    #[test]
    fn encodings_that_cannot_be_read_are_known() {
        for name in ["EUC_TW", "EUC_JIS_2004", "MULE_INTERNAL", "EUC_CN", "KOI8U", "SJIS", ""] {
            assert!(Encoding::of(name).is_none(), "{name}");
        }
    }
}
