//! A cluster of NATS: three servers, and a stream of three replicas whose leader is killed.

use super::nats::NatsServer;
use super::pipeline::SinkPipeline;
use super::scenarios::{grown, row};
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::private::{PrivateNats, free_port};
use serde_json::{Value, json};

/// How often the leader is killed.
const KILLS: usize = 5;

/// Three servers, each with routes to the others. They are healthy once two of them run.
async fn cluster() -> (PrivateNats, PrivateNats, PrivateNats) {
    let routes = [free_port(), free_port(), free_port()];
    let all: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let config = |at: usize| {
        format!(
            "server_name: n{at}\ncluster {{ name: test, listen: \"127.0.0.1:{}\", routes: [ {} ] }}",
            routes[at],
            all.join(", ")
        )
    };
    let configs = [config(0), config(1), config(2)];
    tokio::join!(
        PrivateNats::start(&configs[0]),
        PrivateNats::start(&configs[1]),
        PrivateNats::start(&configs[2]),
    )
}

/// The place of the stream's leader among `nodes`, by one that runs.
async fn leader(nodes: &[&PrivateNats]) -> usize {
    await_that("a leader of the stream", SOON, || async {
        let answer = nodes[0].admin("$JS.API.STREAM.INFO.EVENTS", "").await?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        let current = answer["cluster"]["replicas"]
            .as_array()
            .is_some_and(|replicas| replicas.iter().all(|replica| replica["current"] == true));
        let name = answer["cluster"]["leader"].as_str().unwrap_or_default();
        let place = name.strip_prefix('n').and_then(|place| place.parse().ok());
        place.filter(|_| current).ok_or_else(|| answer["cluster"].to_string())
    })
    .await
}

#[tokio::test]
async fn leader_of_three_replicas_that_is_killed_loses_and_swaps_nothing() {
    let (first, mut second, mut third) = cluster().await;
    let ports = [first.port(), second.port(), third.port()];
    let server = NatsServer::of(first);
    server
        .change(|stream| {
            stream.settings.insert("num_replicas".to_owned(), json!(3));
            stream.subjects.push("orders".to_owned());
        })
        .await;
    let urls: Vec<String> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let sink = server.sink_at(&urls.join(","), "");
    let mut pipeline = SinkPipeline::to(server, "natscluster", &sink).await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    let mut killed = Vec::new();
    for _ in 0..KILLS {
        grown(&load, 2_000).await;
        let place = leader(&[&pipeline.server.nats, &second, &third]).await;
        killed.push(place);
        let node = match place {
            0 => &mut pipeline.server.nats,
            1 => &mut second,
            _ => &mut third,
        };
        node.kill().await;
        grown(&load, 2_000).await;
        node.restart().await;
    }
    grown(&load, 2_000).await;
    let ledger = load.stop().await;
    let found = pipeline.arrived(&ledger).await;
    // What was acknowledged is on two servers, so the stream is read back.
    found.assert_balanced(0);
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    let found = format!("three replicas, leaders {killed:?} killed under 2,000 events/s: {found}");
    row(&pipeline.server, "cluster", &found.replace('\n', ", ")).await;
    relay.terminate(SOON).await;
}
