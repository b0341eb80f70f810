//! The commands that fix what is wrong at the server: lines of hints and findings.

use super::spec::RabbitSpec;
use postrider_core::finding::shell_word;

/// The command that gives the login its rights.
pub(super) fn set_permissions(spec: &RabbitSpec) -> String {
    let (user, vhost) = (spec.address.user_shown(), &spec.address.vhost);
    let write = match spec.rules.exchange.as_str() {
        "" => "amq\\.default".to_owned(),
        exchange => pattern(exchange),
    };
    // The command replaces the rights that the user has: other pipelines and replays have their own lock queues.
    let lock = match spec.lock_queue.as_deref() {
        Some(name) if name.starts_with("postrider.") => "^postrider\\.".to_owned(),
        Some(name) => format!("^{}$", pattern(name)),
        None => "^$".to_owned(),
    };
    let [vhost, user, lock] =
        [vhost.as_str(), user, &lock].map(|word| shell_word(word).into_owned());
    let write = shell_word(&format!("^{write}$")).into_owned();
    format!("rabbitmqctl set_permissions -p {vhost} {user} {lock} {write} '^$'")
}

/// A pattern that matches this name only.
fn pattern(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() && c.is_ascii() && c != '_' && c != '-' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The command that lets messages of this routing key get to a queue of the same name.
pub(super) fn declare_queue(vhost: &str, exchange: &str, topic: &str) -> String {
    let (vhost, name) = (shell_word(vhost), shell_word(topic));
    let declare = format!(
        "rabbitmqadmin --vhost {vhost} queues declare --name {name} --type quorum --durable true"
    );
    if exchange.is_empty() {
        return declare;
    }
    format!(
        "{declare} && rabbitmqadmin --vhost {vhost} bindings declare --source {} --destination-type queue \
         --destination {name} --routing-key {name}",
        shell_word(exchange)
    )
}

/// The command that declares a stream.
pub(super) fn declare_stream(vhost: &str, stream: &str) -> String {
    let (vhost, name) = (shell_word(vhost), shell_word(stream));
    format!(
        "rabbitmqadmin --vhost {vhost} queues declare --name {name} --type stream --durable true"
    )
}

/// The command that gives the login its right to write streams. It replaces the rights that the user has.
pub(super) fn allow_streams(spec: &RabbitSpec) -> String {
    let (user, vhost) = (spec.address.user_shown(), spec.address.vhost.as_str());
    let (vhost, user) = (shell_word(vhost), shell_word(user));
    format!("rabbitmqctl set_permissions -p {vhost} {user} '^$' '.*' '^$'")
}
