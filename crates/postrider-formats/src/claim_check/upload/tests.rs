use super::*;
use crate::claim_check::config::{StorageBucket, StorageLogin};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

const DAY: Duration = Duration::from_hours(24);

#[test]
fn an_object_is_stored_again_if_it_is_old_or_not_known_to_be_the_payload() {
    let payload = Bytes::from_static(b"abc");
    let digest = PayloadDigest::of(&payload);
    let good = StoredObject { size: Some(3), checksum: None, age: Some(DAY) };
    let is_in_use = |found: &StoredObject| is_in_use(found, &payload, digest, DAY);
    assert!(is_in_use(&good));
    assert!(is_in_use(&StoredObject { checksum: Some(digest.base64()), ..good.clone() }));
    let other = PayloadDigest::of(b"abd").base64();
    for found in [
        StoredObject { age: Some(DAY + Duration::from_secs(1)), ..good.clone() },
        StoredObject { age: None, ..good.clone() },
        StoredObject { size: Some(4), ..good.clone() },
        StoredObject { size: None, ..good.clone() },
        StoredObject { checksum: Some(other), ..good.clone() },
    ] {
        assert!(!is_in_use(&found), "{found:?}");
    }
}

/// A storage that gives these answers, and the beginnings of the requests that it had: method and condition.
fn storage(answers: Vec<&'static str>) -> (Upload, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
            loop {
                let text = String::from_utf8_lossy(&read);
                // Only a PUT has a body, which is the end of the text.
                if text.contains("\r\n\r\n") && (text.starts_with("HEAD") || text.ends_with("abc"))
                {
                    break;
                }
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0, "the client left");
                read.extend_from_slice(&buffer[..count]);
            }
            let text = String::from_utf8(read).unwrap().to_ascii_lowercase();
            let method = text.split(' ').next().unwrap();
            let condition = if text.contains("if-none-match: *\r\n") { " if new" } else { "" };
            requests.push(format!("{method}{condition}"));
            let answer = format!("HTTP/1.1 {answer}\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
        requests
    });
    let config = ClaimCheckConfig {
        above: 1,
        bucket: StorageBucket {
            name: "shop".to_owned(),
            prefix: String::new(),
            endpoint,
            region: "us-east-1".to_owned(),
            in_path: true,
        },
        login: StorageLogin::Environment {
            access_key: "key".to_owned(),
            secret_key: "hush".to_owned(),
            session_token: None,
        },
        ca_file: None,
        timeout: Duration::from_secs(10),
        keep: 8 * DAY,
    };
    (Upload::new(&config), thread)
}

/// What becomes of payload `abc`, and the requests for it.
async fn ensure(answers: Vec<&'static str>) -> (Result<(), StorageProblem>, Vec<String>) {
    let (upload, thread) = storage(answers);
    let payload = Bytes::from_static(b"abc");
    let stored = upload.ensure(&payload, PayloadDigest::of(&payload)).await;
    (stored, thread.join().unwrap())
}

const EXISTS: &str = "412 Precondition Failed\r\ncontent-length: 0";
const STORED: &str = "200 OK\r\netag: \"a\"\r\ncontent-length: 0";
/// An object of two days, the age to which it counts, and one that is a second older.
const YOUNG: &str = "200 OK\r\ncontent-length: 3\r\nlast-modified: Sun, 01 Nov 2026 00:00:00 GMT\r\n\
                     date: Tue, 03 Nov 2026 00:00:00 GMT";
const OLD: &str = "200 OK\r\ncontent-length: 3\r\nlast-modified: Sun, 01 Nov 2026 00:00:00 GMT\r\n\
                   date: Tue, 03 Nov 2026 00:00:01 GMT";

#[tokio::test]
async fn new_payload_is_one_request() {
    let (stored, requests) = ensure(vec![STORED]).await;
    assert!(stored.is_ok());
    assert_eq!(requests, ["put if new"]);
}

#[tokio::test]
async fn object_that_is_there_is_used_while_it_is_young_and_stored_again_when_it_is_not() {
    let (stored, requests) = ensure(vec![EXISTS, YOUNG]).await;
    assert!(stored.is_ok());
    assert_eq!(requests, ["put if new", "head"]);
    let (stored, requests) = ensure(vec![EXISTS, OLD, STORED]).await;
    assert!(stored.is_ok());
    assert_eq!(requests, ["put if new", "head", "put"]);
}

#[tokio::test]
async fn object_that_can_not_be_looked_at_is_stored_again() {
    for answer in ["403 Forbidden\r\ncontent-length: 0", "404 Not Found\r\ncontent-length: 0"] {
        let (stored, requests) = ensure(vec![EXISTS, answer, STORED]).await;
        assert!(stored.is_ok());
        assert_eq!(requests, ["put if new", "head", "put"]);
    }
}

#[tokio::test]
async fn store_without_conditions_is_asked_once_for_them() {
    let without = "501 Not Implemented\r\ncontent-length: 0";
    let (upload, thread) = storage(vec![without, STORED, STORED]);
    let payload = Bytes::from_static(b"abc");
    for _ in 0..2 {
        upload.ensure(&payload, PayloadDigest::of(&payload)).await.unwrap();
    }
    assert_eq!(thread.join().unwrap(), ["put if new", "put", "put"]);
}

#[tokio::test]
async fn success_of_another_service_is_a_problem() {
    let (stored, _) = ensure(vec!["200 OK\r\ncontent-length: 0"]).await;
    assert!(stored.unwrap_err().to_string().contains("not that of an object storage"));
}

#[tokio::test]
async fn payload_that_somebody_else_is_storing_is_stored() {
    let (stored, requests) = ensure(vec![
        "409 Conflict\r\ncontent-length: 0",
        "404 Not Found\r\ncontent-length: 0",
        STORED,
    ])
    .await;
    assert!(stored.is_ok());
    assert_eq!(requests, ["put if new", "head", "put"]);
}

#[tokio::test]
async fn refusal_of_a_second_upload_is_a_problem() {
    let busy = "503 Slow Down\r\ncontent-length: 0";
    let (stored, requests) = ensure(vec![EXISTS, OLD, busy]).await;
    assert_eq!(stored.unwrap_err().to_string(), "the store answers 503");
    assert_eq!(requests.len(), 3);
    let (stored, requests) = ensure(vec![busy]).await;
    assert!(stored.is_err());
    assert_eq!(requests, ["put if new"]);
}
