//! The two Lua scripts of a sink that publishes in transactions, and the calls of them.
//!
//! The progress key has the token of the process that may commit, and what the last commit has stored. `RECOVER` puts
//! a new token there. `COMMIT` adds the entries of a transaction and replaces the progress: both, or neither. A script
//! is not rolled back when one of its commands fails, so `COMMIT` removes the entries again that it has added. No other
//! client sees them meanwhile.

use super::entry::EntryWords;
use super::resp::{self, Reply, ServerError};
use super::spec::Storing;
use crate::record_batch::RecordBatch;

/// Fences former processes off, and reads what the last commit has stored.
///
/// `KEYS[1]`: the progress. `ARGV[1]`: the new token. A key that counts events (at least once) has no progress of a
/// commit. The answer is what was stored, which is empty without a commit.
pub(super) const RECOVER: &str = r"
local state = redis.call('GET', KEYS[1])
local progress = ''
if state then
  local rest = string.match(state, '^%x+ (.*)$')
  if not rest then return {'foreign', ''} end
  progress = string.match(rest, '^at (.*)$')
  if not progress then
    if not string.match(rest, '^%d+$') then return {'foreign', ''} end
    progress = ''
  end
end
redis.call('SET', KEYS[1], ARGV[1] .. ' at ' .. progress)
return {'ok', progress}
";

/// Adds the entries of a transaction, and stores its progress.
///
/// `KEYS[1]`: the progress; further keys: streams. `ARGV`: the token, the progress, the number of events, and the
/// events ([`EntryWords`]). XDEL of an entry that can't exist fails if the key is no stream, or if the login may not
/// remove entries: then nothing is added. The first command sets the progress to what it is: the server checks its
/// memory limit (`maxmemory`) at the first command of a script that writes, and not at XDEL.
pub(super) const COMMIT: &str = r"
local state = redis.call('GET', KEYS[1])
if not state then return {'gone', '', ''} end
if string.match(state, '^(%x+) at ') ~= ARGV[1] then return {'fenced', '', ''} end
local tried = redis.pcall('SET', KEYS[1], state)
if tried.err then return {'error', tried.err, ''} end
for i = 2, #KEYS do
  local tried = redis.pcall('XDEL', KEYS[i], '0-1')
  if type(tried) == 'table' and tried.err then return {'error', tried.err, KEYS[i]} end
end
local pcall, tonumber, unpack, KEYS, ARGV = redis.pcall, tonumber, unpack, KEYS, ARGV
local added, at, kind, why, where = {}, 4, nil, '', ''
for i = 1, tonumber(ARGV[3]) do
  local key, last = KEYS[tonumber(ARGV[at])], at + 1 + tonumber(ARGV[at + 1])
  local id = pcall('XADD', key, unpack(ARGV, at + 2, last))
  if not id then kind, where = 'missing', key break end
  if type(id) == 'table' then kind, why, where = 'error', id.err or '', key break end
  at = last + 1
  added[#added + 1] = {key, id}
end
if not kind then
  local set = redis.pcall('SET', KEYS[1], ARGV[1] .. ' at ' .. ARGV[2])
  if set.err then kind, why = 'error', set.err end
end
if kind then
  for i = #added, 1, -1 do redis.pcall('XDEL', added[i][1], added[i][2]) end
  return {kind, why, where}
end
return {'ok', '', ''}
";

/// What `RECOVER` has answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RecoverAnswer {
    /// What the last commit has stored; empty if there was none.
    Recovered(String),
    /// The key of the progress has another content.
    Foreign,
    /// The server has refused the script.
    Refused(ServerError),
    /// No answer of this script.
    Unknown,
}

impl RecoverAnswer {
    pub(super) fn of(reply: Reply) -> Self {
        if let Reply::Error(error) = reply {
            return Self::Refused(error);
        }
        let texts: Vec<String> = reply.elements().iter().filter_map(Reply::text).collect();
        match <[String; 2]>::try_from(texts) {
            Ok([kind, progress]) if kind == "ok" => Self::Recovered(progress),
            Ok([kind, _]) if kind == "foreign" => Self::Foreign,
            Ok(_) | Err(_) => Self::Unknown,
        }
    }
}

/// What `COMMIT` has answered. Only after `Committed` anything is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CommitAnswer {
    Committed,
    /// Another process has recovered.
    Fenced,
    /// There is no progress: the data of the server was deleted.
    Gone,
    /// This stream does not exist.
    Missing(String),
    /// The server refuses an entry of this stream, or with an empty name the progress.
    Error {
        stream: String,
        error: ServerError,
    },
    /// The server has refused the script.
    Refused(ServerError),
    /// No answer of this script.
    Unknown,
}

impl CommitAnswer {
    pub(super) fn of(reply: Reply) -> Self {
        if let Reply::Error(error) = reply {
            return Self::Refused(error);
        }
        let texts: Vec<String> = reply.elements().iter().filter_map(Reply::text).collect();
        let Ok([kind, why, stream]) = <[String; 3]>::try_from(texts) else { return Self::Unknown };
        match kind.as_str() {
            "ok" => Self::Committed,
            "fenced" => Self::Fenced,
            "gone" => Self::Gone,
            "missing" => Self::Missing(stream),
            "error" => Self::Error { stream, error: ServerError::new(why.trim_start_matches('-')) },
            _ => Self::Unknown,
        }
    }
}

/// A call of `RECOVER`.
pub(super) fn recover(out: &mut Vec<u8>, sha: &str, state_key: &str, token: &str) {
    let words: [&[u8]; 5] =
        [b"EVALSHA", sha.as_bytes(), b"1", state_key.as_bytes(), token.as_bytes()];
    resp::command(out, &words);
}

/// A call of `COMMIT`.
pub(super) struct CommitCall<'a> {
    pub(super) sha: &'a str,
    pub(super) state_key: &'a str,
    pub(super) token: &'a str,
    pub(super) progress: &'a str,
    pub(super) storing: &'a Storing,
}

impl CommitCall<'_> {
    /// Encodes the call with all records of the batch.
    pub(super) fn encode(&self, out: &mut Vec<u8>, batch: &RecordBatch) {
        let mut topics: Vec<&str> = Vec::new();
        let mut places = Vec::with_capacity(batch.len());
        for record in batch.iter() {
            // Most often the stream of the record before.
            let known = topics.iter().rposition(|topic| *topic == record.topic);
            places.push(known.unwrap_or_else(|| {
                topics.push(record.topic);
                topics.len() - 1
            }));
        }
        let entries = EntryWords::new(self.storing);
        let of_records: usize = batch.iter().map(|record| entries.count(&record)).sum();
        resp::begin(out, 3 + 1 + topics.len() + 3 + of_records);
        resp::word(out, b"EVALSHA");
        resp::word(out, self.sha.as_bytes());
        resp::number(out, 1 + topics.len() as u64);
        resp::word(out, self.state_key.as_bytes());
        for topic in topics {
            resp::word(out, topic.as_bytes());
        }
        resp::word(out, self.token.as_bytes());
        resp::word(out, self.progress.as_bytes());
        resp::number(out, batch.len() as u64);
        for (record, place) in batch.iter().zip(places) {
            // Keys are counted from 1, and the first one is the progress.
            entries.encode(out, &record, place + 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::spec::Trim;
    use postrider_core::record::{Record, Ticket};
    use std::time::Duration;

    #[test]
    fn a_commit_names_each_stream_once_and_has_the_progress() {
        let mut batch = RecordBatch::default();
        for (ticket, topic) in [(1, "a"), (2, "b"), (3, "a")] {
            let record = Record {
                topic,
                partition: None,
                key: Some(b"k"),
                value: None,
                timestamp_ms: None,
                headers: &[],
            };
            batch.push(Ticket(ticket), &record);
        }
        let storing = Storing {
            in_transactions: false,
            creates: false,
            trim: Trim::Nothing,
            replicas: 0,
            replica_timeout: Duration::from_secs(1),
        };
        let call = CommitCall {
            sha: "sha",
            state_key: "state",
            token: "token",
            progress: "at 7",
            storing: &storing,
        };
        let mut out = Vec::new();
        call.encode(&mut out, &batch);
        let (reply, length) = resp::decode(&out, resp::REPLY_BYTES_MAX).unwrap().unwrap();
        assert_eq!(length, out.len());
        let words: Vec<_> = reply.elements().iter().map(|word| word.text().unwrap()).collect();
        assert_eq!(
            words.join("|"),
            "EVALSHA|sha|3|state|a|b|token|at 7|3|\
             2|4|NOMKSTREAM|*|key|k|3|4|NOMKSTREAM|*|key|k|2|4|NOMKSTREAM|*|key|k"
        );
    }

    #[test]
    fn answers_of_scripts_are_distinguished() {
        let reply =
            |text: &str| resp::decode(text.as_bytes(), resp::REPLY_BYTES_MAX).unwrap().unwrap().0;
        let array = |words: &[&str]| {
            let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
            format!("*{}\r\n{}", words.len(), words.collect::<String>())
        };
        let no_right = "NOPERM no right";
        for (words, answer) in [
            (&["ok", "", ""][..], CommitAnswer::Committed),
            (&["fenced", "", ""], CommitAnswer::Fenced),
            (&["gone", "", ""], CommitAnswer::Gone),
            (&["missing", "", "a"], CommitAnswer::Missing("a".to_owned())),
            (
                &["error", no_right, "a"],
                CommitAnswer::Error { stream: "a".to_owned(), error: ServerError::new(no_right) },
            ),
            (&["other", "", ""], CommitAnswer::Unknown),
            (&["ok"], CommitAnswer::Unknown),
        ] {
            assert_eq!(CommitAnswer::of(reply(&array(words))), answer, "{words:?}");
        }
        let refused = CommitAnswer::Refused(ServerError::new("OOM no memory"));
        assert_eq!(CommitAnswer::of(reply("-OOM no memory\r\n")), refused);
        for (words, answer) in [
            (&["ok", "at 7"][..], RecoverAnswer::Recovered("at 7".to_owned())),
            (&["ok", ""], RecoverAnswer::Recovered(String::new())),
            (&["foreign", ""], RecoverAnswer::Foreign),
            (&["ok"], RecoverAnswer::Unknown),
        ] {
            assert_eq!(RecoverAnswer::of(reply(&array(words))), answer, "{words:?}");
        }
    }
}
