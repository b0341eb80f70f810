//! The dead-letter topic: what it gets, and that it holds up nothing.

use crate::await_that::await_that;
use crate::parking::{SOON, Scene};
use crate::relay::Relay;
use crate::server::{Version, brokers};
use crate::topic::{Topic, Topics, create_topic};

/// Dead at the second refusal.
fn lines(topic: &str) -> String {
    format!(
        "attempts_max = 2\nbackoff = {{ step = \"300ms\", steps_max = 1 }}\ndead_topic = \"{topic}\""
    )
}

impl Scene {
    async fn await_sent(&self, count: usize) {
        let sql = "select count(*)::text from postrider.parked where dead_sent_at is not null";
        await_that(&format!("{count} marked as sent"), SOON, || async {
            let found = self.value(sql).await;
            if found == count.to_string() { Ok(()) } else { Err(found) }
        })
        .await;
    }
}

#[tokio::test]
async fn dead_event_is_in_the_topic_once_with_its_error_and_can_still_be_retried() {
    let topics = Topics::new(&brokers(), "letters");
    let dead = topics.create("dead", 3).await;
    let mut scene = Scene::set_with(Version::Pg18, "dead", &lines(&dead.name)).await;
    let relay = scene.run();
    scene.insert(&["a", "!a", "a", "b"]).await;
    scene.await_rows("a dead, a behind").await;
    scene.await_sent(1).await;
    let position = scene.position("dead").await;
    let letters = dead.await_records(1, SOON).await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.key_text(), Some("a"));
    assert_eq!(crate::parking::number(letter), 2, "its own payload");
    assert_eq!(letter.header("id"), Some("2"), "its own headers");
    let header = |name: &str| letter.header(name).unwrap_or_default().to_owned();
    assert_eq!(header("dead_code"), "too_large");
    assert!(header("dead_error").contains("3000"), "{:?}", letter.headers);
    assert_eq!(header("dead_attempts"), "2");
    assert_eq!(header("dead_position"), position);
    assert_eq!(header("dead_topic"), scene.pipeline.topic.name);
    scene.end(relay).await;

    // A start sends nothing again; a retry that works leaves it at that.
    let relay = scene.run();
    scene.raise_the_limit().await;
    scene.parked_ok(&["retry", &position, "--yes"]);
    scene.await_last("a", 3).await;
    scene.await_rows("").await;
    scene.await_passed().await;
    scene.end(relay).await;
    assert_eq!(scene.delivered().await["a"], [1, 2, 3]);
    assert_eq!(dead.read_all().await.len(), 1, "sent once");
}

/// The cut between the acknowledgement and the mark: sent again, and no more than that.
#[tokio::test]
async fn killed_before_the_mark_a_dead_event_is_sent_twice_and_not_thrice() {
    let topics = Topics::new(&brokers(), "letters");
    let dead = topics.create("dead", 1).await;
    let once = lines(&dead.name).replace("attempts_max = 2", "attempts_max = 1");
    let mut scene = Scene::set_with(Version::Pg17, "twice", &once).await;
    scene.insert(&["!a", "b"]).await;
    let relay = Relay::spawn_with(&scene.config, &[], &[("POSTRIDER_FAILPOINT", "mark_due")]);
    assert_eq!(relay.ended(SOON).await.code, None, "killed");
    assert_eq!(dead.await_records(1, SOON).await.len(), 1);
    for _ in 0..2 {
        let relay = scene.run();
        relay.await_state("streaming", SOON).await;
        scene.await_sent(1).await;
        scene.end(relay).await;
    }
    assert_eq!(dead.read_all().await.len(), 2);
}

#[tokio::test]
async fn dead_letter_topic_that_is_missing_holds_up_nothing() {
    let name = format!("{}dead", Topics::new(&brokers(), "letters").prefix);
    let mut scene = Scene::set_with(Version::Pg15, "missing", &lines(&name)).await;
    let relay = scene.run();
    scene.insert(&["!a", "a", "b"]).await;
    scene.await_rows("a dead, a behind").await;
    relay.await_log("dead event not sent to the dead-letter topic", SOON).await;
    scene.insert(&["b"]).await;
    scene.await_last("b", 4).await;
    scene.await_passed().await;
    relay.await_state("streaming", SOON).await;
    create_topic(&brokers(), &name, 1, &[]).await;
    scene.await_sent(1).await;
    scene.end(relay).await;
    let dead = Topic { brokers: brokers(), name };
    assert_eq!(dead.read_all().await.len(), 1);
}
