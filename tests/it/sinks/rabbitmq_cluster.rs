//! A cluster of RabbitMQ: three nodes, and a quorum queue whose leader is killed.

use super::pipeline::SinkPipeline;
use super::rabbitmq::RabbitServer;
use super::scenarios::{grown, row};
use super::server::SinkServer;
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::private::PrivateRabbitMq;
use serde_json::Value;

/// How often the leader is killed.
const KILLS: usize = 3;

/// The place of the queue's leader among `nodes`, once all three members are online.
async fn leader(nodes: &[&PrivateRabbitMq]) -> usize {
    await_that("a leader of the queue", SOON, || async {
        let (_, queue) = nodes[0].api("GET", "/api/queues/%2f/orders", &Value::Null).await?;
        let online = queue["online"].as_array().map_or(0, Vec::len);
        let leader = queue["leader"].as_str().unwrap_or_default();
        let place = nodes.iter().position(|node| node.node() == leader);
        place.filter(|_| online == 3).ok_or_else(|| format!("{leader}, {}", queue["online"]))
    })
    .await
}

#[tokio::test]
#[ignore = "takes minutes"]
async fn leader_of_a_quorum_queue_that_is_killed_loses_and_swaps_nothing() {
    let (first, mut second, mut third) = PrivateRabbitMq::start_cluster().await;
    let ports = [first.port(), second.port(), third.port()];
    let server = RabbitServer::of(first).await;
    server.create("orders").await;
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let sink = server.sink_at(&format!("amqp://relay@{}", hosts.join(",")), "");
    let mut pipeline = SinkPipeline::to(server, "rabbitcluster", &sink).await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    let mut killed = Vec::new();
    for _ in 0..KILLS {
        grown(&load, 2_000).await;
        let place = leader(&[&pipeline.server.rabbitmq, &second, &third]).await;
        killed.push(place);
        match place {
            0 => pipeline.server.kill().await,
            1 => second.kill().await,
            _ => third.kill().await,
        }
        grown(&load, 4_000).await;
        match place {
            0 => pipeline.server.restart().await,
            1 => second.restart().await,
            _ => third.restart().await,
        }
    }
    grown(&load, 2_000).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    found.assert_balanced(KILLS * RabbitServer::REPEATS_PER_LOSS);
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    let found = format!("quorum queue, leaders {killed:?} killed under 2,000 events/s: {found}");
    row(&pipeline.server, "cluster", &found.replace('\n', ", ")).await;
    relay.terminate(SOON).await;
}
