//! Bad events wherever they can stand, what people and servers do to parked ones: nothing is lost, no aggregate is
//! swapped, the slot moves on.

/// Bad events wherever they can stand.
mod input;
/// The dead-letter topic.
mod letters;
/// What people do to parked events: with the words, and by hand.
mod people;
/// What the database does meanwhile.
mod source;
/// Topics that come and go, and rights to them.
mod topics;

use crate::await_that::await_that;
use crate::parking::{SOON, Scene};
use crate::relay::{Ended, Relay, postrider};
use std::process::Output;

/// Parked events are tried when a person asks, and hardly otherwise.
const SELDOM: &str = "attempts_max = 1000\nbackoff = { step = \"1h\", steps_max = 1 }";

/// Parked events are tried every 300 ms.
const OFTEN: &str = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";

impl Scene {
    /// `postrider parked …`
    fn parked(&self, words: &[&str]) -> Output {
        let words: Vec<&str> = std::iter::once("parked").chain(words.iter().copied()).collect();
        postrider(&self.config, &words)
    }

    /// The same, which must end well; what it wrote.
    fn parked_ok(&self, words: &[&str]) -> String {
        let output = self.parked(words);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "parked {words:?}: {said}");
        said
    }

    /// The position of the only event in this state.
    async fn position(&self, state: &str) -> String {
        let sql = format!(
            "select string_agg(commit_lsn || ':' || ordinal, ' ') from postrider.parked where state = '{state}'"
        );
        self.pipeline.sql.text(&sql).await.expect("a parked event")
    }

    /// One value, by SQL.
    async fn value(&self, sql: &str) -> String {
        self.pipeline.sql.text(sql).await.unwrap_or_default()
    }

    /// Waits until the slot has passed all that was ever parked.
    async fn await_passed(&self) {
        let end = "select (coalesce(max(commit_lsn), '0/0') + 1)::text from postrider.parked";
        let end = self.value(end).await;
        await_that("the slot past it", SOON, || self.pipeline.confirmed(&end)).await;
    }

    /// Ends the relay well.
    async fn end(&self, relay: Relay) -> Ended {
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stderr.contains(crate::parking::SECRET), "{}", ended.stderr);
        ended
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
