//! Status updates alone: under load, with reconnects and with brokers that are stopped and killed, no status update
//! passes what Kafka does not have.

use crate::plan::{Act, Step};
use crate::relays::Reads;
use crate::run::play;
use crate::server::Version;
use std::time::Duration;

#[tokio::test]
async fn no_status_update_passes_what_kafka_does_not_have() {
    // The relay is stopped for longer than the pauses of the standby (15 s), so that both connections have status
    // updates.
    let acts = [
        (Act::CutDatabase, 100),
        (Act::FreezeLeader, 5_000),
        (Act::HalveDatabase, 500),
        (Act::HoleBrokers, 4_000),
        (Act::KillActive, 16_000),
        (Act::Poison, 2_000),
    ];
    let steps = acts.map(|(act, hold)| Step {
        pause: Duration::from_secs(2),
        act,
        second: None,
        hold: Duration::from_millis(hold),
        pick: 1,
    });
    let outcome = play(1, (Version::Pg17, Reads::Stream), (&steps, Duration::MAX), "wire").await;
    outcome.assert_balanced();
    let claims: usize = outcome.verdicts.iter().map(|verdict| verdict.claims).sum();
    eprintln!("{claims} status updates");
    assert!(claims > 20, "{claims} status updates");
}
