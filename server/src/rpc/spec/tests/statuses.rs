//! Tests of refusals after the parser: of the place, and by the kernel itself.

use kprobed_client::{Error, RpcError};
use nix::errno::Errno;

use super::*;
use crate::control::ControlError;
use crate::rpc::status::located;
use kprobed_host::tracefs::{DefineError, KernelMessage, TracefsError};
use kprobed_lang::definition::{Span, Step};
use kprobed_verdict::validate::{Refusal, Rule};

fn refusal(error: &ControlError, given: &Given) -> RpcError {
    match Error::from(located(error, given)) {
        Error::Rpc(error) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refused_place_is_the_field_of_the_place() {
    let given = given(&spec("p:g/e vfs_read+3 %di")).unwrap();
    let start = given.text().find("vfs_read").unwrap();
    let refused = Refusal {
        rule: Rule::InstructionBoundary,
        errno: Errno::EILSEQ,
        message: "in the middle of an instruction".to_owned(),
        hint: String::new(),
        span: Span::new(start, start + "vfs_read+3".len()),
        step: Step::REGISTRATION,
    };
    let error = ControlError::Refused {
        text: given.text().to_owned(),
        refusal: Box::new(refused),
        further: Vec::new(),
    };
    let refusal = refusal(&error, &given);
    assert_eq!(refusal.fields[0].field, "spec.place.symbol");
    let found = refusal.diagnostics.unwrap();
    assert_eq!(
        (found.text.as_str(), found.diagnostics[0].field.as_str()),
        ("p:g/e vfs_read+3 %di", "spec.place.symbol")
    );
    // The same refusal for text is about the text.
    let by_text = self::refusal(&error, &Given::of_text(given.text().to_owned()));
    assert_eq!((by_text.fields[0].field.as_str(), by_text.reason), ("definition", refusal.reason));
}

#[test]
fn what_the_kernel_echoes_is_found_again() {
    let given = given(&spec("p vfs_read %di x=%si")).unwrap();
    let echo = "p:kprobes/p_vfs_read_0 vfs_read arg1=%di x=%si";
    let refused = |position| {
        let message = KernelMessage {
            stamp: "1.0".to_owned(),
            subsystem: "trace_kprobe".to_owned(),
            text: "Something new".to_owned(),
            command: echo.to_owned(),
            position,
        };
        let error =
            TracefsError { action: "write", path: "kprobe_events".into(), source: Errno::EINVAL.into() };
        let error = DefineError { line: echo.to_owned(), error, message: Some(message) };
        refusal(&ControlError::Kernel(Box::new(error)), &given).fields[0].field.clone()
    };
    assert_eq!(refused(0), "spec");
    assert_eq!(refused(echo.find("vfs_read arg1").unwrap()), "spec.place");
    assert_eq!(refused(echo.find("%si").unwrap()), "spec.arguments[1]");
    // Without a position, and for an error that the definition does not cause.
    let silent = TracefsError { action: "write", path: "kprobe_events".into(), source: Errno::EINVAL.into() };
    let silent = DefineError { line: echo.to_owned(), error: silent, message: None };
    assert_eq!(refusal(&ControlError::Kernel(Box::new(silent)), &given).fields[0].field, "spec");
    assert!(refusal(&ControlError::Stopping, &given).fields.is_empty());
}
