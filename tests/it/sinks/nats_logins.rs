//! Logins of NATS that a server requires: the client's certificate, an nkey, and a JWT of an account.

use super::nats::NatsServer;
use super::pipeline::SinkPipeline;
use super::server::SinkServer;
use crate::await_that::SOON;
use crate::private::PrivateNats;
use crate::relay::Relay;
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// The relay's rights, as docs/sinks/nats.md lists them.
const RIGHTS: &str = "permissions: { publish: { allow: [\"orders\", \"$JS.API.STREAM.INFO.EVENTS\", \
                      \"$JS.API.STREAM.MSG.GET.EVENTS\"] }, subscribe: { allow: [\"_INBOX.>\"] } }";

/// Accounts in which the relay is the user that `relay` describes. `app` is the name of its account.
fn accounts(app: &str, relay: &str) -> String {
    format!(
        "system_account: SYS\naccounts {{ SYS {{ users: [ {{ user: sys, password: sys }} ] }}\n\
         {app} {{ jetstream: enabled, users: [ {{ user: admin, password: admin }} {relay} ] }} }}"
    )
}

/// `[.sink]` for the server, with these keys for the login.
fn sink(nats: &PrivateNats, scheme: &str, keys: &str) -> String {
    format!(
        "[.sink]\nkind = \"nats\"\n[.sink.nats]\nurl = \"{scheme}://localhost:{}\"\nstream = \"EVENTS\"\n{keys}",
        nats.port()
    )
}

/// A file beside the server's, with a secret.
fn secret(nats: &PrivateNats, name: &str, text: &str) -> PathBuf {
    let file = nats.ca().with_file_name(name);
    fs::write(&file, text).expect("a file");
    file
}

/// Waits until the relay has published so many events.
async fn published(relay: &Relay, events: u64) {
    let count = |status: &Value| status["pipelines"][0]["published_total"].as_u64();
    relay.await_status("published", SOON, |status| count(status) >= Some(events)).await;
}

/// The server lets only clients with a certificate of its authority in, first beside a password, then in its place.
#[tokio::test]
async fn client_certificate_that_the_server_requires_is_shown() {
    let mut server = NatsServer::start().await;
    server.create("orders").await;
    let files = "tls { cert_file: server.pem, key_file: server.key, ca_file: ca.pem, timeout: 5, ";
    server.nats.set(&format!("{files} verify: true }}"));
    server.nats.kill().await;
    server.nats.restart().await;
    let password = secret(&server.nats, "relay-password", "secret\n");
    let ca = format!("ca_file = \"{}\"\n", server.nats.ca().display());
    let login = format!("user = \"relay\"\npassword_file = \"{}\"\n{ca}", password.display());
    let client = format!(
        "cert_file = \"{}\"\nkey_file = \"{}\"\n",
        server.nats.ca().with_file_name("client.pem").display(),
        server.nats.ca().with_file_name("client.key").display()
    );
    let without = sink(&server.nats, "tls", &login);
    let mut pipeline = SinkPipeline::to(server, "natsmtls", &without).await;
    pipeline.insert("orders", "a", &[1, 2]).await;
    let relay = pipeline.run();
    relay.await_state("broker_down", SOON).await;
    relay.terminate(SOON).await;
    assert_eq!(pipeline.server.read("orders").await.expect("messages").len(), 0);
    let with = sink(&pipeline.server.nats, "tls", &format!("{login}{client}"));
    let relay = Relay::spawn(&pipeline.with_sink(&with));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.terminate(SOON).await;

    // The subject of the certificate is the user.
    let user = accounts("APP", &format!(", {{ user: \"CN=relay\", {RIGHTS} }}"));
    pipeline.server.nats.set(&format!("{files} verify_and_map: true }}"));
    pipeline.server.nats.set_accounts(&user);
    pipeline.server.nats.kill().await;
    pipeline.server.nats.restart().await;
    let alone = sink(&pipeline.server.nats, "tls", &format!("{ca}{client}"));
    let relay = Relay::spawn(&pipeline.with_sink(&alone));
    pipeline.insert("orders", "a", &[3]).await;
    published(&relay, 1).await;
    relay.terminate(SOON).await;
    pipeline.server.nats.set("");
    pipeline.server.nats.kill().await;
    pipeline.server.nats.restart().await;
    pipeline.await_values("orders", "a", &["1", "2", "3"]).await;
}

/// The server knows the public key only. Another seed is refused, and the file is read again.
#[tokio::test]
async fn nkey_that_the_server_requires_is_used() {
    let mut server = NatsServer::start().await;
    server.create("orders").await;
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let relay = format!(", {{ nkey: {}, {RIGHTS} }}", user.public_key());
    server.nats.set_accounts(&accounts("APP", &relay));
    server.nats.kill().await;
    server.nats.restart().await;
    let seed = secret(&server.nats, "user.nk", &stranger.seed().expect("a seed"));
    let keys = format!("nkey_file = \"{}\"\n", seed.display());
    let with_key = sink(&server.nats, "nats", &keys);
    let pipeline = SinkPipeline::to(server, "nkey", &with_key).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    relay.await_state("broker_down", SOON).await;
    relay.await_log("authorization violation", SOON).await;
    secret(&pipeline.server.nats, "user.nk", &(user.seed().expect("a seed") + "\n"));
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    relay.await_state("streaming", SOON).await;
    for pair in [user, stranger] {
        let seed = pair.seed().expect("a seed");
        assert!(!relay.stderr().contains(&seed), "a seed is in the log");
    }
    relay.terminate(SOON).await;
}

/// A token that `issuer` signs for `subject`, as `nsc` makes it.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = json!({
        "jti": "1", "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": nats,
    });
    let part = |value: &Value| base64url(value.to_string().as_bytes());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = issuer.sign(signed.as_bytes()).expect("a signature");
    format!("{signed}.{}", base64url(&signature))
}

fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        for letter in 0..=chunk.len() {
            let index = usize::try_from(word >> (18 - 6 * letter) & 63).expect("a small number");
            text.push(char::from(LETTERS[index]));
        }
    }
    text
}

/// The server trusts an operator. The relay's file has a token that its account has signed, and the seed of its key.
#[tokio::test]
async fn credentials_file_of_an_account_is_used() {
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let (system, user) = (KeyPair::new_account(), KeyPair::new_user());
    let mut server = NatsServer::start().await;
    // The stream is in a directory that has the account's name.
    let (name, system_name) = (account.public_key(), system.public_key());
    server.nats.set_accounts(&accounts(&name, ""));
    server.nats.kill().await;
    server.nats.restart().await;
    server.create("orders").await;
    let all = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let of_account = json!({ "type": "account", "version": 2, "limits": all });
    let mut of_system = of_account.clone();
    for resource in ["mem_storage", "disk_storage", "streams", "consumer"] {
        of_system["limits"][resource] = json!(0);
    }
    let of_user = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1,
        "pub": { "allow": ["orders", "$JS.API.STREAM.INFO.EVENTS", "$JS.API.STREAM.MSG.GET.EVENTS"] },
        "sub": { "allow": ["_INBOX.>"] },
    });
    let of_operator =
        json!({ "type": "operator", "version": 2, "system_account": system.public_key() });
    server.nats.set_accounts(&format!(
        "operator: {}\nsystem_account: {system_name}\nresolver: MEMORY\n\
         resolver_preload {{ {name}: {}, {system_name}: {} }}\n",
        token(&operator, &operator, &of_operator),
        token(&operator, &account, &of_account),
        token(&operator, &system, &of_system),
    ));
    server.nats.kill().await;
    server.nats.restart().await;
    let credentials = |pair: &KeyPair, token: &str| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            pair.seed().expect("a seed")
        )
    };
    // Signed by an account that the server does not know.
    let stranger = KeyPair::new_account();
    let wrong = credentials(&user, &token(&stranger, &user, &of_user));
    let file = secret(&server.nats, "user.creds", &wrong);
    let keys = format!("credentials_file = \"{}\"\n", file.display());
    let with_file = sink(&server.nats, "nats", &keys);
    let mut pipeline = SinkPipeline::to(server, "jwt", &with_file).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    relay.await_state("broker_down", SOON).await;
    let right = token(&account, &user, &of_user);
    secret(&pipeline.server.nats, "user.creds", &credentials(&user, &right));
    published(&relay, 2).await;
    let log = relay.stderr();
    assert!(!log.contains(&right) && !log.contains(&user.seed().expect("a seed")), "{log}");
    relay.terminate(SOON).await;
    // Read with a password, from the account of the same name.
    pipeline.server.nats.set_accounts(&accounts(&name, ""));
    pipeline.server.nats.kill().await;
    pipeline.server.nats.restart().await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
}
