//! Connection to NATS, with its options and errors.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use async_nats::{Client, ConnectOptions, ServerAddr, jetstream};
use futures_util::TryStreamExt as _;
use kprobed_event::published::{LogError, Subjects, Topic};
use thiserror::Error as ThisError;

/// How long a server may take to answer one request.
const ANSWER: Duration = Duration::from_secs(5);

/// Credentials of the client.
#[derive(Clone, Debug)]
pub enum NatsCredentials {
    /// File with a user's JWT and nkey seed, as `nsc` writes it.
    File(PathBuf),
    /// File with a token.
    Token(PathBuf),
    /// File with `USER:PASSWORD`.
    Password(PathBuf),
}

/// Where the stream is.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// `nats://HOST:PORT` or `tls://HOST:PORT`; several servers of one cluster with commas between.
    pub url: String,
    /// Name of the stream.
    pub stream: String,
    /// What its subjects begin with.
    pub subject_prefix: String,
    /// Credentials, if the server needs them.
    pub credentials: Option<NatsCredentials>,
    /// Authority that signed the server's certificate, a PEM file. Absent: those that the system
    /// trusts.
    pub ca: Option<PathBuf>,
    /// Certificate and private key of this client, PEM files.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl NatsOptions {
    /// The stream and the subjects that daemons use unless they are configured otherwise.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            stream: "KPROBED".to_owned(),
            subject_prefix: "kprobed".to_owned(),
            credentials: None,
            ca: None,
            identity: None,
        }
    }
}

/// Why events cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum NatsError {
    /// The options cannot be used.
    #[error("{0}")]
    Options(String),
    /// No connection.
    #[error("cannot connect to `{url}`: {reason}")]
    Connect {
        /// Where.
        url: String,
        /// Why.
        reason: String,
    },
    /// The server refused something, or did not answer.
    #[error("cannot {action}: {reason}")]
    Request {
        /// What was asked.
        action: String,
        /// Why.
        reason: String,
    },
    /// A message of the stream cannot be read.
    #[error("the stream has a malformed message: {0}")]
    Malformed(#[from] LogError),
}

impl NatsError {
    pub(super) fn request(action: impl Into<String>, error: &dyn Error) -> Self {
        Self::Request { action: action.into(), reason: causes(error) }
    }
}

/// A stream to which daemons publish.
#[derive(Clone, Debug)]
pub struct NatsSource {
    pub(super) client: Client,
    pub(super) stream: Stream,
    pub(super) subjects: Subjects,
}

impl NatsSource {
    /// Connects. A connection that is lost later is made again.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn connect(options: NatsOptions) -> Result<Self, NatsError> {
        let NatsOptions { url, stream, subject_prefix, credentials, ca, identity } = options;
        let subjects = Subjects::new(&subject_prefix).map_err(|error| {
            NatsError::Options(format!("subjects cannot begin with `{subject_prefix}`: {error}"))
        })?;
        // Other users see the arguments of a command, and messages are kept in logs.
        if url.contains('@') {
            let why = "the address cannot have a user, a password or a token: name a file that has them";
            return Err(NatsError::Options(why.to_owned()));
        }
        let refused = |error: &dyn Error| NatsError::Connect { url: url.clone(), reason: causes(error) };
        let servers: Vec<ServerAddr> = url
            .split(',')
            .map(|server| server.trim().parse())
            .collect::<Result<_, _>>()
            .map_err(|error| refused(&error))?;
        let mut connect = ConnectOptions::new()
            .name("kprobed client")
            .connection_timeout(ANSWER)
            .request_timeout(Some(ANSWER));
        if let Some(ca) = ca {
            connect = connect.add_root_certificates(ca);
        }
        if let Some((certificate, key)) = identity {
            connect = connect.add_client_certificate(certificate, key);
        }
        if let Some(credentials) = credentials {
            connect = authenticate(connect, &credentials)?;
        }
        let client = connect.connect(servers).await.map_err(|error| refused(&error))?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWER);
        let found = context.get_stream(&stream).await;
        let stream =
            found.map_err(|error| NatsError::request(format!("open the stream `{stream}`"), &error))?;
        Ok(Self { client, stream, subjects })
    }

    /// The hosts of which the stream has something, sorted by name.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn hosts(&self) -> Result<Vec<String>, NatsError> {
        let failed = |error: &dyn Error| NatsError::request("list the hosts of the stream", error);
        let found = self.stream.info_with_subjects(self.subjects.ledgers()).await;
        let mut list = found.map_err(|error| failed(&error))?;
        let mut hosts = Vec::new();
        while let Some((subject, _)) = list.try_next().await.map_err(|error| failed(&error))? {
            if let Some((host, Topic::Ledger)) = self.subjects.read(&subject) {
                hosts.push(host);
            }
        }
        hosts.sort_unstable();
        hosts.dedup();
        Ok(hosts)
    }

    /// The last message of the stream, whatever it is about. 0: it never had one.
    pub(super) async fn last(&self) -> Result<u64, NatsError> {
        let info = self.stream.get_info().await;
        Ok(info.map_err(|error| NatsError::request("look at the stream", &error))?.state.last_sequence)
    }
}

fn authenticate(options: ConnectOptions, credentials: &NatsCredentials) -> Result<ConnectOptions, NatsError> {
    let (NatsCredentials::File(path) | NatsCredentials::Token(path) | NatsCredentials::Password(path)) =
        credentials;
    let wrong = |why: &str| NatsError::Options(format!("cannot use `{}`: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let text = text.trim_end();
    match credentials {
        // The library's error text may contain a part of the file.
        NatsCredentials::File(_) => {
            options.credentials(text).map_err(|_error| wrong("it has no JWT and seed of a user"))
        }
        NatsCredentials::Token(_) => Ok(options.token(text.to_owned())),
        NatsCredentials::Password(_) => {
            let pair = text.split_once(':').ok_or_else(|| wrong("it has no `USER:PASSWORD`"))?;
            Ok(options.user_and_password(pair.0.to_owned(), pair.1.to_owned()))
        }
    }
}

/// An error and its causes, each once: many libraries repeat the cause in the text of the error.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        inner = error.source();
    }
    text
}
