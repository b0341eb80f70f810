//! What is stored of requests, and that it is stored once.

use super::sender::{Sender, hex, signature};
use super::{Hooks, Receiver, SECRET, with_inbox};
use crate::await_that::{SOON, await_that};
use crate::groups::number;
use crate::server::Version;
use postrider::inbox::webhook::{Encoding, Scheme};
use postrider::intake_status::IntakeState;
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// The columns of all messages, in the order of their ids.
const COLUMNS: &str = "select string_agg(concat_ws(' | ', event_id, event_type, source, aggregate_id, \
    payload, encode(payload_bytes, 'escape'), sequence_num, error), e'\\n' order by event_id) \
    from postrider_inbox.hooks";

#[tokio::test]
async fn a_request_that_is_sent_five_times_at_once_is_stored_once() {
    for version in [Version::Pg15, Version::Pg18] {
        let hooks = Hooks::start(version, "hook_once").await;
        let sender = hooks.receiver.sender();
        let body = "{\"type\": \"invoice.paid\", \"data\": {\"id\": 7}}";
        let mut sends = JoinSet::new();
        for _ in 0..5 {
            let sender = sender.clone();
            sends.spawn(async move { sender.sent("msg_1", body).await });
        }
        while let Some(answer) = sends.join_next().await {
            let answer = answer.expect("an answer");
            assert_eq!((answer.code, answer.body.as_str()), (204, ""), "{answer:?}");
        }
        // Again after all of them, and another message.
        assert_eq!(sender.sent("msg_1", body).await.code, 204);
        assert_eq!(sender.sent("msg_2", "not JSON").await.code, 204);
        let expected = format!(
            "hooks//msg_1 | invoice.paid | hooks | {body}\nhooks//msg_2 | hooks | not JSON"
        );
        let stored = hooks.sql.text(COLUMNS).await.expect("messages");
        assert_eq!(
            stored.replace("{\"data\": {\"id\": 7}, \"type\": \"invoice.paid\"}", body),
            expected
        );
        let headers =
            "select headers::text from postrider_inbox.hooks where event_id = 'hooks//msg_1'";
        let headers = hooks.sql.text(headers).await.expect("headers");
        assert!(headers.contains("\"webhook-id\": \"msg_1\""), "{headers}");
        assert!(!headers.contains("v1,") && !headers.contains("signature"), "{headers}");
        let status = hooks.receiver.stop().await;
        assert_eq!(
            (status.totals.stored_total, status.totals.repeated_total),
            (2, 5),
            "{status:?}"
        );
        assert_eq!((status.totals.refused_total, status.totals.dead_total), (0, 0), "{status:?}");
    }
}

#[tokio::test]
async fn two_receivers_that_get_one_message_store_it_once() {
    let (database, sql) = with_inbox(Version::Pg17, "hook_race").await;
    let one = Receiver::storing(&database.url(), |_, _| {}).await;
    let other = Receiver::storing(&database.url(), |_, _| {}).await;
    let mut sends = JoinSet::new();
    for i in 0..200 {
        for receiver in [&one, &other] {
            let sender = receiver.sender();
            // In two orders, so that transactions wait for each other.
            let i = if receiver.port == one.port { i } else { 199 - i };
            sends.spawn(async move { sender.sent(&format!("msg_{i}"), "{}").await.code });
        }
    }
    while let Some(code) = sends.join_next().await {
        assert_eq!(code.expect("a code"), 204);
    }
    assert_eq!(number(&sql, "select count(*) from postrider_inbox.hooks").await, 200);
    let (one, other) = (one.stop().await, other.stop().await);
    assert_eq!(one.totals.stored_total + other.totals.stored_total, 200);
    assert_eq!(one.totals.repeated_total + other.totals.repeated_total, 200);
}

#[tokio::test]
async fn webhooks_of_github_and_of_other_senders_are_stored() {
    let github = Hooks::start_with(Version::Pg16, "hook_github", |_, config| {
        config.scheme = Scheme::GitHub;
    })
    .await;
    let body = "{\"action\": \"opened\", \"type\": \"not this one\"}";
    let sign = |body: &str| hex(&signature(SECRET.as_bytes(), body.as_bytes()));
    let headers = |signature: String| {
        [
            ("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958".to_owned()),
            ("X-GitHub-Event", "pull_request".to_owned()),
            ("X-Hub-Signature-256", format!("sha256={signature}")),
        ]
    };
    let sender = github.receiver.sender();
    let answer = sender.post(&headers(sign(body)), body.as_bytes()).await.expect("an answer");
    assert_eq!(answer.code, 204, "{answer:?}");
    let answer = sender.post(&headers(sign("{}")), body.as_bytes()).await.expect("an answer");
    assert_eq!(answer.code, 401, "{answer:?}");
    let stored = "select concat_ws(' ', event_id, event_type) from postrider_inbox.hooks";
    assert_eq!(
        github.sql.text(stored).await.as_deref(),
        Some("hooks//72d3162e-cc78-11e3-81ab-4c9367dc0958 pull_request")
    );
    github.receiver.stop().await;

    let other = Receiver::storing(&github.database.url(), |spec, config| {
        spec.rules.source = Some("shop".to_owned());
        spec.rules.type_header = "X-Topic".to_owned();
        config.scheme = Scheme::Hmac {
            signature_header: "x-shop-hmac".to_owned(),
            signature_prefix: String::new(),
            encoding: Encoding::Hex,
            id_header: "x-shop-id".to_owned(),
        };
    })
    .await;
    let headers = [
        ("X-Shop-Hmac", sign(body)),
        ("X-Shop-Id", "7".to_owned()),
        ("X-Topic", "orders/create".to_owned()),
    ];
    let answer = other.sender().post(&headers, body.as_bytes()).await.expect("an answer");
    assert_eq!(answer.code, 204, "{answer:?}");
    let stored = "select concat_ws(' ', event_id, event_type, headers ? 'x-shop-hmac') \
                  from postrider_inbox.hooks where source = 'shop'";
    assert_eq!(github.sql.text(stored).await.as_deref(), Some("shop//7 orders/create f"));
    let answer = other.sender().post(&headers[..1], body.as_bytes()).await.expect("an answer");
    assert_eq!(answer.code, 400, "{answer:?}");
    other.stop().await;
}

#[tokio::test]
async fn a_message_that_an_ordered_inbox_can_not_order_is_dead_and_holds_back_no_other() {
    let (database, sql) = with_inbox(Version::Pg17, "hook_order").await;
    sql.batch("select postrider.enable_inbox_ordering('hooks', 'sequence')").await;
    let receiver = Receiver::storing(&database.url(), |spec, _| {
        spec.rules.aggregate_header = Some("X-Order".to_owned());
        spec.rules.sequence_header = Some("x-number".to_owned());
    })
    .await;
    let sender = receiver.sender();
    for (id, extra) in [
        ("msg_1", &[("x-order", "7"), ("X-Number", "1")][..]),
        ("msg_2", &[("X-NUMBER", "1")]),
        ("msg_3", &[("x-order", "7")]),
        ("msg_4", &[("x-order", "7"), ("x-number", "2")]),
    ] {
        let mut headers = sender.signed(id, "{}");
        headers.extend(extra.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let answer = sender.post(&headers, b"{}").await.expect("an answer");
        assert_eq!(answer.code, 204, "{id}: {answer:?}");
    }
    let why = "the request has no header";
    assert_eq!(
        sql.text(COLUMNS).await.expect("messages"),
        format!(
            "hooks//msg_1 | hooks | 7 | {{}} | 1\n\
             hooks//msg_2 | hooks | //hooks//msg_2 | {{}} | 1 | {why} \"x-order\", and the inbox has an order\n\
             hooks//msg_3 | hooks | 7 | {{}} | 1 | {why} \"x-number\", and the inbox is ordered by sequence\n\
             hooks//msg_4 | hooks | 7 | {{}} | 2"
        )
    );
    let status = receiver.stop().await;
    assert_eq!((status.totals.stored_total, status.totals.dead_total), (2, 2), "{status:?}");
}

#[tokio::test]
async fn a_value_that_the_server_refuses_keeps_no_other_message_from_being_stored() {
    let hooks = Hooks::start(Version::Pg17, "hook_values").await;
    // Constraints of the application's own: one that a dead message without a type does not break, and one that every
    // message with such an id breaks.
    let constraints = "alter table postrider_inbox.hooks add check (event_type <> 'never'), add check (event_id !~ '9$')";
    hooks.sql.batch(constraints).await;
    let mut sends = JoinSet::new();
    for i in 0..40 {
        let sender = hooks.receiver.sender();
        let body = match i % 10 {
            // jsonb has no zero byte: stored as bytes.
            3 => "{\"a\": \"\\u0000\"}",
            7 => "{\"type\": \"never\"}",
            _ => "{\"type\": \"always\"}",
        };
        sends.spawn(async move { (i, sender.sent(&format!("msg_{i}"), body).await.code) });
    }
    let mut refused = 0;
    while let Some(sent) = sends.join_next().await {
        let (i, code) = sent.expect("a code");
        assert_eq!(code, if i % 10 == 9 { 503 } else { 204 }, "message {i}");
        refused += i32::from(code == 503);
    }
    assert_eq!((refused, hooks.count().await), (4, 36));
    let bytes = "select count(*) from postrider_inbox.hooks where payload is null and payload_bytes is not null";
    assert_eq!(number(&hooks.sql, bytes).await, 8);
    let dead = "select count(*) from postrider_inbox.hooks where dead_at is not null and event_type is null";
    assert_eq!(number(&hooks.sql, dead).await, 4);
    let status = hooks.receiver.stop().await;
    let totals =
        (status.totals.stored_total, status.totals.dead_total, status.totals.refused_total);
    assert_eq!(totals, (32, 4, 4), "{status:?}");
}

/// The id, and the code of the answer; 0 if there was none.
async fn code(sender: Sender, id: &'static str) -> (&'static str, u16) {
    let answer = sender.send(id, "{}").await;
    (id, answer.map_or(0, |answer| answer.code))
}

#[tokio::test]
async fn a_stop_answers_the_requests_that_have_arrived() {
    let hooks = Hooks::start(Version::Pg17, "hook_stop").await;
    // The transaction of the request waits for this lock.
    let lock = hooks.database.connect().await;
    lock.batch("begin; lock table postrider_inbox.hooks in share mode").await;
    let sender = hooks.receiver.sender();
    let mut sends = JoinSet::new();
    let (first, second) = (sender.clone(), sender.clone());
    sends.spawn(code(first, "msg_1"));
    let waits = "select count(*) from pg_locks where not granted and relation = 'postrider_inbox.hooks'::regclass";
    await_that("the transaction to wait", SOON, || async {
        if number(&hooks.sql, waits).await == 1 { Ok(()) } else { Err("it does not wait") }
    })
    .await;
    sends.spawn(code(second, "msg_2"));
    let idle = sender.connect().await.expect("a connection");
    hooks.receiver.stop.stop();
    await_that("the port to be closed", SOON, || async {
        match sender.connects().await {
            Ok(()) => Err("it accepts connections"),
            Err(_) => Ok(()),
        }
    })
    .await;
    lock.batch("commit").await;
    let answers: BTreeMap<_, _> = sends.join_all().await.into_iter().collect();
    // The second one may have been too late to arrive; if it is not answered with 204, it is not promised.
    let second = answers["msg_2"];
    assert_eq!(answers["msg_1"], 204, "{answers:?}");
    let status = hooks.receiver.stop().await;
    assert_eq!(status.state, IntakeState::Stopped);
    let stored = number(&hooks.sql, "select count(*) from postrider_inbox.hooks").await;
    assert!(stored == 2 || stored == 1 && second != 204, "{stored} messages, {second}");
    drop(idle);
}

#[tokio::test]
async fn a_secret_is_replaced_while_requests_are_received() {
    let hooks = Hooks::start(Version::Pg17, "hook_rotate").await;
    let old = hooks.receiver.sender();
    let new = old.with_secret("whsec_dGhlLW5ldy1zZWNyZXQ=");
    assert_eq!(old.sent("msg_1", "{}").await.code, 204);
    assert_eq!(new.sent("msg_2", "{}").await.code, 401);
    let accepts = async |sender: &Sender, id: &str, code: u16| {
        await_that(&format!("code {code} of {id}"), SOON, || async {
            let answer = sender.send(id, "{}").await?;
            if answer.code == code { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    };
    hooks.receiver.give_secrets(&[SECRET, "whsec_dGhlLW5ldy1zZWNyZXQ="]);
    accepts(&new, "msg_2", 204).await;
    assert_eq!(old.sent("msg_3", "{}").await.code, 204);
    // A file that is no file of secrets changes nothing.
    hooks.receiver.give_secrets(&["hush hush"]);
    accepts(&old, "msg_4", 204).await;
    hooks.receiver.give_secrets(&["whsec_dGhlLW5ldy1zZWNyZXQ="]);
    accepts(&old, "msg_4", 401).await;
    assert_eq!(new.sent("msg_5", "{}").await.code, 204);
    assert_eq!(hooks.count().await, 5);
    hooks.receiver.stop().await;
}
