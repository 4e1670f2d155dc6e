//! `--from nats://...`: events, states and hit counts that daemons have published to NATS.
//!
//! Owns the options, the connection, and which hosts are selected. Each command reads its own part.

#[cfg(feature = "nats")]
mod connection;
#[cfg(feature = "nats")]
mod label_filter;
#[cfg(feature = "nats")]
mod profiles;
#[cfg(feature = "nats")]
mod watch;

#[cfg(feature = "nats")]
pub(super) use connection::{connect, failure, selected};
#[cfg(feature = "nats")]
pub(super) use label_filter::LabelFilter;
#[cfg(feature = "nats")]
pub(super) use profiles::{Range, profiles};
#[cfg(feature = "nats")]
pub(super) use watch::watch;

use std::path::PathBuf;

use clap::Args;

#[cfg(not(feature = "nats"))]
use super::Failure;

/// Options for reading from NATS.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "From NATS")]
pub(crate) struct NatsArguments {
    /// Read what daemons have published to this server (`[export.nats]`), without a connection to
    /// any of them: `nats://HOST:PORT` or `tls://HOST:PORT`; --hosts then names hosts of the stream
    #[arg(id = "from", long = "from", value_name = "URL")]
    url: Option<String>,
    /// Name of the stream of events; the stream of states has this name with `_STATE`
    #[arg(long, value_name = "NAME", default_value = "KPROBED", requires = "from")]
    stream: String,
    /// First part of the subjects
    #[arg(long, value_name = "PREFIX", default_value = "kprobed", requires = "from")]
    subject_prefix: String,
    /// File with the JWT and seed of a user, as `nsc` writes it [default: none]
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    credentials: Option<PathBuf>,
    /// File with a token [default: none]
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    token: Option<PathBuf>,
    /// File with `USER:PASSWORD` [default: none]
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    password: Option<PathBuf>,
}

impl NatsArguments {
    /// Whether it is requested.
    pub(crate) const fn is_given(&self) -> bool {
        self.url.is_some()
    }
}

/// The refusal of a build without NATS.
#[cfg(not(feature = "nats"))]
pub(super) fn refused() -> Failure {
    let message = "`--from` cannot be used: this build of kprobectl cannot read from NATS".to_owned();
    let hint = "install the package, which can, or build with `--features kprobectl/nats`".to_owned();
    Failure::usage(message, Some(hint))
}
