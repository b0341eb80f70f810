//! What only RabbitMQ's management API tells: bindings, types and limits of queues, and alarms. For `postrider check`.

use super::commands::declare_queue;
use super::link;
use super::spec::{RabbitAddress, RabbitHost, RabbitSpec};
use crate::tls;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postrider_core::finding::Finding;
use serde_json::Value;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest time for one request, and the largest answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The findings of the API; one that says why there are none.
pub(super) async fn findings(spec: &RabbitSpec, url: &str, topics: &[String]) -> Vec<Finding> {
    if url.is_empty() {
        let what = "bindings, types and limits of queues, and alarms are not checked";
        return vec![
            Finding::info("rabbitmq_management", what)
                .why("AMQP can't ask for them; the management API can")
                .config("management_url = \"http://localhost:15672\""),
        ];
    }
    let mut out = Vec::new();
    if let Err(why) = all(spec, url, topics, &mut out).await {
        let what = format!("the management API at {url}: {why}");
        out.push(Finding::warning("rabbitmq_management", what).why(
            "bindings, queues and alarms are not checked. Correct sink.rabbitmq.management_url; the user needs the \
             tag monitoring",
        ));
    }
    out
}

async fn all(
    spec: &RabbitSpec,
    url: &str,
    topics: &[String],
    out: &mut Vec<Finding>,
) -> Result<(), String> {
    let api = Api::new(spec, url)?;
    let vhost = encoded(&spec.address.vhost);
    out.extend(alarms(&api.ok("/api/nodes").await?));
    let exchange = &spec.rules.exchange;
    let mut queues: Vec<String> = Vec::new();
    if exchange.is_empty() {
        queues.extend_from_slice(topics);
    } else {
        let at = format!("/api/exchanges/{vhost}/{}", encoded(exchange));
        let (code, found) = api.get(&at).await?;
        if code == 404 {
            // It is a finding already.
            return Ok(());
        }
        out.extend(of_exchange(exchange, &found));
        let bindings = api.ok(&format!("{at}/bindings/source")).await?;
        for topic in topics {
            let kind = found["type"].as_str().unwrap_or_default();
            let bound = bound_queues(kind, topic, &bindings);
            if bound.as_ref().is_some_and(Vec::is_empty) {
                let what = format!("no queue is bound to exchange {exchange:?} for {topic:?}");
                out.push(
                    Finding::error("rabbitmq_route", what)
                        .why("its events are parked until one is bound")
                        .shell(declare_queue(&spec.address.vhost, exchange, topic)),
                );
            }
            queues.extend(bound.unwrap_or_default());
        }
    }
    queues.sort();
    queues.dedup();
    for queue in queues {
        let (code, found) = api.get(&format!("/api/queues/{vhost}/{}", encoded(&queue))).await?;
        if code == 200 {
            out.extend(of_queue(&queue, &found));
        }
    }
    Ok(())
}

fn alarms(nodes: &Value) -> Vec<Finding> {
    let mut out = Vec::new();
    for node in nodes.as_array().into_iter().flatten() {
        let name = node["name"].as_str().unwrap_or_default();
        for (field, what) in [("mem_alarm", "memory"), ("disk_free_alarm", "disk space")] {
            if node[field] == true {
                out.push(
                    Finding::error("rabbitmq_alarm", format!("node {name} is short of {what}"))
                        .why("RabbitMQ accepts no messages until the alarm is over")
                        .shell("rabbitmq-diagnostics alarms"),
                );
            }
        }
    }
    out
}

fn of_exchange(name: &str, found: &Value) -> Option<Finding> {
    (found["durable"] == false).then(|| {
        Finding::warning("rabbitmq_exchange", format!("exchange {name:?} is not durable"))
            .why("it and its bindings are gone after a restart of RabbitMQ, and nothing is published then")
    })
}

/// The queues that get messages with this routing key; `None` if the type of the exchange or a binding to another
/// exchange leaves that open.
fn bound_queues(kind: &str, topic: &str, bindings: &Value) -> Option<Vec<String>> {
    let mut queues = Vec::new();
    for binding in bindings.as_array()? {
        let pattern = binding["routing_key"].as_str()?;
        let matches = match kind {
            "direct" => pattern == topic,
            "topic" => {
                let words = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
                matches_words(&words(pattern), &words(topic))
            }
            "fanout" => true,
            _ => return None,
        };
        if matches && binding["destination_type"] != "queue" {
            return None;
        }
        if matches {
            queues.push(binding["destination"].as_str()?.to_owned());
        }
    }
    Some(queues)
}

/// A pattern of a topic exchange: `*` is one word, `#` any number of words.
fn matches_words(pattern: &[String], topic: &[String]) -> bool {
    match (pattern.split_first(), topic.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((first, rest)), _) if first == "#" => {
            (0..=topic.len()).any(|skipped| matches_words(rest, &topic[skipped..]))
        }
        (Some((first, rest)), Some((word, words))) => {
            (first == "*" || first == word) && matches_words(rest, words)
        }
        (Some(_), None) => false,
    }
}

/// What a queue would lose.
fn of_queue(name: &str, found: &Value) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut add = |severity: fn(&'static str, String) -> Finding, what: &str, why: &str| {
        out.push(severity("rabbitmq_queue", format!("queue {name:?} {what}")).why(why));
    };
    let policy = |key: &str| {
        let argument = &found["arguments"][format!("x-{key}")];
        let policy = &found["effective_policy_definition"][key];
        if argument.is_null() { policy } else { argument }
    };
    let kind = found["type"].as_str().unwrap_or_default();
    if found["durable"] == false {
        add(
            Finding::error,
            "is not durable",
            "its events are gone after a restart of RabbitMQ: declare it durable, of type quorum",
        );
    }
    let limited = !policy("max-length").is_null() || !policy("max-length-bytes").is_null();
    let refuses =
        policy("overflow").as_str().is_some_and(|text| text.starts_with("reject-publish"));
    let aged = !policy("max-age").is_null();
    if (limited || aged) && kind == "stream" {
        add(
            Finding::info,
            "has a limit of its length or of the age of its messages",
            "old events are removed by it, also those that a consumer has not read",
        );
    } else if limited && refuses {
        add(
            Finding::info,
            "has a limit, and refuses messages when it is full",
            "events wait then; nothing is lost",
        );
    } else if limited {
        add(
            Finding::warning,
            "has a limit, and drops its oldest messages when it is full",
            "events are lost that RabbitMQ has confirmed: set overflow = reject-publish by a policy, or no limit",
        );
    }
    if !policy("message-ttl").is_null() {
        add(
            Finding::warning,
            "drops messages after a time (message-ttl)",
            "an event that no consumer has taken by then is lost, unless the queue has a dead letter exchange",
        );
    }
    if out.is_empty() {
        out.push(Finding::ok("rabbitmq_queue", format!("queue {name:?}, type {kind}, durable")));
    }
    out
}

/// The API of one server.
struct Api<'a> {
    spec: &'a RabbitSpec,
    tls: bool,
    host: RabbitHost,
    authorization: String,
}

impl<'a> Api<'a> {
    fn new(spec: &'a RabbitSpec, url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("the address has no scheme")?;
        let (tls, amqp) = match scheme {
            "http" => (false, "amqp"),
            "https" => (true, "amqps"),
            _ => return Err("the scheme is neither http nor https".to_owned()),
        };
        let default_port = if tls { 15671 } else { 15672 };
        let rest = rest.trim_end_matches('/');
        let with_port = if rest.rsplit_once(']').map_or(rest, |(_, port)| port).contains(':') {
            rest.to_owned()
        } else {
            format!("{rest}:{default_port}")
        };
        let address = RabbitAddress::parse(&format!("{amqp}://{with_port}"))?;
        let host = address.hosts.into_iter().next().ok_or("the address has no host")?;
        let login = link::login(spec).map_err(|problem| problem.reason)?;
        let (user, password) = login.ok_or("the login of a certificate can't be used there")?;
        let authorization = STANDARD.encode(format!("{user}:{password}"));
        Ok(Self { spec, tls, host, authorization })
    }

    async fn ok(&self, path: &str) -> Result<Value, String> {
        match self.get(path).await? {
            (200, value) => Ok(value),
            (code, _) => Err(format!("{path} was answered with status {code}")),
        }
    }

    async fn get(&self, path: &str) -> Result<(u16, Value), String> {
        let exchanged = tokio::time::timeout(ANSWER_MAX, self.exchange(path)).await;
        let answer =
            exchanged.map_err(|elapsed| elapsed.to_string())?.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.ok_or("the answer has no status")?;
        Ok((code, serde_json::from_str(body).unwrap_or_default()))
    }

    /// HTTP/1.0, so that the answer ends with the connection.
    async fn exchange(&self, path: &str) -> io::Result<Vec<u8>> {
        let RabbitHost { name, port } = &self.host;
        let stream = TcpStream::connect((name.as_str(), *port)).await?;
        if self.tls {
            return self.send(tls::connect(stream, &self.spec.files, name).await?, path).await;
        }
        self.send(stream, path).await
    }

    async fn send(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        path: &str,
    ) -> io::Result<Vec<u8>> {
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Basic {}\r\n\r\n",
            self.host, self.authorization
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
        // A server may end TLS without a word.
        if answer.is_empty() { read.map(|_| answer) } else { Ok(answer) }
    }
}

/// A part of a path.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            let digit = |value| char::from_digit(value, 16).unwrap_or('0').to_ascii_uppercase();
            out.extend(['%', digit(u32::from(byte >> 4)), digit(u32::from(byte & 15))]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::finding::Severity;
    use serde_json::json;

    #[test]
    fn bindings_are_matched_as_rabbitmq_does() {
        let bindings = |keys: &[&str]| -> Value {
            keys.iter()
                .map(|key| json!({ "routing_key": key, "destination": key, "destination_type": "queue" }))
                .collect()
        };
        let topics = bindings(&["orders.*", "orders.#", "#.placed", "orders", "*"]);
        let found = |topic| bound_queues("topic", topic, &topics).unwrap();
        assert_eq!(found("orders"), ["orders.#", "orders", "*"]);
        assert_eq!(found("orders.eu.placed"), ["orders.#", "#.placed"]);
        assert!(found("carts.eu").is_empty());
        assert_eq!(bound_queues("direct", "orders", &topics).unwrap(), ["orders"]);
        assert_eq!(bound_queues("fanout", "x", &topics).unwrap().len(), 5);
        assert_eq!(bound_queues("headers", "x", &topics), None);
        let further =
            json!([{ "routing_key": "a", "destination": "b", "destination_type": "exchange" }]);
        assert_eq!(bound_queues("direct", "a", &further), None, "another exchange decides");
    }

    #[test]
    fn queues_that_lose_events_are_found() {
        let worst = |queue: Value| {
            of_queue("q", &queue).iter().map(|finding| finding.severity).max().unwrap()
        };
        let argument = |key: &str, value: Value| {
            let arguments = json!({ key: value });
            json!({ "type": "quorum", "durable": true, "arguments": arguments })
        };
        assert_eq!(worst(json!({ "type": "quorum", "durable": true })), Severity::Ok);
        assert_eq!(worst(json!({ "type": "classic", "durable": false })), Severity::Error);
        assert_eq!(worst(argument("x-max-length", json!(10))), Severity::Warning);
        assert_eq!(worst(argument("x-message-ttl", json!(10))), Severity::Warning);
        let aged = json!({ "type": "stream", "durable": true, "arguments": { "x-max-age": "1D" } });
        assert_eq!(worst(aged), Severity::Info);
        let refusing = json!({ "type": "quorum", "durable": true, "effective_policy_definition":
            { "max-length": 10, "overflow": "reject-publish" } });
        assert_eq!(worst(refusing), Severity::Info);
    }
}
