//! A connection string without its secrets, in the form it was written in.

use super::{ConninfoError, syntax};

/// Parameters that are secrets.
const SECRETS: [&str; 5] =
    ["password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"];

/// The connection string with `mask` in place of its secrets, or without them.
///
/// # Errors
/// It is not well formed: then nobody can say what in it is a secret.
pub fn masked(text: &str, mask: Option<&str>) -> Result<String, ConninfoError> {
    rewritten(text, mask, None)
}

/// The connection string without its secrets, and with another user, whose name has letters, digits and `_` alone.
///
/// # Errors
/// As [`masked`].
pub fn of_user(text: &str, user: &str) -> Result<String, ConninfoError> {
    rewritten(text, None, Some(user))
}

fn rewritten(text: &str, mask: Option<&str>, user: Option<&str>) -> Result<String, ConninfoError> {
    let text = text.trim();
    let pairs = syntax::pairs(text)?;
    if let Some((scheme @ ("postgresql" | "postgres"), rest)) = text.split_once("://") {
        return Ok(format!("{scheme}://{}", uri(rest, mask, user)));
    }
    let is_user = |name: &str| user.is_some() && name.trim().eq_ignore_ascii_case("user");
    let mut shown: Vec<String> = user.map(|user| format!("user={user}")).into_iter().collect();
    let rest: syntax::Pairs = pairs.into_iter().filter(|(name, _)| !is_user(name)).collect();
    let rest = key_value(rest, mask);
    shown.extend((!rest.is_empty()).then_some(rest));
    Ok(shown.join(" "))
}

fn is_secret(name: &str) -> bool {
    SECRETS.contains(&name.trim().to_ascii_lowercase().as_str())
}

fn uri(rest: &str, mask: Option<&str>, other: Option<&str>) -> String {
    // As `syntax::uri` reads it: the first `@` ends the login.
    let (login, after) = match rest.split_once('@').filter(|(login, _)| !login.contains('/')) {
        Some((login, after)) => (Some(login), after),
        None => (None, rest),
    };
    let mut shown = other.map_or_else(String::new, |user| format!("{user}@"));
    if let Some(login) = login.filter(|_| other.is_none()) {
        let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
        shown.push_str(user);
        if let (Some(_), Some(mask)) = (password, mask) {
            shown.push(':');
            shown.push_str(mask);
        }
        shown.push('@');
    }
    let (place, query) = after.split_once('?').map_or((after, None), |(p, q)| (p, Some(q)));
    shown.push_str(place);
    let parameter = |part: &str| -> Option<String> {
        let name = part.split_once('=').map_or(part, |(name, _)| name);
        // A name written with %XX is not worth reading twice.
        if other.is_some() && name.eq_ignore_ascii_case("user") {
            None
        } else if is_secret(name) || name.contains('%') {
            mask.map(|mask| format!("{name}={mask}"))
        } else {
            Some(part.to_owned())
        }
    };
    let query: Vec<_> =
        query.into_iter().flat_map(|query| query.split('&')).filter_map(parameter).collect();
    if !query.is_empty() {
        shown.push('?');
        shown.push_str(&query.join("&"));
    }
    shown
}

fn key_value(pairs: syntax::Pairs, mask: Option<&str>) -> String {
    let shown = pairs.into_iter().filter_map(|(name, value)| {
        let value = if is_secret(&name) { mask?.to_owned() } else { value };
        let plain = !value.is_empty()
            && !value.contains(|c: char| c.is_whitespace() || c == '\'' || c == '\\');
        let value = if plain {
            value
        } else {
            format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
        };
        Some(format!("{name}={value}"))
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_or_left_out_and_the_rest_stays() {
        for (text, with, without) in [
            (
                "postgresql://u:hush@h:5432/d?sslmode=require",
                "postgresql://u:***@h:5432/d?sslmode=require",
                "postgresql://u@h:5432/d?sslmode=require",
            ),
            (
                "postgres://u@h,h2/d?password=hush",
                "postgres://u@h,h2/d?password=***",
                "postgres://u@h,h2/d",
            ),
            ("postgresql://h/d", "postgresql://h/d", "postgresql://h/d"),
            (
                "host=h user='a b' password = 'hu sh' dbname=d",
                "host=h user='a b' password=*** dbname=d",
                "host=h user='a b' dbname=d",
            ),
            (
                "postgresql://u:hush@/d?host=/tmp&p%61ssword=hush",
                "postgresql://u:***@/d?host=/tmp&p%61ssword=***",
                "postgresql://u@/d?host=/tmp",
            ),
        ] {
            assert_eq!(masked(text, Some("***")).unwrap(), with);
            assert_eq!(masked(text, None).unwrap(), without);
        }
        for (text, other) in [
            (
                "postgresql://admin:hush@h:5432/d?sslmode=require",
                "postgresql://rider@h:5432/d?sslmode=require",
            ),
            ("postgresql://h/d?user=admin&password=hush", "postgresql://rider@h/d"),
            ("host=h user=admin password=hush dbname=d", "user=rider host=h dbname=d"),
            ("host=h dbname=d", "user=rider host=h dbname=d"),
        ] {
            assert_eq!(of_user(text, "rider").unwrap(), other);
        }
        masked("mysql://u:hush@h/d", None).unwrap_err();
        masked("host=h password='hush", None).unwrap_err();
    }
}
