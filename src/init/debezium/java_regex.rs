//! Translates a regular expression of Java into one of the `regex` crate with the same meaning.
//!
//! Java's `\d`, `\w` and `\s` are ASCII. Look-around, back-references, atomic groups and possessive quantifiers have no
//! counterpart and are refused by name.

use std::iter::Peekable;
use std::str::Chars;

/// Translates a pattern.
///
/// # Errors
/// The construct that has no counterpart.
pub(super) fn translate(java: &str) -> Result<String, &'static str> {
    let mut chars = java.chars().peekable();
    let mut ours = String::new();
    let mut depth = 0_u32;
    // Whether a quantifier came last, so that a `+` makes it possessive.
    let mut quantified = false;
    while let Some(c) = chars.next() {
        let before = std::mem::take(&mut quantified);
        match c {
            '\\' => escape(&mut chars, &mut ours)?,
            '[' => {
                depth += 1;
                ours.push(c);
            }
            ']' => {
                depth = depth.saturating_sub(1);
                ours.push(c);
            }
            // A set operator in the `regex` crate, an ordinary character in Java.
            '~' if depth > 0 => ours.push_str(r"\~"),
            _ if depth > 0 => ours.push(c),
            '(' => {
                ours.push(c);
                if chars.next_if_eq(&'?').is_some() {
                    ours.push('?');
                    group(&chars)?;
                }
            }
            '+' if before => return Err("a possessive quantifier"),
            '*' | '+' | '}' => {
                quantified = true;
                ours.push(c);
            }
            '?' => {
                quantified = !before;
                ours.push(c);
            }
            other => ours.push(other),
        }
    }
    match regex::Regex::new(&ours) {
        Ok(_) => Ok(ours),
        Err(_) => Err("syntax that the regex crate does not support"),
    }
}

/// Checks the group that begins with `(?`.
fn group(chars: &Peekable<Chars<'_>>) -> Result<(), &'static str> {
    let rest: String = chars.clone().take(2).collect();
    match rest.as_str() {
        "<=" | "<!" => Err("look-behind"),
        rest if rest.starts_with(['=', '!']) => Err("look-ahead"),
        rest if rest.starts_with('>') => Err("an atomic group"),
        _ => Ok(()),
    }
}

fn escape(chars: &mut Peekable<Chars<'_>>, ours: &mut String) -> Result<(), &'static str> {
    let Some(c) = chars.next() else { return Err("a \\ at the end") };
    match c {
        'd' => ours.push_str("[0-9]"),
        'D' => ours.push_str("[^0-9]"),
        'w' => ours.push_str("[0-9A-Za-z_]"),
        'W' => ours.push_str("[^0-9A-Za-z_]"),
        's' => ours.push_str(r"[ \t\n\x0B\f\r]"),
        'S' => ours.push_str(r"[^ \t\n\x0B\f\r]"),
        'Z' => ours.push_str(r"\z"),
        'A' | 'z' | 'b' | 'B' | 't' | 'n' | 'r' | 'f' | 'a' | 'x' => {
            ours.push('\\');
            ours.push(c);
        }
        'p' | 'P' => class(chars, c == 'P', ours),
        'Q' => {
            let mut quoted = String::new();
            while let Some(c) = chars.next() {
                if c == '\\' && chars.next_if_eq(&'E').is_some() {
                    break;
                }
                quoted.push(c);
            }
            ours.push_str(&regex::escape(&quoted));
        }
        'E' => {}
        'u' => {
            let digits: String = chars.by_ref().take(4).collect();
            ours.push_str(&format_code(&digits));
        }
        'k' | '1'..='9' => return Err("a back-reference"),
        c if c.is_ascii_alphanumeric() => {
            return Err("an escape that the regex crate does not support");
        }
        c => ours.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
    }
    Ok(())
}

fn format_code(digits: &str) -> String {
    format!(r"\u{{{digits}}}")
}

/// Classes such as `\p{Alpha}` are ASCII in Java; other classes are those of Unicode in both.
fn class(chars: &mut Peekable<Chars<'_>>, negated: bool, ours: &mut String) {
    const ASCII: [&str; 12] = [
        "Lower", "Upper", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl",
        "XDigit", "Space",
    ];
    let name: String = if chars.next_if_eq(&'{').is_some() {
        chars.by_ref().take_while(|c| *c != '}').collect()
    } else {
        chars.next().into_iter().collect()
    };
    let not = if negated { "^" } else { "" };
    if ASCII.contains(&name.as_str()) {
        ours.extend(["[[:", not, &name.to_ascii_lowercase(), ":]]"]);
    } else {
        ours.extend([if negated { r"\P{" } else { r"\p{" }, &name, "}"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_syntax_is_translated() {
        for (java, ours) in [
            (r"(?<routedByValue>.*)", r"(?<routedByValue>.*)"),
            (r"(.*)\.v\d+", r"(.*)\.v[0-9]+"),
            (r"[\w\-.]+?", r"[[0-9A-Za-z_]\-.]+?"),
            (r"\Qa.b\E-\p{Alpha}", r"a\.b-[[:alpha:]]"),
            (r"(?i)(order|invoice)s?", r"(?i)(order|invoice)s?"),
            (r"a{2,3}\<\u0041", r"a{2,3}<\u{0041}"),
        ] {
            assert_eq!(translate(java).as_deref(), Ok(ours));
        }
        let digits = regex::Regex::new(&translate(r"\d").unwrap()).unwrap();
        assert!(digits.is_match("7") && !digits.is_match("٧"), "ASCII, as in Java");
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        for (java, what) in [
            (r"(?!x).*", "look-ahead"),
            (r"(?<=x).*", "look-behind"),
            (r"(a)\1", "a back-reference"),
            (r"a++", "a possessive quantifier"),
            (r"(?>a)", "an atomic group"),
            (r"(a", "syntax that the regex crate does not support"),
        ] {
            assert_eq!(translate(java), Err(what), "{java}");
        }
        assert!(translate("a+?b*").is_ok());
    }
}
