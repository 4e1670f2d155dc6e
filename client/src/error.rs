//! Errors of the client library, and their hints.
//!
//! Owns how a gRPC status is read. What to do about an error is data ([`Error::hints`]), apart from
//! its text. It never prints.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::time::Duration;

use prost::Message as _;
use thiserror::Error;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::{FieldViolation, StatusExt as _, pb};

use crate::api::{Diagnostics, FailedRequest};
use crate::event::MalformedError;
use crate::target::{DEFAULT_SOCKET, Target};

const DIAGNOSTICS: &str = "type.googleapis.com/kprobed.v1.Diagnostics";

/// Any failure of the library.
#[derive(Debug, Error)]
#[expect(clippy::error_impl_error, reason = "users write `kprobed_client::Error`")]
#[non_exhaustive]
pub enum Error {
    /// The daemon cannot be reached.
    #[error("cannot connect to `{target}`: {kind}")]
    Connect {
        /// Its address.
        target: Target,
        /// What happened.
        #[source]
        kind: ConnectError,
    },
    /// The daemon refused a request, or failed at it.
    #[error(transparent)]
    Rpc(Box<RpcError>),
    /// No answer in time.
    #[error("the daemon did not answer within {limit:?}")]
    Timeout {
        /// How long the request could take.
        limit: Duration,
        /// It asked for a change, which may have been made.
        is_change: bool,
    },
    /// The daemon does not accept the certificate of this client, or there is none. Nothing was
    /// carried out: with TLS 1.3 a client learns of it only after it has connected.
    #[error("the daemon does not accept the certificate of this client: {0}")]
    CertificateRefused(&'static str),
    /// The connection ended before the answer did.
    #[error("the connection to the daemon was lost: {}", deepest(.status.as_ref()))]
    Disconnected {
        /// What the transport says.
        #[source]
        status: Box<Status>,
        /// The request asked for a change, which may have been made.
        is_change: bool,
    },
    /// The daemon sent events that do not fit the API.
    #[error("the daemon sent a malformed message: {0}")]
    Malformed(#[from] MalformedError),
    /// The daemon left out a message that the API promises.
    #[error("the daemon's answer lacks `{0}`")]
    Incomplete(&'static str),
}

/// Why the daemon cannot be reached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The system refused.
    #[error("{message}")]
    Io {
        /// Which kind of refusal.
        kind: io::ErrorKind,
        /// The system's text.
        message: String,
        /// The whole chain.
        #[source]
        source: tonic::transport::Error,
    },
    /// Not connected in time.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
    /// TLS without certificates of an authority.
    #[error("no certificate authority to verify the daemon's certificate")]
    NoCa,
    /// TLS or HTTP/2 failed.
    #[error("{}", deepest(.0))]
    Transport(#[source] tonic::transport::Error),
}

/// The text of the innermost cause: the layers above say no more than `transport error` or `http2
/// error`.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// How the text of a TLS alert begins. HTTP/2 passes the errors of what is below it on as text (h2,
/// `proto::Error::Io`).
const ALERT: &str = "received fatal alert: ";

/// Why the daemon refuses the certificate of this client, if that is what made the transport fail.
fn refused_certificate(status: &Status) -> Option<&'static str> {
    Some(match deepest(status).strip_prefix(ALERT)? {
        "CertificateRequired" => "it has none",
        "UnknownCA" => "it is signed by an authority that the daemon does not trust",
        // An authority of the same name, with another key.
        "DecryptError" => "its signature is not that of the authority which the daemon trusts",
        "CertificateExpired" => "it has expired",
        "CertificateRevoked" => "it is revoked",
        "BadCertificate" | "UnsupportedCertificate" | "CertificateUnknown" | "AccessDenied" => {
            "it is not one for clients, or is malformed"
        }
        _ => return None,
    })
}

/// A request that the daemon refused or failed at.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct RpcError {
    /// The status code.
    pub code: Code,
    /// The message.
    pub message: String,
    /// The reason of `google.rpc.ErrorInfo`, in upper snake case. Empty: the daemon gave none.
    pub reason: String,
    /// Further facts about the reason, sorted by key.
    pub metadata: Vec<(String, String)>,
    /// The offending fields of the request.
    pub fields: Vec<FieldViolation>,
    /// The offending spans of a definition or filter, and what to write instead.
    pub diagnostics: Option<Diagnostics>,
    /// The id of the call in the daemon's log. Empty: the daemon gave none.
    pub operation: String,
}

impl Error {
    /// No answer to a request that changes nothing.
    pub(crate) const fn timeout(limit: Duration) -> Self {
        Self::Timeout { limit, is_change: false }
    }

    /// The same error of a request that asked for a change: without an answer it may have been made.
    pub(crate) fn of_change(self) -> Self {
        match self {
            Self::Timeout { limit, .. } => Self::Timeout { limit, is_change: true },
            Self::Disconnected { status, .. } => Self::Disconnected { status, is_change: true },
            error => error,
        }
    }

    /// Hints for a person, the most promising first.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Connect { target, kind } => return kind.hints(target),
            Self::Rpc(error) if error.code == Code::Unavailable => {
                "the daemon is starting or stopping: try again"
            }
            Self::Rpc(error) if error.code == Code::Unimplemented => {
                "the daemon is older than this client: `kprobectl version` shows both"
            }
            // What the daemon itself says.
            Self::Rpc(error) => {
                let fixes = error.metadata.iter().filter(|(key, _)| key == "fix").map(|(_, fix)| fix.clone());
                return fixes.chain(error.place_in_log()).collect();
            }
            Self::CertificateRefused(_) => {
                "give a certificate that the daemon's `client_ca` has signed: `--cert FILE --key FILE`, or in the context"
            }
            Self::Timeout { is_change: true, .. } | Self::Disconnected { is_change: true, .. } => {
                "the daemon may have carried out the request: check before you repeat it"
            }
            Self::Timeout { .. } => "nothing was changed: repeat the request, and wait longer (`--timeout`)",
            Self::Disconnected { .. } => "nothing was changed: repeat the request",
            Self::Malformed(_) | Self::Incomplete(_) => {
                "client and daemon may have different versions: `kprobectl version` shows both"
            }
        };
        vec![hint.to_owned()]
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Disconnected { .. }
            | Self::Timeout { .. }
            | Self::Connect { .. }
            | Self::CertificateRefused(_) => true,
            Self::Rpc(error) => matches!(
                error.code,
                Code::Unavailable | Code::Cancelled | Code::Aborted | Code::DeadlineExceeded
            ),
            Self::Malformed(_) | Self::Incomplete(_) => false,
        }
    }

    /// Its text without the address of the daemon, so that hosts with the same problem have the same text.
    pub fn without_target(&self) -> String {
        match self {
            Self::Connect { kind, .. } => kind.to_string(),
            other => other.to_string(),
        }
    }

    /// The daemon's refusal, if that is what this is.
    pub fn rpc(&self) -> Option<&RpcError> {
        match self {
            Self::Rpc(error) => Some(error),
            _ => None,
        }
    }
}

impl ConnectError {
    fn hints(&self, target: &Target) -> Vec<String> {
        let kind = if let Self::Io { kind, .. } = self { Some(*kind) } else { None };
        let hint = match (self, target, kind) {
            (Self::NoCa, ..) => "add `--ca FILE`, `--cert FILE` and `--key FILE`",
            (Self::Timeout(_), Target::Tcp(_) | Target::Tls(_), _) => {
                "check the address, and whether a firewall lets the port through"
            }
            (_, Target::Unix(path), Some(io::ErrorKind::NotFound)) if path.as_os_str() != DEFAULT_SOCKET => {
                return vec![IS_IT_RUNNING.to_owned(), format!("the default socket is `{DEFAULT_SOCKET}`")];
            }
            (_, Target::Unix(_), Some(io::ErrorKind::PermissionDenied)) => {
                "members of the group `kprobed` may use the socket: `sudo usermod -aG kprobed $USER`, then log in again"
            }
            (_, Target::Unix(_), Some(io::ErrorKind::NotFound))
            | (_, _, Some(io::ErrorKind::ConnectionRefused)) => IS_IT_RUNNING,
            (_, Target::Tcp(_), _) => "if the daemon uses TLS on that port, write `https://HOST:PORT`",
            (_, Target::Tls(_), None) => {
                "check `--ca`, `--cert`, `--key`, and `--domain` if the certificate has another name"
            }
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}

const IS_IT_RUNNING: &str = "is the daemon running? `systemctl status kprobed`";

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        // A status that came over the wire has no cause; one that the transport made up has.
        if status.source().is_some() {
            if let Some(why) = refused_certificate(&status) {
                return Self::CertificateRefused(why);
            }
            return Self::Disconnected { status: Box::new(status), is_change: false };
        }
        Self::Rpc(Box::new(RpcError::from_status(&status)))
    }
}

/// Reads why one of several requests failed, as if it had been the only one.
impl From<FailedRequest> for Error {
    fn from(failed: FailedRequest) -> Self {
        let FailedRequest { code, message, details } = failed;
        let details = pb::Status { code, message: message.clone(), details }.encode_to_vec();
        #[expect(clippy::disallowed_methods, reason = "the daemon made it, and it comes in parts")]
        Status::with_details(Code::from(code), message, details.into()).into()
    }
}

impl RpcError {
    /// Where the daemon's log says more, if the fault is its own.
    fn place_in_log(&self) -> Option<String> {
        let is_fault = matches!(self.code, Code::Internal | Code::Unknown | Code::DataLoss);
        (is_fault && !self.operation.is_empty()).then(|| {
            format!(
                "the daemon's log says more about the call: `journalctl -u kprobed | grep {}`",
                self.operation
            )
        })
    }

    /// Reads a status and its details. Details that cannot be read are left out: the code and the
    /// message still count.
    fn from_status(status: &Status) -> Self {
        let known = status.get_error_details();
        let (reason, metadata) = known
            .error_info()
            .map(|info| (info.reason.clone(), BTreeMap::from_iter(info.metadata.clone())))
            .unwrap_or_default();
        let all = pb::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
        let own = all.iter().find(|any| any.type_url == DIAGNOSTICS);
        Self {
            code: status.code(),
            message: message_of(status),
            reason,
            metadata: metadata.into_iter().collect(),
            fields: known.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default(),
            diagnostics: own.and_then(|any| Diagnostics::decode(any.value.as_slice()).ok()),
            operation: text_of(status.metadata(), "x-request-id").unwrap_or_default(),
        }
    }
}

fn text_of(metadata: &MetadataMap, key: &str) -> Option<String> {
    metadata.get(key).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// The message, or the code and the sender if it has none: proxies and crashed servers send bare
/// codes.
fn message_of(status: &Status) -> String {
    if !status.message().is_empty() {
        return status.message().to_owned();
    }
    match text_of(status.metadata(), "server") {
        Some(server) => format!("{} (answered by `{server}`)", status.code()),
        None => status.code().to_string(),
    }
}

#[expect(clippy::disallowed_methods, reason = "statuses as a daemon, or something between, would make them")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Diagnostic, Severity};

    const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
    const BAD_REQUEST: &str = "type.googleapis.com/google.rpc.BadRequest";

    fn any(type_url: &str, message: &impl prost::Message) -> prost_types::Any {
        prost_types::Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
    }

    #[test]
    fn details_are_read() {
        let diagnostics = Diagnostics {
            text: "p foo+3".to_owned(),
            diagnostics: vec![Diagnostic {
                severity: Severity::Error.into(),
                code: "BAD_INSN_BNDRY".to_owned(),
                ..Diagnostic::default()
            }],
        };
        let info = pb::ErrorInfo {
            reason: "BAD_INSN_BNDRY".to_owned(),
            domain: "kprobed".to_owned(),
            metadata: [("errno".to_owned(), "EILSEQ".to_owned())].into(),
        };
        let bad = pb::BadRequest {
            field_violations: vec![pb::bad_request::FieldViolation {
                field: "definition".to_owned(),
                description: "refused".to_owned(),
                ..Default::default()
            }],
        };
        let details = pb::Status {
            code: 3,
            message: "refused".to_owned(),
            details: vec![
                any("type.googleapis.com/unknown.Message", &info),
                any(ERROR_INFO, &info),
                any(BAD_REQUEST, &bad),
                any(DIAGNOSTICS, &diagnostics),
            ],
        };
        let status = Status::with_details(Code::InvalidArgument, "refused", details.encode_to_vec().into());
        let one_of_several = FailedRequest { code: 3, message: details.message, details: details.details };
        for error in [Error::from(status), Error::from(one_of_several)] {
            let rpc = error.rpc().unwrap();
            assert_eq!((rpc.code, rpc.message.as_str()), (Code::InvalidArgument, "refused"));
            assert_eq!(rpc.reason, "BAD_INSN_BNDRY");
            assert_eq!(rpc.metadata, [("errno".to_owned(), "EILSEQ".to_owned())]);
            assert_eq!(rpc.fields[0].field, "definition");
            assert_eq!(rpc.diagnostics.as_ref(), Some(&diagnostics));
        }
    }

    #[test]
    fn details_that_are_garbage_leave_code_and_message() {
        let status = Status::with_details(Code::NotFound, "no such probe", vec![0xff; 40].into());
        let error = Error::from(status);
        assert_eq!(error.to_string(), "no such probe");
        assert_eq!(error.rpc().unwrap().reason, "");
    }
}
