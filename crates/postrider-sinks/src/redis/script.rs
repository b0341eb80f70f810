//! The two Lua scripts, which the server executes as a whole, and the calls of them.
//!
//! Each pipeline has a key with its progress: a token, and the number of events that were stored under the token.
//! `TAKE_OVER` puts a new token there. `STORE` adds events only while its own token is there, and only events that
//! directly follow those that are stored. So a connection or a process that was replaced stores nothing any more, and
//! behind an event that was not stored no later one is. A key that has the progress of transactions ([`commit`]) is
//! taken over too: the pipeline continues at its cursor row then.
//!
//! [`commit`]: super::commit

use super::entry::EntryWords;
use super::resp::{self, Reply, ServerError};
use super::spec::Storing;
use crate::record_batch::QueuedRecord;

/// Takes the progress over.
///
/// `KEYS[1]`: the progress. `ARGV[1]`: the new token. Further arguments are earlier tokens of this worker. Without one
/// the take-over is unconditional, and events are counted from 0. Otherwise it happens only if nobody else has taken
/// the progress over, and the answer is the number of events that are stored.
pub(super) const TAKE_OVER: &str = r"
local state = redis.call('GET', KEYS[1])
local token, stored
if state then
  token, stored = string.match(state, '^(%x+) (%d+)$')
  if not token and not string.match(state, '^%x+ at ') then return {-1, 'foreign', ''} end
end
if #ARGV == 1 then
  redis.call('SET', KEYS[1], ARGV[1] .. ' 0')
  return 0
end
if not state then return {-1, 'gone', ''} end
for i = 2, #ARGV do
  if token == ARGV[i] then
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. stored)
    return tonumber(stored)
  end
end
return {-1, 'fenced', ''}
";

/// Stores events and the progress in one step.
///
/// `KEYS[1]`: the progress; further keys: streams. `ARGV`: the token, the number of the first event, the number of
/// events, and the events ([`EntryWords`]). An event that can't be added ends the script, and the progress has the
/// events before it.
pub(super) const STORE: &str = r"
local state = redis.call('GET', KEYS[1])
if not state then return {-1, 'gone', ''} end
local token, before = string.match(state, '^(%x+) (%d+)$')
if token ~= ARGV[1] then return {-1, 'fenced', ''} end
before = tonumber(before)
if tonumber(ARGV[2]) ~= before + 1 then return {before, 'gap', ''} end
local pcall, tonumber, unpack, KEYS, ARGV = redis.pcall, tonumber, unpack, KEYS, ARGV
local stored, at = before, 4
local kind, why
for i = 1, tonumber(ARGV[3]) do
  local last = at + 1 + tonumber(ARGV[at + 1])
  local added = pcall('XADD', KEYS[tonumber(ARGV[at])], unpack(ARGV, at + 2, last))
  if not added then kind, why = 'missing', '' break end
  if type(added) == 'table' and added.err then kind, why = 'error', added.err break end
  at = last + 1
  stored = stored + 1
end
if stored > before then
  redis.call('SET', KEYS[1], token .. ' ' .. string.format('%.0f', stored))
end
if kind then return {stored, kind, why} end
return stored
";

/// What a script has answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ScriptAnswer {
    /// All is stored, up to the event of this number.
    Stored(u64),
    /// The events up to this number are stored, and the next one is not.
    Stopped { stored: u64, why: WhyStopped },
    /// The progress is another process's.
    Fenced,
    /// There is no progress: the data of the server was deleted.
    Gone,
    /// The key of the progress has another content.
    Foreign,
    /// The server has refused the script.
    Refused(ServerError),
    /// No answer of these scripts.
    Unknown,
}

/// Why an event was not stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WhyStopped {
    /// An event before it was not stored.
    Gap,
    /// The stream does not exist.
    Missing,
    /// The server refuses XADD.
    Error(ServerError),
}

impl ScriptAnswer {
    pub(super) fn of(reply: Reply) -> Self {
        let number = |reply: &Reply| reply.integer().and_then(|number| u64::try_from(number).ok());
        match reply {
            Reply::Error(error) => Self::Refused(error),
            Reply::Integer(_) => number(&reply).map_or(Self::Unknown, Self::Stored),
            Reply::Array(elements) => {
                let [stored, kind, why] = elements.as_slice() else { return Self::Unknown };
                let why = why.text().unwrap_or_default();
                let stop = match kind.text().as_deref() {
                    Some("gone") => return Self::Gone,
                    Some("fenced") => return Self::Fenced,
                    Some("foreign") => return Self::Foreign,
                    Some("gap") => WhyStopped::Gap,
                    Some("missing") => WhyStopped::Missing,
                    Some("error") => {
                        WhyStopped::Error(ServerError::new(why.trim_start_matches('-')))
                    }
                    Some(_) | None => return Self::Unknown,
                };
                let stopped = |stored| Self::Stopped { stored, why: stop };
                number(stored).map_or(Self::Unknown, stopped)
            }
            Reply::Simple(_) | Reply::Bulk(_) | Reply::Nil => Self::Unknown,
        }
    }
}

/// A call of `TAKE_OVER`.
pub(super) fn take_over(
    out: &mut Vec<u8>,
    sha: &str,
    state_key: &str,
    token: &str,
    own: &[String],
) {
    resp::begin(out, 5 + own.len());
    resp::word(out, b"EVALSHA");
    resp::word(out, sha.as_bytes());
    resp::number(out, 1);
    resp::word(out, state_key.as_bytes());
    resp::word(out, token.as_bytes());
    for token in own {
        resp::word(out, token.as_bytes());
    }
}

/// A call of `STORE` that is built event by event.
pub(super) struct StoreCall<'a> {
    pub(super) sha: &'a str,
    pub(super) state_key: &'a str,
    pub(super) token: &'a str,
    /// The number of the first event.
    pub(super) first: u64,
    pub(super) storing: &'a Storing,
    /// The streams, each once.
    pub(super) topics: &'a [&'a str],
}

impl StoreCall<'_> {
    /// Encodes the call. Each record comes with the place of its topic in `topics`.
    pub(super) fn encode<'r>(
        &self,
        out: &mut Vec<u8>,
        records: impl Iterator<Item = (QueuedRecord<'r>, usize)> + Clone,
    ) {
        let count = records.clone().count();
        let entries = EntryWords::new(self.storing);
        let of_records: usize = records.clone().map(|(record, _)| entries.count(&record)).sum();
        resp::begin(out, 3 + 1 + self.topics.len() + 3 + of_records);
        resp::word(out, b"EVALSHA");
        resp::word(out, self.sha.as_bytes());
        resp::number(out, 1 + self.topics.len() as u64);
        resp::word(out, self.state_key.as_bytes());
        for topic in self.topics {
            resp::word(out, topic.as_bytes());
        }
        resp::word(out, self.token.as_bytes());
        resp::number(out, self.first);
        resp::number(out, count as u64);
        for (record, topic) in records {
            // Keys are counted from 1, and the first one is the progress.
            entries.encode(out, &record, topic + 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_batch::RecordBatch;
    use crate::redis::spec::Trim;
    use postrider_core::record::{Header, Record, Ticket};
    use std::time::Duration;

    const STORING: Storing = Storing {
        in_transactions: false,
        creates: true,
        trim: Trim::Nothing,
        replicas: 0,
        replica_timeout: Duration::from_secs(1),
    };

    fn call<'a>(storing: &'a Storing, topics: &'a [&'a str]) -> StoreCall<'a> {
        StoreCall { sha: "sha", state_key: "state", token: "token", first: 8, storing, topics }
    }

    /// The words of a command, of which the number must be right.
    fn words_of(out: &[u8]) -> Vec<String> {
        let (reply, length) = resp::decode(out, resp::REPLY_BYTES_MAX).unwrap().unwrap();
        assert_eq!(length, out.len());
        reply.elements().iter().map(|word| word.text().unwrap()).collect()
    }

    #[test]
    fn a_call_has_the_events_with_their_fields() {
        let headers = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "none", value: None },
            Header { name: "value", value: Some(b"fake") },
            Header { name: "header:value", value: Some(b"x") },
        ];
        let record = Record {
            topic: "orders",
            partition: Some(3),
            key: Some(b"k"),
            value: Some(b"{}"),
            timestamp_ms: Some(-1),
            headers: &headers,
        };
        let bare = Record { partition: None, key: None, value: None, headers: &[], ..record };
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record);
        batch.push(Ticket(2), &bare);
        let mut out = Vec::new();
        call(&STORING, &["orders"]).encode(&mut out, (0..2).map(|at| (batch.get(at), 0)));
        let expected = "EVALSHA sha 2 state orders token 8 2 \
                        2 15 * key k timestamp -1 partition 3 id 7 header:value fake header:header:value x value {} \
                        2 3 * timestamp -1";
        assert_eq!(words_of(&out).join(" "), expected);
        let limited = Storing { creates: false, trim: Trim::Length(5), ..STORING };
        out.clear();
        call(&limited, &["orders"]).encode(&mut out, [(batch.get(1), 0)].into_iter());
        let expected =
            "EVALSHA sha 2 state orders token 8 1 2 7 NOMKSTREAM MAXLEN ~ 5 * timestamp -1";
        assert_eq!(words_of(&out).join(" "), expected);
    }

    #[test]
    fn answers_of_scripts_are_distinguished() {
        let of = |text: &str| {
            ScriptAnswer::of(
                resp::decode(text.as_bytes(), resp::REPLY_BYTES_MAX).unwrap().unwrap().0,
            )
        };
        let stopped = |stored, why| ScriptAnswer::Stopped { stored, why };
        for (text, answer) in [
            (":7\r\n", ScriptAnswer::Stored(7)),
            (":-7\r\n", ScriptAnswer::Unknown),
            ("*3\r\n:-1\r\n$4\r\ngone\r\n$0\r\n\r\n", ScriptAnswer::Gone),
            ("*3\r\n:-1\r\n$6\r\nfenced\r\n$0\r\n\r\n", ScriptAnswer::Fenced),
            ("*3\r\n:-1\r\n$7\r\nforeign\r\n$0\r\n\r\n", ScriptAnswer::Foreign),
            ("*3\r\n:4\r\n$3\r\ngap\r\n$0\r\n\r\n", stopped(4, WhyStopped::Gap)),
            ("*3\r\n:4\r\n$7\r\nmissing\r\n$0\r\n\r\n", stopped(4, WhyStopped::Missing)),
            (
                "*3\r\n:4\r\n$5\r\nerror\r\n$6\r\nOOM no\r\n",
                stopped(4, WhyStopped::Error(ServerError::new("OOM no"))),
            ),
            ("-NOPERM no\r\n", ScriptAnswer::Refused(ServerError::new("NOPERM no"))),
            ("+OK\r\n", ScriptAnswer::Unknown),
            ("*1\r\n:4\r\n", ScriptAnswer::Unknown),
        ] {
            assert_eq!(of(text), answer, "{text:?}");
        }
    }
}
