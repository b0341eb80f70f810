//! What is stored of records, and that each is stored once.

use super::*;
use crate::pipeline::Pipeline;
use crate::server::brokers;
use crate::sink_caller::alter;
use crate::topic::Topics;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

#[tokio::test]
async fn each_record_is_stored_once_and_in_order_and_restarts_do_not_change_that() {
    let world = World::create(Version::Pg18, "intake_once").await;
    let topics = Topics::new(&brokers(), "intake_once");
    let topic = topics.create("numbers", 3).await;
    write_numbers(&topic, 1..=500, |n| (n % 7).to_string()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "500", &relay).await;
    let intake = await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    assert_eq!(intake["stored_total"], 500);
    assert_eq!((&intake["repeated_total"], &intake["dead_total"]), (&0.into(), &0.into()));
    assert_eq!((&intake["partitions"], &intake["state"]), (&3.into(), &"storing".into()));
    assert_eq!(relay.terminate(END).await.code, Some(0));
    write_numbers(&topic, 501..=900, |n| (n % 7).to_string()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "900", &relay).await;
    let ended = relay.kill().await;
    assert!(!ended.stderr.contains("WARN"), "{}", ended.stderr);
    assert_eq!(faults(&world.sql, 900).await, "");
    let next = "select sum(next_offset) || ' ' || count(*) from postrider.inbox_offset";
    assert_eq!(world.sql.text(next).await.as_deref(), Some("900 3"));
}

#[tokio::test]
async fn a_message_has_what_the_record_has() {
    let world = World::create(Version::Pg15, "intake_columns").await;
    let topics = Topics::new(&brokers(), "intake_columns");
    let topic = topics.create("orders", 1).await;
    let headers: &[(&str, &[u8])] = &[
        ("id", b"7"),
        ("type", b"OrderPlaced"),
        ("source", b"shop"),
        ("position", b"68F1A2B3-0000000001A2B3C8-00000005"),
        ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ];
    let event = Written { key: Some(b"42"), value: Some(b"{\"a\": 1}"), headers, partition: None };
    let plain = Written { value: Some(b"\x00\xff"), ..Written::default() };
    write(&topic, &[event, plain, Written { key: Some(b"x"), ..Written::default() }]).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "3", &relay).await;
    let row = "select event_id || ' ' || event_type || ' ' || source || ' ' || trace_id || ' ' || payload
                   || ' ' || (headers ->> 'position') || ' ' || (processed_at is null and dead_at is null)
               from postrider_inbox.jobs where event_type is not null";
    assert_eq!(
        world.sql.text(row).await.as_deref(),
        Some(
            "shop/68F1A2B3/7 OrderPlaced shop 4bf92f3577b34da6a3ce929d0e0e4736 {\"a\": 1} \
             68F1A2B3-0000000001A2B3C8-00000005 true"
        )
    );
    let name = &topic.name;
    let aggregates = "select string_agg(coalesce(aggregate_id, '-'), ' ' order by seq) from postrider_inbox.jobs";
    assert_eq!(world.sql.text(aggregates).await, Some(format!("{name}/42 - {name}/x")));
    let bytes = "select encode(payload_bytes, 'hex') || ' ' || regexp_replace(event_id, '@[^/]+', '@*') || ' ' || (payload is null)
                 from postrider_inbox.jobs where payload_bytes is not null";
    assert_eq!(world.sql.text(bytes).await, Some(format!("00ff {name}@*/0/0/1 true")));
    let empty =
        "select count(*) from postrider_inbox.jobs where payload is null and payload_bytes is null";
    assert_eq!(world.sql.text(empty).await.as_deref(), Some("1"));
    let (_, metrics) = relay.get("/metrics").await.expect("metrics");
    assert!(
        metrics.contains("postrider_intake_messages_total{intake=\"jobs\",outcome=\"stored\"} 3"),
        "{metrics}"
    );
    assert!(metrics.contains("postrider_intake_state{intake=\"jobs\",state=\"storing\"} 1"));
    let (code, _) = relay.get("/ready").await.expect("an answer");
    assert_eq!(code, 200);
}

/// A relay that is killed repeats events: the records are different ones, and the events are the same.
#[tokio::test]
async fn what_a_relay_repeats_is_known_even_after_retention_has_deleted_the_message() {
    let pipeline = Pipeline::shared(Version::Pg17, "intake_twins").await;
    let sql = &pipeline.sql;
    create_inbox(sql).await;
    sql.batch(&crate::consumers::insert(1, 50)).await;
    let relay = Relay::spawn(&pipeline.config);
    let topic = pipeline.topic.clone();
    topic.await_records(50, SOON).await;
    relay.kill().await;
    let intake = Relay::spawn_intake(&config(&pipeline.url, &topic.brokers, &topic.name, ""));
    await_answer(sql, COUNT, "50", &intake).await;
    sql.batch("delete from postrider_inbox.jobs").await;
    // Everything again, under new offsets, as a relay does that has lost its cursor row.
    let records = topic.read_all().await;
    for record in &records {
        let headers: Vec<(&str, &[u8])> = record
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?)))
            .collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        write(
            &topic,
            &[Written { partition: Some(record.partition), key, value, headers: &headers }],
        )
        .await;
    }
    let seen = await_intake(&intake, "all repeated", |it| it["repeated_total"] == 50).await;
    assert_eq!(seen["stored_total"], 50);
    assert_eq!(sql.text(COUNT).await.as_deref(), Some("0"));
}

/// Writes numbers, each in a transaction of its own, which is committed or aborted.
pub(super) async fn write_in_transactions(topic: &Topic, numbers: &[(u64, bool)]) {
    let (transactional, numbers) = (topic.clone(), numbers.to_owned());
    tokio::task::spawn_blocking(move || {
        let mut config: ClientConfig = client_config(&transactional.brokers);
        config.set("transactional.id", &transactional.name);
        let producer: BaseProducer = config.create().expect("a producer");
        let max = Duration::from_secs(30);
        producer.init_transactions(max).expect("a producer that others can not fence");
        for (number, commits) in numbers {
            producer.begin_transaction().expect("a transaction");
            let value = format!("{{\"n\": {number}}}");
            let record: BaseRecord<'_, str, String> =
                BaseRecord::to(&transactional.name).payload(&value).key("k");
            producer.send(record).map_err(|(error, _)| error).expect("room");
            if commits {
                producer.commit_transaction(max).expect("a commit");
            } else {
                producer.flush(max).expect("a flush");
                producer.abort_transaction(max).expect("an abort");
            }
        }
    })
    .await
    .expect("the producer's thread");
}

#[tokio::test]
async fn records_of_an_aborted_transaction_are_not_stored() {
    let world = World::create(Version::Pg16, "intake_aborted").await;
    let topics = Topics::new(&brokers(), "intake_aborted");
    let topic = topics.create("numbers", 1).await;
    write_in_transactions(&topic, &[(1, true), (2, false), (2, true), (3, false)]).await;
    write_numbers(&topic, 3..=3, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "3", &relay).await;
    await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    assert_eq!(faults(&world.sql, 3).await, "");
}

#[tokio::test]
async fn what_jsonb_refuses_is_stored_as_bytes_and_holds_nothing_back() {
    let world = World::create(Version::Pg18, "intake_bytes").await;
    let topics = Topics::new(&brokers(), "intake_bytes");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=20, |_| "k".to_owned()).await;
    let refused: [&[u8]; 3] = [b"{\"a\": \"\\u0000\"}", b"1e200000", b"{\"a\": \"\\ud800\"}"];
    let records: Vec<Written<'_>> = refused
        .iter()
        .map(|value| Written { key: Some(b"k"), value: Some(value), ..Written::default() })
        .collect();
    write(&topic, &records).await;
    write_numbers(&topic, 21..=40, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "43", &relay).await;
    let bytes = "select count(*) from postrider_inbox.jobs where payload_bytes is not null and dead_at is null";
    assert_eq!(world.sql.text(bytes).await.as_deref(), Some("3"));
    let ended = relay.kill().await;
    assert!(!ended.stderr.contains("u0000") && !ended.stderr.contains("ud800"), "{}", ended.stderr);
}

#[tokio::test]
async fn poison_is_stored_as_dead_with_its_reason_and_later_records_go_on() {
    let world = World::create(Version::Pg15, "intake_poison").await;
    world.sql.batch("select postrider.enable_inbox_ordering('jobs', 'arrival')").await;
    let topics = Topics::new(&brokers(), "intake_poison");
    let topic = topics.create("numbers", 1).await;
    let long = vec![b'x'; 300];
    let poison = [
        Written { value: Some(b"{}"), ..Written::default() },
        Written { key: Some(b"p"), headers: &[("type", b"a\x00b")], ..Written::default() },
        Written { key: Some(b"q"), headers: &[("source", &long)], ..Written::default() },
    ];
    write(&topic, &poison).await;
    write_numbers(&topic, 1..=10, |n| (n % 2).to_string()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "13", &relay).await;
    let errors = "select string_agg(error, '; ' order by seq) from postrider_inbox.dlq_jobs";
    assert_eq!(
        world.sql.text(errors).await.as_deref(),
        Some(
            "the record has no key, and the inbox has an order; header \"type\" is no text; \
             header \"source\" has 300 bytes"
        )
    );
    let next = "select string_agg(payload ->> 'n', ' ' order by seq) from postrider.inbox_next('jobs', 'w')";
    assert_eq!(world.sql.text(next).await.as_deref(), Some("1 2"));
    let intake = await_intake(&relay, "three dead", |it| it["dead_total"] == 3).await;
    assert_eq!(intake["stored_total"], 10);
    relay.await_log("is stored as a dead one", SOON).await;
}

/// A constraint that a user has added refuses some messages: they are dead, and the rest is stored.
#[tokio::test]
async fn a_message_that_a_constraint_refuses_is_dead_and_the_others_are_stored() {
    let world = World::create(Version::Pg17, "intake_constraint").await;
    world
        .sql
        .batch(
            "alter table postrider_inbox.jobs add check (dead_at is not null or payload ->> 'n' <> '13')",
        )
        .await;
    let topics = Topics::new(&brokers(), "intake_constraint");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=30, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "30", &relay).await;
    // It is not given to workers in another form, which the constraint does not know.
    let dead = "select string_agg(payload::text, ' ') from postrider_inbox.dlq_jobs";
    await_answer(&world.sql, dead, "{\"n\": 13}", &relay).await;
    world.sql.batch("alter table postrider_inbox.jobs add check (dead_at is not null or aggregate_id !~ '/no$')").await;
    write_numbers(&topic, 31..=31, |_| "no".to_owned()).await;
    write_numbers(&topic, 32..=32, |_| "k".to_owned()).await;
    await_answer(&world.sql, COUNT, "32", &relay).await;
    let error = "select error from postrider_inbox.dlq_jobs where aggregate_id like '%/no'";
    let error = world.sql.text(error).await.unwrap_or_default();
    assert!(error.contains("SQLSTATE 23514") && !error.contains("31"), "{error}");
}

#[tokio::test]
async fn sequence_and_priority_come_from_the_headers_that_are_configured() {
    let world = World::create(Version::Pg16, "intake_sequence").await;
    world.sql.batch("select postrider.enable_inbox_ordering('jobs', 'sequence')").await;
    let topics = Topics::new(&brokers(), "intake_sequence");
    let topic = topics.create("numbers", 1).await;
    let numbers: Vec<String> = [3, 1, 2].iter().map(ToString::to_string).collect();
    for number in &numbers {
        let headers: &[(&str, &[u8])] = &[("seq", number.as_bytes())];
        let value = Some(number.as_bytes());
        write(&topic, &[Written { key: Some(b"k"), value, headers, partition: None }]).await;
    }
    let more = "[inboxes.jobs.message]\nsequence_header = \"seq\"\n";
    let relay = Relay::spawn_intake(&world.config(&topic, more));
    await_answer(&world.sql, COUNT, "3", &relay).await;
    for number in ["1", "2", "3"] {
        let work = "with batch as materialized (select * from postrider.inbox_next('jobs', 'w'))
                    select max(sequence_num) || '' from batch
                    where (select postrider.inbox_done('jobs', array_agg(event_id)) from batch) > 0";
        assert_eq!(world.sql.text(work).await.as_deref(), Some(number));
    }
}

#[tokio::test]
async fn latest_begins_behind_what_is_there_and_a_partition_that_is_added_begins_at_its_start() {
    let world = World::create(Version::Pg18, "intake_latest").await;
    let topics = Topics::new(&brokers(), "intake_latest");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=10, |_| "k".to_owned()).await;
    let start = world.config(&topic, "\"topic.metadata.refresh.interval.ms\" = \"500\"\n");
    let start = start.replace("topics =", "start = \"latest\"\ntopics =");
    let relay = Relay::spawn_intake(&start);
    await_intake(&relay, "one partition", |it| it["partitions"] == 1).await;
    relay.kill().await;
    // Written while nobody reads: behind the stored offset.
    write_numbers(&topic, 11..=20, |_| "k".to_owned()).await;
    grow(&topic, 2).await;
    let value = Some(&b"{\"n\": 21}"[..]);
    write(&topic, &[Written { partition: Some(1), key: Some(b"j"), value, headers: &[] }]).await;
    let relay = Relay::spawn_intake(&start);
    await_answer(&world.sql, COUNT, "11", &relay).await;
    let numbers = "select min((payload ->> 'n')::int) || ' ' || max((payload ->> 'n')::int) from postrider_inbox.jobs";
    assert_eq!(world.sql.text(numbers).await.as_deref(), Some("11 21"));
}

/// Gives a topic more partitions.
async fn grow(topic: &Topic, count: usize) {
    use rdkafka::admin::{AdminOptions, NewPartitions};
    let admin = crate::topic::admin(&topic.brokers);
    let more = NewPartitions::new(&topic.name, count);
    admin
        .create_partitions([&more], &AdminOptions::new())
        .await
        .expect("an answer")
        .remove(0)
        .expect("it");
}

#[tokio::test]
async fn a_record_of_many_mebibytes_is_stored() {
    let world = World::create(Version::Pg15, "intake_large").await;
    let topics = Topics::new(&brokers(), "intake_large");
    let topic = topics.create("numbers", 1).await;
    alter(&topic, "max.message.bytes", "12000000").await;
    let value = format!("{{\"n\": 1, \"x\": \"{}\"}}", "y".repeat(900_000));
    let record = Written { key: Some(b"k"), value: Some(value.as_bytes()), ..Written::default() };
    write(&topic, &[record; 30]).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "30", &relay).await;
    let length = "select sum(length(payload ->> 'x')) from postrider_inbox.jobs";
    assert_eq!(world.sql.text(length).await.as_deref(), Some("27000000"));
    let (_, most) = relay.memory_kib();
    assert!(most < 400 << 10, "{most} KiB");
}

/// Nothing is remembered of an inbox that was dropped: another one of its name gets everything.
#[tokio::test]
async fn an_inbox_that_is_dropped_and_created_again_is_filled_again() {
    let world = World::create(Version::Pg17, "intake_again").await;
    let topics = Topics::new(&brokers(), "intake_refill");
    let topic = topics.create("orders", 1).await;
    let headers: &[(&str, &[u8])] =
        &[("id", b"7"), ("position", b"68F1A2B3-0000000001A2B3C8-00000005")];
    let record = Written { key: Some(b"42"), value: Some(b"{}"), headers, partition: None };
    for positions in [false, true] {
        let rules = format!("[inboxes.jobs.message]\npositions = {positions}\n");
        write(&topic, &[record; 2]).await;
        let relay = Relay::spawn_intake(&world.config(&topic, &rules));
        await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
        assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("1"));
        relay.kill().await;
        world
            .sql
            .batch("select postrider.drop_inbox('jobs', false, true); select postrider.create_inbox('jobs')")
            .await;
    }
}

/// Positions are compared in the order of the records, whatever plan the server has for a large batch.
#[tokio::test]
async fn positions_of_several_sources_in_one_batch_are_compared_in_their_order() {
    let world = World::create(Version::Pg17, "intake_sources").await;
    let topics = Topics::new(&brokers(), "intake_sources");
    let topic = topics.create("orders", 1).await;
    let events: Vec<(String, String, String)> = (1..=4000)
        .map(|n| {
            let source = if n % 3 == 0 { "shop" } else { "billing" };
            (source.to_owned(), n.to_string(), format!("68F1A2B3-{n:016X}-00000001"))
        })
        .collect();
    let headers: Vec<Vec<(&str, &[u8])>> = events
        .iter()
        .map(|(source, id, position)| {
            let mut headers: Vec<(&str, &[u8])> =
                vec![("id", id.as_bytes()), ("source", source.as_bytes())];
            // Every seventh is of a repair: it is known by its id.
            let is_repaired = id.parse::<u32>().is_ok_and(|id| id % 7 == 0);
            if is_repaired {
                headers.push(("history", b"68F1A2B3"));
            } else {
                headers.push(("position", position.as_bytes()));
            }
            headers
        })
        .collect();
    let records: Vec<Written<'_>> = headers
        .iter()
        .map(|headers| Written { key: Some(b"42"), value: Some(b"{}"), headers, partition: None })
        .collect();
    write(&topic, &records).await;
    let relay =
        Relay::spawn_intake(&world.config(&topic, "[inboxes.jobs.message]\npositions = true\n"));
    let intake = await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    assert_eq!(intake["repeated_total"], 0, "{intake}");
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("4000"));
    relay.kill().await;
}

/// What a trigger of the application refuses is dead, as what a constraint refuses.
#[tokio::test]
async fn a_message_that_a_trigger_refuses_is_dead_and_the_others_are_stored() {
    let world = World::create(Version::Pg18, "intake_trigger").await;
    world
        .sql
        .batch(
            "create function refuse() returns trigger language plpgsql as $$
             begin
                 if new.payload ->> 'n' = '2' then raise exception 'no'; end if;
                 return new;
             end $$;
             create trigger refuse before insert on postrider_inbox.jobs for each row execute function refuse()",
        )
        .await;
    let topics = Topics::new(&brokers(), "intake_trigger");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=3, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "3", &relay).await;
    let dead =
        "select string_agg(convert_from(payload_bytes, 'UTF8'), ' ') from postrider_inbox.dlq_jobs";
    let found = world.sql.text(dead).await;
    assert_eq!(found.as_deref(), Some("{\"n\": 2}"));
    relay.kill().await;
}

/// A database that can't store every text: what it refuses is dead, with its headers as bytes, and holds nothing back.
#[tokio::test]
async fn headers_that_the_encoding_of_the_database_lacks_are_kept_as_bytes() {
    let admin = Client::connect(&Version::Pg18.variable("URL")).await.expect("a session");
    let name = crate::server::unique("intake_latin");
    let create = format!("create database {name} encoding 'LATIN1' locale 'C' template template0");
    admin.batch(&create).await;
    let url = format!("postgresql://postgres@127.0.0.1:{}/{name}", Version::Pg18.variable("PORT"));
    let sql = Client::connect(&url).await.expect("a session");
    create_inbox(&sql).await;
    let topics = Topics::new(&brokers(), "intake_latin");
    let topic = topics.create("numbers", 1).await;
    let greek: &[(&str, &[u8])] = &[("name", "\u{3b1}".as_bytes())];
    let record =
        Written { key: Some(b"k"), value: Some(b"{\"n\": 1}"), headers: greek, partition: None };
    write(&topic, &[record]).await;
    write_numbers(&topic, 2..=3, |_| "k".to_owned()).await;
    // A key, and an id, that the database can't store.
    let id: &[(&str, &[u8])] =
        &[("id", "\u{3b2}".as_bytes()), ("history", b"68F1A2B3"), ("source", "\u{3b3}".as_bytes())];
    let key = Some("\u{3b1}".as_bytes());
    write(&topic, &[Written { key, value: Some(b"{\"n\": 4}"), headers: id, partition: None }; 2])
        .await;
    write_numbers(&topic, 5..=5, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&config(&url, &topic.brokers, &topic.name, ""));
    await_answer(&sql, COUNT, "5", &relay).await;
    let dead = "select string_agg((headers ? 'base64') || ' ' || convert_from(payload_bytes, 'UTF8'), ' ' order by seq)
                from postrider_inbox.dlq_jobs";
    assert_eq!(sql.text(dead).await.as_deref(), Some("true {\"n\": 1} true {\"n\": 4}"));
    let hashes = "select count(*) from postrider_inbox.dlq_jobs where event_id like '#sha256=%'
                  and aggregate_id like '#sha256=%' and source like '#sha256=%'";
    await_answer(&sql, hashes, "1", &relay).await;
    relay.kill().await;
    drop(sql);
    admin.batch(&format!("drop database {name} with (force)")).await;
}
