//! The answer of an OTLP receiver: acknowledged, dropped, or to be sent again.
//!
//! Owns which failures are final: OTLP wants data dropped only after `INVALID_ARGUMENT`. Every
//! other failure is one of the receiver or of the configuration (a wrong token, a request that is
//! too large, a service that does not exist): it is reported and tried again, since an operator can
//! repair it, and the history keeps the events until then.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::export::sink::causes;
use crate::export::{Sent, SinkError};

/// No receiver makes the exporter wait longer than that.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// The answer to a request of `items`.
pub(super) fn read(service: &str, items: u64, answer: Result<Partial, Status>) -> Result<Sent, SinkError> {
    match answer {
        Ok(Partial { rejected, message }) => {
            let dropped = u64::try_from(rejected).unwrap_or(0).min(items);
            // A message without rejected items is a warning.
            let reason = if dropped > 0 { reason(&message) } else { String::new() };
            Ok(Sent { dropped, reason, ..Sent::default() })
        }
        Err(status) if status.code() == Code::InvalidArgument => {
            Ok(Sent { dropped: items, reason: reason(status.message()), ..Sent::default() })
        }
        Err(status) => {
            let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
            let mut error = SinkError::new(format_args!("export {service}"), describe(&status));
            error.wait = wait.map(|wait| wait.min(LONGEST_WAIT));
            Err(error)
        }
    }
}

/// The part of a request that a receiver rejected.
#[derive(Debug, Default)]
pub(super) struct Partial {
    pub(super) rejected: i64,
    pub(super) message: String,
}

fn reason(message: &str) -> String {
    if message.is_empty() { "the receiver gives no reason".to_owned() } else { message.to_owned() }
}

fn describe(status: &Status) -> String {
    let hint = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            " (see `export.otlp.headers` and `export.otlp.tls`)"
        }
        Code::ResourceExhausted | Code::OutOfRange => {
            " (if it is too large: lower `export.otlp.max_request_kib`, or let the receiver take more)"
        }
        Code::Unimplemented => " (the receiver has no such service: is it one for OTLP over gRPC?)",
        _ => "",
    };
    let text = match (status.message(), std::error::Error::source(status)) {
        ("", Some(source)) => causes(source),
        (message, _) => message.to_owned(),
    };
    format!("{:?}: {text}{hint}", status.code())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "answers of a receiver")]
mod tests {
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    #[test]
    fn what_the_receiver_refuses_for_good_is_counted() {
        let partial = |rejected, message: &str| Ok(Partial { rejected, message: message.to_owned() });
        let sent = read("logs", 10, partial(3, "too old")).unwrap();
        assert_eq!((sent.dropped, sent.reason.as_str()), (3, "too old"));
        assert_eq!(read("logs", 10, partial(0, "a warning")).unwrap(), Sent::default());
        // Nonsense of a receiver cannot make the account wrong.
        assert_eq!(read("logs", 10, partial(99, "")).unwrap().dropped, 10);
        assert_eq!(read("logs", 10, partial(-1, "")).unwrap().dropped, 0);
        let sent = read("logs", 10, Err(Status::invalid_argument("no"))).unwrap();
        assert_eq!((sent.dropped, sent.reason.as_str()), (10, "no"));
    }

    #[test]
    fn every_other_failure_is_tried_again() {
        for code in [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unavailable,
            Code::DataLoss,
            Code::ResourceExhausted,
            Code::Unauthenticated,
            Code::Unimplemented,
            Code::Internal,
        ] {
            let error = read("logs", 10, Err(Status::new(code, "why"))).unwrap_err();
            assert!(error.to_string().contains("why"), "{error}");
        }
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(7)));
        let status = Status::with_error_details(Code::ResourceExhausted, "slow down", details);
        assert_eq!(read("logs", 1, Err(status)).unwrap_err().wait, Some(Duration::from_secs(7)));
    }
}
