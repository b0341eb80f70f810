//! What an error means for the sink: by its code and by the request that it answers, never by its words.

use super::resp::ServerError;
use super::spec::{Mode, RedisSpec};
use std::io;
use std::time::Duration;

/// What the sink was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RedisStep {
    /// Connecting, and loading the scripts.
    Connect,
    /// Asking a sentinel, or a node for the slots of the cluster.
    Locate,
    /// Taking the progress over.
    TakeOver,
    /// Looking a stream up.
    LookUp,
    /// Calling the script that stores events, or commits.
    Store,
    /// XADD within that script.
    Add,
    /// Reading the entries of a stream as a consumer.
    Read,
}

/// What to do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RedisVerdict {
    /// Connect again; what the server has is asked then.
    Reconnect,
    /// Nothing was stored, and the same is sent again after a pause.
    Wait,
    /// The login may not use a key or a command.
    Rights,
    /// The stream accepts no events; others do.
    Destination,
}

/// An error with its meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RedisProblem {
    pub(super) verdict: RedisVerdict,
    /// The error, in one line.
    pub(super) reason: String,
    /// How to fix it.
    pub(super) hint: Option<String>,
}

impl RedisProblem {
    /// A problem that ends the connection.
    pub(super) fn lost(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        let hint = Some(hint.into());
        Self { verdict: RedisVerdict::Reconnect, reason: reason.into(), hint }
    }

    /// Only `found` replicas of `wanted` have what was stored before.
    pub(super) fn replicas(place: &str, (found, wanted): (i64, u32), timeout: Duration) -> Self {
        let hint = "start replicas, or lower sink.redis.replicas; the sink continues automatically";
        Self {
            verdict: RedisVerdict::Wait,
            reason: format!(
                "{place}: {found} of {wanted} replicas have the events after {timeout:?}"
            ),
            hint: Some(hint.to_owned()),
        }
    }

    /// The connection failed.
    pub(super) fn io(doing: &str, place: &str, error: &io::Error) -> Self {
        // A certificate that is not accepted, a name that none can have, a file that can't be used.
        let of_tls =
            [io::ErrorKind::InvalidData, io::ErrorKind::InvalidInput, io::ErrorKind::Other];
        let hint = if of_tls.contains(&error.kind()) {
            "correct the certificate files in sink.redis.tls, or the host names in sink.redis.servers"
        } else {
            "start the server, or correct sink.redis.servers; the sink connects again automatically"
        };
        Self::lost(format!("could not {doing} {place}: {error}"), hint)
    }

    /// The server has answered with an error.
    pub(super) fn server(
        step: RedisStep,
        place: &str,
        error: &ServerError,
        spec: &RedisSpec,
    ) -> Self {
        let verdict = verdict(step, error.code());
        let hint = hint(step, error.code(), spec);
        Self { verdict, reason: format!("{place} has answered {error}"), hint }
    }
}

/// The codes are those of Redis 6.2 to 8 and of Valkey 8 and 9.
fn verdict(step: RedisStep, code: &str) -> RedisVerdict {
    match (step, code) {
        (RedisStep::Connect | RedisStep::Locate, _)
        | (
            _,
            "LOADING" | "READONLY" | "MASTERDOWN" | "MOVED" | "CLUSTERDOWN" | "NOSCRIPT"
            | "WRONGPASS" | "NOAUTH" | "CROSSSLOT",
        ) => RedisVerdict::Reconnect,
        (_, "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "TRYAGAIN" | "ASK") => RedisVerdict::Wait,
        (RedisStep::Add, _) | (RedisStep::LookUp, "WRONGTYPE") => RedisVerdict::Destination,
        (_, "NOPERM") => RedisVerdict::Rights,
        // A script that fails as a whole: what it has stored is not known. The progress says it after a take-over.
        (RedisStep::TakeOver | RedisStep::Store | RedisStep::LookUp | RedisStep::Read, _) => {
            RedisVerdict::Reconnect
        }
    }
}

fn hint(step: RedisStep, code: &str, spec: &RedisSpec) -> Option<String> {
    let user = spec.user();
    let key = &spec.state_key;
    let text = match (code, step) {
        ("WRONGPASS" | "NOAUTH", RedisStep::Locate) => {
            "correct sink.redis.sentinel_username and sentinel_password_file; the sink tries again automatically"
                .to_owned()
        }
        ("WRONGPASS" | "NOAUTH", _) => format!(
            "correct sink.redis.username and password_file, or enable the login: ACL SETUSER {user} on; the sink tries \
             again automatically"
        ),
        // Within a script a right that is missing has the code ERR.
        ("NOPERM", _) | ("ERR", RedisStep::TakeOver) => rights(spec),
        ("ERR", RedisStep::Add) => format!("if the message names a right, {}", rights(spec)),
        ("OOM", _) => {
            "the server has reached maxmemory: raise it (CONFIG SET maxmemory), or remove entries that were read \
             (XTRIM); the sink continues automatically"
                .to_owned()
        }
        ("MISCONF", _) => {
            "the server can't save its data: free space on its disk, or correct its directory; the sink continues \
             automatically"
                .to_owned()
        }
        ("NOREPLICAS", _) => {
            "start replicas, or lower min-replicas-to-write; the sink continues automatically".to_owned()
        }
        ("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" | "MOVED", _) => {
            "the sink continues automatically".to_owned()
        }
        ("READONLY", _) => {
            "the server is a replica: let sink.redis.servers name the primary, or use sentinels (mode = \"sentinel\"); \
             the sink continues automatically"
                .to_owned()
        }
        ("CROSSSLOT", _) => {
            "the server is a node of a cluster: set sink.redis.mode = \"cluster\"".to_owned()
        }
        ("WRONGTYPE", RedisStep::Add | RedisStep::LookUp) => {
            "the key has another type than a stream: rename or delete it, or fix route.topic".to_owned()
        }
        ("WRONGTYPE", _) => format!("key {key:?} is not the sink's: set another sink.redis.state_key"),
        _ => return None,
    };
    Some(text)
}

/// How the login gets its rights.
fn rights(spec: &RedisSpec) -> String {
    format!("give the login its rights: {}; the sink continues automatically", rights_command(spec))
}

/// The command that gives the login its rights. The keys of the streams are the operator's to name.
pub(super) fn rights_command(spec: &RedisSpec) -> String {
    let mut commands = "+client|setname +evalsha +script|load +get +set +xadd +type".to_owned();
    if spec.storing.in_transactions {
        commands.push_str(" +xdel");
    }
    if spec.storing.replicas > 0 {
        commands.push_str(" +wait");
    }
    if spec.database > 0 {
        commands.push_str(" +select");
    }
    if spec.mode == Mode::Cluster {
        commands.push_str(" +cluster|slots");
    }
    format!("redis-cli ACL SETUSER {} '~{}*' '~STREAMS*' {commands}", spec.user(), spec.state_key)
}

/// The hint of a sink, with the names that the keys have in the table of a source.
pub(super) fn in_words_of_sources(hint: &str) -> String {
    hint.replace("sink.redis.", "source.redis.").replace("the sink", "the intake")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_judged_by_code_and_step() {
        for (step, code, expected) in [
            (RedisStep::Connect, "WRONGPASS", RedisVerdict::Reconnect),
            (RedisStep::Connect, "NOPERM", RedisVerdict::Reconnect),
            (RedisStep::Store, "NOPERM", RedisVerdict::Rights),
            (RedisStep::Add, "NOPERM", RedisVerdict::Destination),
            (RedisStep::Add, "WRONGTYPE", RedisVerdict::Destination),
            (RedisStep::Add, "ERR", RedisVerdict::Destination),
            (RedisStep::Add, "OOM", RedisVerdict::Wait),
            (RedisStep::Add, "READONLY", RedisVerdict::Reconnect),
            (RedisStep::Store, "OOM", RedisVerdict::Wait),
            (RedisStep::Store, "BUSY", RedisVerdict::Wait),
            (RedisStep::Store, "NOSCRIPT", RedisVerdict::Reconnect),
            (RedisStep::Store, "MOVED", RedisVerdict::Reconnect),
            // Not known what was stored: asked after a take-over.
            (RedisStep::Store, "ERR", RedisVerdict::Reconnect),
            (RedisStep::Store, "NEWCODE", RedisVerdict::Reconnect),
            (RedisStep::TakeOver, "WRONGTYPE", RedisVerdict::Reconnect),
            (RedisStep::LookUp, "NOPERM", RedisVerdict::Rights),
        ] {
            assert_eq!(verdict(step, code), expected, "{step:?} {code}");
        }
    }
}
