use kprobed_client::{Error, RpcError};

use super::*;
use kprobed_lang::definition::{Diagnostic, Features, Span, parse};
use kprobed_lang::model::ProbeName;
use kprobed_lang::samples::{v6_1, v6_12};
use kprobed_verdict::checker::Taken;

/// What a client makes of a status.
fn told(status: Status) -> RpcError {
    match Error::from(status) {
        Error::Rpc(told) => *told,
        other => panic!("{other:?}"),
    }
}

fn metadata<'a>(told: &'a RpcError, key: &str) -> Option<&'a str> {
    told.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn of_text(text: &str, features: &Features) -> RpcError {
    let diagnostics = parse(text, features).unwrap_err();
    told(ControlError::Definition { text: text.to_owned(), diagnostics }.into())
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
        let taken = Box::new(Taken { name: ProbeName::new("g", "e").unwrap(), ours, problem });
        let refused = told(ControlError::Taken { text: "p:g/e f".to_owned(), taken }.into());
        assert_eq!((refused.code, refused.reason.as_str()), (Code::AlreadyExists, reason));
        assert_eq!(metadata(&refused, "rule"), Some("SAME_PROBE"));
        assert_eq!((metadata(&refused, "errno"), metadata(&refused, "by")), (Some("17"), Some("kernel")));
        assert_eq!(refused.diagnostics.unwrap().diagnostics[0].by(), v1::RefusedBy::Kernel);
    }
}

#[test]
fn every_status_has_a_reason() {
    let errors = [
        (invalid("start.oldest", "it can only be true"), Code::InvalidArgument, "BAD_ARGUMENT"),
        (internal("a task ended early"), Code::Internal, "INTERNAL"),
        (no_history(), Code::FailedPrecondition, "NO_HISTORY"),
        (of_history(&HistoryError::Ended), Code::Unavailable, "STOPPING"),
        (overflowed(7), Code::ResourceExhausted, "QUEUE_FULL"),
        (ControlError::Stopping.into(), Code::Unavailable, "STOPPING"),
    ];
    for (status, code, reason) in errors {
        let told = told(status);
        assert_eq!((told.code, told.reason.as_str()), (code, reason), "{told:?}");
        assert!(!told.message.is_empty() && !told.message.ends_with('.'), "{told:?}");
    }
    assert_eq!(metadata(&told(overflowed(7)), "sequence"), Some("7"));
}

/// A mistake in the text, and a refusal of its place, are about the field that has the text.
#[test]
fn a_refused_definition_is_about_its_field() {
    use kprobed_lang::definition::Step;
    use kprobed_verdict::validate::Rule;
    use nix::errno::Errno;

    let mistake = of_text("p:x", &v6_12());
    let refusal = Refusal {
        rule: Rule::InstructionBoundary,
        errno: Errno::EILSEQ,
        message: "in the middle of an instruction".to_owned(),
        hint: String::new(),
        span: Span::new(8, 18),
        step: Step::REGISTRATION,
    };
    let text = "p:g/e vfs_read+3 %di".to_owned();
    let place = told(ControlError::Refused { text, refusal: Box::new(refusal), further: Vec::new() }.into());
    for (refused, reason) in [(mistake, "NO_PLACE"), (place, "BAD_INSN_BNDRY")] {
        assert_eq!((refused.reason.as_str(), refused.fields[0].field.as_str()), (reason, "definition"));
    }
    assert!(told(ControlError::Stopping.into()).fields.is_empty());
}
