//! The rules of a bucket that delete objects by their age: a document of the S3 API, of which the few elements that
//! matter are read.

/// A rule that may delete objects of a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ExpiryRule {
    /// The rule's name; empty if it has none.
    pub(super) id: String,
    /// Objects are deleted at this age; `None` on a date.
    pub(super) days: Option<u64>,
}

/// A name of a rule is not shown longer. Unit: characters.
const ID_CHARS_MAX: usize = 60;

/// The rules in effect that delete objects below `prefix`, or some of them. A rule for objects with a tag deletes none
/// of ours, which have no tags.
pub(super) fn expiry_rules(document: &str, prefix: &str) -> Vec<ExpiryRule> {
    let mut found = Vec::new();
    let mut rest = document;
    while let Some((_, after)) = rest.split_once("<Rule>") {
        let Some((rule, after)) = after.split_once("</Rule>") else { break };
        rest = after;
        let of = element(rule, "Prefix").unwrap_or_default();
        let applies = prefix.starts_with(of) || of.starts_with(prefix);
        let is_on = element(rule, "Status") == Some("Enabled");
        if !applies || !is_on || rule.contains("<Tag>") {
            continue;
        }
        // `NoncurrentVersionExpiration` is another element.
        let Some(expiry) = element(rule, "Expiration") else { continue };
        let days = element(expiry, "Days").and_then(|days| days.parse().ok());
        if days.is_none() && element(expiry, "Date").is_none() {
            continue;
        }
        let id = element(rule, "ID").unwrap_or_default();
        let id = id.chars().filter(|c| !c.is_control()).take(ID_CHARS_MAX).collect();
        found.push(ExpiryRule { id, days });
    }
    found
}

/// The content of the first element of this name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(rules: &str) -> Vec<Option<u64>> {
        let document = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        expiry_rules(&document, "claims/sha256/").into_iter().map(|rule| rule.days).collect()
    }

    fn rule(filter: &str, status: &str, expiry: &str) -> String {
        format!("<Rule><ID>a</ID><Filter>{filter}</Filter><Status>{status}</Status>{expiry}</Rule>")
    }

    #[test]
    fn rules_that_delete_objects_of_the_prefix_are_found() {
        let seven = "<Expiration><Days>7</Days></Expiration>";
        for prefix in ["", "claims", "claims/", "claims/sha256/", "claims/sha256/ab/"] {
            let filter = format!("<Prefix>{prefix}</Prefix>");
            assert_eq!(days(&rule(&filter, "Enabled", seven)), [Some(7)], "{prefix}");
        }
        assert_eq!(days(&rule("", "Enabled", seven)), [Some(7)]);
        let and =
            "<And><Prefix>claims/</Prefix><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan></And>";
        assert_eq!(days(&rule(and, "Enabled", seven)), [Some(7)]);
        let date = "<Expiration><Date>2030-01-01T00:00:00Z</Date></Expiration>";
        assert_eq!(days(&rule("", "Enabled", date)), [None]);
        let two = rule("", "Enabled", seven) + &rule("<Prefix>claims/</Prefix>", "Enabled", date);
        assert_eq!(days(&two), [Some(7), None]);
    }

    #[test]
    fn other_rules_are_not() {
        let seven = "<Expiration><Days>7</Days></Expiration>";
        assert_eq!(days(""), []);
        assert_eq!(days("<Rule>"), []);
        assert_eq!(days(&rule("<Prefix>other/</Prefix>", "Enabled", seven)), []);
        assert_eq!(days(&rule("", "Disabled", seven)), []);
        let tag = "<Tag><Key>a</Key><Value>b</Value></Tag>";
        assert_eq!(days(&rule(tag, "Enabled", seven)), []);
        let marker =
            "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
        assert_eq!(days(&rule("", "Enabled", marker)), []);
        let older = "<NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays></NoncurrentVersionExpiration>";
        assert_eq!(days(&rule("", "Enabled", older)), []);
    }
}
