//! `--from nats://...`: events that daemons have published, instead of those of a connection.

use std::path::PathBuf;

use clap::Args;

#[cfg(not(feature = "nats"))]
use crate::{
    cli::Global,
    command::{Exit, Failure},
    output::Output,
};

/// Where published events are.
#[derive(Debug, Args)]
#[command(next_help_heading = "From NATS")]
pub(super) struct From {
    /// Read what daemons have published to this server (`[export.nats]`), without a connection to any of them: `nats://HOST:PORT` or `tls://HOST:PORT`; --hosts names hosts of the stream then
    #[arg(id = "from", long = "from", value_name = "URL", conflicts_with_all = ["definitions", "cursor", "last"])]
    pub(super) url: Option<String>,
    /// The stream
    #[arg(long, value_name = "NAME", default_value = "KPROBED", requires = "from")]
    pub(super) stream: String,
    /// What subjects begin with
    #[arg(long, value_name = "PREFIX", default_value = "kprobed", requires = "from")]
    pub(super) subject_prefix: String,
    /// File of a user as `nsc` writes it
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    pub(super) credentials: Option<PathBuf>,
    /// File with a token
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    pub(super) token: Option<PathBuf>,
    /// File with `USER:PASSWORD`
    #[arg(long, value_name = "FILE", requires = "from", group = "secret")]
    pub(super) password: Option<PathBuf>,
}

/// Shows what was published.
#[cfg(not(feature = "nats"))]
#[expect(clippy::unused_async, reason = "as with the feature")]
pub(super) async fn run(_: &Global, _: super::Arguments, _: &mut Output) -> Result<Exit, Failure> {
    let message = "`--from` cannot be used: this build of kprobectl cannot read from NATS".to_owned();
    let hint = "install the package, which can, or build with `--features kprobed-client/nats`".to_owned();
    Err(Failure::usage(message, Some(hint)))
}

#[cfg(feature = "nats")]
pub(super) use with_nats::run;

#[cfg(feature = "nats")]
mod with_nats {
    use std::time::SystemTime;

    use kprobed_client::fleet::names::expand;
    use kprobed_client::merge::{MergeOptions, MergedStream};
    use kprobed_client::nats::{NatsCredentials, NatsError, NatsOptions, NatsRequest, NatsSource, NatsStart};

    use super::super::Arguments;
    use super::super::merged::Show;
    use super::From;
    use crate::cli::Global;
    use crate::command::stop::Stop;
    use crate::command::{Exit, Failure};
    use crate::glob;
    use crate::output::Output;

    /// Shows what was published.
    pub(in super::super) async fn run(
        global: &Global,
        arguments: Arguments,
        output: &mut Output,
    ) -> Result<Exit, Failure> {
        if let Some(option) = arguments
            .selection
            .first()
            .or_else(|| arguments.delivery.first())
            .or_else(|| arguments.form.first())
        {
            let message = format!("`{option}` is for a daemon, and `--from` asks none");
            let hint = "leave it out: `[export.nats]` of the daemons says what they publish, and globs of names and `--since` select here";
            return Err(Failure::usage(message, Some(hint.to_owned())));
        }
        if arguments.max_wait.is_zero() {
            let message = "`--max-wait` is zero, and every answer takes some time".to_owned();
            return Err(Failure::usage(message, Some("write a time such as `2s`".to_owned())));
        }
        let stop = Stop::new(None).map_err(Failure::Signals)?;
        let start = &arguments.start;
        let (begin, since_ns) = match start.since {
            Some(since) => {
                let since_ns = i64::try_from(since.as_nanosecond()).unwrap_or(i64::MAX);
                (NatsStart::Since(SystemTime::from(since)), Some(since_ns))
            }
            None if start.oldest || start.ends() => (NatsStart::Oldest, None),
            None => (NatsStart::Now, None),
        };
        let ends = start.ends();
        let globs: Vec<String> = arguments.probes.iter().map(|pattern| glob::of_names(pattern)).collect();
        let is_wanted = move |probe: &str| {
            let matches = |glob: &String| glob.is_empty() || glob::matches(glob.as_bytes(), probe.as_bytes());
            globs.is_empty() || globs.iter().any(matches)
        };
        let request = NatsRequest::default().start(begin).probes(is_wanted);
        let request = if ends { request.until_now() } else { request };
        let source =
            NatsSource::connect(options(arguments.from, global)).await.map_err(|error| failure(&error))?;
        let hosts = selected(source.hosts().await.map_err(|error| failure(&error))?, &global.hosts)?;
        let default = MergeOptions::default();
        let options = MergeOptions {
            max_wait: arguments.max_wait,
            parallel: global.parallel.unwrap_or(default.parallel),
            reconnect: !arguments.delivery.no_reconnect && !global.fail_fast,
            ..default
        };
        let merged = MergedStream::from_nats(&source, hosts.clone(), &request, options);
        let show = Show {
            count: arguments.count,
            duration: arguments.duration,
            quiet: arguments.quiet,
            form: arguments.form,
            ends,
            since_ns,
        };
        let (exit, _) = show.run((merged, &hosts), stop, global, output).await?;
        Ok(exit)
    }

    fn options(from: From, global: &Global) -> NatsOptions {
        let From { url, stream, subject_prefix, credentials, token, password } = from;
        let credentials = credentials.map(NatsCredentials::File);
        let credentials = credentials.or_else(|| token.map(NatsCredentials::Token));
        let credentials = credentials.or_else(|| password.map(NatsCredentials::Password));
        let identity = global.cert.clone().zip(global.key.clone());
        let url = url.unwrap_or_default();
        NatsOptions {
            stream,
            subject_prefix,
            credentials,
            ca: global.ca.clone(),
            identity,
            ..NatsOptions::new(url)
        }
    }

    /// The hosts of the stream that are asked for.
    fn selected(there: Vec<String>, lists: &[String]) -> Result<Vec<String>, Failure> {
        if there.is_empty() {
            let message = "the stream has no events of any host".to_owned();
            let hint = "see `kprobectl exporters` on the hosts; --stream and --subject-prefix must be those of their `[export.nats]`";
            return Err(Failure::usage(message, Some(hint.to_owned())));
        }
        if lists.is_empty() || lists.iter().any(|list| list == "all") {
            return Ok(there);
        }
        let mut globs = Vec::new();
        for list in lists {
            let wrong = |why: &dyn std::fmt::Display| {
                let hint = "with `--from`, write names, globs and ranges (`web[001-480]`)".to_owned();
                Failure::usage(format!("`--hosts {list}`: {why}"), Some(hint))
            };
            for name in expand(list).map_err(|error| wrong(&error))? {
                if !there.iter().any(|host| glob::matches(name.as_bytes(), host.as_bytes())) {
                    return Err(wrong(&format_args!("the stream has no host `{name}`")));
                }
                globs.push(name);
            }
        }
        let is_asked =
            |host: &String| globs.iter().any(|glob| glob::matches(glob.as_bytes(), host.as_bytes()));
        Ok(there.into_iter().filter(is_asked).collect())
    }

    fn failure(error: &NatsError) -> Failure {
        let hint = match error {
            NatsError::Connect { .. } => {
                "is the server there, and does it want --credentials, --token, --password or --ca?"
            }
            NatsError::Options(_) => {
                "the files are those of --credentials, --token, --password, --ca, --cert and --key"
            }
            NatsError::Request { .. } => "--stream must be that of `[export.nats]` of the daemons",
            _ => "see `kprobectl help observe`",
        };
        let is_there = !matches!(error, NatsError::Connect { .. });
        Failure::Published { message: error.to_string(), hint, is_there }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn hosts_are_those_of_the_stream() {
            let there = || ["db1", "web1", "web2"].map(ToOwned::to_owned).to_vec();
            let names = |lists: &[&str]| {
                let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
                selected(there(), &lists).map_err(|failure| failure.to_string())
            };
            assert_eq!(names(&[]).unwrap(), there());
            assert_eq!(names(&["all"]).unwrap(), there());
            assert_eq!(names(&["web[1-2]"]).unwrap(), ["web1", "web2"]);
            assert_eq!(names(&["*1"]).unwrap(), ["db1", "web1"]);
            let error = names(&["web[1-3]"]).unwrap_err();
            assert!(error.contains("`--hosts web[1-3]`") && error.contains("no host `web3`"), "{error}");
            assert!(selected(Vec::new(), &[]).is_err());
        }
    }
}
