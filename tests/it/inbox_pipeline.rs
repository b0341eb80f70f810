//! The worked pipeline of docs/sql/inbox-programs.md: an order service takes payments from an inbox, books them and
//! writes events to its outbox in one transaction, and a relay publishes these. Workers are killed and lose their
//! sessions, and the relay is killed; each payment is booked once, and each event is in the topic, in order.

use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, show};
use crate::programs::{INBOX, Process, root};
use crate::server::{Client, Version};
use crate::toolkit::install_toolkit;
use crate::topic::ReadRecord;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Orders that are paid in parts, in two halves: a worker may take as many at once, and keep the other one waiting.
const HALF: usize = 12;
const ORDERS: usize = 2 * HALF;

/// An order service: its database, its relay and its workers.
struct Service {
    pipeline: Pipeline,
    /// Over TCP, for the workers.
    url: String,
    /// How many payments have arrived.
    arrived: usize,
}

impl Service {
    async fn create(version: Version, test: &str) -> Self {
        let pipeline = Pipeline::shared(version, test).await;
        let sql = &pipeline.sql;
        install_toolkit(sql, "postgres").await;
        let tables = root().join("tests/consumers/inbox/order_service.sql");
        sql.batch(&std::fs::read_to_string(tables).expect("the tables")).await;
        sql.batch(&format!(
            "select postrider.create_inbox('payment', p_max_retries => 2);
             select postrider.enable_inbox_ordering('payment', 'arrival');
             insert into orders (id, total) select i::text, 100 from generate_series(0, {ORDERS} - 1) i;
             alter table payment add column n bigint generated always as identity"
        ))
        .await;
        let database = sql.text("select current_database()").await.expect("its name");
        let port = sql.text("show port").await.expect("its port");
        let url = format!("postgresql://postgres@127.0.0.1:{port}/{database}");
        Self { pipeline, url, arrived: 0 }
    }

    /// Payments of all orders arrive.
    async fn arrive(&mut self, count: usize) {
        self.arrive_for(count / 2, 0).await;
        self.arrive_for(count / 2, HALF).await;
    }

    /// Payments of the orders of one half arrive, each of them twice.
    async fn arrive_for(&mut self, count: usize, order: usize) {
        let (first, last) = (self.arrived + 1, self.arrived + count);
        self.arrived = last;
        let insert = format!(
            "insert into postrider_inbox.payment (event_id, event_type, source, aggregate_id, payload)
             select 'payment-' || i, 'PaymentReceived', 'bank', 'order/' || {order} + i % {HALF},
                 json_build_object('order', ({order} + i % {HALF})::text, 'amount', i + 0.25)
             from generate_series({first}, {last}) i on conflict (event_id) do nothing;"
        );
        self.pipeline.sql.batch(&insert).await;
        self.pipeline.sql.batch(&insert).await;
    }

    fn worker(&self, name: &str) -> Process {
        Process::spawn(INBOX.python("order_service.py"), &self.url, &[name], "")
    }

    async fn text(&self, sql: &str) -> String {
        self.pipeline.sql.text(sql).await.unwrap_or_default()
    }

    /// Payments arrive, and two workers are in the middle of a transaction, between the order and the event, until
    /// the session that is returned commits.
    async fn arrive_and_hold(&mut self, count: usize) -> Client {
        let session = Client::connect(&self.url).await.expect("a session");
        session.batch("begin; lock table payment in share mode").await;
        self.arrive_for(count / 2, 0).await;
        self.await_blocked(1).await;
        self.arrive_for(count / 2, HALF).await;
        self.await_blocked(2).await;
        session
    }

    /// Waits until at least so many workers wait in the middle of a transaction.
    async fn await_blocked(&self, count: usize) {
        let waiting = "select count(*) from pg_locks
            where relation = 'public.payment'::regclass and not granted";
        await_that(&format!("{count} workers in a transaction"), SOON, || async {
            let found = self.text(waiting).await;
            if found.parse().is_ok_and(|found: usize| found >= count) { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Ends the sessions of all workers that wait.
    async fn cut(&self) -> String {
        let cut = "select count(pg_terminate_backend(pid)) from pg_locks
            where relation = 'public.payment'::regclass and not granted";
        self.text(cut).await
    }

    /// Waits until every payment is processed, but for `dead` ones.
    async fn await_booked(&self, dead: usize, workers: &[&Process]) {
        let wanted = (self.arrived - dead).to_string();
        await_that(&format!("{wanted} payments"), SOON, || async {
            let booked = "select count(distinct event_id) from payment";
            let found = self.text(booked).await;
            if found == wanted {
                return Ok(());
            }
            let logs: Vec<String> = workers.iter().map(|process| process.log()).collect();
            Err(format!("{found}; logs: {}", logs.join("\n---\n")))
        })
        .await;
    }

    /// Waits until every event of the outbox is in the topic; the records.
    async fn await_events(&self) -> Vec<ReadRecord> {
        let wanted = self.text("select count(*) from outbox").await;
        await_that(&format!("{wanted} events in the topic"), SOON, || async {
            let records = self.pipeline.topic.read_all().await;
            let ids: BTreeSet<&str> = records.iter().filter_map(|r| r.header("id")).collect();
            let found = ids.len().to_string();
            if found == wanted { Ok(records) } else { Err(found) }
        })
        .await
    }

    /// Each payment is booked once, in the order of its arrival, and has one event that says what was paid by then.
    async fn assert_booked_once_and_in_order(&self, dead: usize) {
        let booked = self.arrived - dead;
        let count = "select count(*) || ' of ' || count(distinct event_id) from payment";
        assert_eq!(self.text(count).await, format!("{booked} of {booked}"));
        let events = "select count(*) || ' of ' || count(distinct payload->>'payment') from outbox";
        assert_eq!(self.text(events).await, format!("{booked} of {booked}"), "events");
        let wrong = "select count(*) from orders o
            where paid <> (select coalesce(sum(amount), 0) from payment p where p.order_id = o.id)";
        assert_eq!(self.text(wrong).await, "0", "an order that has other payments");
        let swapped = "select count(*) from (
                select split_part(event_id, '-', 2)::int
                    < lag(split_part(event_id, '-', 2)::int) over (partition by order_id order by n) as swapped
                from payment) x where swapped";
        assert_eq!(self.text(swapped).await, "0", "payments of an order in another order");
        let unlike = "with event as (
                select aggregate_id, payload->>'payment' as payment, (payload->>'paid')::numeric as paid from outbox),
            booked as (
                select order_id, event_id, sum(amount) over (partition by order_id order by n) as paid from payment)
            select count(*) from event e full join booked b on e.payment = b.event_id
                and e.aggregate_id = b.order_id and e.paid = b.paid
            where e.payment is null or b.event_id is null";
        assert_eq!(
            self.text(unlike).await,
            "0",
            "an event without its effect, or an effect without its event"
        );
    }

    /// What the topic has is what the outbox has: each event, of each order in the order of its payments.
    async fn assert_published_in_order(&self, records: &[ReadRecord]) {
        let rows = self.pipeline.sql.query(
            "select o.id::text, aggregate_id, payload::text from outbox o order by o.id",
            &[],
        );
        let mut outbox: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        for row in rows.await.expect("the outbox") {
            let event = (row.get(0), json(row.get(2)));
            outbox.entry(row.get(1)).or_default().push(event);
        }
        let mut topic: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for record in records {
            let (id, key) =
                (record.header("id").expect("an id"), record.key_text().expect("a key"));
            // A repetition of an event that was published before the relay was killed.
            if seen.insert(id) {
                let event = (id.to_owned(), json(record.value_text().expect("a payload")));
                topic.entry(key.to_owned()).or_default().push(event);
            }
        }
        assert_eq!(topic, outbox);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

async fn each_payment_once(version: Version) {
    let mut service = Service::create(version, "inbox_pipeline").await;
    let relay = service.pipeline.run();
    service.arrive(60).await;
    let (a, b) = (service.worker("a"), service.worker("b"));
    service.await_booked(0, &[&a, &b]).await;

    // A worker is killed and the other one loses its session, both between the order and the event.
    let held = service.arrive_and_hold(60).await;
    a.kill().await;
    assert_eq!(service.cut().await, "2");
    let mut b = b;
    assert_eq!(b.gives_up().await, Some(1), "{}", b.log());
    held.batch("commit").await;
    let (a, b) = (service.worker("a"), service.worker("b"));
    service.await_booked(0, &[&a, &b]).await;

    // The relay is killed while the workers book payments, and again with them.
    service.arrive(120).await;
    relay.kill().await;
    service.await_booked(0, &[&a, &b]).await;
    let relay = service.pipeline.run();
    let held = service.arrive_and_hold(60).await;
    a.kill().await;
    b.kill().await;
    relay.kill().await;
    held.batch("commit").await;

    // A payment for no order dies after two attempts. The others go on.
    service
        .pipeline
        .sql
        .batch(
            "insert into postrider_inbox.payment (event_id, aggregate_id, payload)
             values ('payment-0', 'order/none', '{\"order\": \"none\", \"amount\": 1}')",
        )
        .await;
    service.arrived += 1;
    let relay = service.pipeline.run();
    let (a, b) = (service.worker("a"), service.worker("b"));
    service.await_booked(1, &[&a, &b]).await;
    await_that("the dead payment", SOON, || async {
        let dead =
            "select string_agg(event_id || ': ' || error, ', ') from postrider_inbox.dlq_payment";
        let found = service.text(dead).await;
        if found == "payment-0: no such order" { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(service.text("select count(*) from postrider_inbox.pending_payment").await, "0");
    let records = service.await_events().await;
    service.assert_booked_once_and_in_order(1).await;
    service.assert_published_in_order(&records).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    show(&format!("{} payments, each once, {} records", service.arrived - 1, records.len()));
}

#[tokio::test]
async fn each_payment_is_booked_once_and_its_event_published_in_order_through_kills_on_15() {
    each_payment_once(Version::Pg15).await;
}

#[tokio::test]
async fn each_payment_is_booked_once_and_its_event_published_in_order_through_kills_on_18() {
    each_payment_once(Version::Pg18).await;
}
