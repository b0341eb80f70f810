//! Names, addresses and numbers of one run, replaced by those of an example.

use crate::pipeline::Pipeline;
use regex::Regex;
use std::sync::LazyLock;

/// What differs from run to run whatever the test is, and what stands for it.
static OF_A_RUN: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        // A directory for temporary files, and one of a private server.
        (r"TMP/\.tmp\w+/postrider\.toml", "postrider.toml"),
        (r"TMP/\.tmp\w+", "/etc/postrider"),
        (r"[\w/.-]*/\.s\.PGSQL\.\d+", "/run/postgresql/.s.PGSQL.5432"),
        (r"(127\.0\.0\.1|localhost):\d+", "db.internal:5432"),
        (r"verification time \d+ .*? ago\)", "…"),
        (r"\b[0-9A-F]{1,8}/[0-9A-F]{3,8}\b", "0/1A2B3C8"),
        // Of a sink and of a source.
        (r"(a position of history )[0-9A-F]{8}\b", "${1}68F1A2B3"),
        (r"(the source of history )[0-9A-F]{8}\b", "${1}68F1A2B4"),
        // A system identifier.
        (r"\b\d{17,20}\b", "7000000000000000000"),
        // What `unique` made.
        (r"\b[a-z][a-z0-9_]*_[0-9a-f]{8}\b", "orders"),
        // librdkafka's own clock and counts.
        (r"(:\d+)/(bootstrap|\d+)\b", "$1/bootstrap"),
        // The resolver's and OpenSSL's words are those of the machine.
        (r"(failed to lookup address information: ).*", "${1}Name or service not known"),
        (r"error:[0-9A-F]+:SSL routines:[^:]*:", "SSL routines: "),
        (r" \(after \d+ms in state.*", ""),
        (r"\bpg_temp_\d+\b", "pg_temp_3"),
        // A record's size has the length of its position in it.
        (r"(record has |max\.message\.bytes=)\d+", "${1}30149"),
        (r"\b[\d.,]+ (bytes|KiB|MiB|GiB) of WAL\b", "5 MiB of WAL"),
        (r"active_pid=\d+", "active_pid=4711"),
        (r"\bbackend \d+", "backend 4711"),
        (r"\bprocess \d+", "process 4711"),
        (r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-03-01T04:00:00Z"),
    ]
    .into_iter()
    .map(|(pattern, word)| {
        let temporary = std::env::temp_dir().display().to_string();
        let pattern = pattern.replace("TMP", &regex::escape(temporary.trim_end_matches('/')));
        (Regex::new(&pattern).expect("a pattern"), word)
    })
    .collect()
});

/// `text` as it would be of the pipeline `orders` in the database `shop`.
pub(crate) fn stable(pipeline: Option<&Pipeline>, text: &str) -> String {
    let mut text = text.to_owned();
    if let Some(pipeline) = pipeline {
        let url = &pipeline.url;
        let database = url.rsplit_once("dbname=").or_else(|| url.rsplit_once('/'));
        for (name, word) in [
            (pipeline.slot().as_str(), "postrider_orders"),
            (&pipeline.topic.name, "order"),
            (&pipeline.name, "orders"),
            (database.map_or("", |(_, name)| name), "shop"),
            (&pipeline.topic.brokers, "k1:9092"),
        ] {
            // The database `postgres` is also a user and a word.
            if !["", "postgres"].contains(&name) {
                text = text.replace(name, word);
            }
        }
    }
    for (pattern, word) in &*OF_A_RUN {
        text = pattern.replace_all(&text, *word).into_owned();
    }
    text
}
