//! The operators' page: three files that are part of the program. They are served with headers that forbid scripts,
//! styles and connections of any other origin, and scripts inside the page.

use super::answer::respond;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_FRAME_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;

/// What the page may load and do. Script and style are files of their own; texts are never markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of the three files.
fn headers() -> [(HeaderName, HeaderValue); 5] {
    let same_origin = HeaderValue::from_static("same-origin");
    [
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (HeaderName::from_static("cross-origin-resource-policy"), same_origin.clone()),
        (HeaderName::from_static("cross-origin-opener-policy"), same_origin),
    ]
}

/// The page.
pub(super) async fn html() -> Response {
    file("text/html; charset=utf-8", include_str!("page/page.html"))
}

/// Its style.
pub(super) async fn css() -> Response {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

/// Its script.
pub(super) async fn js() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}

fn file(kind: &'static str, body: &'static str) -> Response {
    let mut response = respond(StatusCode::OK, kind, body);
    response.headers_mut().extend(headers());
    response
}

#[cfg(test)]
mod tests {
    const SCRIPT: &str = include_str!("page/page.js");
    const PAGE: &str = include_str!("page/page.html");

    #[test]
    fn script_makes_no_markup_of_texts_and_runs_none() {
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "DOMParser",
            "eval(",
            "Function(",
            "createContextualFragment",
            "localStorage",
            "sessionStorage",
            "cookie",
        ] {
            assert!(!SCRIPT.contains(word), "{word}");
        }
        for word in [
            "onclick",
            "onload",
            "onerror",
            "style=",
            "<script>",
            "<style",
            "http:",
            "https:",
            "javascript:",
        ] {
            assert!(!PAGE.contains(word), "{word}");
        }
    }

    /// Each id that the script looks up is in the page, and no id is there twice.
    #[test]
    fn ids_of_the_script_are_in_the_page() {
        let ids: Vec<&str> =
            PAGE.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        for (place, id) in ids.iter().enumerate() {
            assert!(!ids[..place].contains(id), "{id} twice");
        }
        let mut found = 0;
        for call in ["by(\"", "text(\"", "facts(\""] {
            for id in SCRIPT.split(call).skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(ids.contains(&id), "{id}");
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
    }
}
