//! A consumer of a group: entries of streams of Redis, and their acknowledgements. `postrider inbox run` reads with
//! it.
//!
//! One consumer of the group reads at a time. It takes over what was delivered to others and not acknowledged, and
//! reads that first. An entry that was delivered to another consumer meanwhile is found before later ones are stored
//! ([`RedisConsumer::has_all`]).

use super::config::RedisConfig;
use super::connection::Connection;
use super::link::{Located, check_role, locate};
use super::problem::{RedisProblem, RedisStep, in_words_of_sources};
use super::resp::Reply;
use super::spec::RedisSpec;
use std::fmt;
use std::time::Duration;

/// Identifiers of one command at most.
const IDS_MAX: usize = 500;

/// Bytes of entries that one command should bring, by the entries before.
const REPLY_BYTES_WANTED: usize = 4 << 20;

/// The size of an entry, until entries have come. Unit: bytes.
const ENTRY_BYTES_FIRST: usize = 64 << 10;

/// Before the id of the first entry of every stream.
const FIRST: &str = "0-0";

/// Where a group begins that does not exist yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RedisStart {
    /// With the oldest entry of the stream.
    #[default]
    Earliest,
    /// Behind the newest one.
    Latest,
}

impl RedisStart {
    /// The word of the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Earliest => "earliest",
            Self::Latest => "latest",
        }
    }
}

/// The streams that are wanted, and the group. The group is created in streams that do not have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamsWanted {
    /// Their names.
    pub streams: Vec<String>,
    /// The consumer group.
    pub group: String,
    /// Where it begins.
    pub start: RedisStart,
}

/// What the server does not do, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisConsumerProblem {
    /// What is wrong, in one line.
    pub reason: String,
    /// What fixes it.
    pub hint: Option<String>,
}

impl From<RedisProblem> for RedisConsumerProblem {
    fn from(problem: RedisProblem) -> Self {
        let hint = problem.hint.map(|hint| in_words_of_sources(&hint));
        Self { reason: problem.reason, hint }
    }
}

/// An entry. `Debug` shows its size alone.
pub struct RedisDelivery {
    /// The place of its stream among [`StreamsWanted::streams`].
    pub stream: usize,
    /// Its id.
    pub entry: String,
    /// Names and values of its fields, in their order.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for RedisDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisDelivery").field("fields", &self.fields.len()).finish_non_exhaustive()
    }
}

impl RedisDelivery {
    fn size_bytes(&self) -> usize {
        self.fields.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() + 64
    }
}

/// Entries that were deleted before they were stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisLoss {
    /// Their stream.
    pub stream: String,
    /// Their number, at least.
    pub entries: u64,
    /// Whether they had been delivered.
    pub delivered: bool,
}

/// The streams at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RedisLook {
    /// Entries that are not delivered; `None` if the server does not know it.
    pub lag: Option<u64>,
    /// What was found to be deleted since the last look.
    pub lost: Vec<RedisLoss>,
    /// Streams that can't be read, while others are: what is wrong, and what fixes it.
    pub missing: Vec<(String, String)>,
}

/// A stream of the group.
struct GroupStream {
    name: String,
    /// It exists, and has the group.
    is_read: bool,
    /// The entry up to which those that were delivered before are read; `None` after all of them.
    history: Option<String>,
    /// Entries that are known to be deleted before they were delivered.
    known_lost: u64,
}

/// A connection that reads streams.
pub struct RedisConsumer {
    connection: Connection,
    spec: RedisSpec,
    wanted: StreamsWanted,
    /// The name of the consumer, which no other connection has.
    name: String,
    streams: Vec<GroupStream>,
    /// The size of an entry, as the last ones had it. Unit: bytes.
    entry_bytes: usize,
    lost: Vec<RedisLoss>,
}

impl fmt::Debug for RedisConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConsumer").field("group", &self.wanted.group).finish_non_exhaustive()
    }
}

impl RedisConsumer {
    /// Connects to one of the servers, creates the group where it does not exist, and takes over what was delivered
    /// and not acknowledged. `attempt` chooses the server that is tried first; no other consumer may have the name.
    ///
    /// # Errors
    /// No server can be used, or no stream exists.
    pub async fn open(
        config: &RedisConfig,
        wanted: &StreamsWanted,
        (intake, name): (&str, &str),
        attempt: usize,
    ) -> Result<Self, RedisConsumerProblem> {
        let mut consumer = Self::connect(config, wanted, (intake, name), attempt).await?;
        consumer.begin().await?;
        Ok(consumer)
    }

    /// Looks whether the streams exist, and changes nothing. Returns what was found, in words.
    ///
    /// # Errors
    /// No server can be used, or a stream does not exist.
    pub async fn look_once(
        config: &RedisConfig,
        wanted: &StreamsWanted,
    ) -> Result<String, RedisConsumerProblem> {
        let mut consumer = Self::connect(config, wanted, ("check", "check"), 0).await?;
        for name in &wanted.streams {
            consumer
                .kind(name)
                .await?
                .map_err(|(reason, hint)| RedisConsumerProblem { reason, hint: Some(hint) })?;
        }
        Ok(format!("{} streams exist", wanted.streams.len()))
    }

    async fn connect(
        config: &RedisConfig,
        wanted: &StreamsWanted,
        (intake, name): (&str, &str),
        attempt: usize,
    ) -> Result<Self, RedisConsumerProblem> {
        if let Some((reason, hint)) = config.source_mistake() {
            return Err(RedisConsumerProblem { reason, hint: Some(hint) });
        }
        let spec = config.source_spec(&format!("inbox-{intake}"));
        let mut problem = None;
        for turn in 0..spec.servers.len() {
            let at = (attempt + turn) % spec.servers.len();
            let Some(server) = spec.servers.get(at) else { continue };
            let opened = async {
                let Located { mut connections, .. } = locate(&spec, server).await?;
                let none = || RedisProblem::lost("no server is named", "set sink.redis.servers");
                let mut connection = connections.pop().ok_or_else(none)?;
                check_role(&mut connection).await?;
                Ok(connection)
            };
            match opened.await {
                Ok(connection) => {
                    return Ok(Self::new(connection, &spec, wanted, name));
                }
                Err(why) => problem = Some(why),
            }
        }
        let none = || RedisProblem::lost("no server is named", "set sink.redis.servers");
        Err(problem.unwrap_or_else(none).into())
    }

    fn new(connection: Connection, spec: &RedisSpec, wanted: &StreamsWanted, name: &str) -> Self {
        let stream = |name: &String| GroupStream {
            name: name.clone(),
            is_read: false,
            history: None,
            known_lost: 0,
        };
        Self {
            connection,
            spec: spec.clone(),
            wanted: wanted.clone(),
            name: name.to_owned(),
            streams: wanted.streams.iter().map(stream).collect(),
            entry_bytes: ENTRY_BYTES_FIRST,
            lost: Vec::new(),
        }
    }

    /// Begins to read the streams that exist.
    async fn begin(&mut self) -> Result<(), RedisConsumerProblem> {
        let missing = self.join(true).await?;
        if self.streams.iter().any(|stream| stream.is_read) {
            return Ok(());
        }
        let (reason, hint) = missing.into_iter().next().unwrap_or_default();
        Err(RedisConsumerProblem { reason, hint: Some(hint) })
    }

    /// Creates the group in streams that are not read, and takes over what was delivered; returns what is wrong with
    /// those that can't be read, and what fixes it.
    async fn join(
        &mut self,
        is_first: bool,
    ) -> Result<Vec<(String, String)>, RedisConsumerProblem> {
        let mut missing = Vec::new();
        for at in 0..self.streams.len() {
            let Some(stream) = self.streams.get(at).filter(|stream| !stream.is_read) else {
                continue;
            };
            let name = stream.name.clone();
            if let Err(problem) = self.kind(&name).await? {
                missing.push(problem);
                continue;
            }
            // A stream that is joined later did not exist at first: all of it is new.
            let start = match self.wanted.start {
                RedisStart::Latest if is_first => "$",
                RedisStart::Latest | RedisStart::Earliest => "0",
            };
            self.create_group(&name, start).await?;
            self.take_over(at).await?;
            if let Some(stream) = self.streams.get_mut(at) {
                stream.is_read = true;
            }
        }
        Ok(missing)
    }

    /// Whether a key is a stream; if not, what is wrong and what fixes it.
    async fn kind(
        &mut self,
        name: &str,
    ) -> Result<Result<(), (String, String)>, RedisConsumerProblem> {
        let kind = self.ask(&[b"TYPE", name.as_bytes()]).await?.text().unwrap_or_default();
        let group = &self.wanted.group;
        Ok(match kind.as_str() {
            "stream" => Ok(()),
            "none" => Err((
                format!("stream {name:?} does not exist"),
                format!(
                    "its first event creates it, or: redis-cli XGROUP CREATE '{name}' '{group}' 0 MKSTREAM; the intake \
                     continues automatically"
                ),
            )),
            other => Err((
                format!("key {name:?} is a {other} and no stream"),
                "correct source.redis.streams, or rename or delete the key".to_owned(),
            )),
        })
    }

    async fn create_group(
        &mut self,
        stream: &str,
        start: &str,
    ) -> Result<(), RedisConsumerProblem> {
        let group = self.wanted.group.clone();
        let words: [&[u8]; 5] =
            [b"XGROUP", b"CREATE", stream.as_bytes(), group.as_bytes(), start.as_bytes()];
        let reply = self.connection.command(&words).await?;
        if matches!(&reply, Reply::Error(error) if error.code() == "BUSYGROUP") {
            return Ok(());
        }
        self.checked(reply).map(drop)
    }

    /// Takes over what was delivered to other consumers of the group.
    async fn take_over(&mut self, at: usize) -> Result<(), RedisConsumerProblem> {
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        stream.history = Some(FIRST.to_owned());
        let (name, group, me) = (stream.name.clone(), self.wanted.group.clone(), self.name.clone());
        let (mut from, mut deleted) = (FIRST.to_owned(), 0);
        loop {
            let count = IDS_MAX.to_string();
            let words: [&[u8]; 9] = [
                b"XAUTOCLAIM",
                name.as_bytes(),
                group.as_bytes(),
                me.as_bytes(),
                b"0",
                from.as_bytes(),
                b"COUNT",
                count.as_bytes(),
                b"JUSTID",
            ];
            let reply = self.ask(&words).await?;
            let [next, _, rest @ ..] = reply.elements() else { break };
            // Entries that the stream has not any more: the server has removed them from the group.
            deleted += rest.first().map_or(0, |ids| ids.elements().len());
            from = next.text().unwrap_or_else(|| FIRST.to_owned());
            if from == FIRST {
                break;
            }
        }
        self.loses(&name, deleted, true);
        Ok(())
    }

    fn loses(&mut self, stream: &str, entries: usize, delivered: bool) {
        if entries > 0 {
            let entries = u64::try_from(entries).unwrap_or(u64::MAX);
            self.lost.push(RedisLoss { stream: stream.to_owned(), entries, delivered });
        }
    }

    /// Entries, at most about `max`. It waits for the first one at most `wait`. After a take-over these are the
    /// entries that were delivered before.
    ///
    /// # Errors
    /// The connection is lost, or a stream or the group was deleted.
    pub async fn receive(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<RedisDelivery>, RedisConsumerProblem> {
        let in_history = self.streams.iter().position(|it| it.is_read && it.history.is_some());
        if let Some(at) = in_history {
            return self.receive_history(at, max).await;
        }
        let names: Vec<String> = self.read_streams().map(|(_, name)| name.to_owned()).collect();
        let (count, block) = (self.count(max, names.len()), wait.as_millis().to_string());
        let mut words: Vec<&[u8]> = vec![
            b"XREADGROUP",
            b"GROUP",
            self.wanted.group.as_bytes(),
            self.name.as_bytes(),
            b"COUNT",
            count.as_bytes(),
        ];
        if !wait.is_zero() {
            words.extend([b"BLOCK".as_slice(), block.as_bytes()]);
        }
        words.push(b"STREAMS");
        words.extend(names.iter().map(String::as_bytes));
        words.extend(names.iter().map(|_| b">".as_slice()));
        let reply = self.connection.command(&words).await?;
        let reply = self.checked(reply)?;
        let (entries, _) = self.entries(&reply);
        Ok(entries)
    }

    /// Entries of one stream that were delivered before.
    async fn receive_history(
        &mut self,
        at: usize,
        max: usize,
    ) -> Result<Vec<RedisDelivery>, RedisConsumerProblem> {
        let Some(stream) = self.streams.get(at) else { return Ok(Vec::new()) };
        let name = stream.name.clone();
        let from = stream.history.clone().unwrap_or_else(|| FIRST.to_owned());
        let count = self.count(max, 1);
        let words: [&[u8]; 9] = [
            b"XREADGROUP",
            b"GROUP",
            self.wanted.group.as_bytes(),
            self.name.as_bytes(),
            b"COUNT",
            count.as_bytes(),
            b"STREAMS",
            name.as_bytes(),
            from.as_bytes(),
        ];
        let reply = self.connection.command(&words).await?;
        let reply = self.checked(reply)?;
        let last = reply.elements().first().and_then(|stream| {
            stream.elements().get(1)?.elements().last()?.elements().first()?.text()
        });
        let (entries, gone) = self.entries(&reply);
        if !gone.is_empty() {
            // Deleted since the take-over.
            self.loses(&name, gone.len(), true);
            self.acknowledge(at, &gone).await?;
        }
        if let Some(stream) = self.streams.get_mut(at) {
            stream.history = last;
        }
        Ok(entries)
    }

    fn read_streams(&self) -> impl Iterator<Item = (usize, &str)> {
        let read = |(at, stream): (usize, &'_ GroupStream)| stream.is_read.then_some(at);
        let places: Vec<usize> = self.streams.iter().enumerate().filter_map(read).collect();
        places.into_iter().filter_map(|at| Some((at, self.streams.get(at)?.name.as_str())))
    }

    /// Entries of each stream that one command should bring.
    fn count(&self, max: usize, streams: usize) -> String {
        let by_bytes = REPLY_BYTES_WANTED / self.entry_bytes.max(1);
        (max.min(by_bytes) / streams.max(1)).max(1).to_string()
    }

    /// The entries of an answer, and the ids of those that are deleted.
    fn entries(&mut self, reply: &Reply) -> (Vec<RedisDelivery>, Vec<String>) {
        let (mut entries, mut gone) = (Vec::new(), Vec::new());
        for of_stream in reply.elements() {
            let [name, list] = of_stream.elements() else { continue };
            let name = name.text().unwrap_or_default();
            let at = self.streams.iter().position(|stream| stream.name == name);
            let Some(stream) = at else { continue };
            for entry in list.elements() {
                let [id, fields] = entry.elements() else { continue };
                let id = id.text().unwrap_or_default();
                if matches!(fields, Reply::Nil) {
                    gone.push(id);
                    continue;
                }
                let fields = fields.elements().chunks(2).map(pair).collect();
                entries.push(RedisDelivery { stream, entry: id, fields });
            }
        }
        if let Some(count) = entries.len().checked_sub(1) {
            let bytes: usize = entries.iter().map(RedisDelivery::size_bytes).sum();
            // Larger entries count at once, smaller ones by and by.
            let mean = bytes / (count + 1);
            self.entry_bytes = mean.max(usize::midpoint(self.entry_bytes, mean));
        }
        (entries, gone)
    }

    /// Whether no other consumer has entries that are not acknowledged. If one has, they are taken over, and what was
    /// received is received again, in its order, by the next calls of [`receive`](Self::receive).
    ///
    /// # Errors
    /// The connection is lost, or a stream or the group was deleted.
    pub async fn has_all(&mut self) -> Result<bool, RedisConsumerProblem> {
        let mut has_all = true;
        for at in 0..self.streams.len() {
            let Some(stream) = self.streams.get(at).filter(|stream| stream.is_read) else {
                continue;
            };
            let (name, group) = (stream.name.clone(), self.wanted.group.clone());
            let reply = self.ask(&[b"XPENDING", name.as_bytes(), group.as_bytes()]).await?;
            let consumers = reply.elements().get(3).map(Reply::elements).unwrap_or_default();
            let is_other = |consumer: &Reply| {
                let name = consumer.elements().first().and_then(Reply::text);
                name.is_some_and(|name| name != self.name)
            };
            if consumers.iter().any(is_other) {
                self.take_over(at).await?;
                has_all = false;
            }
        }
        if !has_all {
            // The entries of all streams are received again: what was received is dropped.
            for stream in &mut self.streams {
                stream.history = Some(FIRST.to_owned());
            }
        }
        Ok(has_all)
    }

    /// Acknowledges entries of a stream.
    ///
    /// # Errors
    /// The connection is lost; some may be acknowledged.
    pub async fn acknowledge(
        &mut self,
        stream: usize,
        ids: &[String],
    ) -> Result<(), RedisConsumerProblem> {
        let Some(name) = self.streams.get(stream).map(|stream| stream.name.clone()) else {
            return Ok(());
        };
        let group = self.wanted.group.clone();
        for ids in ids.chunks(IDS_MAX) {
            let mut words: Vec<&[u8]> = vec![b"XACK", name.as_bytes(), group.as_bytes()];
            words.extend(ids.iter().map(String::as_bytes));
            self.ask(&words).await?;
        }
        Ok(())
    }

    /// Looks at the streams, and begins to read those that were missing.
    ///
    /// # Errors
    /// The connection is lost, or a stream or the group was deleted.
    pub async fn look(&mut self) -> Result<RedisLook, RedisConsumerProblem> {
        let missing = self.join(false).await?;
        let (mut lag, places) = (Some(0_u64), self.streams.len());
        for at in 0..places {
            let Some(stream) = self.streams.get(at).filter(|stream| stream.is_read) else {
                continue;
            };
            let name = stream.name.clone();
            let facts = self.ask(&[b"XINFO", b"STREAM", name.as_bytes()]).await?;
            let groups = self.ask(&[b"XINFO", b"GROUPS", name.as_bytes()]).await?;
            let group = &self.wanted.group;
            let ours = groups
                .elements()
                .iter()
                .find(|it| value_of(it, "name").and_then(Reply::text).as_ref() == Some(group));
            let number = |of: &Reply, key: &str| {
                value_of(of, key).and_then(Reply::integer).and_then(|it| u64::try_from(it).ok())
            };
            let of_group = ours.and_then(|ours| number(ours, "lag"));
            lag = lag.zip(of_group).map(|(lag, more)| lag.saturating_add(more));
            let deleted = number(&facts, "entries-added")
                .zip(number(&facts, "length"))
                .map(|(all, length)| all.saturating_sub(length));
            let read = ours.and_then(|ours| number(ours, "entries-read"));
            let lost = deleted.zip(read).map_or(0, |(deleted, read)| deleted.saturating_sub(read));
            let Some(stream) = self.streams.get_mut(at) else { continue };
            let new = lost.saturating_sub(stream.known_lost);
            stream.known_lost = lost.max(stream.known_lost);
            self.loses(&name, usize::try_from(new).unwrap_or(usize::MAX), false);
        }
        Ok(RedisLook { lag, lost: std::mem::take(&mut self.lost), missing })
    }

    /// Ends the connection, and deletes the consumer if nothing is delivered to it that is not acknowledged.
    pub async fn close(mut self) {
        for at in 0..self.streams.len() {
            let Some(stream) = self.streams.get(at).filter(|stream| stream.is_read) else {
                continue;
            };
            let (name, group, me) =
                (stream.name.clone(), self.wanted.group.clone(), self.name.clone());
            let words: [&[u8]; 7] =
                [b"XPENDING", name.as_bytes(), group.as_bytes(), b"-", b"+", b"1", me.as_bytes()];
            let Ok(Reply::Array(pending)) = self.ask(&words).await else { return };
            if pending.is_empty() {
                let words: [&[u8]; 5] =
                    [b"XGROUP", b"DELCONSUMER", name.as_bytes(), group.as_bytes(), me.as_bytes()];
                // Without it the name stays in the group, which does no harm.
                drop(self.ask(&words).await);
            }
        }
    }

    async fn ask(&mut self, words: &[&[u8]]) -> Result<Reply, RedisConsumerProblem> {
        let reply = self.connection.command(words).await?;
        self.checked(reply)
    }

    /// An error of the server with its meaning.
    fn checked(&self, reply: Reply) -> Result<Reply, RedisConsumerProblem> {
        let error = match reply.checked() {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let place = self.connection.address.to_string();
        let problem = RedisProblem::server(RedisStep::Read, &place, &error, &self.spec);
        let group = &self.wanted.group;
        let hint = match error.code() {
            "NOPERM" => {
                let mut keys = String::new();
                for stream in &self.streams {
                    keys.push_str(" '~");
                    keys.push_str(&stream.name);
                    keys.push('\'');
                }
                format!(
                    "give the login its rights: redis-cli ACL SETUSER {}{keys} {RIGHTS}; the intake continues \
                     automatically",
                    self.spec.user()
                )
            }
            "NOGROUP" => format!(
                "a stream or group {group:?} was deleted: the intake creates the group again automatically. With start \
                 = \"latest\" it passes over what is in the stream then, uncounted; to read it: redis-cli XGROUP SETID \
                 STREAM {group} 0"
            ),
            "WRONGTYPE" => "correct source.redis.streams: a key is no stream any more".to_owned(),
            _ => return Err(problem.into()),
        };
        Err(RedisConsumerProblem { reason: problem.reason, hint: Some(hint) })
    }
}

/// What the login of a consumer may do.
const RIGHTS: &str = "+client|setname +role +type +xreadgroup +xack +xautoclaim +xpending +xgroup|create \
                      +xgroup|delconsumer +xinfo|stream +xinfo|groups";

/// Name and value of a field.
fn pair(words: &[Reply]) -> (Vec<u8>, Vec<u8>) {
    let bytes = |reply: Option<&Reply>| match reply {
        Some(Reply::Bulk(bytes)) => bytes.clone(),
        Some(Reply::Simple(text)) => text.clone().into_bytes(),
        Some(Reply::Error(_) | Reply::Integer(_) | Reply::Nil | Reply::Array(_)) | None => {
            Vec::new()
        }
    };
    (bytes(words.first()), bytes(words.get(1)))
}

/// The value of a name in an array of names and values.
fn value_of<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let mut pairs = reply.elements().chunks(2);
    let found = pairs.find(|pair| pair.first().and_then(Reply::text).as_deref() == Some(name));
    found?.get(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    #[test]
    fn values_are_found_by_their_names() {
        let facts = Reply::Array(vec![bulk("length"), Reply::Integer(3), bulk("lag"), Reply::Nil]);
        assert_eq!(value_of(&facts, "length").and_then(Reply::integer), Some(3));
        assert_eq!(value_of(&facts, "lag"), Some(&Reply::Nil));
        assert_eq!(value_of(&facts, "entries-read"), None);
        assert_eq!(value_of(&Reply::Nil, "lag"), None);
    }

    #[test]
    fn a_field_has_a_name_and_bytes() {
        assert_eq!(pair(&[bulk("key"), Reply::Bulk(vec![0xff])]), (b"key".to_vec(), vec![0xff]));
        assert_eq!(pair(&[bulk("key")]), (b"key".to_vec(), Vec::new()));
    }

    #[test]
    fn hints_name_the_keys_of_the_intake() {
        let hint = "let sink.redis.servers name the primary; the sink connects again automatically";
        assert_eq!(
            in_words_of_sources(hint),
            "let source.redis.servers name the primary; the intake connects again automatically"
        );
    }
}
