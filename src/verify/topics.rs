//! The topics: which are read, from where to where, and their records for the comparison.

use super::comparison::{OutOfMemory, TopicComparison, TopicFacts, TopicRecord};
use super::error::VerifyError;
use super::report::{ReadPartition, ReadTopic};
use super::request::{PartitionRange, VerifyProgress, VerifyRequest};
use crate::inbox::batch::Partition;
use crate::inbox::kafka::{FoundTopic, KafkaSourceConfig, PartitionExtent, Polled, TopicReader};
use crate::inbox::mapping::KafkaRecord;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Topics of one run.
const TOPICS_MAX: usize = 1000;

/// How long nothing may be read before the reason is reported. An open transaction of a process that has ended may last
/// longer: by default the brokers abort it after a minute.
const STALL: Duration = Duration::from_secs(30);

/// How long one poll waits.
const POLL: Duration = Duration::from_millis(100);

/// Records between two reports of progress.
const PROGRESS_RECORDS: u64 = 10_000;

/// Where the records are, and how they are read.
pub(super) struct TopicSide<'a> {
    config: &'a KafkaSourceConfig,
    reader: TopicReader,
    request: &'a VerifyRequest,
    /// Each topic that exists, and whether it is compacted, if that is known.
    topics: Vec<ReadTopic>,
    /// Its id, by name.
    ids: BTreeMap<String, Option<String>>,
    parts: Vec<ReadPart>,
}

/// A partition that is read.
struct ReadPart {
    partition: Partition,
    /// Index of its topic in [`TopicSide::topics`].
    topic: usize,
    /// Index in the comparison.
    compared: usize,
    low: i64,
    from: i64,
    to: i64,
    /// The next offset.
    reached: i64,
    records: u64,
    done: bool,
    /// The last thing that was read of it is the end of its committed records.
    at_end: bool,
}

/// One reading of all partitions.
struct PartReading<'p> {
    parts: &'p mut [ReadPart],
    /// Index of a part, by topic and partition.
    places: HashMap<String, HashMap<i32, usize>>,
    open: usize,
    records: u64,
    moved: Instant,
    why: String,
}

impl<'a> TopicSide<'a> {
    /// Finds the topics and their ends. The source must have been read before: what it says to be published is below
    /// these ends.
    ///
    /// # Errors
    /// librdkafka refuses the settings; no answer about a topic, or the login may not read one.
    pub(super) fn find(
        config: &'a KafkaSourceConfig,
        request: &'a VerifyRequest,
        names: &BTreeSet<String>,
    ) -> Result<Self, VerifyError> {
        if names.len() > TOPICS_MAX {
            return Err(VerifyError::TooManyTopics { max: TOPICS_MAX });
        }
        let (brokers, reader) = (config.brokers.as_str(), open(config)?);
        let no_answer =
            |reason: String| VerifyError::Brokers { brokers: brokers.to_owned(), reason };
        let (mut topics, mut partitions) = (Vec::new(), Vec::new());
        for name in names {
            let found = reader.find(name).map_err(|error| no_answer(error.to_string()))?;
            let numbers = match found {
                FoundTopic::Partitions(numbers) => Some(numbers),
                FoundTopic::Missing => None,
                FoundTopic::Denied => return Err(VerifyError::Denied { topic: name.clone() }),
                FoundTopic::Failed(reason) => {
                    return Err(VerifyError::Topic { topic: name.clone(), reason });
                }
            };
            let of = |number| Partition { topic: name.clone(), number };
            let exists = numbers.is_some();
            partitions
                .extend(numbers.into_iter().flatten().map(|number| (topics.len(), of(number))));
            let (is_compacted, partitions) = (None, Vec::new());
            topics.push(ReadTopic { name: name.clone(), exists, is_compacted, partitions });
        }
        let existing = topics.iter().filter(|topic| topic.exists).map(|topic| topic.name.as_str());
        let existing: BTreeSet<&str> = existing.collect();
        let ids = if existing.is_empty() {
            BTreeMap::new()
        } else {
            reader.ids(&existing).map_err(no_answer)?
        };
        let asked: Vec<&Partition> = partitions.iter().map(|(_, partition)| partition).collect();
        let extents = extents(&reader, brokers, &asked)?;
        let mut side = Self { config, reader, request, topics, ids, parts: Vec::new() };
        side.choose(partitions, &extents)?;
        Ok(side)
    }

    /// Which part of each partition is read.
    fn choose(
        &mut self,
        partitions: Vec<(usize, Partition)>,
        extents: &BTreeMap<Partition, PartitionExtent>,
    ) -> Result<(), VerifyError> {
        let since = self.request.since.filter(|_| self.request.parts.is_empty());
        let starts = match since {
            None => BTreeMap::new(),
            Some(since) => {
                let all: Vec<&Partition> = partitions.iter().map(|(_, of)| of).collect();
                let found = self.reader.offsets_since(&all, since.unix_millis());
                found.map_err(|error| VerifyError::Brokers {
                    brokers: self.config.brokers.clone(),
                    reason: error.to_string(),
                })?
            }
        };
        for (topic, partition) in partitions {
            let Some(PartitionExtent { low, written }) = extents.get(&partition).copied() else {
                continue;
            };
            let (mut from, mut to) = (low, written);
            if since.is_some() {
                // Without a newer record there is nothing to read.
                from = starts.get(&partition).copied().flatten().unwrap_or(written).max(low);
            }
            if !self.request.parts.is_empty() {
                let asked = |part: &&PartitionRange| {
                    part.topic == partition.topic && part.partition == partition.number
                };
                let Some(part) = self.request.parts.iter().find(asked) else { continue };
                (from, to) = (part.from.clamp(low, written), part.to.clamp(low, written));
            }
            self.parts.push(ReadPart {
                partition,
                topic,
                compared: 0,
                low,
                from,
                to: to.max(from),
                reached: from,
                records: 0,
                done: from >= to,
                at_end: false,
            });
        }
        for part in &self.request.parts {
            let is_there = self.parts.iter().any(|read| {
                read.partition.topic == part.topic && read.partition.number == part.partition
            });
            if !is_there {
                return Err(VerifyError::NoPartition {
                    topic: part.topic.clone(),
                    partition: part.partition,
                });
            }
        }
        Ok(())
    }

    /// The topics that exist.
    pub(super) fn existing(&self) -> Vec<String> {
        let existing = self.topics.iter().filter(|topic| topic.exists);
        existing.map(|topic| topic.name.clone()).collect()
    }

    /// Reads everything. `compacted`: whether each topic is compacted, as far as that is known.
    ///
    /// # Errors
    /// A partition can't be read to its end, or the comparison has no memory.
    pub(super) fn read(
        mut self,
        comparison: &mut TopicComparison,
        compacted: &BTreeMap<String, bool>,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<Vec<ReadTopic>, VerifyError> {
        for topic in &mut self.topics {
            topic.is_compacted = compacted.get(&topic.name).copied();
            let is_extra = self.request.topics.contains(&topic.name);
            let may_compact = topic.exists && topic.is_compacted != Some(false);
            let facts = TopicFacts { may_compact, is_extra, ..TopicFacts::default() };
            comparison.add_topic(&topic.name, facts);
        }
        for part in &mut self.parts {
            let of = &part.partition;
            let may_compact =
                self.topics.get(part.topic).is_some_and(|topic| topic.is_compacted != Some(false));
            let is_truncated = part.low > 0;
            let facts = TopicFacts { is_truncated, ..TopicFacts::default() };
            comparison.add_topic(&of.topic, facts);
            let is_whole = part.from == 0 && !may_compact;
            part.compared = comparison.add_partition(&of.topic, of.number, is_whole);
        }
        let events = comparison.events();
        let records = &mut |records| progress(VerifyProgress { events, records });
        let mut full = None;
        self.read_parts(
            &mut |record| full = full.or(comparison.add_record(record).err()),
            records,
        )?;
        if let Some(OutOfMemory { events }) = full {
            return Err(VerifyError::Memory { events, memory_max: self.request.memory_max });
        }
        self.compare_beginnings(comparison)?;
        let mut topics = self.summary();
        if self.request.since.is_some() && self.request.parts.is_empty() && comparison.misses() {
            // An event may have been published with an earlier time than its row has. Another client, which has no
            // records of the first reading in its queue.
            self.reader = open(self.config)?;
            for part in &mut self.parts {
                (part.to, part.from) = (part.from, part.low);
                (part.reached, part.records, part.done) = (part.low, 0, part.low >= part.to);
            }
            self.read_parts(&mut |record| comparison.add_earlier_record(record), records)?;
            self.compare_beginnings(comparison)?;
            for (topic, earlier) in topics.iter_mut().zip(self.summary()) {
                for (part, earlier) in topic.partitions.iter_mut().zip(earlier.partitions) {
                    part.from = earlier.from;
                    part.records += earlier.records;
                }
            }
        }
        self.compare_ids()?;
        Ok(topics)
    }

    /// Reads all parts that are not done to their ends.
    fn read_parts(
        &mut self,
        receive: &mut dyn FnMut(&TopicRecord<'_>),
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), VerifyError> {
        let open = self.parts.iter().filter(|part| !part.done);
        let starts: BTreeMap<Partition, i64> =
            open.map(|part| (part.partition.clone(), part.from)).collect();
        if starts.is_empty() {
            return Ok(());
        }
        let refused = |error: &dyn std::fmt::Display| VerifyError::Client(error.to_string());
        self.reader.assign(&starts).map_err(|error| refused(&error))?;
        let mut reading = PartReading::new(&mut self.parts);
        let mut next_progress = PROGRESS_RECORDS;
        while reading.open > 0 {
            let mut finished = None;
            let polled = self.reader.poll(POLL, &mut |record| {
                finished = reading.record(record, receive);
            });
            let finished = reading.polled(polled).or(finished);
            if let Some(partition) = finished {
                self.reader.pause(&partition).map_err(|error| refused(&error))?;
            }
            if reading.records >= next_progress {
                next_progress = reading.records + PROGRESS_RECORDS;
                progress(reading.records);
            }
            if let Some(error) = reading.stalled() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Records may have been removed while the partitions were read.
    fn compare_beginnings(&self, comparison: &mut TopicComparison) -> Result<(), VerifyError> {
        let all: Vec<&Partition> = self.parts.iter().map(|part| &part.partition).collect();
        let now = extents(&self.reader, &self.config.brokers, &all)?;
        for part in &self.parts {
            if now.get(&part.partition).is_some_and(|extent| extent.low > part.from) {
                comparison.truncated(part.compared);
            }
        }
        Ok(())
    }

    /// A topic that was deleted and created again has other records at the same offsets.
    fn compare_ids(&self) -> Result<(), VerifyError> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let names: BTreeSet<&str> = self.ids.keys().map(String::as_str).collect();
        let now = self.reader.ids(&names).map_err(|reason| VerifyError::Brokers {
            brokers: self.config.brokers.clone(),
            reason,
        })?;
        for (topic, id) in &self.ids {
            if now.get(topic) != Some(id) {
                return Err(VerifyError::Recreated { topic: topic.clone() });
            }
        }
        Ok(())
    }

    fn summary(&self) -> Vec<ReadTopic> {
        let mut topics = self.topics.clone();
        for part in &self.parts {
            let Some(topic) = topics.get_mut(part.topic) else { continue };
            topic.partitions.push(ReadPartition {
                number: part.partition.number,
                low: part.low,
                from: part.from,
                to: part.to,
                records: part.records,
            });
        }
        topics
    }
}

fn open(config: &KafkaSourceConfig) -> Result<TopicReader, VerifyError> {
    let reader = TopicReader::open(config, &config.group);
    reader.map_err(|error| VerifyError::Client(error.to_string()))
}

/// The extents of partitions.
fn extents(
    reader: &TopicReader,
    brokers: &str,
    partitions: &[&Partition],
) -> Result<BTreeMap<Partition, PartitionExtent>, VerifyError> {
    let found = reader.extents(partitions);
    let found =
        found.map_err(|reason| VerifyError::Brokers { brokers: brokers.to_owned(), reason })?;
    let of = |(partition, extent): (Partition, Result<PartitionExtent, String>)| match extent {
        Ok(extent) => Ok((partition, extent)),
        Err(error) => {
            let reason = format!("partition {}: {error}", partition.number);
            Err(VerifyError::Topic { topic: partition.topic, reason })
        }
    };
    found.into_iter().map(of).collect()
}

impl<'p> PartReading<'p> {
    fn new(parts: &'p mut [ReadPart]) -> Self {
        let mut places: HashMap<String, HashMap<i32, usize>> = HashMap::new();
        for (index, part) in parts.iter().enumerate() {
            let Partition { topic, number } = part.partition.clone();
            places.entry(topic).or_default().insert(number, index);
        }
        let open = parts.iter().filter(|part| !part.done).count();
        Self { parts, places, open, records: 0, moved: Instant::now(), why: String::new() }
    }

    fn part(&mut self, topic: &str, number: i32) -> Option<&mut ReadPart> {
        let index = *self.places.get(topic)?.get(&number)?;
        self.parts.get_mut(index).filter(|part| !part.done)
    }

    /// A record. Returns its partition, if that is read to its end.
    fn record(
        &mut self,
        record: &KafkaRecord<'_>,
        receive: &mut dyn FnMut(&TopicRecord<'_>),
    ) -> Option<Partition> {
        let part = self.part(record.topic, record.partition)?;
        let is_inside = record.offset < part.to;
        if is_inside {
            receive(&of_record(record, part.compared));
            part.records += 1;
        }
        let finished = part.moved_to(record.offset + 1);
        part.at_end = false;
        self.records += u64::from(is_inside);
        self.after(finished)
    }

    /// Any other event. Returns the partition that is read to its end.
    fn polled(&mut self, polled: Polled) -> Option<Partition> {
        match polled {
            Polled::End { partition, offset } => {
                let part = self.part(&partition.topic, partition.number)?;
                let before = part.reached;
                let finished = part.moved_to(offset);
                part.at_end = finished.is_none();
                // The end of committed records is reported again and again while a transaction is open.
                if finished.is_none() && offset <= before {
                    return None;
                }
                self.after(finished)
            }
            Polled::Error { reason, .. } => {
                self.why = format!(": {reason}");
                None
            }
            Polled::Nothing | Polled::Record | Polled::Assigned(_) | Polled::Revoked => None,
        }
    }

    fn after(&mut self, finished: Option<Partition>) -> Option<Partition> {
        self.moved = Instant::now();
        self.open -= usize::from(finished.is_some());
        finished
    }

    /// Why the reading is not going on, after some time.
    fn stalled(&self) -> Option<VerifyError> {
        if self.moved.elapsed() < STALL {
            return None;
        }
        let part = self.parts.iter().find(|part| !part.done)?;
        let Partition { topic, number } = part.partition.clone();
        let (reached, end) = (part.reached, part.to);
        Some(if part.at_end {
            VerifyError::Held { topic, partition: number, reached, end }
        } else {
            VerifyError::Stalled { topic, partition: number, reached, end, why: self.why.clone() }
        })
    }
}

impl ReadPart {
    /// Everything before this offset was read. Returns the partition, if that is all.
    fn moved_to(&mut self, offset: i64) -> Option<Partition> {
        self.reached = self.reached.max(offset);
        self.done = self.reached >= self.to;
        self.done.then(|| self.partition.clone())
    }
}

fn of_record<'r>(record: &'r KafkaRecord<'_>, partition: usize) -> TopicRecord<'r> {
    let header = |name: &str| {
        let mut headers = record.headers.iter();
        headers.find(|(known, _)| *known == name.as_bytes()).and_then(|(_, value)| *value)
    };
    TopicRecord {
        partition,
        offset: record.offset,
        key: record.key,
        id: header("id"),
        position: header("position"),
        origin: header("source"),
        is_replay: record.headers.iter().any(|(name, _)| *name == b"replay"),
    }
}
