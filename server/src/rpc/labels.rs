//! Labels and label selectors in requests.
//!
//! Owns which field a refusal names. Never decides what a label may contain.

use std::collections::HashMap;

use kprobed_control::error::Error;
use kprobed_lang::model::{LabelChange, LabelSelector, Labels};

/// The labels of a new probe.
pub(super) fn of(labels: HashMap<String, String>) -> Result<Labels, Error> {
    Labels::new(labels).map_err(|error| Error::labels("labels", &error))
}

/// The label changes of an update.
pub(super) fn change(set: HashMap<String, String>, remove: Vec<String>) -> Result<LabelChange, Error> {
    let set = Labels::new(set).map_err(|error| Error::labels("set_labels", &error))?;
    LabelChange::new(set, remove).map_err(|error| Error::labels("remove_labels", &error))
}

/// The selector of a listing, or of a stream of events. `field` is the field of the request with
/// the text.
pub(super) fn selector(field: &'static str, text: &str) -> Result<LabelSelector, Error> {
    text.parse().map_err(|error| Error::labels(field, &error))
}

#[cfg(test)]
mod tests {
    use kprobed_client::{Error, RpcError};
    use tonic::Status;

    use super::*;
    use kprobed_control::error;

    fn refusal<T>(result: Result<T, error::Error>) -> RpcError {
        match result.map(drop).map_err(|error| Error::from(Status::from(error))) {
            Err(Error::Rpc(error)) => *error,
            other => panic!("{other:?}"),
        }
    }

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Field, text and span of a refusal.
    fn place(error: &RpcError) -> (&str, &str, (u32, u32)) {
        let found = error.diagnostics.as_ref().unwrap();
        let diagnostic = &found.diagnostics[0];
        assert!(error.reason == "BAD_LABEL" && diagnostic.code == "BAD_LABEL", "{error:?}");
        (&error.fields[0].field, &found.text, (diagnostic.span_start, diagnostic.span_end))
    }

    #[test]
    fn refusals_name_the_field_and_the_bytes() {
        let made = refusal(of(map(&[("fine", ""), ("team", "a b")])));
        assert_eq!(place(&made), (r#"labels["team"]"#, "team=a b", (6, 7)));
        let set = refusal(change(map(&[("a:b", "")]), Vec::new()));
        assert_eq!(place(&set), (r#"set_labels["a:b"]"#, "a:b=", (1, 2)));
        let both = refusal(change(map(&[("team", "")]), vec!["team".to_owned()]));
        assert_eq!(place(&both), ("remove_labels", "team", (0, 4)));
        let selector = refusal(selector("label_selector", "team=a,tier in 2"));
        assert_eq!(place(&selector), ("label_selector", "team=a,tier in 2", (15, 15)));
        assert!(!selector.diagnostics.unwrap().diagnostics[0].hint.is_empty());
        // Too many labels have no single place.
        let many = refusal(of((0..33).map(|number| (format!("k{number}"), String::new())).collect()));
        assert_eq!((many.fields[0].field.as_str(), many.diagnostics.is_none()), ("labels", true));
    }
}
