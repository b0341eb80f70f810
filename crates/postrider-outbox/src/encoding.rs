//! The encodings that a database may have: PostgreSQL converts rows and names to UTF-8, and the content of a logical
//! message it sends as it stands in WAL.

use encoding_rs::Encoding as Rules;

/// How the content of logical messages is read.
#[derive(Clone, Copy, Debug)]
pub struct Encoding(How);

#[derive(Clone, Copy, Debug)]
enum How {
    /// UTF-8, and `SQL_ASCII`, which has no rules: what an application wrote there is taken for UTF-8.
    Utf8,
    /// Each byte is the character of its number.
    Latin1,
    /// By the rules of the Encoding Standard, where these are the server's too.
    By(&'static Rules),
    /// The same, but that bytes 0x80 to 0x9F are control characters, as in ISO 8859.
    Iso(&'static Rules),
}

/// The content is not text of the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotText;

impl Encoding {
    /// UTF-8.
    pub const UTF8: Self = Self(How::Utf8);

    /// The encoding that PostgreSQL calls this (`pg_encoding_to_char`); `None` for one that can't be read:
    /// `EUC_JIS_2004`, `EUC_TW` and `MULE_INTERNAL`; and `EUC_CN` and `KOI8U`, of which the Encoding Standard has two
    /// characters other than PostgreSQL.
    pub fn of(name: &str) -> Option<Self> {
        use encoding_rs as e;
        Some(Self(match name {
            "UTF8" | "SQL_ASCII" => How::Utf8,
            "LATIN1" => How::Latin1,
            "LATIN2" => How::By(e::ISO_8859_2),
            "LATIN3" => How::By(e::ISO_8859_3),
            "LATIN4" => How::By(e::ISO_8859_4),
            "LATIN5" => How::Iso(e::WINDOWS_1254),
            "LATIN6" => How::By(e::ISO_8859_10),
            "LATIN7" => How::By(e::ISO_8859_13),
            "LATIN8" => How::By(e::ISO_8859_14),
            "LATIN9" => How::By(e::ISO_8859_15),
            "LATIN10" => How::By(e::ISO_8859_16),
            "ISO_8859_5" => How::By(e::ISO_8859_5),
            "ISO_8859_6" => How::By(e::ISO_8859_6),
            "ISO_8859_7" => How::By(e::ISO_8859_7),
            "ISO_8859_8" => How::By(e::ISO_8859_8),
            "KOI8R" => How::By(e::KOI8_R),
            "WIN866" => How::By(e::IBM866),
            "WIN874" => How::By(e::WINDOWS_874),
            "WIN1250" => How::By(e::WINDOWS_1250),
            "WIN1251" => How::By(e::WINDOWS_1251),
            "WIN1252" => How::By(e::WINDOWS_1252),
            "WIN1253" => How::By(e::WINDOWS_1253),
            "WIN1254" => How::By(e::WINDOWS_1254),
            "WIN1255" => How::By(e::WINDOWS_1255),
            "WIN1256" => How::By(e::WINDOWS_1256),
            "WIN1257" => How::By(e::WINDOWS_1257),
            "WIN1258" => How::By(e::WINDOWS_1258),
            "EUC_JP" => How::By(e::EUC_JP),
            "EUC_KR" => How::By(e::EUC_KR),
            _ => return None,
        }))
    }

    /// Writes `content` to `text` as UTF-8; whether it did, and not `content` itself is that.
    pub(super) fn decode(self, content: &[u8], text: &mut String) -> Result<bool, NotText> {
        text.clear();
        // Every encoding that a database may have has ASCII's bytes for ASCII's characters.
        if matches!(self.0, How::Utf8) || content.is_ascii() {
            return Ok(false);
        }
        match self.0 {
            How::Utf8 => {}
            How::Latin1 => text.extend(content.iter().map(|byte| char::from(*byte))),
            How::By(rules) => append(rules, content, text)?,
            How::Iso(rules) => {
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
