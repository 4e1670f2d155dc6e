//! The connection to the NATS servers, and finding or creating the JetStream stream.

use std::fs;
use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config as StreamConfig, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Event, ServerAddr};
use kprobed_event::published::Subjects;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::sync::CancellationToken;

use crate::config::export::Nats;
use crate::export::SinkError;
use crate::export::open::refused;
use crate::export::sink::causes;
use crate::start_error::StartError;

/// How long a server may take to answer one request.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a stream that is made here knows the ids of messages.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

/// How the servers are reached.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    settings: Nats,
    pub(super) subjects: Subjects,
    tls: Option<ClientConfig>,
    pub(super) hostname: String,
}

impl Connection {
    /// For settings that were judged.
    ///
    /// # Errors
    /// A file has changed since.
    pub(super) fn new(settings: &Nats, hostname: &str) -> Result<Self, StartError> {
        let tls = settings.tls.as_ref().map(|files| crate::config::client_config("export.nats.tls", files));
        Ok(Self {
            settings: settings.clone(),
            subjects: Subjects::new(&settings.subject_prefix)
                .map_err(|error| refused(format_args!("`export.nats.subject_prefix`: {error}")))?,
            tls: tls.transpose().map_err(refused)?,
            hostname: hostname.to_owned(),
        })
    }

    /// Connects. The token is cancelled when the connection is lost, also if it is made again: the server may know less
    /// than before.
    pub(super) async fn open(&self) -> Result<(Context, CancellationToken), SinkError> {
        let url = &self.settings.url;
        let action = || format!("connect to `{url}`");
        let servers: Vec<ServerAddr> = url
            .split(',')
            .map(|server| server.trim().parse())
            .collect::<Result<_, _>>()
            .map_err(|error| SinkError::new(action(), error))?;
        let lost = CancellationToken::new();
        let told = lost.clone();
        // It is made anew after each failure: what the library would keep for another try is read
        // again from the log instead.
        let mut options = ConnectOptions::new()
            .name(format!("kprobed on {}", self.hostname))
            .connection_timeout(ANSWER)
            .request_timeout(Some(ANSWER))
            .max_reconnects(1)
            .event_callback(move |event| {
                let told = told.clone();
                async move {
                    if matches!(event, Event::Disconnected | Event::Closed) {
                        told.cancel();
                    }
                }
            });
        if let Some(tls) = &self.tls {
            options = options.require_tls(true).tls_client_config(tls.clone());
        }
        let options = self.authenticate(options)?;
        let client =
            options.connect(servers).await.map_err(|error| SinkError::new(action(), causes(&error)))?;
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER);
        Ok((context, lost))
    }

    /// Finds the stream of events, or makes it.
    pub(super) async fn events(&self, context: &Context) -> Result<Stream, SinkError> {
        let (name, subjects) = (&self.settings.stream, self.subjects.events());
        let error = match context.get_stream(name).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let opening = || format!("open the stream `{name}`");
        match (error.kind(), &self.settings.create) {
            (GetStreamErrorKind::JetStream(missing), Some(limits)) if is_missing(&missing) => {
                let max_age = Duration::from_secs(limits.max_age_s);
                let max_bytes = limits.max_mib.saturating_mul(1 << 20);
                // Never longer than messages live.
                let duplicate_window =
                    if max_age.is_zero() { DUPLICATE_WINDOW } else { DUPLICATE_WINDOW.min(max_age) };
                let config = StreamConfig {
                    name: name.clone(),
                    description: Some("Events of kprobed".to_owned()),
                    subjects: vec![subjects],
                    max_bytes: i64::try_from(max_bytes).unwrap_or(i64::MAX),
                    max_age,
                    duplicate_window,
                    num_replicas: usize::try_from(limits.replicas).unwrap_or(1),
                    ..StreamConfig::default()
                };
                let made = context.create_stream(config).await;
                made.map_err(|error| SinkError::new(format_args!("make the stream `{name}`"), causes(&error)))
            }
            (GetStreamErrorKind::JetStream(missing), None) if is_missing(&missing) => {
                let why = format!(
                    "there is none of this name: make it for the subjects `{subjects}`, or add [export.nats.create] with `max_mib`"
                );
                Err(SinkError::new(opening(), why))
            }
            _ => Err(SinkError::new(opening(), causes(&error))),
        }
    }

    /// Who the daemon is. Files are read each time: they may have been renewed.
    fn authenticate(&self, options: ConnectOptions) -> Result<ConnectOptions, SinkError> {
        let Nats { credentials_file, token_file, password_file, .. } = &self.settings;
        if let Some(path) = credentials_file {
            let text = secret("credentials_file", path)?;
            // The library's words for what is wrong may have a part of the file in them.
            return options.credentials(&text).map_err(|_error| {
                SinkError::new(of_file("credentials_file", path), "it has no JWT and seed of a user")
            });
        }
        if let Some(path) = token_file {
            return Ok(options.token(secret("token_file", path)?));
        }
        if let Some(path) = password_file {
            let text = secret("password_file", path)?;
            let pair = text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()));
            let Some((user, password)) = pair else {
                return Err(SinkError::new(of_file("password_file", path), "it has no `USER:PASSWORD`"));
            };
            return Ok(options.user_and_password(user, password));
        }
        Ok(options)
    }
}

fn of_file(setting: &str, path: &Path) -> String {
    format!("read `{}` (`export.nats.{setting}`)", path.display())
}

fn secret(setting: &str, path: &Path) -> Result<String, SinkError> {
    let text = fs::read_to_string(path).map_err(|error| SinkError::new(of_file(setting, path), error))?;
    Ok(text.trim_end().to_owned())
}

fn is_missing(error: &jetstream::Error) -> bool {
    error.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND
}
