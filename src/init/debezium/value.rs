//! Values with placeholders of Kafka Connect and Debezium Server, as the configuration has them.

/// A value in which placeholders of the environment become ours, and every other `${` stands for itself.
pub(super) fn plain(text: &str) -> String {
    named(text, "")
}

/// The same; a placeholder of another kind, a file or a vault, becomes the variable `otherwise`.
pub(super) fn named(text: &str, otherwise: &str) -> String {
    let mut ours = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        ours.push_str(before);
        let Some((inner, after)) = after.split_once('}') else {
            ours.push_str("$${");
            rest = after;
            continue;
        };
        match placeholder(inner) {
            Some(variable) => ours.push_str(&format_variable(&variable)),
            None if !otherwise.is_empty() && inner.contains(':') => {
                ours.push_str(&format_variable(otherwise));
            }
            None => {
                ours.push_str("$${");
                ours.push_str(inner);
                ours.push('}');
            }
        }
        rest = after;
    }
    ours.push_str(rest);
    ours
}

/// Whether something in it is filled in from elsewhere than the environment.
pub(super) fn is_foreign(text: &str) -> bool {
    let mut parts = text.split("${").skip(1).filter_map(|part| part.split_once('}'));
    parts.any(|(inner, _)| inner.contains(':') && placeholder(inner).is_none())
}

/// The variable that the whole of a value is filled in from.
pub(super) fn variable(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix("${")?.strip_suffix('}')?;
    let variable = placeholder(inner)?;
    variable.split(":-").next().map(str::to_owned)
}

fn format_variable(variable: &str) -> String {
    format!("${{{variable}}}")
}

/// `env:NAME` of Kafka's `EnvVarConfigProvider`, `NAME` and `NAME:default` of Debezium Server.
fn placeholder(inner: &str) -> Option<String> {
    let inner = inner.strip_prefix("env:").map_or(inner, |name| name.trim_start_matches(':'));
    let (name, default) =
        inner.split_once(':').map_or((inner, None), |(name, default)| (name, Some(default)));
    let is_name = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_uppercase() || b == b'_');
    (is_name && begins).then(|| match default {
        Some(default) => format!("{name}:-{default}"),
        None => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_the_environment_become_ours() {
        for (given, ours) in [
            ("db", "db"),
            ("${env:DB_HOST}", "${DB_HOST}"),
            ("${DB_HOST}:${PORT:5432}", "${DB_HOST}:${PORT:-5432}"),
            ("${routedByValue}", "$${routedByValue}"),
            ("${file:/etc/x.properties:host}", "$${file:/etc/x.properties:host}"),
            ("a${", "a$${"),
        ] {
            assert_eq!(plain(given), ours);
        }
        assert_eq!(named("${file:/etc/x.properties:host}", "HOST"), "${HOST}");
        assert_eq!(variable("${env:PG_PASSWORD}").as_deref(), Some("PG_PASSWORD"));
        assert_eq!(variable("hush"), None);
        assert!(
            is_foreign("${file:/x:y}")
                && !is_foreign("${env:A}")
                && !is_foreign("${routedByValue}")
        );
    }
}
