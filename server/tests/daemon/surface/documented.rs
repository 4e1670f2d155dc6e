//! What a call may fail with: the reasons of `proto/guide/errors.md`, with their codes, and the names of
//! rules for definitions.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kprobed_lang::definition;
use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::pb;

/// The documented reasons.
pub(crate) struct Documented {
    codes: HashMap<String, Vec<String>>,
}

impl Documented {
    pub(crate) fn read() -> Self {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/guide/errors.md");
        let text = fs::read_to_string(guide).unwrap();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
        let row = |row: &str| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            (cells[0].to_owned(), cells[1].split(", ").map(str::to_owned).collect())
        };
        let codes: HashMap<_, _> = rows.map(row).collect();
        assert!(codes.len() > 50, "{}", codes.len());
        Self { codes }
    }

    /// The reason of a status. Fails on one that is not documented, or that has another code.
    pub(crate) fn reason(&self, status: &Status) -> Result<String, String> {
        let details = pb::Status::decode(status.details()).map_err(|error| error.to_string())?.details;
        let info = details.iter().find(|detail| detail.type_url.ends_with("google.rpc.ErrorInfo"));
        let info = info.ok_or_else(|| format!("no reason: {status:?}"))?;
        let reason = pb::ErrorInfo::decode(info.value.as_slice()).map_err(|error| error.to_string())?.reason;
        let is_rule = definition::Code::ALL.iter().any(|code| code.name() == reason);
        let code = name(status.code());
        match self.codes.get(&reason) {
            Some(codes) if codes.iter().any(|known| known == code) => Ok(reason),
            _ if is_rule && ["INVALID_ARGUMENT", "NOT_FOUND"].contains(&code) => Ok(reason),
            Some(codes) => Err(format!("{reason} is {codes:?} in the guide: {status:?}")),
            None => Err(format!("{reason} is not in the guide: {status:?}")),
        }
    }
}

/// The name of a code, as gRPC writes it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
