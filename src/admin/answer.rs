//! Answers of the endpoint.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The content type of lines for people.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

/// An answer that no cache keeps.
pub(super) fn respond(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (status, headers, body.into()).into_response()
}

/// An answer with a document of JSON.
pub(super) fn json(document: &impl Serialize) -> Response {
    json_answer(serde_json::to_string(document))
}

/// The same with a line for each value, for people.
pub(super) fn json_in_lines(document: &impl Serialize) -> Response {
    json_answer(serde_json::to_string_pretty(document))
}

fn json_answer(document: Result<String, serde_json::Error>) -> Response {
    match document {
        Ok(body) => respond(StatusCode::OK, "application/json", body + "\n"),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}
