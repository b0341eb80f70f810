//! `${NAME}` and `${NAME:-default}` in a string.

use super::env::Env;

/// Why a string could not be filled in. Names variables, never shows their values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum InterpolateError {
    #[error("the environment variable {0} is not set; set it, or write ${{{0}:-default}}")]
    Unset(String),
    #[error("\"${{\" is not closed by \"}}\"; write \"$${{\" for the characters themselves")]
    Unclosed,
    #[error("\"${{{0}}}\" does not name a variable; write \"$${{\" for the characters themselves")]
    Name(String),
}

/// Fills in the variables of `text`. `$${` stands for `${`; `${1}`, a regex's group, stays as it is, and every other
/// `$` too.
pub(super) fn interpolate(text: &str, env: Env<'_>) -> Result<String, InterpolateError> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = after;
            continue;
        }
        filled.push_str(before);
        let (reference, after) = after.split_once('}').ok_or(InterpolateError::Unclosed)?;
        filled.push_str(&resolve(reference, env)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The variables that `text` names, in order, each once.
pub(super) fn variables(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        rest = after;
        if before.ends_with('$') {
            continue;
        }
        let Some((reference, after)) = after.split_once('}') else { break };
        let name = reference.split_once(":-").map_or(reference, |(name, _)| name);
        let is_group = name.bytes().all(|b| b.is_ascii_digit());
        if !is_group && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        rest = after;
    }
    names
}

fn resolve(reference: &str, env: Env<'_>) -> Result<String, InterpolateError> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(format!("${{{reference}}}"));
    }
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(InterpolateError::Name(reference.to_owned()));
    }
    // As in a shell: `:-` takes the default for an empty variable too.
    match (env(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(InterpolateError::Unset(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, InterpolateError> {
        interpolate(text, &|name| match name {
            "HOST" => Some("db1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn variables_are_filled_in() {
        assert_eq!(filled("pg://${HOST}/x${HOST}").as_deref(), Ok("pg://db1/xdb1"));
        assert_eq!(filled("${NONE:-a:-b}${EMPTY:-c}${EMPTY}").as_deref(), Ok("a:-bc"));
    }

    #[test]
    fn variables_are_named_once_and_groups_are_none() {
        let names = variables("${A}-${B:-x}-${A}-$${C}-${1}-$D");
        assert_eq!(names, ["A", "B"]);
    }

    #[test]
    fn other_dollars_stay() {
        for text in ["$1", "${1}", "a$", "$", "$HOST", "$$1"] {
            assert_eq!(filled(text).as_deref(), Ok(text));
        }
        assert_eq!(filled("$${HOST}").as_deref(), Ok("${HOST}"));
    }

    #[test]
    fn what_can_not_be_filled_in_is_refused() {
        assert_eq!(filled("${NONE}"), Err(InterpolateError::Unset("NONE".to_owned())));
        assert_eq!(filled("a${HOST"), Err(InterpolateError::Unclosed));
        assert_eq!(filled("${}"), Err(InterpolateError::Name(String::new())));
        assert_eq!(filled("${a-b}"), Err(InterpolateError::Name("a-b".to_owned())));
    }
}
