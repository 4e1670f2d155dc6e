//! Property: parsers of function prototypes and of calls.

#[path = "../../fixtures/prototype/written.rs"]
mod written;

use kprobed_lang::definition::{Definition, Dialect, call, parse_as, prototype};

use self::written::written;
use super::definition::check_problems;
use super::kernels::features;

/// A prototype that is read is the same after it was written out; problems of one that is not lie
/// in the text. No prototype is a call.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(read) = call(text) {
        assert!(prototype::parse(text).is_err());
        if let Err(problem) = read {
            check_problems(text, &[problem]);
        }
    }
    match prototype::parse(text) {
        Ok(read) => {
            let line = written(&read);
            let again = prototype::parse(&line).unwrap_or_else(|problems| panic!("{line:?}: {problems:?}"));
            assert_eq!(written(&again), line);
            for features in features() {
                // Two spellings of one prototype are one definition.
                let meaning = |text: &str| match parse_as(Dialect::Prototype, text, &features).result {
                    Ok(Definition::Probe(definition)) => Ok(definition.without_spans()),
                    Ok(Definition::Delete(delete)) => panic!("{text:?}: {delete:?}"),
                    Err(problems) => {
                        Err(problems.into_iter().map(|problem| problem.code).collect::<Vec<_>>())
                    }
                };
                assert_eq!(meaning(text), meaning(&line), "{line:?}");
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            check_problems(text, &problems);
        }
    }
}
