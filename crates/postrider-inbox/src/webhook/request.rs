//! What becomes of a request: the message that an inbox stores.

use super::scheme::{Header, Scheme};
use super::signature::Verified;
use crate::mapping::{Headers, MessageRules, json_text, number, plain, trace_id};
use crate::message::{Body, Identity, Message, Remembered, Requirements, TEXT_BYTES_MAX};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::fmt;

/// Headers that are not stored: they prove who the sender is, to this receiver or to another one.
const SECRET_HEADERS: &[&str] = &[
    "api-key",
    "authorization",
    "cookie",
    "proxy-authorization",
    "signature",
    "svix-signature",
    "webhook-signature",
    "x-api-key",
    "x-auth-token",
    "x-gitlab-token",
    "x-hub-signature",
    "x-hub-signature-256",
];

/// A request whose sender has a secret. `Debug` shows its size alone.
pub struct WebhookRequest {
    /// The id of the message.
    pub verified: Verified,
    /// All headers, in the order of the request.
    pub headers: Vec<Header>,
    /// The body, as it was sent.
    pub body: Vec<u8>,
}

impl fmt::Debug for WebhookRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookRequest").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

impl WebhookRequest {
    /// The message of the request. One that does not have what the inbox requires becomes a dead message, with the
    /// reason in [`Message::dead`]: none is left out. `intake` is the source if the rules have none.
    pub fn message(
        &self,
        scheme: &Scheme,
        rules: &MessageRules,
        intake: &str,
        needs: &Requirements,
    ) -> Message {
        let id = self.verified.id.as_str();
        let source = rules.source.as_deref().unwrap_or(intake);
        let mut message = Message {
            event_id: Identity::Id { source, id }.event_id(),
            remembered: Some(Remembered::Id(format!("/{id}"))),
            source: source.to_owned(),
            body: if self.body.is_empty() { Body::Absent } else { Body::of(&self.body) },
            headers: self.headers_json(scheme),
            ..Message::default()
        };
        message.dead = self.fill(&mut message, scheme, rules, needs).err();
        message.with_required(needs)
    }

    /// The columns that come from headers and body.
    ///
    /// # Errors
    /// Why the message can't be processed, as a fragment without its content.
    fn fill(
        &self,
        message: &mut Message,
        scheme: &Scheme,
        rules: &MessageRules,
        needs: &Requirements,
    ) -> Result<(), String> {
        let pairs: Vec<(&[u8], Option<&[u8]>)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_bytes(), Some(value.as_slice())))
            .collect();
        let headers = Headers(&pairs);
        // Names of HTTP headers are the same in upper and in lower case.
        let lower = |name: &Option<String>| name.as_deref().map(str::to_ascii_lowercase);
        let aggregate_header = lower(&rules.aggregate_header);
        if let Some(header) = &aggregate_header {
            message.aggregate_id = bounded(&headers, header)?;
        }
        message.event_type = self.event_type(scheme, rules, &headers)?;
        message.trace_id = trace_id(&headers)?;
        message.sequence_num = number(&headers, lower(&rules.sequence_header).as_deref())?;
        message.priority = number(&headers, lower(&rules.priority_header).as_deref())?;
        if needs.aggregate && message.aggregate_id.is_none() {
            return Err(lacks(aggregate_header.as_deref(), "aggregate_header", "has an order"));
        }
        if needs.first_sequence.is_some() && message.sequence_num.is_none() {
            let header = lower(&rules.sequence_header);
            return Err(lacks(header.as_deref(), "sequence_header", "is ordered by sequence"));
        }
        Ok(())
    }

    /// The header that is configured, else that of GitHub, else the member `type` of a body that is a JSON object.
    fn event_type(
        &self,
        scheme: &Scheme,
        rules: &MessageRules,
        headers: &Headers<'_>,
    ) -> Result<Option<String>, String> {
        if let Some(text) = bounded(headers, &rules.type_header.to_ascii_lowercase())? {
            return Ok(Some(text));
        }
        if *scheme == Scheme::GitHub {
            return bounded(headers, "x-github-event");
        }
        match member_type(&self.body) {
            Some(text) if text.len() > TEXT_BYTES_MAX => {
                Err(format!("member \"type\" of the body has {} bytes", text.len()))
            }
            text => Ok(text),
        }
    }

    /// All headers as a JSON object, but for those that prove who the sender is. Of several headers of one name the
    /// values are an array. A value that is no text is an object with its bytes in base64.
    fn headers_json(&self, scheme: &Scheme) -> String {
        let mut all = Map::new();
        for (name, value) in &self.headers {
            if SECRET_HEADERS.contains(&name.as_str()) || name == scheme.signature_header() {
                continue;
            }
            let value = json_text(value);
            match all.get_mut(name) {
                None => drop(all.insert(name.clone(), value)),
                Some(Value::Array(values)) => values.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
            }
        }
        Value::Object(all).to_string()
    }
}

fn lacks(header: Option<&str>, key: &str, rule: &str) -> String {
    match header {
        Some(header) => format!("the request has no header \"{header}\", and the inbox {rule}"),
        None => format!("message.{key} is not set, and the inbox {rule}"),
    }
}

/// A header that is a text of at most [`TEXT_BYTES_MAX`] bytes; none if it is empty.
fn bounded(headers: &Headers<'_>, header: &str) -> Result<Option<String>, String> {
    let text = headers.short_text(header)?;
    Ok(text.filter(|text| !text.is_empty()).map(str::to_owned))
}

/// Member `type` of a JSON object, if it is a text.
fn member_type(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Typed<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
    }
    let typed: Typed<'_> = serde_json::from_slice(body).ok()?;
    let text: String = serde_json::from_str(typed.kind?.get()).ok()?;
    plain(text.as_bytes()).map(str::to_owned).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)], body: &str) -> WebhookRequest {
        WebhookRequest {
            verified: Verified { id: "msg_1".to_owned(), timestamp: None },
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
                .collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    fn message(request: &WebhookRequest) -> Message {
        let rules = MessageRules::default();
        request.message(&Scheme::Standard, &rules, "hooks", &Requirements::default())
    }

    #[test]
    fn a_message_has_the_id_of_the_request_and_its_intake_as_the_source() {
        let one = message(&request(&[("webhook-id", "msg_1")], "{\"type\": \"paid\"}"));
        assert_eq!((one.event_id.as_str(), one.source.as_str()), ("hooks//msg_1", "hooks"));
        assert!(one.remembered == Some(Remembered::Id("/msg_1".to_owned())));
        assert_eq!(one.event_type.as_deref(), Some("paid"));
        assert!(one.body == Body::Json("{\"type\": \"paid\"}".to_owned()));
        assert_eq!((one.dead, one.priority, one.sequence_num), (None, None, None));
        let rules = MessageRules { source: Some("shop".to_owned()), ..MessageRules::default() };
        let other =
            request(&[], "").message(&Scheme::GitHub, &rules, "hooks", &Requirements::default());
        assert_eq!(other.event_id, "shop//msg_1");
        assert!(other.body == Body::Absent);
    }

    #[test]
    fn the_type_is_a_header_or_a_text_of_the_body() {
        let kind = |scheme: &Scheme, headers: &[(&str, &str)], body: &str| {
            let (rules, needs) = (MessageRules::default(), Requirements::default());
            request(headers, body).message(scheme, &rules, "hooks", &needs).event_type
        };
        let standard = |body| kind(&Scheme::Standard, &[], body);
        assert_eq!(standard("{\"a\": [1], \"type\": \"p\\u0061id\"}").as_deref(), Some("paid"));
        for body in [
            "",
            "{",
            "[{\"type\": \"paid\"}]",
            "{\"type\": 7}",
            "{\"type\": null}",
            "{\"type\": \"\"}",
            "{\"type\": {\"type\": \"paid\"}}",
            "{\"type\": \"a\\u0000b\"}",
            "{\"type\": \"a\", \"type\": \"b\"}",
        ] {
            assert_eq!(standard(body), None, "{body}");
        }
        let push = [("x-github-event", "push")];
        assert_eq!(kind(&Scheme::GitHub, &push, "{\"type\": \"x\"}").as_deref(), Some("push"));
        let both = [("type", "mine"), ("x-github-event", "push")];
        assert_eq!(kind(&Scheme::GitHub, &both, "{}").as_deref(), Some("mine"));
    }

    #[test]
    fn headers_that_prove_the_sender_are_not_stored() {
        let scheme = Scheme::Hmac {
            signature_header: "x-mine".to_owned(),
            signature_prefix: String::new(),
            encoding: crate::webhook::Encoding::Hex,
            id_header: "x-id".to_owned(),
        };
        let all = [
            ("host", "hooks"),
            ("authorization", "hush"),
            ("cookie", "hush"),
            ("x-mine", "hush"),
            ("webhook-signature", "hush"),
            ("via", "a"),
            ("via", "b"),
            ("via", "c"),
        ];
        let mut request = request(&all, "{}");
        request.headers.push(("x-raw".to_owned(), vec![0xff]));
        let json = request.headers_json(&scheme);
        assert_eq!(
            json,
            "{\"host\":\"hooks\",\"via\":[\"a\",\"b\",\"c\"],\"x-raw\":{\"base64\":\"/w==\"}}"
        );
        assert!(!format!("{request:?}").contains("hush"));
    }

    #[test]
    fn a_message_without_what_the_inbox_requires_is_dead_in_a_place_of_its_own() {
        let rules = MessageRules {
            aggregate_header: Some("X-Order".to_owned()),
            sequence_header: Some("X-Number".to_owned()),
            priority_header: Some("X-Priority".to_owned()),
            ..MessageRules::default()
        };
        let needs =
            Requirements { aggregate: true, first_sequence: Some(1), default_priority: Some(5) };
        let of = |headers: &[(&str, &str)], rules: &MessageRules| {
            request(headers, "{}").message(&Scheme::Standard, rules, "hooks", &needs)
        };
        let whole = [("x-order", "7"), ("x-number", "3"), ("x-priority", "1")];
        let good = of(&whole, &rules);
        assert_eq!((good.dead, good.aggregate_id.as_deref()), (None, Some("7")));
        assert_eq!((good.sequence_num, good.priority), (Some(3), Some(1)));

        let lost = of(&whole[1..], &rules);
        assert_eq!(lost.aggregate_id.as_deref(), Some("//hooks//msg_1"));
        let why = "the request has no header \"x-order\", and the inbox has an order";
        assert_eq!(lost.dead.as_deref(), Some(why));
        let lost = of(&whole[..1], &rules);
        assert_eq!((lost.sequence_num, lost.aggregate_id.as_deref()), (Some(1), Some("7")));
        let why = "the request has no header \"x-number\", and the inbox is ordered by sequence";
        assert_eq!(lost.dead.as_deref(), Some(why));
        let lost = of(&whole, &MessageRules::default());
        let why = "message.aggregate_header is not set, and the inbox has an order";
        assert_eq!(lost.dead.as_deref(), Some(why));
        let odd = of(&[("x-order", "7"), ("x-number", "hush")], &rules);
        assert!(odd.dead.is_some_and(|why| !why.contains("hush")));
        let long = "a".repeat(TEXT_BYTES_MAX + 1);
        let odd = of(&[("x-order", &long), ("x-number", "3")], &rules);
        assert!(odd.dead.is_some() && odd.aggregate_id.as_deref() == Some("//hooks//msg_1"));
    }
}
