//! Tests of filters and fields that no selected source has.

use kprobed_client::Error;
use tonic::Code;

use super::*;
use kprobed_trace::decode::{Base, FieldKind, FieldSchema};
use kprobed_trace::filter::Binding;

/// A probe with these fields; those that end in `$` are texts.
fn source(name: &str, fields: &[&str]) -> Selected {
    let field = |name: &&str| {
        let kind = if name.ends_with('$') { FieldKind::String } else { FieldKind::Signed { bytes: 4 } };
        FieldSchema { base: Some(Base::Decimal), ..FieldSchema::new(name.trim_end_matches('$'), kind) }
    };
    let schema = Schema { fields: fields.iter().map(field).collect(), is_return: false };
    Selected { name: name.to_owned(), schema: Arc::new(schema) }
}

fn refused(sources: &[Selected], names: &[&str]) -> Option<(Code, String, String, String)> {
    let projection = Projection::new(names.iter().map(|name| (*name).to_owned()).collect());
    let status = fields_of(sources, &projection).err()?;
    let Error::Rpc(error) = Error::from(tonic::Status::from(status)) else { panic!("no status of the API") };
    let hint = error.diagnostics.as_ref().unwrap().diagnostics[0].hint.clone();
    Some((error.code, error.reason.clone(), error.message.clone(), hint))
}

#[test]
fn a_field_that_no_probe_has_is_named_with_those_that_they_have() {
    let open = || source("kprobes/open", &["dfd", "filename$"]);
    let fork = || source("kprobes/fork", &[]);
    assert_eq!(refused(&[open(), fork()], &["dfd", "comm"]), None, "one of them has it");
    assert_eq!(refused(&[], &["nosuch"]), None, "a probe of the future may have it");
    let (code, reason, message, hint) = refused(&[open(), fork()], &["dfd", "filenam"]).unwrap();
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "UNKNOWN_FIELD"));
    assert_eq!(message, "none of the 2 selected probes has a field `filenam`");
    assert_eq!(
        hint,
        "did you mean `filename`? `kprobes/open` has `dfd`, `filename`; `kprobes/fork` has no fields of its own; \
         all events have `tid`, `comm`, `context`, `location`"
    );
    let (.., message, hint) = refused(&[open()], &["nosuch"]).unwrap();
    assert_eq!(message, "`kprobes/open` has no field `nosuch`");
    assert!(!hint.contains("did you mean"), "{hint}");
    let many: Vec<_> = (0..9).map(|n| source(&format!("kprobes/p{n}"), &["a"])).collect();
    let (.., hint) = refused(&many, &["nosuch"]).unwrap();
    assert!(hint.contains("`kprobes/p3`") && !hint.contains("`kprobes/p4`"), "{hint}");
    assert!(hint.contains("`kprobectl get NAME`"), "{hint}");
}

#[test]
fn fields_that_may_be_old_bytes_are_named_if_they_are_compared() {
    let mut schema = Schema::clone(&source("kprobes/open", &["a", "b", "c"]).schema);
    schema.fields[0].fault_detected = false;
    schema.fields[2].fault_detected = false;
    let named = |text: &str| unproven(&Filter::parse(text).unwrap(), &schema);
    assert_eq!(named("a == 1 && (b == 2 || !(a > 4))"), ["a"]);
    assert_eq!(named("b == 2"), Vec::<String>::new());
}

#[test]
fn a_filter_is_refused_only_if_no_probe_can_have_it() {
    let judged = |text: &str, sources: &[Selected]| {
        let filter = Filter::parse(text).unwrap();
        let bind = |one: &Selected| {
            let binding = Binding { probe: &one.name, host: "host", functions: None };
            filter.bind(&one.schema, &binding).map(drop)
        };
        filter_of(sources, bind).map_err(|error| error.code.name())
    };
    let number = || source("kprobes/a", &["n", "comm"]);
    let text = || source("kprobes/b", &["n$", "comm$"]);
    let none = || source("kprobes/c", &[]);
    // Whatever a probe calls its fields, and whatever the order of the probes.
    for sources in [[number(), text(), none()], [none(), text(), number()], [text(), number(), none()]] {
        for filter in ["comm == \"cat\"", "pid == 7", "cpu == 0", "n == 1", "n == \"x\"", "fields.comm == 1"]
        {
            assert_eq!(judged(filter, &sources), Ok(()), "{filter}");
        }
        assert_eq!(judged("m == 1", &sources), Err("FIELD_NOT_FOUND"));
        assert_eq!(judged("comm == 1", &sources), Err("EXPECT_STRING"), "worth more than what is missing");
    }
    for sources in [[number(), none()], [none(), number()]] {
        assert_eq!(judged("n == \"x\"", &sources), Err("EXPECT_DIGIT"));
    }
    assert_eq!(judged("m == 1", &[]), Ok(()));
}
