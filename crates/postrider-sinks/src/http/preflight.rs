//! `postrider check` for webhooks: whether the receiver can be reached, and what it says about the paths. Nothing is
//! posted.

use super::answer::WebhookAnswer;
use super::exchange::{Exchanger, Probe};
use super::spec::{HttpLogin, HttpSpec};
use super::target::{Base, Target, TopicUse};
use crate::fence::Fence;
use crate::worker_thread;
use hyper::{StatusCode, Version};
use postrider_core::finding::Finding;
use std::sync::Arc;

/// Destinations that are asked.
const DESTINATIONS_MAX: usize = 100;

/// Findings about the settings.
pub(super) fn settings(base: Option<&Base>, signs: bool, login: &HttpLogin) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_plain = base.is_some_and(|base| base.shown().starts_with("http:"));
    let is_local = base.is_some_and(Base::is_of_this_machine);
    if is_plain && !is_local {
        let finding = Finding::warning(
            "webhook_plaintext",
            "events and logins go to the receiver without TLS",
        )
        .why("anybody on the way can read them, and use the login");
        findings.push(match base {
            Some(base) => {
                finding.config(format!("url = \"{}\"", base.shown().replacen("http:", "https:", 1)))
            }
            None => finding,
        });
    }
    if !signs && *login == HttpLogin::None {
        findings.push(
            Finding::info("webhook_unsigned", "requests have no signature and no login")
                .why("the receiver can't know that they come from here, unless it asks for a client certificate")
                .config("secret_file = \"webhook-secrets\""),
        );
    }
    findings
}

/// The findings about the receiver, and about the destinations that are known before the first event.
pub(super) fn check(spec: &HttpSpec, destinations: &[String], keyed: bool) -> Vec<Finding> {
    let asked = worker_thread::ask(|| findings(spec.clone(), destinations));
    let mut findings = asked.unwrap_or_else(|unanswered| {
        vec![Finding::error("webhook_unreachable", format!("the receiver: {unanswered}"))]
    });
    if !keyed && spec.limits.batch == 1 {
        findings.push(
            Finding::warning("webhook_keyless", "events have no key: one request of a destination is in flight")
                .why("requests of different aggregates do not run beside each other; sink.http.batch sends several \
                      events with a request"),
        );
    }
    findings
}

async fn findings(spec: HttpSpec, destinations: &[String]) -> Vec<Finding> {
    let exchanger = Exchanger::new(spec.clone(), Arc::new(Fence::new()));
    if destinations.is_empty() {
        let Some(base) = &spec.base else { return Vec::new() };
        let Some(target) = Target::base(base) else { return Vec::new() };
        return vec![match exchanger.probe(&target).await {
            Probe::Unreachable(answer) => unreachable(&target, &answer),
            Probe::Answered { version, .. } => reached(&target, version),
        }];
    }
    let mut findings: Vec<Finding> = Vec::new();
    for name in destinations.iter().take(DESTINATIONS_MAX) {
        let Some(target) = spec.target(name) else {
            let what = format!("topic {name:?} leads to no URL");
            findings.push(
                Finding::error("webhook_topic", what)
                    .why(format!("its events are parked; the rule: {}", spec.topic.names().words)),
            );
            continue;
        };
        if spec.chooses_private(name) {
            let what = format!("topic {name:?} is a URL of a private address");
            findings.push(
                Finding::error("webhook_private", what)
                    .why("its events are parked, unless the writers of topics may reach this network")
                    .config("private_addresses = \"allowed\""),
            );
            continue;
        }
        let found = match exchanger.probe(&target).await {
            Probe::Unreachable(answer) => unreachable(&target, &answer),
            Probe::Answered { answer, is_closed, forbids_post, version, .. } => {
                let reached = reached(&target, version);
                if !findings.contains(&reached) {
                    findings.push(reached);
                }
                of_destination(name, &target, (&answer, is_closed), forbids_post)
            }
        };
        if !findings.contains(&found) {
            findings.push(found);
        }
    }
    let left = destinations.len().saturating_sub(DESTINATIONS_MAX);
    if left > 0 {
        findings.push(Finding::info(
            "webhook_more",
            format!("{left} more destinations were not asked"),
        ));
    }
    if spec.topic == TopicUse::Ignore {
        findings.dedup_by(|second, first| second.what == first.what);
    }
    findings
}

fn reached(target: &Target, version: Version) -> Finding {
    Finding::ok("webhook", format!("connected to {}, {version:?}", target.host))
}

fn unreachable(target: &Target, answer: &WebhookAnswer) -> Finding {
    let what = format!("{}: {}", target.host, answer.reason);
    let why = format!(
        "nothing is published until it can be reached; {}",
        answer.hint.unwrap_or_default()
    );
    Finding::error("webhook_unreachable", what).why(why)
}

fn of_destination(
    name: &str,
    target: &Target,
    (answer, is_closed): (&WebhookAnswer, bool),
    forbids_post: bool,
) -> Finding {
    let (uri, status) = (&target.uri, answer.status.unwrap_or_default());
    let hint = answer.hint.unwrap_or_default();
    if forbids_post {
        return Finding::warning(
            "webhook_method",
            format!("{uri} does not list POST in header Allow"),
        )
        .why("events are waited with, or parked, if it answers 405 to them");
    }
    match status {
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Finding::error("webhook_login", format!("{uri} answers {status} to OPTIONS"))
                .why(format!("nothing is published there if it answers the same to POST: {hint}"))
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            let what = format!(
                "{uri} answers {status} to OPTIONS: there is no receiver for topic {name:?}"
            );
            Finding::error("webhook_missing", what).why(format!(
                "its events are parked if it answers the same to POST. A receiver that knows POST alone is fine: \
                 {hint}"
            ))
        }
        _ if is_closed => {
            Finding::error("webhook_redirect", format!("{uri} answers {status} to OPTIONS"))
                .why(format!("events are waited with, or parked: {hint}"))
        }
        _ if status.is_server_error() => {
            Finding::warning("webhook_fails", format!("{uri} answers {status} to OPTIONS"))
                .why("events wait while it answers the same to POST")
        }
        _ => Finding::ok("webhook_destination", format!("{uri} answers {status} to OPTIONS")),
    }
}
