use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

/// A server that answers one connection with `answer`, and the bytes that it has read.
fn server(answer: &'static str) -> (Uri, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = parse_url(&format!("http://{}/path?a=b", listener.local_addr().unwrap())).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&read).ends_with("the end") {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the client left");
            read.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8(read).unwrap()
    });
    (url, thread)
}

async fn send(url: Uri, max: usize) -> Result<HttpsAnswer, HttpsError> {
    let client = HttpsClient::new(TlsFiles::default(), Duration::from_secs(10));
    let mut headers = HeaderMap::new();
    headers.insert("x-of-test", HeaderValue::from_static("yes"));
    let request = HttpsRequest {
        method: Method::PUT,
        url,
        headers,
        body: Bytes::from_static(b"this is the end"),
        timeout: Duration::from_secs(10),
        answer_bytes_max: max,
    };
    client.send(request).await
}

#[tokio::test]
async fn a_request_and_its_answer_arrive_as_they_are() {
    let (url, server) =
        server("HTTP/1.1 409 Conflict\r\nx-answer: 1\r\ncontent-length: 4\r\n\r\nbody");
    let answer = send(url, 4).await.unwrap();
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert_eq!(
        (&answer.headers["x-answer"], &answer.body[..]),
        (&"1".parse().unwrap(), &b"body"[..])
    );
    let read = server.join().unwrap();
    assert!(read.starts_with("PUT /path?a=b HTTP/1.1\r\n"), "{read}");
    for header in
        ["x-of-test: yes", "content-length: 15", "host: 127.0.0.1:", "user-agent: postrider/"]
    {
        assert!(read.to_ascii_lowercase().contains(header), "{header}: {read}");
    }
}

#[tokio::test]
async fn an_answer_beyond_its_bound_or_cut_off_is_an_error() {
    let (url, _server) = server("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nbody!");
    assert!(matches!(send(url, 4).await, Err(HttpsError::TooLarge { max: 4 })));
    let (url, _server) = server("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nbody!");
    assert!(matches!(send(url, 100).await, Err(HttpsError::Lost(_))));
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_known_from_a_lost_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = parse_url(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let error = send(url, 4).await.err().unwrap();
    assert!(
        matches!(&error, HttpsError::Connect(why) if matches!(**why, HttpsConnectError::Tcp(_)))
    );
    assert!(error.to_string().contains("127.0.0.1: "), "{error}");
    let (url, _server) = server("");
    let error = send(url, 4).await.err().unwrap();
    assert!(matches!(error, HttpsError::Lost(_)), "{error}");
}

#[test]
fn urls_without_scheme_host_or_with_a_password_are_refused() {
    assert!(parse_url("https://[::1]:8081/apis").is_ok());
    for (url, why) in [
        ("registry:8081", "begin with"),
        ("/path", "begin with"),
        ("ftp://registry", "begin with"),
        ("http://user:hush@registry", "user or a password"),
        ("http://a b", "is no URL"),
    ] {
        let error = parse_url(url).unwrap_err();
        assert!(error.contains(why) && !error.contains("hush"), "{url}: {error}");
    }
}
