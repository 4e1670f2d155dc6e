//! `--from nats://...`: what daemons have published, instead of connections to them.
//!
//! Owns the options, the connection and which hosts are meant; what is done with what was published is the business of each command.

#[cfg(feature = "nats")]
mod labelled;
#[cfg(feature = "nats")]
mod profiles;
#[cfg(feature = "nats")]
mod source;
#[cfg(feature = "nats")]
mod states;

#[cfg(feature = "nats")]
pub(super) use labelled::Labelled;
#[cfg(feature = "nats")]
pub(super) use profiles::{Range, profiles};
#[cfg(feature = "nats")]
pub(super) use source::{connect, failure, selected};
#[cfg(feature = "nats")]
pub(super) use states::watch;

use std::path::PathBuf;

use clap::Args;

#[cfg(not(feature = "nats"))]
use super::Failure;

/// Where published events are.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "From NATS")]
pub(crate) struct From {
    /// Read what daemons have published to this server (`[export.nats]`), without a connection to any of them: `nats://HOST:PORT` or `tls://HOST:PORT`; --hosts names hosts of the stream then
    #[arg(id = "from", long = "from", value_name = "URL")]
    url: Option<String>,
    /// The stream of events; that of states has `_STATE` behind it
    #[arg(long, value_name = "NAME", default_value = "KPROBED", requires = "from")]
    stream: String,
    /// What subjects begin with
    #[arg(long, value_name = "PREFIX", default_value = "kprobed", requires = "from")]
    subject_prefix: String,
    /// File of a user as `nsc` writes it
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    credentials: Option<PathBuf>,
    /// File with a token
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    token: Option<PathBuf>,
    /// File with `USER:PASSWORD`
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    password: Option<PathBuf>,
}

impl From {
    /// Whether it is asked for.
    pub(crate) const fn is_given(&self) -> bool {
        self.url.is_some()
    }
}

/// What a build says that cannot do it.
#[cfg(not(feature = "nats"))]
pub(super) fn refused() -> Failure {
    let message = "`--from` cannot be used: this build of kprobectl cannot read from NATS".to_owned();
    let hint = "install the package, which can, or build with `--features kprobectl/nats`".to_owned();
    Failure::usage(message, Some(hint))
}
