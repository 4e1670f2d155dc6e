//! Size limits on what a status repeats of its request.
//!
//! A status travels in the trailers of a call, and gRPC clients accept few bytes in them: a stock
//! client that gets more reports `metadata size exceeds limit` and nothing else. Owns cutting texts
//! around the position that matters, with the number of bytes that were left out, and moving carets
//! with them. Never leaves out the code, the reason, or the first finding.

use kprobed_proto::v1;
use prost::Message as _;
use prost_types::Any;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic_types::pb;

/// Trailers that every gRPC client accepts, in bytes: name, value and 32 for each, as HTTP/2 counts
/// them.
pub(super) const TRAILERS_BYTES: usize = 8 << 10;

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

/// The same status, with what it repeats cut until its trailers fit.
pub(super) fn fit(whole: pb::Status) -> pb::Status {
    if trailers_bytes(&whole) <= TRAILERS_BYTES {
        return whole;
    }
    let smaller = LIMITS.iter().map(|limits| cut(&whole, limits));
    // A message alone always fits.
    let bare = pb::Status { message: words(&whole.message, LIMITS[3].words), details: Vec::new(), ..whole };
    smaller.into_iter().find(|cut| trailers_bytes(cut) <= TRAILERS_BYTES).unwrap_or(bare)
}

/// The same for a status that was made elsewhere and is on its way: in trailers, or in headers if
/// there is no answer.
#[expect(clippy::disallowed_methods, reason = "it is the same status, and keeps its reason")]
pub(crate) fn fit_headers(headers: &mut HeaderMap) {
    let bytes: usize =
        STATUS_HEADERS.iter().filter_map(|name| headers.get(*name)).map(HeaderValue::len).sum();
    if bytes + OTHER_BYTES <= TRAILERS_BYTES {
        return;
    }
    let Some(status) = Status::from_header_map(headers) else { return };
    let whole = pb::Status::decode(status.details()).unwrap_or_default();
    let whole = pb::Status { code: status.code().into(), message: status.message().to_owned(), ..whole };
    let fitting = fit(whole);
    let details = if fitting.details.is_empty() { Vec::new() } else { fitting.encode_to_vec() };
    for name in STATUS_HEADERS {
        headers.remove(name);
    }
    let fitting = Status::with_details(status.code(), fitting.message, details.into());
    if let Err(error) = fitting.add_header(headers) {
        tracing::error!(%error, "a status cannot be sent");
    }
}

/// Headers that contain a status.
const STATUS_HEADERS: [&str; 2] = ["grpc-message", "grpc-status-details-bin"];

/// Bytes of a status in the trailers: the message is percent-encoded, the details are in base64.
fn trailers_bytes(status: &pb::Status) -> usize {
    let encoded =
        |byte: u8| if byte.is_ascii_alphanumeric() || b" _-./+=:,`'".contains(&byte) { 1 } else { 3 };
    // A blank and a backquote are encoded too: they are counted here, once.
    let more = status.message.bytes().filter(|byte| b" `".contains(byte)).count() * 2;
    let message: usize = status.message.bytes().map(encoded).sum::<usize>() + more;
    let details = if status.details.is_empty() { 0 } else { status.encoded_len().div_ceil(3) * 4 };
    let names = "grpc-message".len() + "grpc-status-details-bin".len() + 2 * 32;
    message + details + names + OTHER_BYTES
}

fn cut(whole: &pb::Status, limits: &Limits) -> pb::Status {
    pb::Status {
        code: whole.code,
        message: words(&whole.message, limits.words),
        details: whole.details.iter().filter_map(|detail| cut_detail(detail, limits)).collect(),
    }
}

/// A detail with its texts cut. A detail that cannot be decoded is left out.
fn cut_detail(detail: &Any, limits: &Limits) -> Option<Any> {
    let bytes = detail.value.as_slice();
    let kept = |text: &String| words(text, limits.words);
    let value = match detail.type_url.rsplit('/').next()? {
        "google.rpc.ErrorInfo" => {
            let info = pb::ErrorInfo::decode(bytes).ok()?;
            let metadata = info.metadata.iter().map(|(key, value)| (kept(key), kept(value))).collect();
            pb::ErrorInfo { reason: kept(&info.reason), domain: info.domain, metadata }.encode_to_vec()
        }
        "google.rpc.BadRequest" => {
            let mut bad = pb::BadRequest::decode(bytes).ok()?;
            bad.field_violations.truncate(limits.findings);
            for violation in &mut bad.field_violations {
                violation.field = kept(&violation.field);
                violation.description = kept(&violation.description);
            }
            bad.encode_to_vec()
        }
        "kprobed.v1.Diagnostics" => {
            let found = v1::Diagnostics::decode(bytes).ok()?;
            cut_diagnostics(found, limits).encode_to_vec()
        }
        _ => return None,
    };
    Some(Any { type_url: detail.type_url.clone(), value })
}

fn cut_diagnostics(found: v1::Diagnostics, limits: &Limits) -> v1::Diagnostics {
    let v1::Diagnostics { text, mut diagnostics } = found;
    diagnostics.truncate(limits.findings);
    let first = diagnostics.first().map_or(0..0, |first| index(first.span_start)..index(first.span_end));
    let excerpt = Excerpt::around(&text, first, limits.text);
    for found in &mut diagnostics {
        found.message = words(&found.message, limits.words);
        found.hint = words(&found.hint, limits.words);
        found.span_start = offset(excerpt.place(index(found.span_start)));
        found.span_end = offset(excerpt.place(index(found.span_end)));
    }
    v1::Diagnostics { text: excerpt.text, diagnostics }
}

fn index(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn offset(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
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
    fn around(text: &str, span: std::ops::Range<usize>, limit: usize) -> Self {
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
        let mut excerpt = String::new();
        if from > 0 {
            excerpt = format!("({from} bytes) ... ");
        }
        let mark = excerpt.len();
        excerpt.push_str(&text[from..to]);
        if to < text.len() {
            excerpt = format!("{excerpt} ... ({} bytes)", text.len() - to);
        }
        Self { text: excerpt, from, to, mark }
    }

    /// Position in the excerpt of an offset into the whole: at one of its ends if it was left out.
    fn place(&self, offset: usize) -> usize {
        self.mark + offset.clamp(self.from, self.to) - self.from
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "statuses that are cut")]
mod tests {
    use kprobed_proto::ERROR_DOMAIN;
    use proptest::prelude::*;
    use tonic::Code;

    use super::*;

    fn detail(name: &str, message: &impl prost::Message) -> Any {
        Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
    }

    fn finding(message: &str, span: std::ops::Range<usize>) -> v1::Diagnostic {
        v1::Diagnostic {
            code: "BAD_FETCH_ARG".to_owned(),
            message: message.to_owned(),
            span_start: offset(span.start),
            span_end: offset(span.end),
            ..Default::default()
        }
    }

    fn status(message: &str, text: &str, found: Vec<v1::Diagnostic>) -> pb::Status {
        let info = pb::ErrorInfo {
            reason: "BAD_FETCH_ARG".to_owned(),
            domain: ERROR_DOMAIN.to_owned(),
            metadata: [("errno".to_owned(), "22".to_owned()), ("probe".to_owned(), message.to_owned())]
                .into(),
        };
        let violation = pb::bad_request::FieldViolation {
            field: "definition".to_owned(),
            description: message.to_owned(),
            ..Default::default()
        };
        let diagnostics = v1::Diagnostics { text: text.to_owned(), diagnostics: found };
        pb::Status {
            code: Code::InvalidArgument.into(),
            message: message.to_owned(),
            details: vec![
                detail("google.rpc.ErrorInfo", &info),
                detail("google.rpc.BadRequest", &pb::BadRequest { field_violations: vec![violation] }),
                detail("kprobed.v1.Diagnostics", &diagnostics),
            ],
        }
    }

    fn diagnostics(status: &pb::Status) -> v1::Diagnostics {
        let detail = status.details.iter().find(|detail| detail.type_url.ends_with("Diagnostics")).unwrap();
        v1::Diagnostics::decode(detail.value.as_slice()).unwrap()
    }

    /// Bytes of the trailers that tonic makes of a status, as HTTP/2 counts them.
    fn bytes_on_the_wire(status: &pb::Status) -> usize {
        let code = Code::from_i32(status.code);
        let status = Status::with_details(code, status.message.clone(), status.encode_to_vec().into());
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers).unwrap();
        trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let small = status("argument 1 is wrong", "p:x f a=%zz", vec![finding("no such register", 8..11)]);
        assert_eq!(fit(small.clone()), small);
    }

    #[test]
    fn the_caret_stays_where_it_was() {
        let before = "a=%di ".repeat(250_000);
        let text = format!("p:x f {before}b=%zz {before}");
        let at = text.find("%zz").unwrap();
        let far = finding("and another one", 10..12);
        let cut = fit(status("no such register", &text, vec![finding("no such register", at..at + 3), far]));
        assert!(bytes_on_the_wire(&cut) <= TRAILERS_BYTES);
        let found = diagnostics(&cut);
        let span = |n: usize| index(found.diagnostics[n].span_start)..index(found.diagnostics[n].span_end);
        assert_eq!(&found.text[span(0)], "%zz");
        assert_eq!(span(1).len(), 0, "it is in the part that was left out");
        let kept = found.text.split_once(") ... ").unwrap().1.rsplit_once(" ... (").unwrap().0;
        assert!(text.contains(kept), "{kept}");
        let numbers = found.text.split(['(', ')']).filter_map(|part| part.strip_suffix(" bytes"));
        let left_out: usize = numbers.map(|number| number.parse::<usize>().unwrap()).sum();
        assert_eq!(left_out + kept.len(), text.len());
    }

    #[test]
    fn the_code_and_the_reason_are_always_there() {
        let name = "é?\"%".repeat(700_000);
        let findings = (0..5000).map(|n| finding(&name[..40], n..n + 1)).collect();
        let cut = fit(status(&format!("there is no probe `{name}`"), &name, findings));
        assert!(bytes_on_the_wire(&cut) <= TRAILERS_BYTES);
        let info = pb::ErrorInfo::decode(cut.details[0].value.as_slice()).unwrap();
        assert_eq!((info.reason.as_str(), info.metadata["errno"].as_str()), ("BAD_FETCH_ARG", "22"));
        assert!(cut.message.starts_with("there is no probe `é?") && cut.message.contains(" bytes) ..."));
        assert_eq!(diagnostics(&cut).diagnostics[0].message, name[..40]);
    }

    #[test]
    fn statuses_that_were_made_elsewhere_are_cut_too() {
        let fitted = |status: &Status| {
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            fit_headers(&mut headers);
            Status::from_header_map(&headers).unwrap()
        };
        let short = fitted(&Status::not_found("x".repeat(100_000)));
        assert_eq!(short.code(), Code::NotFound);
        assert!(short.message().len() < 400 && short.message().contains("bytes) ..."), "{}", short.message());
        assert_eq!(fitted(&Status::aborted("why")).message(), "why");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_fits_whatever_it_is(
            message in "\\PC{0,3000}",
            text in "\\PC{0,9000}",
            spans in prop::collection::vec((0_usize..40_000, 0_usize..40_000), 0..40),
        ) {
            let found = spans.iter().map(|(start, end)| finding(&message, *start..*end)).collect();
            let cut = fit(status(&message, &text, found));
            prop_assert!(bytes_on_the_wire(&cut) <= TRAILERS_BYTES);
        }

        #[test]
        fn an_excerpt_has_what_the_whole_has(
            text in "\\PC{0,2000}",
            start in 0_usize..6000,
            length in 0_usize..3000,
            limit in 40_usize..1000,
        ) {
            let start = text.floor_char_boundary(start);
            let end = text.floor_char_boundary(start + length);
            let excerpt = Excerpt::around(&text, start..end, limit);
            let (from, to) = (excerpt.place(start), excerpt.place(end));
            let shown = &excerpt.text[from..to];
            prop_assert!(text[start..end].starts_with(shown));
            prop_assert!(shown.len() == end - start || shown.len() + 4 >= limit / 4 || text[start..].len() <= limit / 4 + 4);
            prop_assert!(excerpt.text.len() <= limit + 60);
        }
    }
}
