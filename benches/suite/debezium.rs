//! Debezium on Kafka Connect, standalone, tuned according to its documentation.

use crate::contender::Job;
use crate::servers::Servers;
use crate::wal::PUBLICATION;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The heap of Kafka Connect's start script, unless `BENCH_CONNECT_HEAP` is set.
const HEAP: &str = "-Xmx2g";

/// Whether `scripts/bench` has fetched Debezium.
pub(crate) fn is_there(servers: &Servers) -> bool {
    servers.connect.join(".complete").exists()
}

pub(crate) fn command(job: &Job<'_>, port: u16) -> Command {
    let connect = &job.servers.connect;
    let heap = std::env::var_os("BENCH_CONNECT_HEAP").unwrap_or_else(|| HEAP.into());
    let (worker, connector) = (worker(job, port), connector(job));
    let mut command = Command::new("java");
    command
        .arg("-Xms256m")
        .arg(heap)
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"])
        .arg(format!("{}/lib/*", connect.display()))
        .arg("org.apache.kafka.connect.cli.ConnectStandalone")
        .args([worker, connector]);
    command
}

fn write(scratch: &Path, name: &str, text: &str) -> PathBuf {
    let file = scratch.join(name);
    fs::write(&file, text).expect("a configuration");
    file
}

/// The offsets belong to the slot: a restart after `kill` uses them, another slot starts without offsets.
fn worker(job: &Job<'_>, port: u16) -> PathBuf {
    let Servers { brokers, scratch, connect, .. } = job.servers;
    let text = format!(
        "bootstrap.servers={brokers}\n\
         key.converter=org.apache.kafka.connect.storage.StringConverter\n\
         value.converter=org.apache.kafka.connect.storage.StringConverter\n\
         plugin.path={}\n\
         plugin.discovery=hybrid_warn\n\
         listeners=http://127.0.0.1:{port}\n\
         offset.storage.file.filename={}\n\
         offset.flush.interval.ms=5000\n\
         connector.client.config.override.policy=All\n\
         producer.acks=all\n\
         producer.enable.idempotence=true\n\
         producer.linger.ms=5\n\
         producer.batch.size=524288\n\
         producer.compression.type=lz4\n\
         producer.buffer.memory=67108864\n",
        connect.join("plugins").display(),
        scratch.join(format!("{}.offsets", job.slot)).display(),
    );
    write(scratch, &format!("{}-worker.properties", job.slot), &text)
}

/// Deletes offsets of an earlier run with the same name.
pub(crate) fn forget(job: &Job<'_>) {
    drop(fs::remove_file(job.servers.scratch.join(format!("{}.offsets", job.slot))));
}

fn connector(job: &Job<'_>) -> PathBuf {
    let Job { servers, database, slot, topic, .. } = job;
    let text = format!(
        "name={slot}\n\
         connector.class=io.debezium.connector.postgresql.PostgresConnector\n\
         tasks.max=1\n\
         database.hostname=127.0.0.1\n\
         database.port={}\n\
         database.user=postgres\n\
         database.password=none\n\
         database.dbname={database}\n\
         database.sslmode={}\n\
         topic.prefix={slot}\n\
         plugin.name=pgoutput\n\
         slot.name={slot}\n\
         publication.name={PUBLICATION}\n\
         publication.autocreate.mode=disabled\n\
         snapshot.mode=no_data\n\
         table.include.list=public.outbox\n\
         tombstones.on.delete=false\n\
         max.batch.size=16384\n\
         max.queue.size=65536\n\
         poll.interval.ms=10\n\
         transforms=outbox\n\
         transforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n\
         transforms.outbox.table.field.event.id=id\n\
         transforms.outbox.table.field.event.key=aggregate_id\n\
         transforms.outbox.table.field.event.payload=payload\n\
         transforms.outbox.table.fields.additional.placement=event_type:header:type\n\
         transforms.outbox.route.by.field=aggregate_type\n\
         transforms.outbox.route.topic.replacement={topic}\n",
        servers.port,
        job.road.sslmode(),
    );
    write(&servers.scratch, &format!("{slot}-connector.properties"), &text)
}
