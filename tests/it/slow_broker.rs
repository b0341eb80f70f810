//! A broker that acknowledges slowly: a page or a claim takes longer than a claim may be held, and publishing from the
//! table ends all the same, with few repetitions.

use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, show};
use crate::polling::polls;
use crate::private::PrivateKafka;
use crate::proxy::{Mode, Proxy};
use crate::relay::{Relay, postrider_ok};
use crate::repair::{drop_slot, interrupted};
use crate::server::Version;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Rows of a test: more than one page of a repair.
const ROWS: usize = 1_200;

/// Bytes of a row's payload, and what passes to the broker in a second: a page of 1,000 rows takes 28 s, which is
/// longer than the 20 s that a claim may be held.
const PAYLOAD_BYTES: usize = 1_024;
const BYTES_A_SECOND: u32 = 40_000;

/// How long a test may take: at this rate the rows need 34 s, of a test with more of them their share.
fn ends() -> Duration {
    Duration::from_mins(3) * u32::try_from(rows() / ROWS).expect("a small number")
}

/// How many rows a repair and a backfill have: some, or as many as the environment says.
#[expect(clippy::disallowed_methods, reason = "the full figure is run by hand")]
fn rows() -> usize {
    std::env::var("POSTRIDER_SLOW_ROWS").map_or(ROWS, |rows| rows.parse().expect("a number"))
}

/// A broker behind a slow network, and a pipeline to it.
struct Scene {
    _broker: PrivateKafka,
    proxy: &'static Proxy,
    pipeline: Pipeline,
}

impl Scene {
    async fn set(test: &str, rate: &'static OnceLock<Proxy>) -> Self {
        let broker = PrivateKafka::start_on(|port, _| {
            let proxy = rate.get_or_init(|| Proxy::start(port, None));
            format!("advertised.listeners=PLAINTEXT://127.0.0.1:{}", proxy.port)
        });
        let broker = broker.await;
        let proxy = rate.get().expect("a proxy");
        let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), test).await;
        pipeline.config = pipeline.uncompressed();
        Self { _broker: broker, proxy, pipeline }
    }

    /// Rows of ten aggregates that do not compress.
    async fn insert(&self, rows: usize) {
        let sql = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', (i % 10)::text, 'T', to_json((select string_agg(md5(random()::text), '') \
               from generate_series(1, {} + 0 * i))) from generate_series(1, {rows}) i",
            PAYLOAD_BYTES / 32
        );
        self.pipeline.sql.batch(&sql).await;
    }

    fn slow(&self) {
        self.proxy.set(Mode::Slow(BYTES_A_SECOND));
    }

    /// Every row was delivered, the first time in order by aggregate; how many were delivered again.
    async fn repeated(&self, rows: usize) -> usize {
        self.proxy.heal();
        let mut seen = HashSet::new();
        let mut firsts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let records = self.pipeline.topic.read_all().await;
        for record in &records {
            let id: u64 = record.header("id").expect("an id").parse().expect("a number");
            if seen.insert(id) {
                let key = record.key_text().expect("a key").to_owned();
                firsts.entry(key).or_default().push(id);
            }
        }
        assert_eq!(seen.len(), rows, "events are missing");
        for (key, ids) in firsts {
            assert!(ids.is_sorted(), "aggregate {key}: {ids:?}");
        }
        records.len() - rows
    }

    async fn await_done(&self, what: &str) {
        await_that(what, ends(), || async {
            let state = "select state || ' ' || rows_published from postrider.repair";
            let state = self.pipeline.sql.text(state).await.unwrap_or_default();
            if state.starts_with("done") { Ok(()) } else { Err(state) }
        })
        .await;
    }
}

#[tokio::test]
async fn repair_behind_a_slow_broker_ends_and_repeats_nothing() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let scene = Scene::set("slowrepair", &PROXY).await;
    scene.insert(rows()).await;
    drop_slot(&scene.pipeline).await;
    scene.slow();
    let since = Instant::now();
    let config = scene.pipeline.config.clone();
    let repairing = interrupted::Repairing::start_with(&config, &["--from-table"]);
    scene.await_done("the repair to end").await;
    let took = since.elapsed();
    repairing.ends_well().await;
    let repeated = scene.repeated(rows()).await;
    show(&format!("repair of {} rows: {:.0} s, {repeated} repeated", rows(), took.as_secs_f64()));
    assert_eq!(repeated, 0);
}

/// Killed in the middle of a page, which has been settled in part.
#[tokio::test]
async fn repair_behind_a_slow_broker_that_is_killed_repeats_part_of_a_page() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let scene = Scene::set("slowkilled", &PROXY).await;
    scene.insert(rows()).await;
    drop_slot(&scene.pipeline).await;
    scene.slow();
    let config = scene.pipeline.config.clone();
    let repairing = interrupted::Repairing::start_with(&config, &["--from-table"]);
    await_that("half of the page to be published", SOON, || async {
        let (published, _) = interrupted::progress(&scene.pipeline).await;
        if published >= 300 { Ok(()) } else { Err(published) }
    })
    .await;
    repairing.kill().await;
    interrupted::gone(&scene.pipeline).await;
    let (published, total) = interrupted::progress(&scene.pipeline).await;
    assert!(published < 1_000, "killed too late: {published} of {total}");
    let repairing = interrupted::Repairing::start_with(&config, &["--from-table"]);
    scene.await_done("the repair to end").await;
    repairing.ends_well().await;
    let repeated = scene.repeated(rows()).await;
    show(&format!("killed at {published} of {total} rows: {repeated} repeated"));
    assert!(repeated < 1_000, "{repeated} repeated");
}

/// Rows of the transactions in which the rows are inserted: the cursor rows stand between and inside of them.
const TRANSACTION_ROWS: usize = 60;

/// The slot is lost while the relay lags. Cursor rows that it has written meanwhile take for resolved only what was
/// published: the repair publishes everything else.
#[tokio::test]
async fn repair_of_a_slot_that_was_lost_behind_a_lagging_relay_leaves_nothing_out() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let scene = Scene::set("slowlost", &PROXY).await;
    let relay = scene.pipeline.run();
    relay.await_state("streaming", SOON).await;
    scene.slow();
    for _ in 0..ROWS / TRANSACTION_ROWS {
        scene.insert(TRANSACTION_ROWS).await;
    }
    let row = "select watermark::text || ' ' || coalesce(partial_ordinal, 0) from postrider.cursor";
    let seen = RefCell::new(HashSet::new());
    let inserted = Cell::new(ROWS);
    // Each new cursor row brings another transaction: the relay lags however slow this machine is.
    await_that("six cursor rows", SOON, || async {
        let row = scene.pipeline.sql.text(row).await.unwrap_or_default();
        if seen.borrow_mut().insert(row) {
            scene.insert(TRANSACTION_ROWS).await;
            inserted.set(inserted.get() + TRANSACTION_ROWS);
        }
        let seen = seen.borrow().len();
        if seen >= 6 { Ok(()) } else { Err(seen) }
    })
    .await;
    // Nothing of these transactions reaches the broker: what the relay has sent of them is lost with its connections.
    scene.proxy.set(Mode::HoleUp);
    scene.insert(TRANSACTION_ROWS).await;
    scene.insert(TRANSACTION_ROWS).await;
    let rows = inserted.get() + 2 * TRANSACTION_ROWS;
    drop(relay.kill().await);
    scene.proxy.cut();
    drop_slot(&scene.pipeline).await;
    scene.proxy.heal();
    let there = scene.pipeline.topic.read_all().await.len();
    let lags = there + TRANSACTION_ROWS < rows;
    assert!(lags, "{there} of {rows} were published: the relay did not lag");
    postrider_ok(&scene.pipeline.config, &["repair"]);
    let repeated = scene.repeated(rows).await;
    show(&format!("slot lost with {there} of {rows} rows published: {repeated} repeated"));
}

#[tokio::test]
async fn backfill_behind_a_slow_broker_ends_and_repeats_nothing() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let scene = Scene::set("slowbackfill", &PROXY).await;
    postrider_ok(&scene.pipeline.config, &["setup", "--undo", "--yes"]);
    scene.insert(rows()).await;
    postrider_ok(&scene.pipeline.config, &["setup", "--backfill", "all"]);
    scene.slow();
    let relay = scene.pipeline.run();
    scene.await_done("the backfill to end").await;
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let repeated = scene.repeated(rows()).await;
    show(&format!("backfill of {} rows: {repeated} repeated", rows()));
    assert_eq!(repeated, 0);
}

/// The same, killed with -9 behind a page that has been settled in part, and begun again by the next process.
#[tokio::test]
async fn backfill_behind_a_slow_broker_that_is_killed_repeats_part_of_a_page() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let scene = Scene::set("slowbackkill", &PROXY).await;
    postrider_ok(&scene.pipeline.config, &["setup", "--undo", "--yes"]);
    scene.insert(rows()).await;
    postrider_ok(&scene.pipeline.config, &["setup", "--backfill", "all"]);
    scene.slow();
    let relay = scene.pipeline.run();
    await_that("half of the page to be published", SOON, || async {
        let (published, _) = interrupted::progress(&scene.pipeline).await;
        if published >= 300 { Ok(()) } else { Err(published) }
    })
    .await;
    drop(relay.kill().await);
    let (published, total) = interrupted::progress(&scene.pipeline).await;
    let relay = scene.pipeline.run();
    scene.await_done("the backfill to end").await;
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let repeated = scene.repeated(rows()).await;
    show(&format!("backfill killed at {published} of {total} rows: {repeated} repeated"));
    assert!(repeated < 1_000, "{repeated} repeated");
}

/// Polling locks rows. It settles what is acknowledged, and claims no more at once than the broker acknowledges.
#[tokio::test]
async fn polling_behind_a_slow_broker_ends_and_repeats_few() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let mut scene = Scene::set("slowpoll", &PROXY).await;
    polls(&mut scene.pipeline).await;
    scene.insert(2 * ROWS).await;
    scene.slow();
    let relay: Relay = scene.pipeline.run();
    await_that("every row to go", ends(), || async {
        let left = scene.pipeline.sql.text("select count(*)::text from outbox").await;
        if left.as_deref() == Some("0") { Ok(()) } else { Err(left.unwrap_or_default()) }
    })
    .await;
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0));
    let repeated = scene.repeated(2 * ROWS).await;
    show(&format!("polling of {} rows: {repeated} repeated\n{}", 2 * ROWS, ended.stderr));
    assert!(repeated < ROWS / 2, "{repeated} repeated");
}
