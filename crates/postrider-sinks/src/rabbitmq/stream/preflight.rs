//! `postrider check` for streams: whether the server can be reached, whether each stream exists, and whether it may be
//! written to.

use super::codec::{
    ACCESS_REFUSED, CREATE, DELETE_PUBLISHER, NO_STREAM, OK, STREAM_EXISTS, put_map, put_string,
};
use super::link::StreamLink;
use super::problem::{StreamProblem, StreamStep};
use crate::rabbitmq::commands::{allow_streams, declare_stream};
use crate::rabbitmq::management;
use crate::rabbitmq::spec::RabbitSpec;
use crate::worker_thread;
use postrider_core::finding::Finding;

/// The number of the publisher that is declared to find out whether it may be.
const PUBLISHER: u8 = 0;

/// The findings about the server, and about the streams that are known before the first event.
pub(crate) fn check(spec: &RabbitSpec, management: &str, topics: &[String]) -> Vec<Finding> {
    answered(spec, || findings(spec, management, topics))
}

/// Creates the streams that do not exist.
pub(crate) fn create(spec: &RabbitSpec, topics: &[String]) -> Vec<Finding> {
    answered(spec, || created(spec, topics))
}

/// Asks the server; a finding if there is no answer.
fn answered<A: Future<Output = Result<Vec<Finding>, StreamProblem>>>(
    spec: &RabbitSpec,
    question: impl FnOnce() -> A + Send,
) -> Vec<Finding> {
    match worker_thread::ask(question) {
        Ok(Ok(findings)) => findings,
        Ok(Err(StreamProblem { reason, hint, .. })) => {
            let why = "nothing is published until it answers";
            let why = hint.map_or_else(|| why.to_owned(), |hint| format!("{why}; {hint}"));
            vec![Finding::error("rabbitmq_server", reason).why(why)]
        }
        Err(unanswered) => {
            let what = format!("RabbitMQ at {}: {unanswered}", spec.address.place());
            vec![Finding::error("rabbitmq_server", what)]
        }
    }
}

async fn connect(spec: &RabbitSpec) -> Result<StreamLink, StreamProblem> {
    let mut last = None;
    for host in &spec.address.hosts {
        match StreamLink::open(spec, host).await {
            Ok(link) => return Ok(link),
            Err(problem) => last = Some(problem),
        }
    }
    let none = || StreamProblem::new(StreamStep::Connect, "no host is given", None);
    Err(last.unwrap_or_else(none))
}

async fn findings(
    spec: &RabbitSpec,
    management: &str,
    topics: &[String],
) -> Result<Vec<Finding>, StreamProblem> {
    let mut link = connect(spec).await?;
    let (host, version) = (link.host(), &link.server.version);
    let what = format!("RabbitMQ {version} at {host} answers by the stream protocol");
    let mut out = vec![Finding::ok("rabbitmq_server", what)];
    out.extend(crate::rabbitmq::preflight::of_version(version));
    for topic in topics {
        out.push(of_stream(&mut link, spec, topic).await?);
    }
    link.close().await;
    out.extend(management::findings(spec, management, topics).await);
    Ok(out)
}

async fn of_stream(
    link: &mut StreamLink,
    spec: &RabbitSpec,
    stream: &str,
) -> Result<Finding, StreamProblem> {
    let place = link.find(stream).await?;
    if place.code == OK {
        // A publisher without a name, which writes nothing.
        let declared = link.declare(PUBLISHER, "", stream, spec).await;
        return Ok(match declared {
            Ok(()) => {
                link.ask(StreamStep::Declare, DELETE_PUBLISHER, |out| out.push(PUBLISHER)).await?;
                let leader = place.leader.map_or_else(
                    || "no leader".to_owned(),
                    |(host, port)| format!("its leader is at {host}:{port}"),
                );
                let what = format!("stream {stream:?} exists and may be written to; {leader}");
                Finding::ok("rabbitmq_stream", what)
            }
            Err(StreamProblem { code: Some(code), reason, hint, .. }) => {
                let finding = Finding::error("rabbitmq_stream", reason);
                if code == ACCESS_REFUSED {
                    finding.why("its events wait").shell(allow_streams(spec))
                } else {
                    finding.why(hint.unwrap_or_default())
                }
            }
            Err(problem) => return Err(problem),
        });
    }
    let problem = StreamProblem::refused(StreamStep::Find, place.code, stream, spec);
    let finding = Finding::error("rabbitmq_stream", problem.reason);
    Ok(if place.code == NO_STREAM {
        finding
            .why("its events are parked until it exists; a queue of another type, or a super stream, is no stream")
            .shell(declare_stream(&spec.address.vhost, stream))
    } else {
        finding.why(problem.hint.unwrap_or_default())
    })
}

async fn created(spec: &RabbitSpec, topics: &[String]) -> Result<Vec<Finding>, StreamProblem> {
    let mut link = connect(spec).await?;
    let mut out = Vec::new();
    for stream in topics {
        let code = link.ask(StreamStep::Create, CREATE, |out| {
            put_string(out, stream);
            put_map(out, &[]);
        });
        out.push(match code.await? {
            OK => Finding::ok("rabbitmq_stream", format!("stream {stream:?} is declared")),
            STREAM_EXISTS => Finding::ok("rabbitmq_stream", format!("stream {stream:?} exists")),
            code => {
                let what = format!("stream {stream:?} can't be declared (code {code})");
                Finding::error("rabbitmq_stream", what).why(
                    "the user needs the right to configure it, or an administrator declares it",
                )
            }
        });
    }
    link.close().await;
    Ok(out)
}
