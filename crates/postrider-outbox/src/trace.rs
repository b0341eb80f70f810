//! Whether a text is a trace context of the W3C.

/// A W3C trace context: `00-` 32 hex digits `-` 16 hex digits `-` 2 hex digits, lower case, neither id all zero.
pub(super) fn is_traceparent(text: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let some = |part: &[u8]| part.iter().any(|byte| *byte != b'0');
    let mut parts = text.split(|byte| *byte == b'-');
    let mut part = |len: usize| parts.next().filter(|part| part.len() == len && hex(part));
    let (Some(version), Some(trace), Some(parent), Some(_)) =
        (part(2), part(32), part(16), part(2))
    else {
        return false;
    };
    // Later versions may append parts; version ff is forbidden.
    version != b"ff" && some(trace) && some(parent) && (version != b"00" || text.len() == 55)
}
