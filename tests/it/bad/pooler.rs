//! A pooler between the relay and PostgreSQL. A stand-in for PgBouncer, with the two answers that 1.18 gave (measured):
//! it refuses startup parameters that it does not know, or is told to leave them out, `replication` among them.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::pipeline::Pipeline;
use crate::relay::Relay;
use crate::server::Version;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What PgBouncer passes on without being told to.
const KNOWN: &[&str] = &[
    "user",
    "database",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
    "application_name",
];

/// Passes sessions on to `server`; parameters it does not know it refuses, or leaves out.
async fn pooler(server: String, leaves_out: bool) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut sessions = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = server.clone();
            sessions.spawn(async move { drop(session(client, &server, leaves_out).await) });
        }
    });
    (port, task)
}

async fn session(mut client: TcpStream, server: &str, leaves_out: bool) -> io::Result<()> {
    let mut packet = vec![0; usize::try_from(client.read_u32().await?).unwrap_or(8) - 4];
    client.read_exact(&mut packet).await?;
    let words =
        packet[4..].split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let words: Vec<String> = words.collect();
    let parameters = words.chunks_exact(2).filter(|pair| !pair[0].is_empty());
    let (known, unknown): (Vec<_>, Vec<_>) =
        parameters.partition(|pair| KNOWN.contains(&pair[0].as_str()));
    if let Some([name, _]) = unknown.first().filter(|_| !leaves_out) {
        let body = format!("SFATAL\0C08P01\0Munsupported startup parameter: {name}\0\0");
        client.write_u8(b'E').await?;
        client.write_u32(u32::try_from(body.len() + 4).expect("short")).await?;
        return client.write_all(body.as_bytes()).await;
    }
    let mut startup = packet[..4].to_vec();
    for word in known.iter().flat_map(|pair| pair.iter()) {
        startup.extend_from_slice(word.as_bytes());
        startup.push(0);
    }
    startup.push(0);
    let mut server = TcpStream::connect(server).await?;
    server.write_u32(u32::try_from(startup.len() + 4).expect("short")).await?;
    server.write_all(&startup).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

#[tokio::test]
async fn pooler_in_between_is_told_and_nothing_is_lost() {
    let pipeline = Pipeline::shared(Version::Pg17, "pooler").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    let database = pipeline.url.split("dbname=").nth(1).expect("a database");
    let server = format!("127.0.0.1:{}", Version::Pg17.variable("PORT"));
    for (input, leaves_out, word) in [
        (
            "PgBouncer in between (a stand-in with its words)",
            false,
            "unsupported startup parameter",
        ),
        (
            "PgBouncer in between, with ignore_startup_parameters (a stand-in)",
            true,
            "IDENTIFY_SYSTEM",
        ),
    ] {
        let (port, _task) = pooler(server.clone(), leaves_out).await;
        let url = format!("postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable");
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
    }
    assert_eq!(pipeline.confirmed_lsn().await, before);
    super::arrives(&pipeline, 10).await;
}
