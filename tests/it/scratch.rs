use crate::server::{Database, Version};
use crate::topic::Topics;
use postrider::driver::{PipelineSpec, Service, Stop};
use postrider::metrics::Metrics;
use postrider::outbox::{Layout, OutboxSpec};
use postrider::postgres::control::{Ask, Control};
use postrider::postgres::{Conninfo, Names, TableName, setup};
use postrider::relay::Limits;
use postrider::sink::{KafkaSpec, SinkSpec};
use postrider::status::Board;
use std::time::Duration;

#[tokio::test]
async fn one_row_walks() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).try_init().ok();
    let db = Database::create(Version::Pg15, "skeleton").await;
    let topics = Topics::new(&crate::server::brokers(), "skeleton");
    let topic = topics.create("orders", 4).await;
    let conninfo = Conninfo::parse(&db.url(), &|_| None).unwrap();
    let names = Names { pipeline: "orders".into(), slot: db.name.clone(), publication: "pub".into(), table: Some(TableName { schema: "public".into(), name: "outbox".into() }) };
    let mut outbox = OutboxSpec::for_layout(Layout::Postrider);
    outbox.topic = topic.name.clone();
    let control = Control::connect(&conninfo, "setup").await.unwrap();
    db.connect().await.batch(Layout::Postrider.create_sql()).await;
    let columns: Vec<String> = outbox.required_columns().into_iter().map(str::to_owned).collect();
    let watch = Control::connect(&conninfo, "setup").await.unwrap();
    let ask = Ask { names: &names, identity: &None, columns: &columns, messages: false, failover: false };
    setup::apply(&control, &watch, &ask, &setup::Options { create_table: None, role: None }, &mut |_| ()).await.unwrap();
    let spec = PipelineSpec {
        conninfo, names, failover: false, outbox,
        sink: SinkSpec::Kafka(KafkaSpec { brokers: crate::server::brokers(), properties: Default::default(), client_id: "x".into(), in_flight_events: 50000, in_flight_bytes: 32 << 20, size_max: None }),
        limits: Limits { events_max: 50000, bytes_max: 32 << 20 },
        cursor_interval: Duration::from_secs(1), confirm_interval: Duration::from_millis(200), shutdown_grace: Duration::from_secs(10),
    };
    let board = Board::new("orders");
    let metrics = Metrics::default();
    let counts = metrics.pipeline(&board);
    let (handle, stop) = Stop::new();
    let mut service = Service::start(vec![(spec, board.clone(), counts)], &stop).unwrap();
    control.client().batch_execute("insert into public.outbox(aggregate_type, aggregate_id, event_type, payload) select 'order', (i%10)::text, 'made', '{\"a\":1}' from generate_series(1,1000) i").await.unwrap();
    let records = topic.await_records(1000, Duration::from_secs(20)).await;
    println!("{:?}", records[0]);
    println!("{:#?}", board.read());
    handle.stop();
    println!("{:?}", service.next_exit().await);
    println!("{:#?}", board.read());
}
