//! What `postrider check` asks the storage: whether it stores an object, and whether a rule of the bucket deletes
//! objects while records still refer to them.

use super::config::ClaimCheckConfig;
use super::digest::PayloadDigest;
use super::lifecycle::{ExpiryRule, expiry_rules};
use super::problem::StorageProblem;
use super::storage::Storage;
use bytes::Bytes;
use hyper::header::DATE;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use postrider_core::finding::{Finding, shell_word};
use postrider_sinks::{Retention, worker_thread};
use std::fmt::Write as _;
use std::time::Duration;

/// The object that a check stores and deletes, and its content.
const PROBE: &str = "postrider-check";
const PROBE_CONTENT: &[u8] = b"stored by postrider check; may be deleted\n";

/// A store refuses requests at a difference of 15 minutes.
const SKEW_MAX: Duration = Duration::from_mins(5);

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// What the bucket says of its rules.
enum BucketRules {
    /// Those that delete our objects; maybe none.
    Known(Vec<ExpiryRule>),
    /// The store does not say them.
    Unknown(StorageProblem),
}

/// The findings. `retentions`: how long the destinations keep records.
pub(crate) fn check_storage(
    config: &ClaimCheckConfig,
    pipeline: &str,
    retentions: &[Retention],
) -> Vec<Finding> {
    if let Some(error) = config.missing_login() {
        return vec![Finding::error("claim_check_login", error.to_string()).why(error.hint())];
    }
    let mut found = plaintext(config);
    match worker_thread::ask(|| ask(config)) {
        Ok(Ok((findings, rules))) => {
            found.extend(findings);
            found.extend(of_rules(config, pipeline, &rules, retentions));
        }
        Ok(Err(problem)) => found.push(failed(config, &problem)),
        Err(unanswered) => {
            let what = format!("object storage {}: {unanswered}", config.bucket.endpoint);
            found.push(Finding::error("claim_check_storage", what));
        }
    }
    found
}

fn failed(config: &ClaimCheckConfig, problem: &StorageProblem) -> Finding {
    let what = format!("object storage {}: {problem}", place(config));
    Finding::error("claim_check_storage", what).why(format!(
        "an event with a payload above {} bytes waits until this works, and all events behind it; {}",
        config.above,
        problem.hint(&config.bucket.name)
    ))
}

fn place(config: &ClaimCheckConfig) -> String {
    format!("{} (bucket {})", config.bucket.endpoint, config.bucket.name)
}

fn plaintext(config: &ClaimCheckConfig) -> Vec<Finding> {
    let host = config.bucket.endpoint.strip_prefix("http://");
    let is_local = |host: &str| {
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    };
    if host.is_none_or(is_local) {
        return Vec::new();
    }
    let what = format!("the connection to {} is not encrypted", config.bucket.endpoint);
    vec![
        Finding::warning("claim_check_plaintext", what)
            .why("an attacker on the network can read every large payload: let the endpoint begin with https://"),
    ]
}

/// Stores an object, deletes it, and reads the bucket's rules.
async fn ask(config: &ClaimCheckConfig) -> Result<(Vec<Finding>, BucketRules), StorageProblem> {
    let storage = Storage::new(config);
    let key = config.bucket.key(PROBE);
    let content = Bytes::from_static(PROBE_CONTENT);
    let digest = PayloadDigest::of(&content);
    let answer = storage.put(&key, content, digest, false).await?;
    let object = config.bucket.reference(&key);
    let read = storage.look(&key).await;
    let deleted = storage.delete(&key).await;
    let end = if deleted.is_ok() { " and deleted" } else { "" };
    let what = format!("object storage {}: login OK, {object} was stored{end}", place(config));
    let mut found = vec![Finding::ok("claim_check_storage", what)];
    if let Err(problem) = read {
        let what = format!("object storage {}: {problem} to HEAD of an object", place(config));
        found.push(Finding::info("claim_check_read", what).why(
            "a payload that is stored already is stored again, which costs the time of an upload; let the login do \
             s3:GetObject",
        ));
    }
    if let Err(problem) = deleted {
        let what = format!("{object} was stored, and could not be deleted: {problem}");
        found.push(
            Finding::info("claim_check_delete", what)
                .why("only postrider check deletes objects: the right is not needed otherwise"),
        );
    }
    let time = answer.headers.get(DATE).and_then(|date| date.to_str().ok());
    if let Some(time) = time.and_then(|text| DateTimeParser::new().parse_timestamp(text).ok()) {
        found.extend(skew(Timestamp::now(), time));
    }
    let rules = match storage.lifecycle().await {
        Ok(document) => {
            let below = format!("{}/", config.bucket.key("sha256"));
            BucketRules::Known(expiry_rules(&String::from_utf8_lossy(&document), &below))
        }
        Err(problem) if problem.code() == "NoSuchLifecycleConfiguration" => {
            BucketRules::Known(Vec::new())
        }
        Err(problem) => BucketRules::Unknown(problem),
    };
    Ok((found, rules))
}

/// Clocks that differ.
fn skew(ours: Timestamp, theirs: Timestamp) -> Option<Finding> {
    let difference = ours.duration_since(theirs).unsigned_abs();
    (difference > SKEW_MAX).then(|| {
        let what = format!(
            "the clocks of this machine and of the storage differ by {} s",
            difference.as_secs()
        );
        Finding::warning("claim_check_clock", what).why(
            "the storage refuses requests at a difference of 15 minutes: correct the wrong clock",
        )
    })
}

/// The findings about deleted objects.
fn of_rules(
    config: &ClaimCheckConfig,
    pipeline: &str,
    rules: &BucketRules,
    retentions: &[Retention],
) -> Vec<Finding> {
    let rules = match rules {
        BucketRules::Known(rules) => rules,
        BucketRules::Unknown(problem) => return vec![unknown(config, problem)],
    };
    if rules.is_empty() {
        return vec![no_rule(config, retentions)];
    }
    let mut found: Vec<_> = rules.iter().filter_map(|rule| too_early(config, rule)).collect();
    let days = rules.iter().filter_map(|rule| rule.days).min();
    if found.is_empty()
        && let Some(days) = days
    {
        let safe = Duration::from_secs(days * DAY_SECONDS).saturating_sub(config.renewed_after());
        found.extend(retentions.iter().filter_map(|kept| outlives(pipeline, kept, days, safe)));
        if found.is_empty() {
            let what = format!(
                "objects are deleted {days} days after they were stored, {} or more after their last record",
                shown_days(safe)
            );
            found.push(Finding::ok("claim_check_lifecycle", what));
        }
    }
    found
}

fn unknown(config: &ClaimCheckConfig, problem: &StorageProblem) -> Finding {
    let name = &config.bucket.name;
    let what = format!("the rules that delete objects of bucket {name} can't be read: {problem}");
    Finding::info("claim_check_lifecycle", what).why(format!(
        "a rule must not delete objects below {}/ within {} days (keep and a quarter of it): a record that refers to a \
         deleted object has lost its payload. Let the login do s3:GetLifecycleConfiguration, or compare it yourself",
        config.bucket.key("sha256"),
        config.days_min()
    ))
}

/// No rule deletes an object.
fn no_rule(config: &ClaimCheckConfig, retentions: &[Retention]) -> Finding {
    let bucket = &config.bucket;
    let what =
        format!("no rule of bucket {} deletes objects, and Postrider deletes none", bucket.name);
    let finding = Finding::info("claim_check_lifecycle", what);
    if let Some(kept) = retentions.iter().find(|kept| kept.keeps.is_none()) {
        return finding.why(format!(
            "{} keeps records for ever: a rule would take the payloads of those that are older than it",
            kept.destination
        ));
    }
    let longest = retentions.iter().filter_map(|kept| kept.keeps).max().unwrap_or_default();
    let days = days_for(longest.max(config.keep) + config.renewed_after());
    let rule = format!(
        "{{\"Rules\":[{{\"ID\":\"postrider-claim-check\",\"Status\":\"Enabled\",\"Filter\":{{\"Prefix\":\"{}/\"}},\
         \"Expiration\":{{\"Days\":{days}}}}}]}}",
        bucket.key("sha256")
    );
    let mut command = "aws s3api put-bucket-lifecycle-configuration".to_owned();
    // Writing to a string can't fail.
    let _written = write!(
        command,
        " --bucket {} --lifecycle-configuration {}",
        shell_word(&bucket.name),
        shell_word(&rule)
    );
    finding
        .why(format!(
            "this one deletes objects {days} days after they were stored, which is not before keep and the retention \
             of the destinations. The command replaces all rules of the bucket"
        ))
        .shell(command)
}

/// A rule that deletes objects too early.
fn too_early(config: &ClaimCheckConfig, rule: &ExpiryRule) -> Option<Finding> {
    let min = config.days_min();
    let name = &config.bucket.name;
    let id = &rule.id;
    let what = match rule.days {
        Some(days) if days >= min => return None,
        Some(days) => format!(
            "rule {id:?} of bucket {name} deletes objects after {days} days, and payload.claim_check.keep needs {min}"
        ),
        None => format!("rule {id:?} of bucket {name} deletes all objects on a date"),
    };
    let lost = match rule.days {
        Some(days) => {
            let safe =
                Duration::from_secs(days * DAY_SECONDS).saturating_sub(config.renewed_after());
            format!(
                "a record loses its payload {} after it was published, if that is above {} bytes",
                shown_days(safe),
                config.above
            )
        }
        None => format!(
            "every record from before that date with a payload above {} bytes loses it",
            config.above
        ),
    };
    let fix = format!("{lost}. Let the rule delete objects after {min} days or more");
    Some(Finding::error("claim_check_lifecycle", what).why(fix))
}

/// A destination that keeps records longer than their objects live.
fn outlives(pipeline: &str, kept: &Retention, days: u64, safe: Duration) -> Option<Finding> {
    let destination = &kept.destination;
    let time = match kept.keeps {
        Some(time) if time <= safe => return None,
        Some(time) => format!("for {}", shown_days(time)),
        None => "for ever".to_owned(),
    };
    let what =
        format!("{destination} keeps records {time}, and objects are deleted after {days} days");
    let finding = Finding::warning("claim_check_retention", what);
    let why = format!(
        "a reader of a record that is older than {} finds no payload. Let the bucket's rule delete later, and raise \
         keep to the retention; or read in time, and shorten the retention",
        shown_days(safe)
    );
    let finding = finding.why(why);
    Some(match kept.keeps {
        Some(time) => {
            let days = days_for(time);
            finding.config(format!("pipelines.{pipeline}.payload.claim_check.keep = \"{days}d\""))
        }
        None => finding,
    })
}

fn days_for(time: Duration) -> u64 {
    time.as_secs().div_ceil(DAY_SECONDS)
}

/// A time in words.
fn shown_days(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds.is_multiple_of(DAY_SECONDS) {
        format!("{} days", seconds / DAY_SECONDS)
    } else if seconds < 60 * 60 {
        format!("{} minutes", seconds / 60)
    } else {
        format!("{} hours", seconds / (60 * 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim_check::config::{StorageBucket, StorageLogin};
    use postrider_core::finding::Severity;

    const DAY: Duration = Duration::from_secs(DAY_SECONDS);

    fn config() -> ClaimCheckConfig {
        ClaimCheckConfig {
            above: 1024,
            bucket: StorageBucket {
                name: "shop".to_owned(),
                prefix: "claims".to_owned(),
                endpoint: "https://s3.example".to_owned(),
                region: "us-east-1".to_owned(),
                in_path: true,
            },
            login: StorageLogin::Missing,
            ca_file: None,
            timeout: DAY,
            keep: 14 * DAY,
        }
    }

    fn found(days: &[Option<u64>], keeps: &[Option<u32>]) -> Vec<(Severity, &'static str)> {
        let rule = |days: &Option<u64>| ExpiryRule { id: "a".to_owned(), days: *days };
        let rules = BucketRules::Known(days.iter().map(rule).collect());
        let kept = |days: &Option<u32>| Retention {
            destination: "topic \"a\"".to_owned(),
            keeps: days.map(|days| DAY * days),
        };
        let retentions: Vec<_> = keeps.iter().map(kept).collect();
        let found = of_rules(&config(), "orders", &rules, &retentions);
        found.iter().map(|finding| (finding.severity, finding.id)).collect()
    }

    #[test]
    fn a_rule_that_deletes_before_keep_is_an_error_and_before_the_retention_a_warning() {
        let (error, warning) =
            ((Severity::Error, "claim_check_lifecycle"), "claim_check_retention");
        assert_eq!(found(&[Some(17)], &[]), [error]);
        assert_eq!(found(&[None], &[]), [error]);
        assert_eq!(found(&[Some(400), Some(1)], &[]), [error]);
        let ok = (Severity::Ok, "claim_check_lifecycle");
        assert_eq!(found(&[Some(18)], &[]), [ok]);
        assert_eq!(found(&[Some(18)], &[Some(14), Some(7)]), [ok]);
        assert_eq!(found(&[Some(18)], &[Some(15)]), [(Severity::Warning, warning)]);
        assert_eq!(found(&[Some(18)], &[None]), [(Severity::Warning, warning)]);
        assert_eq!(found(&[Some(400)], &[Some(30)]), [ok]);
    }

    #[test]
    fn without_a_rule_the_printed_one_is_not_before_the_retention() {
        assert_eq!(found(&[], &[]), [(Severity::Info, "claim_check_lifecycle")]);
        let kept = |keeps| Retention { destination: "topic \"a\"".to_owned(), keeps };
        let finding = no_rule(&config(), &[kept(Some(30 * DAY)), kept(Some(DAY))]);
        let line = &finding.fix[0].line;
        assert!(line.contains("\"Days\":34") && line.contains("\"claims/sha256/\""), "{line}");
        let finding = no_rule(&config(), &[kept(None)]);
        assert!(finding.fix.is_empty(), "a rule for records that are kept for ever");
    }

    #[test]
    fn clocks_that_differ_by_minutes_are_a_warning() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let noon = time("2026-01-01T12:00:00Z");
        assert!(skew(noon, time("2026-01-01T12:04:00Z")).is_none());
        assert!(skew(noon, time("2026-01-01T12:06:00Z")).is_some());
        assert!(skew(noon, time("2026-01-01T11:50:00Z")).is_some());
    }

    #[test]
    fn a_connection_in_the_clear_is_a_warning_unless_it_is_local() {
        let mut config = config();
        for (endpoint, count) in [
            ("https://s3.example", 0),
            ("http://127.0.0.1:9000", 0),
            ("http://localhost:9000", 0),
            ("http://s3.example", 1),
        ] {
            endpoint.clone_into(&mut config.bucket.endpoint);
            assert_eq!(plaintext(&config).len(), count, "{endpoint}");
        }
    }
}
