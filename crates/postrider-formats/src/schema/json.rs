//! JSON as a tree that borrows from its text. A number stays the text that it was written as, so none is rounded.
//!
//! Stricter than most readers: a member that occurs twice is refused, because readers do not agree which one counts.

use super::misfit::Misfit;
use std::borrow::Cow;

/// How deep values may be nested. Unit: levels.
pub(super) const DEPTH_MAX: usize = 100;

/// Members of an object that are compared one with another for repetitions. Those of a larger object are sorted.
const COMPARED_MAX: usize = 12;

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    /// As it is written, by the grammar of JSON.
    Number(&'a str),
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    /// The members in the order of the text. No name occurs twice.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Reads a whole document.
    ///
    /// # Errors
    /// It is no JSON, too deep, or a member occurs twice.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Misfit> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_invalid| Misfit::new("the payload is no text in UTF-8"))?;
        Self::parse_text(text)
    }

    /// As [`parse`](Self::parse).
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(super) fn parse_text(text: &'a str) -> Result<Self, Misfit> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.skip_space();
        if reader.at < text.len() {
            return Err(Misfit::new("there is more text behind the JSON value"));
        }
        Ok(value)
    }

    /// The name of its type in JSON.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    /// A member of an object.
    pub(super) fn get(&self, name: &str) -> Option<&Json<'a>> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    /// The text of a string.
    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Adds it as JSON text: numbers as they were written.
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(number),
            Self::Text(text) => write_text(text, out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_text(name, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                const DIGITS: [char; 16] = [
                    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
                ];
                let code = u32::from(c) as usize;
                out.push_str("\\u00");
                out.extend([code >> 4, code & 15].map(|digit| DIGITS.get(digit).unwrap_or(&'0')));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Reads the text from its beginning to its end.
struct Reader<'a> {
    text: &'a str,
    /// The next byte, which begins a character.
    at: usize,
}

fn no_json() -> Misfit {
    Misfit::new("the payload is no JSON")
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Passes this byte, if it is the next one behind white space.
    fn passes(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, Misfit> {
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            return Err(no_json());
        }
        self.at += word.len();
        Ok(value)
    }

    fn value(&mut self, depth: usize) -> Result<Json<'a>, Misfit> {
        if depth > DEPTH_MAX {
            let words = format!("values are nested deeper than {DEPTH_MAX} levels");
            return Err(Misfit::new(words));
        }
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::Text),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) | None => Err(no_json()),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json<'a>, Misfit> {
        self.at += 1;
        let mut items = Vec::new();
        if self.passes(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1).map_err(Misfit::in_item)?);
            if self.passes(b']') {
                return Ok(Json::Array(items));
            }
            if !self.passes(b',') {
                return Err(no_json());
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json<'a>, Misfit> {
        self.at += 1;
        let mut members: Vec<(Cow<'a, str>, Json<'a>)> = Vec::new();
        if self.passes(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(no_json());
            }
            let name = self.string()?;
            if !self.passes(b':') {
                return Err(no_json());
            }
            let value = self.value(depth + 1).map_err(Misfit::in_entry)?;
            members.push((name, value));
            if self.passes(b'}') {
                break;
            }
            if !self.passes(b',') {
                return Err(no_json());
            }
        }
        match repeated(&members) {
            // The schema is not known here: the name may be the key of a map.
            Some(_) => Err(Misfit::new("a member occurs twice").in_entry()),
            None => Ok(Json::Object(members)),
        }
    }

    fn digits(&mut self) -> Result<(), Misfit> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == begin { Err(no_json()) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Json<'a>, Misfit> {
        let begin = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(Json::Number(self.text.get(begin..self.at).unwrap_or_default()))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Misfit> {
        self.at += 1;
        let mut begin = self.at;
        let mut owned: Option<String> = None;
        loop {
            match self.peek() {
                Some(b'"') => {
                    let part = self.text.get(begin..self.at).unwrap_or_default();
                    self.at += 1;
                    return Ok(match owned {
                        None => Cow::Borrowed(part),
                        Some(mut text) => {
                            text.push_str(part);
                            Cow::Owned(text)
                        }
                    });
                }
                Some(b'\\') => {
                    let part = self.text.get(begin..self.at).unwrap_or_default();
                    let text = owned.get_or_insert_default();
                    text.push_str(part);
                    self.at += 1;
                    text.push(self.escaped()?);
                    begin = self.at;
                }
                Some(byte) if byte >= b' ' => self.at += 1,
                Some(_) | None => return Err(no_json()),
            }
        }
    }

    /// The character of an escape, behind its backslash.
    fn escaped(&mut self) -> Result<char, Misfit> {
        let byte = self.peek().ok_or_else(no_json)?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(no_json()),
        })
    }

    fn unicode(&mut self) -> Result<char, Misfit> {
        let half = || Misfit::new("a string has half of a surrogate pair, which is no character");
        let first = self.hex()?;
        if !(0xd800..0xe000).contains(&first) {
            return char::from_u32(first).ok_or_else(half);
        }
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with("\\u")) {
            return Err(half());
        }
        self.at += 2;
        let second = self.hex()?;
        if first >= 0xdc00 || !(0xdc00..0xe000).contains(&second) {
            return Err(half());
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or_else(half)
    }

    fn hex(&mut self) -> Result<u32, Misfit> {
        let digits = self.text.get(self.at..self.at + 4).ok_or_else(no_json)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(no_json());
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).map_err(|_invalid| no_json())
    }
}

/// A name that two members have.
fn repeated<'m>(members: &'m [(Cow<'_, str>, Json<'_>)]) -> Option<&'m str> {
    let name = |index: usize| members.get(index).map(|(name, _)| &**name);
    if members.len() <= COMPARED_MAX {
        return (1..members.len())
            .filter_map(name)
            .zip(1..)
            .find(|(later, count)| members.iter().take(*count).any(|(name, _)| name == later))
            .map(|(later, _)| later);
    }
    let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair.first() == pair.last())?;
    twice.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn error(text: &str) -> String {
        Json::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn numbers_and_strings_are_what_was_written() {
        let text = r#" {"a": [123456789012345678901234567890.10, -0.0e+7, true], "ü\u00fc\ud83d\ude00\n": null} "#;
        let json = Json::parse(text.as_bytes()).unwrap();
        let Json::Object(members) = &json else { panic!("{json:?}") };
        assert_eq!(members[1].0, "üü😀\n");
        let numbers = json.get("a").unwrap();
        let Json::Array(items) = numbers else { panic!("{numbers:?}") };
        assert_eq!(items[0], Json::Number("123456789012345678901234567890.10"));
        assert_eq!(items[1], Json::Number("-0.0e+7"));
        let mut again = String::new();
        json.write(&mut again);
        assert_eq!(Json::parse(again.as_bytes()).unwrap(), json);
    }

    #[test]
    fn a_member_that_occurs_twice_is_refused_with_its_path() {
        assert_eq!(error(r#"{"a": [{"b": 1, "c": 2, "b": 1}]}"#), "${}[]{}: a member occurs twice");
        let many: Vec<String> = (0..40).map(|n| format!("\"m{n}\": {n}")).collect();
        let text = format!("{{{}, \"m7\": 1}}", many.join(","));
        assert_eq!(error(&text), "${}: a member occurs twice");
        assert!(Json::parse(format!("{{{}}}", many.join(",")).as_bytes()).is_ok());
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(Json::parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(error(&nested(DEPTH_MAX + 2)).contains("nested deeper than 100 levels"));
        assert!(error(&nested(1_000_000)).contains("nested deeper"));
    }

    #[test]
    fn what_is_no_json_for_others_is_none_here() {
        let texts = [
            "",
            " ",
            "1 2",
            "01",
            "1.",
            ".5",
            "-",
            "+1",
            "1e",
            "nul",
            "tru",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":1,}",
            "\"a",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "NaN",
            "[1",
            "{\"a\":1",
            "'a'",
            "\u{feff}1",
            "0",
            "-0",
            "1e5",
            "1E-5",
            "\"\\u0041\"",
            "[]",
            "{}",
            " [ 1 , 2 ] ",
            "\"\\/\"",
            "1.5e+3",
            "\"\u{7f}\"",
        ];
        for text in texts {
            let known = serde_json::from_str::<&RawValue>(text).is_ok()
                // serde_json does not read the strings of a raw value.
                && (!text.starts_with('"') || serde_json::from_str::<String>(text).is_ok());
            assert_eq!(Json::parse(text.as_bytes()).is_ok(), known, "{text}");
        }
        assert!(Json::parse(b"\"\xff\"").is_err());
    }
}
