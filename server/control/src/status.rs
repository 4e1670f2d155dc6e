//! gRPC statuses: the only place that makes them.
//!
//! Every status carries `google.rpc.ErrorInfo`; one about a field `google.rpc.BadRequest`; one about a text
//! `kprobed.v1.Diagnostics`. A status travels in the trailers of a call, and gRPC clients accept few bytes in them: a
//! stock client that gets more reports `metadata size exceeds limit` and nothing else. So what an error repeats of its
//! request is cut: texts around the position that matters, with the number of bytes that were left out. The code, the
//! reason and the first finding are never left out.

#[cfg(test)]
mod tests;

use std::ops::Range;

use kprobed_proto::{ERROR_DOMAIN, v1};
use prost::Message as _;
use prost_types::Any;
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::{Code, Status};
use tonic_types::pb;

use crate::error::{Error, Reason};
use kprobed_verdict::message::length;

impl From<Error> for Status {
    #[expect(clippy::disallowed_methods, reason = "the only place that makes them")]
    fn from(error: Error) -> Self {
        let whole = fitting(&error);
        Self::with_details(Code::from_i32(whole.code), whole.message.clone(), whole.encode_to_vec().into())
    }
}

/// The error of one of several requests, of which others may have succeeded.
pub fn of_one(error: &Error) -> v1::FailedRequest {
    let pb::Status { code, message, details } = fitting(error);
    v1::FailedRequest { code, message, details }
}

/// An error as a message that fits the trailers of a call.
fn fitting(error: &Error) -> pb::Status {
    let fits = |status: &pb::Status| trailers_bytes(status) <= TRAILERS_BYTES;
    let whole = encoded(error);
    if fits(&whole) {
        return whole;
    }
    let smaller = LIMITS.iter().map(|limits| encoded(&cut(error.clone(), limits))).find(fits);
    // A message alone always fits.
    let bare =
        || pb::Status { message: words(&error.message, LIMITS[3].words), details: Vec::new(), ..whole };
    smaller.unwrap_or_else(bare)
}

fn encoded(error: &Error) -> pb::Status {
    let Error { reason, message, field, metadata, diagnostics, .. } = error;
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    let info = pb::ErrorInfo {
        reason: reason.name.to_owned(),
        domain: ERROR_DOMAIN.to_owned(),
        metadata: metadata.collect(),
    };
    let mut details = vec![any("google.rpc.ErrorInfo", &info)];
    if let Some(field) = field {
        let violation = pb::bad_request::FieldViolation {
            field: field.clone().into_owned(),
            description: message.clone(),
            reason: reason.name.to_owned(),
            ..Default::default()
        };
        details.push(any("google.rpc.BadRequest", &pb::BadRequest { field_violations: vec![violation] }));
    }
    details.extend(diagnostics.as_ref().map(|found| any("kprobed.v1.Diagnostics", &**found)));
    pb::Status { code: reason.code.into(), message: message.clone(), details }
}

fn any(name: &str, message: &impl prost::Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

/// Gives a status on its way what every status of the daemon has: a reason, and a size that clients accept. Those of
/// the daemon have both. The gRPC library says INTERNAL, without a reason, of a message that it cannot read.
#[expect(clippy::disallowed_methods, reason = "it is the same status, and keeps its code")]
pub fn finish(headers: &mut HeaderMap) {
    if headers.contains_key("grpc-status-details-bin") {
        return;
    }
    let bytes = headers.get("grpc-message").map_or(0, HeaderValue::len);
    let status = match Status::from_header_map(headers) {
        Some(found) if found.code() == Code::Internal => {
            let message = format!("a message of the request cannot be read: {}", found.message());
            Error::new(Reason::BAD_MESSAGE, message).into()
        }
        Some(found) if bytes + OTHER_BYTES > TRAILERS_BYTES => {
            Status::new(found.code(), words(found.message(), LIMITS[0].words))
        }
        _ => return,
    };
    for name in ["grpc-status", "grpc-message"] {
        headers.remove(name);
    }
    if let Err(error) = status.add_header(headers) {
        tracing::error!(%error, "a status cannot be sent");
    }
}

/// Trailers that every gRPC client accepts, in bytes: name, value and 32 for each, as HTTP/2 counts them.
const TRAILERS_BYTES: usize = 8 << 10;

/// Bytes of other trailers than the message and the details.
const OTHER_BYTES: usize = 384;

/// Limits of what is kept, in bytes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Of a text with carets.
    text: usize,
    /// Of everything else that a client sent: names, labels, messages that repeat them.
    words: usize,
    /// Findings.
    findings: usize,
}

/// From generous to strict: the first one that fits is used.
const LIMITS: [Limits; 4] = [
    Limits { text: 2400, words: 320, findings: 6 },
    Limits { text: 1200, words: 200, findings: 4 },
    Limits { text: 400, words: 100, findings: 2 },
    Limits { text: 80, words: 40, findings: 1 },
];

/// Bytes of a status in the trailers: the message is percent-encoded, the details are in base64.
fn trailers_bytes(status: &pb::Status) -> usize {
    let encoded = |byte: u8| if byte.is_ascii_alphanumeric() || b"_-./+=:,'".contains(&byte) { 1 } else { 3 };
    let message: usize = status.message.bytes().map(encoded).sum();
    let details = if status.details.is_empty() { 0 } else { status.encoded_len().div_ceil(3) * 4 };
    let names = "grpc-message".len() + "grpc-status-details-bin".len() + 2 * 32;
    message + details + names + OTHER_BYTES
}

/// The same error with its texts cut.
fn cut(error: Error, limits: &Limits) -> Error {
    let kept = |text: &str| words(text, limits.words);
    let mut error = Error {
        message: kept(&error.message),
        field: error.field.map(|field| kept(&field).into()),
        metadata: error.metadata.into_iter().map(|(key, value)| (key, kept(&value))).collect(),
        ..error
    };
    let Some(v1::Diagnostics { text, diagnostics }) = error.diagnostics.as_deref_mut() else { return error };
    diagnostics.truncate(limits.findings);
    let first = diagnostics.first().map_or(0..0, |first| index(first.span_start)..index(first.span_end));
    let excerpt = Excerpt::around(text, first, limits.text);
    for found in diagnostics {
        found.message = kept(&found.message);
        found.hint = kept(&found.hint);
        found.span_start = length(excerpt.place(index(found.span_start)));
        found.span_end = length(excerpt.place(index(found.span_end)));
    }
    *text = excerpt.text;
    error
}

fn index(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// A text whose middle may be missing.
fn words(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(limit * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - limit / 3);
    format!("{}... ({} bytes) ...{}", &text[..head], tail - head, &text[tail..])
}

/// A part of a text, with marks for what was left out before and after it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    /// The part that was kept of the whole, in bytes.
    from: usize,
    to: usize,
    /// Bytes of the mark before it.
    mark: usize,
}

impl Excerpt {
    /// At most some `limit` bytes of a text, apart from the marks, with as much of the span as fits
    /// and its surroundings.
    fn around(text: &str, span: Range<usize>, limit: usize) -> Self {
        if text.len() <= limit {
            return Self { text: text.to_owned(), from: 0, to: text.len(), mark: 0 };
        }
        let begin = span.start.min(text.len());
        let inside = span.end.clamp(begin, text.len()) - begin;
        // A span that does not fit shows its beginning, and some of the text before it.
        let around = limit - inside.min(limit - limit / 4);
        let from = begin.saturating_sub(around / 2).min(text.len() - limit);
        let to = text.floor_char_boundary(from + limit);
        let from = text.ceil_char_boundary(from);
        let before = if from > 0 { format!("({from} bytes) ... ") } else { String::new() };
        let rest = text.len() - to;
        let after = if rest > 0 { format!(" ... ({rest} bytes)") } else { String::new() };
        Self { text: format!("{before}{}{after}", &text[from..to]), from, to, mark: before.len() }
    }

    /// Position in the excerpt of an offset into the whole: at one of its ends if it was left out.
    fn place(&self, offset: usize) -> usize {
        self.mark + offset.clamp(self.from, self.to) - self.from
    }
}
