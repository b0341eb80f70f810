//! The endpoint over a real socket, with statuses that only the test writes.

use super::*;
use crate::metrics::Closed;
use crate::status::{Lag, PipelineState as Doing};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

fn view(status_handles: &[StatusHandle]) -> AdminView {
    let metrics = Metrics::default();
    for status_handle in status_handles {
        metrics.pipeline(status_handle);
    }
    AdminView {
        intake_handles: Vec::new(),
        maintenance_handles: Vec::new(),
        status_handles: status_handles.to_vec(),
        metrics,
        log_events: LogEvents::default(),
        ready_lag_max: Duration::from_secs(30),
    }
}

async fn ask(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: admin\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Serves `status_handles` while `asks` runs.
fn serving<F: Future<Output = ()>>(
    status_handles: &[StatusHandle],
    asks: impl FnOnce(SocketAddr) -> F,
) {
    serving_within(BOUNDS, &view(status_handles), asks);
}

/// The same with other limits of connections.
fn serving_within<F: Future<Output = ()>>(
    bounds: Bounds,
    view: &AdminView,
    asks: impl FnOnce(SocketAddr) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut admin = Admin::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        admin.bounds = bounds;
        let address = admin.address().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = admin.serve(view.clone(), async { stopped.await.unwrap_or_default() });
        let asks = async {
            asks(address).await;
            stop.send(()).unwrap();
        };
        tokio::join!(serve, asks);
    });
}

#[test]
fn ready_is_200_only_while_every_pipeline_streams_close_behind() {
    let (a, b) = (StatusHandle::new("a"), StatusHandle::new("b"));
    serving(&[a.clone(), b.clone()], |address| async move {
        a.update(|snapshot| snapshot.state = Doing::Streaming);
        for (state, lag, status) in [
            (Doing::Streaming, 0.0, 200),
            (Doing::Streaming, 29.9, 200),
            (Doing::Streaming, 30.0, 503),
            (Doing::CatchingUp, 1.0, 200),
            (Doing::CatchingUp, 300.0, 503),
            (Doing::Starting, 0.0, 503),
            (Doing::StandingBy, 0.0, 503),
            (Doing::BrokerDown, 0.0, 503),
            (Doing::SourceDown, 0.0, 503),
            (Doing::ParkingFull, 0.0, 503),
            (Doing::Draining, 0.0, 503),
            (Doing::Halted, 0.0, 503),
            (Doing::Stopped, 0.0, 503),
        ] {
            b.update(|snapshot| {
                snapshot.state = state;
                snapshot.moments.lag = Lag::growing(Duration::from_secs_f64(lag));
            });
            let (found, body) = ask(address, "/ready").await;
            assert_eq!(found, status, "{state:?} {lag} {body}");
            assert_eq!(body.lines().count(), 1, "{body}");
            assert!(!body.contains("a:"), "{body}");
        }
    });
}

#[test]
fn what_is_not_ready_says_why_in_one_line() {
    let status_handle = StatusHandle::new("orders");
    status_handle.update(|snapshot| {
        snapshot.state = Doing::Halted;
        snapshot.halt_code = Some("PR001");
        snapshot.reason = Some("slot \"postrider_orders\" was\nremoved".to_owned());
    });
    serving(&[status_handle], |address| async move {
        let (status, body) = ask(address, "/ready").await;
        assert_eq!(status, 503);
        assert_eq!(body, "orders: halted: PR001: slot \"postrider_orders\" was removed\n");
        assert_eq!(ask(address, "/live").await, (200, "ok\n".to_owned()));
    });
}

#[test]
fn a_loop_that_does_not_turn_is_not_live() {
    let started = Instant::now();
    let late = started + TURN_MAX + Duration::from_secs(2);
    let mut snapshot = Snapshot { state: Doing::Streaming, ..Snapshot::default() };
    assert_eq!(live(&snapshot, started, started + TURN_MAX), None);
    let stuck = Some("the loop has not turned for 32 s".to_owned());
    assert_eq!(live(&snapshot, started, late), stuck);
    assert_eq!(ready(&snapshot, Duration::from_secs(30), started, late), stuck);
    snapshot.moments.turned_at = Some(late);
    assert_eq!(live(&snapshot, started, late), None);
    snapshot.moments.turned_at = None;
    snapshot.state = Doing::Halted;
    assert_eq!(live(&snapshot, started, late), None);
}

#[test]
fn status_and_metrics_show_the_boards() {
    let status_handle = StatusHandle::new("orders");
    status_handle.update(|snapshot| {
        snapshot.state = Doing::Streaming;
        snapshot.published_total = 42;
    });
    serving(&[status_handle], |address| async move {
        let (status, body) = ask(address, "/status").await;
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, 200);
        assert_eq!(json["pipelines"][0]["published_total"], 42);
        assert_eq!(json["pipelines"][0]["state"], "streaming");
        assert_eq!(json["pipelines"][0]["ready"], true);
        assert_eq!(json["pipelines"][0]["shard"], 0);
        let (status, body) = ask(address, "/metrics").await;
        assert_eq!(status, 200);
        assert!(body.contains("outbox_throughput{pipeline=\"orders\",shard=\"0\"} 42\n"), "{body}");
        assert_eq!(ask(address, "/other").await.0, 404);
    });
}

const SHORT: Bounds = Bounds {
    connections: 4,
    exchange: Duration::from_millis(400),
    header_time: Duration::from_millis(200),
    when_full: WhenFull::ClosesOldest,
};

/// Sends `request`, and reads until the endpoint closes the connection.
async fn until_closed(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A reset closes the connection too.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_connection_is_closed_when_its_time_is_over() {
    let view = view(&[StatusHandle::new("a")]);
    let counts = view.metrics.endpoint().clone();
    serving_within(SHORT, &view, |address| async move {
        assert_eq!(until_closed(address, "").await, "");
        assert_eq!(until_closed(address, "GET /live HTTP/1.1\r\nHost: x\r\nX: ").await, "");
        let late = async {
            while counts.closed_total(Closed::Late) < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), late).await.unwrap();
    });
}

#[test]
fn a_reader_that_reads_nothing_is_given_up() {
    // An answer that fits into no buffer of the system.
    let status_handles: Vec<_> =
        (0..20_000).map(|number| StatusHandle::new(&format!("p{number}"))).collect();
    let view = AdminView {
        intake_handles: Vec::new(),
        maintenance_handles: Vec::new(),
        status_handles,
        metrics: Metrics::default(),
        log_events: LogEvents::default(),
        ready_lag_max: Duration::from_secs(30),
    };
    let counts = view.metrics.endpoint().clone();
    serving_within(SHORT, &view, |address| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let late = async {
            while counts.closed_total(Closed::Late) < 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), late).await.unwrap();
        drop(stream);
    });
}

#[test]
fn one_connection_carries_one_request() {
    serving(&[StatusHandle::new("a")], |address| async move {
        let answer =
            until_closed(address, &"GET /live HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3)).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    });
}

#[test]
fn a_header_above_its_bound_is_refused() {
    serving(&[StatusHandle::new("a")], |address| async move {
        let long = format!("GET /live HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(32 << 10));
        let many = format!("GET /live HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(65));
        for request in [long, many] {
            let answer = until_closed(address, &request).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        }
        assert_eq!(ask(address, "/live").await.0, 200);
    });
}

#[test]
fn a_new_connection_takes_the_place_of_the_oldest_that_asks_nothing() {
    let bounds = Bounds { connections: 4, ..BOUNDS };
    let view = view(&[StatusHandle::new("a")]);
    let counts = view.metrics.endpoint().clone();
    serving_within(bounds, &view, |address| async move {
        let mut held = Vec::new();
        for _ in 0..40 {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(ask(address, "/live").await, (200, "ok\n".to_owned()));
        assert_eq!(counts.closed_total(Closed::Full), 37);
        let mut first = Vec::new();
        let closed = held[0].read_to_end(&mut first).await;
        assert!(closed.is_err() || first.is_empty());
    });
}

#[test]
fn an_address_in_use_names_the_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let first = Admin::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let error = Admin::bind(first.address().unwrap()).await.unwrap_err();
        assert!(error.to_string().ends_with("which admin.listen names"), "{error}");
        assert!(error.hint().contains("another process"), "{}", error.hint());
    });
}

/// The head of an answer, in lower case, and its body.
async fn answered(address: SocketAddr, path: &str) -> (String, String) {
    let answer = until_closed(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

#[test]
fn page_is_three_files_with_a_policy_that_allows_no_other_origin_and_no_script_in_the_page() {
    serving(&[StatusHandle::new("a")], |address| async move {
        for (path, kind, begins) in [
            ("/", "text/html; charset=utf-8", "<!doctype html>"),
            ("/page.css", "text/css; charset=utf-8", ":root"),
            ("/page.js", "text/javascript; charset=utf-8", "//"),
        ] {
            let (head, body) = answered(address, path).await;
            assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
            assert!(body.starts_with(begins), "{path}: {body}");
            for line in [
                format!("content-type: {kind}"),
                "x-content-type-options: nosniff".to_owned(),
                "cache-control: no-store".to_owned(),
                "referrer-policy: no-referrer".to_owned(),
                "x-frame-options: deny".to_owned(),
                "cross-origin-resource-policy: same-origin".to_owned(),
            ] {
                assert!(head.lines().any(|known| known == line), "{path}: {line}: {head}");
            }
            let policy =
                head.lines().find_map(|line| line.strip_prefix("content-security-policy: "));
            let policy = policy.unwrap();
            assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
            assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
            assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        }
        // What has no path of its own is not served.
        for path in ["/page.html", "/page/page.js", "/..%2f", "/page.js/", "/history"] {
            assert_eq!(ask(address, path).await.0, 404, "{path}");
        }
    });
}

#[test]
fn status_has_the_sentence_and_the_stages_of_each_pipeline() {
    let status_handle = StatusHandle::new("orders");
    status_handle.update(|snapshot| {
        snapshot.state = Doing::BrokerDown;
        snapshot.reason = Some("no broker answers".to_owned());
        snapshot.watermark = "0/20".to_owned();
    });
    serving(&[status_handle], |address| async move {
        let (_, body) = ask(address, "/status").await;
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        let pipeline = &json["pipelines"][0];
        assert_eq!(pipeline["sentence"], "publishes nothing: no broker answers, nothing waits");
        assert_eq!(pipeline["flow"]["blocked"]["stage"], "acknowledged");
        assert_eq!(pipeline["flow"]["stages"][3]["position"], "0/20");
    });
}

#[test]
fn history_is_that_of_one_pipeline_and_shard_and_of_an_hour_or_a_day() {
    let hostile = StatusHandle::new("a/b <c> é");
    let view = view(&[StatusHandle::new("orders"), hostile]);
    for (pipeline, message) in [(Some("orders"), "one"), (Some("other"), "two"), (None, "three")] {
        view.log_events.add(LogEvent {
            unix_ms: 0,
            level: "INFO",
            event: "streaming".to_owned(),
            pipeline: pipeline.map(str::to_owned),
            message: message.to_owned(),
            hint: None,
        });
    }
    serving_within(BOUNDS, &view, |address| async move {
        for window in ["hour", "day"] {
            let (status, body) = ask(address, &format!("/history/orders/0/{window}")).await;
            assert_eq!(status, 200, "{body}");
            let json: serde_json::Value = serde_json::from_str(&body).unwrap();
            let messages = json["log"].as_array().unwrap().iter().map(|line| &line["message"]);
            assert_eq!(messages.collect::<Vec<_>>(), ["one", "three"]);
            assert!(json["columns"]["at"].as_array().unwrap().is_empty());
            assert!(json["now_unix_ms"].as_u64() > Some(1_600_000_000_000));
        }
        let named = "/history/a%2Fb%20%3Cc%3E%20%C3%A9/0/hour";
        assert_eq!(ask(address, named).await.0, 200);
        for path in [
            "/history/orders/1/hour",
            "/history/orders/0/week",
            "/history/nothing/0/hour",
            "/history/orders/0",
            "/history/orders/00/hour",
        ] {
            assert_eq!(ask(address, path).await.0, 404, "{path}");
        }
        // Bytes that are no text are no name.
        assert_eq!(ask(address, "/history/%ff/0/hour").await.0, 400);
    });
}
