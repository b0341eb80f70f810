//! `postrider inbox seek`: lets an intake continue at another offset of a partition.

use super::args::{SeekInboxArgs, SeekOffset};
use super::error::InboxCommandError;
use super::run::chosen;
use crate::cli::dialog::{agreed, print};
use crate::cli::error::{CliError, Exit, printable};
use crate::config::Config;
use crate::health::grouped;
use crate::inbox::batch::Partition;
use crate::inbox::kafka::{KafkaSourceConfig, PartitionBounds, bounds};
use crate::inbox::store::{InboxStore, StoredOffset};
use crate::intake::IntakeSource;
use serde_json::json;

/// Runs the command.
pub(crate) async fn run(config: &Config, args: &SeekInboxArgs) -> Result<Exit, CliError> {
    let spec = chosen(config, std::slice::from_ref(&args.name))?.remove(0);
    let IntakeSource::Kafka(config) = &spec.source else {
        return Err(InboxCommandError::NoPartitions { intake: spec.name }.into());
    };
    let partition = Partition { topic: args.topic.clone(), number: args.partition };
    let store = InboxStore::connect(&spec.inbox, "postrider inbox seek").await?;
    let stored = store.offsets(std::slice::from_ref(&partition)).await?.remove(&partition);
    let Some(stored) = stored else {
        let (topic, number) = (printable(&args.topic), args.partition);
        return Err(InboxCommandError::NoOffset { topic, partition: number }.into());
    };
    let there = ask(config, &partition).await?;
    let to = match args.to {
        SeekOffset::Earliest => there.low,
        SeekOffset::Latest => there.high,
        SeekOffset::At(at) if (there.low..=there.high).contains(&at) => at,
        SeekOffset::At(at) => {
            let (low, high) = (there.low, there.high);
            return Err(InboxCommandError::OutOfRange { at, low, high }.into());
        }
    };
    let effect = Effect::of(&stored, &there, to);
    let needs_yes = || InboxCommandError::NeedsYes { command: "seek" }.into();
    if !agreed(&effect.text(), "Continue there?", args.yes, needs_yes)? {
        return Ok(Exit::Done);
    }
    let new = StoredOffset { next: to, leader_epoch: None, topic_id: there.topic_id };
    if !store.seek(&partition, stored.next, &new).await? {
        return Err(InboxCommandError::OffsetMoved.into());
    }
    let value = json!({
        "intake": args.name,
        "topic": args.topic,
        "partition": args.partition,
        "from": stored.next,
        "to": to,
        "not_stored": effect.not_stored,
        "read_again": effect.read_again,
    });
    print(args.json, &value, &format!("the intake continues at offset {to}"))
}

/// Asks the brokers of an intake. The client waits, so another thread asks.
async fn ask(
    config: &KafkaSourceConfig,
    partition: &Partition,
) -> Result<PartitionBounds, CliError> {
    let (asking, of, brokers) = (config.clone(), partition.clone(), config.brokers.clone());
    let asked = tokio::task::spawn_blocking(move || bounds(&asking, &of)).await;
    let error = match asked {
        Ok(Ok(bounds)) => return Ok(bounds),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    Err(InboxCommandError::Broker { brokers, error }.into())
}

/// What the change means for records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Effect {
    /// The topic is another one than that of the stored offset.
    is_other_topic: bool,
    from: i64,
    to: i64,
    /// Records that are there, were not stored, and will not be.
    not_stored: u64,
    /// Records that are read again.
    read_again: u64,
}

impl Effect {
    fn of(stored: &StoredOffset, there: &PartitionBounds, to: i64) -> Self {
        let known = (&stored.topic_id, &there.topic_id);
        let is_other_topic = matches!(known, (Some(stored), Some(now)) if stored != now);
        // Of a new topic nothing is stored.
        let from = if is_other_topic { there.low } else { stored.next };
        let count = |from: i64, to: i64| {
            let (from, to) = (from.max(there.low), to.min(there.high));
            u64::try_from(to - from).unwrap_or(0)
        };
        Self {
            is_other_topic,
            from: stored.next,
            to,
            not_stored: count(from, to),
            read_again: count(to, from),
        }
    }

    fn text(&self) -> String {
        let Self { from, to, .. } = self;
        let topic = if self.is_other_topic {
            "the topic was created again since, and its records are other ones; "
        } else {
            ""
        };
        let (not_stored, read_again) = (grouped(self.not_stored), grouped(self.read_again));
        let records = match (self.not_stored, self.read_again) {
            (0, 0) => "no record that is there is passed over or read again".to_owned(),
            (0, _) => format!(
                "up to {read_again} records are read again. Those whose message is in the inbox, or whose id is still \
                 remembered, are not stored again; the others are"
            ),
            (_, _) => {
                format!("up to {not_stored} records that were not stored will never be stored")
            }
        };
        format!("from offset {from} to offset {to}: {topic}{records}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(stored: i64, (low, high): (i64, i64), to: i64) -> Effect {
        let id = Some("id".to_owned());
        let stored = StoredOffset { next: stored, leader_epoch: None, topic_id: id.clone() };
        Effect::of(&stored, &PartitionBounds { low, high, topic_id: id }, to)
    }

    #[test]
    fn the_effect_counts_what_is_passed_over_and_what_is_read_again() {
        let counts = |effect: Effect| (effect.not_stored, effect.read_again);
        assert_eq!(counts(effect(5, (0, 20), 12)), (7, 0));
        assert_eq!(counts(effect(12, (0, 20), 5)), (0, 7));
        // What is gone is neither.
        assert_eq!(counts(effect(5, (9, 20), 9)), (0, 0));
        assert_eq!(counts(effect(25, (0, 20), 20)), (0, 0));
        assert!(
            effect(5, (0, 20), 12).text().contains("7 records that were not stored will never")
        );
    }

    #[test]
    fn of_a_topic_that_was_created_again_nothing_is_stored() {
        let id = |text: &str| Some(text.to_owned());
        let stored = StoredOffset { next: 5, leader_epoch: None, topic_id: id("a") };
        let there = PartitionBounds { low: 0, high: 10, topic_id: id("b") };
        let effect = Effect::of(&stored, &there, 0);
        assert_eq!((effect.not_stored, effect.read_again, effect.is_other_topic), (0, 0, true));
        assert_eq!(Effect::of(&stored, &there, 10).not_stored, 10);
    }
}
