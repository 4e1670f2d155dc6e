//! `observe --from`: events from NATS, merged in the order of time.
//!
//! Owns the connection and which hosts are selected; selects here what a daemon would select.

use std::time::SystemTime;

use kprobed_client::event::{Projection, StreamRequest};
use kprobed_client::fleet::names::{expand, split};
use kprobed_client::merge::{MergeOptions, MergedStream};
use kprobed_client::nats::{
    NatsCredentials, NatsError, NatsOptions, NatsRequest, NatsSource, NatsStart, ProbePredicate,
};
use kprobed_lang::model::Glob;

use super::Arguments;
use super::joined::JoinedCalls;
use super::options::NatsArguments;
use super::session::Opened;
use crate::command::probe_selection::glob_of_names;
use crate::command::stop_condition::StopCondition;
use crate::command::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

/// Shows what was published.
pub(super) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let (filter, one_in) = arguments.selection.published()?;
    let stop = StopCondition::new()?;
    let start = &arguments.start;
    let (begin, since_ns) = match start.since {
        Some(since) => {
            let since_ns = i64::try_from(since.as_nanosecond()).unwrap_or(i64::MAX);
            (NatsStart::Since(SystemTime::from(since)), Some(since_ns))
        }
        None if start.oldest || start.ends() => (NatsStart::Oldest, None),
        None => (NatsStart::Now, None),
    };
    let source = connect(arguments.from.clone(), global).await?;
    let hosts = selected(source.hosts().await.map_err(|error| failure(&error))?, &global.hosts)?;
    let globs = arguments.probes.iter().map(|pattern| glob_of_names(pattern));
    // Empty: all.
    let globs: Vec<_> =
        globs.map(|glob| Glob::new(if glob.is_empty() { "*" } else { glob.as_str() })).collect();
    let is_wanted =
        move |probe: &str| globs.is_empty() || globs.iter().any(|glob: &Glob| glob.matches(probe));
    let request = NatsRequest {
        start: begin,
        until_now: start.ends(),
        probes: Some(ProbePredicate::new(is_wanted)),
        filter,
        sample_one_in: one_in,
        fields: Projection::new(arguments.form.fields.clone()),
    };
    let default = MergeOptions::default();
    let options = MergeOptions {
        max_wait: arguments.max_wait,
        parallel: global.parallel.unwrap_or(default.parallel),
        reconnect: !arguments.delivery.no_reconnect && !global.fail_fast,
        ..default
    };
    let merged = MergedStream::from_nats(&source, hosts.clone(), &request, options);
    let request = if start.ends() { StreamRequest::new().until_now() } else { StreamRequest::new() };
    let session = arguments.session(request, None);
    let opened = Opened::hosts(merged, hosts, JoinedCalls::default(), since_ns);
    let (exit, _) = session.show(opened, stop, global, output).await?;
    Ok(exit)
}

/// Connects.
async fn connect(from: NatsArguments, global: &Global) -> Result<NatsSource, Failure> {
    if global.host_selector.is_some() {
        let message = "`--host-selector` selects hosts of a context, and `--from` knows those of the stream, which have no labels there";
        let hint = "name the hosts with `--hosts`: globs and ranges are possible";
        return Err(Failure::usage(message, hint));
    }
    let NatsArguments { url, stream, subject_prefix, credentials, token, password } = from;
    let credentials = credentials.map(NatsCredentials::File);
    let credentials = credentials.or_else(|| token.map(NatsCredentials::Token));
    let credentials = credentials.or_else(|| password.map(NatsCredentials::Password));
    let identity = global.cert.clone().zip(global.key.clone());
    let url = url.unwrap_or_default();
    let ca = global.ca.clone();
    let options = NatsOptions { url, stream, subject_prefix, credentials, ca, identity };
    NatsSource::connect(options).await.map_err(|error| failure(&error))
}

/// The selected hosts of the stream.
fn selected(there: Vec<String>, lists: &[String]) -> Result<Vec<String>, Failure> {
    if there.is_empty() {
        let message = "the stream has no events of any host";
        let hint = "see `kprobectl ledger` on the hosts; --stream and --subject-prefix must be those of their `[export.nats]`";
        return Err(Failure::usage(message, hint));
    }
    let terms: Vec<&str> = lists.iter().flat_map(|list| split(list)).collect();
    if lists.is_empty() || terms.contains(&"all") {
        return Ok(there);
    }
    let mut globs = Vec::new();
    for term in terms {
        let wrong = |why: &dyn std::fmt::Display| {
            let hint = "with `--from`, write names, globs and ranges (`web[001-480]`)";
            Failure::usage(format!("`--hosts {term}`: {why}"), hint)
        };
        for name in expand(term).map_err(|error| wrong(&error))? {
            let glob = Glob::new(name.as_str());
            if !there.iter().any(|host| glob.matches(host)) {
                return Err(wrong(&format_args!("the stream has no host `{name}`")));
            }
            globs.push(glob);
        }
    }
    let is_asked = |host: &String| globs.iter().any(|glob: &Glob| glob.matches(host));
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
    let exit = if is_there { Exit::Refused } else { Exit::Unreachable };
    Failure::new(exit, error.to_string(), [hint.to_owned()])
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
        assert_eq!(names(&["db1,web[1,2]"]).unwrap(), there());
        assert_eq!(names(&["web1, db1", "web2"]).unwrap(), there());
        assert_eq!(names(&["web1,all"]).unwrap(), there());
        let error = names(&["web[1-3]"]).unwrap_err();
        assert!(error.contains("`--hosts web[1-3]`") && error.contains("no host `web3`"), "{error}");
        assert!(selected(Vec::new(), &[]).is_err());
    }
}
