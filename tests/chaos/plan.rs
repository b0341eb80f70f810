//! The schedule, which a seed determines.

use fastrand::Rng;
use std::time::Duration;

/// The faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Act {
    KillActive,
    KillStandby,
    KillBoth,
    FreezeActive,
    FreezeStandby,
    StopActive,
    KillDatabase,
    RestartDatabase,
    StopDatabaseAtOnce,
    FreezeDatabase,
    EndWalsender,
    EndSessions,
    KillLeader,
    KillTwoBrokers,
    FreezeLeader,
    RestartLeader,
    CutDatabase,
    DelayDatabase,
    SliceDatabase,
    HalveDatabase,
    HoleDatabase,
    CutBrokers,
    DelayBrokers,
    SlowBrokers,
    HalveBrokers,
    HoleBrokers,
    Poison,
    FullDisk,
    DeleteTopic,
    SlowConsumer,
    Burst,
    DropSlot,
    LoseSlot,
}

/// What a fault affects: a row of the picture.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    Relays,
    Database,
    Brokers,
    Network,
    Data,
}

impl Lane {
    pub(crate) const ALL: [Self; 5] =
        [Self::Relays, Self::Database, Self::Brokers, Self::Network, Self::Data];

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Relays => "relays",
            Self::Database => "database",
            Self::Brokers => "brokers",
            Self::Network => "network",
            Self::Data => "data",
        }
    }
}

impl Act {
    /// All faults except those that remove the slot.
    pub(crate) const ALL: [Self; 31] = [
        Self::KillActive,
        Self::KillStandby,
        Self::KillBoth,
        Self::FreezeActive,
        Self::FreezeStandby,
        Self::StopActive,
        Self::KillDatabase,
        Self::RestartDatabase,
        Self::StopDatabaseAtOnce,
        Self::FreezeDatabase,
        Self::EndWalsender,
        Self::EndSessions,
        Self::KillLeader,
        Self::KillTwoBrokers,
        Self::FreezeLeader,
        Self::RestartLeader,
        Self::CutDatabase,
        Self::DelayDatabase,
        Self::SliceDatabase,
        Self::HalveDatabase,
        Self::HoleDatabase,
        Self::CutBrokers,
        Self::DelayBrokers,
        Self::SlowBrokers,
        Self::HalveBrokers,
        Self::HoleBrokers,
        Self::Poison,
        Self::FullDisk,
        Self::DeleteTopic,
        Self::SlowConsumer,
        Self::Burst,
    ];

    /// The fault, for the report.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::KillActive => "kill -9 of the relay that streams",
            Self::KillStandby => "kill -9 of the relay that stands by",
            Self::KillBoth => "kill -9 of both relays",
            Self::FreezeActive => "the relay that streams is frozen (SIGSTOP)",
            Self::FreezeStandby => "the relay that stands by is frozen",
            Self::StopActive => "SIGTERM of the relay that streams",
            Self::KillDatabase => "kill -9 of all of PostgreSQL",
            Self::RestartDatabase => "fast restart of PostgreSQL",
            Self::StopDatabaseAtOnce => "immediate restart of PostgreSQL",
            Self::FreezeDatabase => "PostgreSQL is frozen",
            Self::EndWalsender => "pg_terminate_backend of the walsender",
            Self::EndSessions => "pg_terminate_backend of every session",
            Self::KillLeader => "kill -9 of the broker that leads",
            Self::KillTwoBrokers => "kill -9 of two brokers of three",
            Self::FreezeLeader => "the broker that leads is frozen",
            Self::RestartLeader => "the broker that leads is restarted",
            Self::CutDatabase => "connections to PostgreSQL are reset",
            Self::DelayDatabase => "PostgreSQL is 150 ms away",
            Self::SliceDatabase => "what passes to and from PostgreSQL comes in slices",
            Self::HalveDatabase => "PostgreSQL's connections end in the middle of a message",
            Self::HoleDatabase => "a black hole before PostgreSQL",
            Self::CutBrokers => "connections to the brokers are reset",
            Self::DelayBrokers => "the brokers are 150 ms away",
            Self::SlowBrokers => "the brokers take 64 kB/s",
            Self::HalveBrokers => "the brokers' connections end in the middle of a message",
            Self::HoleBrokers => "a black hole before the brokers",
            Self::Poison => "events larger than the topic takes",
            Self::FullDisk => "the parked table's disk is full",
            Self::DeleteTopic => "a topic is deleted and recreated",
            Self::SlowConsumer => "the consumer rests",
            Self::Burst => "transactions of 5,000 events",
            Self::DropSlot => "the slot is dropped",
            Self::LoseSlot => {
                "both relays are frozen until the slot is lost (max_slot_wal_keep_size)"
            }
        }
    }

    pub(crate) const fn lane(self) -> Lane {
        match self {
            Self::KillActive
            | Self::KillStandby
            | Self::KillBoth
            | Self::FreezeActive
            | Self::FreezeStandby
            | Self::StopActive => Lane::Relays,
            Self::KillDatabase
            | Self::RestartDatabase
            | Self::StopDatabaseAtOnce
            | Self::FreezeDatabase
            | Self::EndWalsender
            | Self::EndSessions
            | Self::DropSlot
            | Self::LoseSlot => Lane::Database,
            Self::KillLeader | Self::KillTwoBrokers | Self::FreezeLeader | Self::RestartLeader => {
                Lane::Brokers
            }
            Self::CutDatabase
            | Self::DelayDatabase
            | Self::SliceDatabase
            | Self::HalveDatabase
            | Self::HoleDatabase
            | Self::CutBrokers
            | Self::DelayBrokers
            | Self::SlowBrokers
            | Self::HalveBrokers
            | Self::HoleBrokers => Lane::Network,
            Self::Poison
            | Self::FullDisk
            | Self::DeleteTopic
            | Self::SlowConsumer
            | Self::Burst => Lane::Data,
        }
    }

    /// Faults that may happen during another one: they need no answer of a server.
    const SECOND: [Self; 7] = [
        Self::KillActive,
        Self::CutDatabase,
        Self::HalveDatabase,
        Self::DelayBrokers,
        Self::CutBrokers,
        Self::HalveBrokers,
        Self::SliceDatabase,
    ];
}

/// Faults that remove the slot: only in mode `auto`, because the stream of mode `wal` halts then.
const SLOT: [Act; 2] = [Act::DropSlot, Act::LoseSlot];

/// One step of the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// The pause before it, without a fault.
    pub(crate) pause: Duration,
    pub(crate) act: Act,
    /// A second fault during the first one.
    pub(crate) second: Option<Act>,
    /// How long the step lasts.
    pub(crate) hold: Duration,
    /// Selects one of several variants.
    pub(crate) pick: u32,
}

/// Steps for this length of time. Every fault happens once before one happens twice, in an order that the seed
/// determines.
pub(crate) fn steps(seed: u64, length: Duration) -> Vec<Step> {
    steps_of(&Act::ALL, seed, length)
}

/// The same with these faults only.
pub(crate) fn steps_of(acts: &[Act], seed: u64, length: Duration) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let (mut deck, mut steps, mut at) = (Vec::new(), Vec::new(), Duration::ZERO);
    while at < length {
        if deck.is_empty() {
            deck = acts.to_vec();
            rng.shuffle(&mut deck);
        }
        let act = deck.pop().expect("a full deck");
        let pause = Duration::from_millis(rng.u64(500..5_000));
        // Short faults are over before anything notices them, long ones outlast every time-out: wal_sender_timeout is
        // 15 s.
        let hold = match rng.u32(..10) {
            0..=3 => Duration::from_millis(rng.u64(200..2_000)),
            4..=7 => Duration::from_millis(rng.u64(2_000..8_000)),
            _ => Duration::from_millis(rng.u64(8_000..24_000)),
        };
        let second = (rng.u32(..3) == 0).then(|| Act::SECOND[rng.usize(..Act::SECOND.len())]);
        let second = second.filter(|second| *second != act && acts.contains(second));
        steps.push(Step { pause, act, second, hold, pick: rng.u32(..) });
        // More steps than needed: beginning and undoing a fault takes time too, and a run stops when its time is over.
        at += pause + hold;
    }
    steps
}

/// The same steps, with the slot removed before every second one.
pub(crate) fn steps_without_slot(acts: &[Act], seed: u64, length: Duration) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut steps = Vec::new();
    for (number, step) in (0_usize..).zip(steps_of(acts, seed, length)) {
        if number.is_multiple_of(2) {
            let act = SLOT[rng.usize(..SLOT.len())];
            let hold = Duration::from_millis(rng.u64(200..8_000));
            steps.push(Step { act, second: None, hold, ..step });
        }
        steps.push(step);
    }
    steps
}

#[test]
fn one_seed_is_one_schedule_and_no_act_is_left_out() {
    let half_an_hour = Duration::from_mins(30);
    assert_eq!(steps(7, half_an_hour), steps(7, half_an_hour));
    assert_ne!(steps(7, half_an_hour), steps(8, half_an_hour));
    let all = steps(7, half_an_hour);
    for act in Act::ALL {
        let times = all.iter().filter(|step| step.act == act).count();
        assert!(times >= 3, "{act:?} comes {times} times in half an hour");
    }
}
