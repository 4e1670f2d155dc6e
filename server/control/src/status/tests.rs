#![expect(clippy::disallowed_methods, reason = "statuses that are cut")]

use kprobed_client::RpcError;
use proptest::prelude::*;

use super::*;
use kprobed_lang::definition::{self, Diagnostic, Features, Span, parse};
use kprobed_lang::model::ProbeName;
use kprobed_lang::samples::{v6_1, v6_12};
use kprobed_verdict::checker::Taken;

/// What a client makes of a status.
fn told(status: Status) -> RpcError {
    match kprobed_client::Error::from(status) {
        kprobed_client::Error::Rpc(told) => *told,
        other => panic!("{other:?}"),
    }
}

fn metadata<'a>(told: &'a RpcError, key: &str) -> Option<&'a str> {
    told.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn of_text(text: &str, features: &Features) -> RpcError {
    let diagnostics = parse(text, features).unwrap_err();
    told(Status::from(Error::definition(text, &diagnostics)))
}

#[test]
fn the_errno_is_that_of_the_kernel_for_which_the_text_was_read() {
    let long = format!("p f a={}", "1".repeat(300));
    let place = "p 0xffffffff81000000%return";
    for (text, features, errno) in
        [(long.as_str(), v6_1(), "22"), (&long, v6_12(), "7"), (place, v6_1(), "2"), (place, v6_12(), "22")]
    {
        let refused = of_text(text, &features);
        assert_eq!(metadata(&refused, "errno"), Some(errno), "{text}: {refused:?}");
        assert_eq!(metadata(&refused, "by"), Some("kernel"));
    }
    assert_eq!(metadata(&of_text("pjunk:x f", &v6_12()), "by"), Some("kprobed"));
    let arguments = format!("p f {}", "%di ".repeat(129));
    assert_eq!(metadata(&of_text(&arguments, &v6_1()), "by"), Some("kprobed"), "the kernel drops one");
    assert_eq!(metadata(&of_text(&arguments, &v6_12()), "by"), Some("kernel"));
}

#[test]
fn a_name_that_is_taken_says_by_whom_and_what_the_kernel_says() {
    for (ours, reason) in [(true, "PROBE_EXISTS"), (false, "FOREIGN_EVENT_EXISTS")] {
        let problem = Diagnostic::error(definition::Code::SameProbe, Span::new(0, 5), "taken");
        let taken = Taken { name: ProbeName::new("g", "e").unwrap(), ours, problem };
        let refused = told(Status::from(Error::taken("p:g/e f", &taken)));
        assert_eq!((refused.code, refused.reason.as_str()), (Code::AlreadyExists, reason));
        assert_eq!(metadata(&refused, "rule"), Some("SAME_PROBE"));
        assert_eq!((metadata(&refused, "errno"), metadata(&refused, "by")), (Some("17"), Some("kernel")));
        assert_eq!(refused.diagnostics.unwrap().diagnostics[0].by(), v1::RefusedBy::Kernel);
    }
}

#[test]
fn every_status_has_a_reason() {
    let errors = [
        (Error::bad_argument("start.oldest", "it can only be true"), Code::InvalidArgument, "BAD_ARGUMENT"),
        (Error::internal("a task ended early"), Code::Internal, "INTERNAL"),
        (Error::stopping(), Code::Unavailable, "STOPPING"),
    ];
    for (error, code, reason) in errors {
        let told = told(Status::from(error));
        assert_eq!((told.code, told.reason.as_str()), (code, reason), "{told:?}");
        assert!(!told.message.is_empty() && !told.message.ends_with('.'), "{told:?}");
    }
}

/// A mistake in the text, and a refusal of its place, are about the field that has the text.
#[test]
fn a_refused_definition_is_about_its_field() {
    let mistake = of_text("p:x", &v6_12());
    let message = "in the middle of an instruction";
    let refusal = Diagnostic::error(definition::Code::BadInsnBndry, Span::new(8, 18), message);
    let place = told(Status::from(Error::definition("p:g/e vfs_read+3 %di", &[refusal])));
    for (refused, reason) in [(mistake, "NO_PLACE"), (place, "BAD_INSN_BNDRY")] {
        assert_eq!((refused.reason.as_str(), refused.fields[0].field.as_str()), (reason, "definition"));
    }
    assert!(told(Status::from(Error::stopping())).fields.is_empty());
}

fn finding(message: &str, span: Range<usize>) -> v1::Diagnostic {
    v1::Diagnostic {
        code: "BAD_FETCH_ARG".to_owned(),
        message: message.to_owned(),
        span_start: length(span.start),
        span_end: length(span.end),
        ..Default::default()
    }
}

fn error(message: &str, text: &str, found: Vec<v1::Diagnostic>) -> Error {
    let reason = Reason { name: "BAD_FETCH_ARG", code: Code::InvalidArgument };
    Error::new(reason, message)
        .with("errno", &22)
        .with("probe", message)
        .field("definition")
        .diagnostics(text, found)
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
    let found = finding("no such register", 8..11);
    let small = fitting(&error("argument 1 is wrong", "p:x f a=%zz", vec![found.clone()]));
    assert_eq!((small.message.as_str(), small.details.len()), ("argument 1 is wrong", 3));
    let whole = v1::Diagnostics { text: "p:x f a=%zz".to_owned(), diagnostics: vec![found] };
    assert_eq!(diagnostics(&small), whole);
}

#[test]
fn the_caret_stays_where_it_was() {
    let before = "a=%di ".repeat(250_000);
    let text = format!("p:x f {before}b=%zz {before}");
    let at = text.find("%zz").unwrap();
    let far = finding("and another one", 10..12);
    let cut = fitting(&error("no such register", &text, vec![finding("no such register", at..at + 3), far]));
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
    let cut = fitting(&error(&format!("there is no probe `{name}`"), &name, findings));
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
        finish(&mut headers);
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
        let cut = fitting(&error(&message, &text, found));
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
