//! A pooler between the relay and PostgreSQL: the real PgBouncer of Debian (1.18), which does not pass replication on.
//! It refuses startup parameters that it does not know, `replication` among them, or is told to leave them out.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::pipeline::Pipeline;
use crate::private::PrivatePooler;
use crate::relay::Relay;
use crate::server::Version;

/// What the relay asks for at its login and PgBouncer does not know.
const UNKNOWN: &str = "replication,options,IntervalStyle,extra_float_digits,bytea_output,search_path,\
    client_min_messages,statement_timeout,lock_timeout,idle_session_timeout,\
    idle_in_transaction_session_timeout,wal_sender_timeout";

#[tokio::test]
async fn pooler_in_between_is_told_and_nothing_is_lost() {
    let pipeline = Pipeline::shared(Version::Pg17, "pooler").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    let database = pipeline.url.split("dbname=").nth(1).expect("a database");
    for (input, ignored, word) in [
        ("PgBouncer in between", "", "unsupported startup parameter"),
        ("PgBouncer in between, with ignore_startup_parameters", UNKNOWN, "IDENTIFY_SYSTEM"),
    ] {
        let lines = format!("ignore_startup_parameters = {ignored}\n");
        let pooler = PrivatePooler::start(Version::Pg17, &lines).await;
        let url = pooler.url(database);
        let relay = Relay::spawn(&pipeline.config.replace(&pipeline.url, &url));
        let status = relay.await_state("source_down", SOON).await;
        let seen = &status["pipelines"][0];
        assert!(seen["reason"].as_str().unwrap_or_default().contains(word), "{status}");
        assert!(
            seen["hint"].as_str().unwrap_or_default().contains("PostgreSQL itself"),
            "{status}"
        );
        answer(input, &pipeline, Answer::waits(&status));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        pooler.stop().await;
    }
    assert_eq!(pipeline.confirmed_lsn().await, before);
    super::arrives(&pipeline, 10).await;
}
