//! Connections to daemons, from options, environment and configuration.
//!
//! Owns the precedence: an option or variable before the context, and the context before the default.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kprobed_client::fleet::{Host, names};
use kprobed_client::{Client, ConnectOptions, Identity, Target, TlsOptions};

use super::Failure;
use super::input::standard_input;
use crate::config::{Config, ConfigError, Context, NamedHost, choose, place};
use crate::global::{Fleet, Global};

/// The daemon or the hosts that a command runs against.
pub(crate) enum Destination {
    /// One daemon, from `--server` or the context.
    One(Host),
    /// The hosts of `--hosts` and `--host-selector`, even if it is only one.
    Many(Fleet),
}

/// Connects to the daemon that options and configuration name.
pub(crate) async fn connect(global: &Global) -> Result<Client, Failure> {
    if let Some(client) = &global.client {
        return Ok(client.clone());
    }
    let host = match &global.host {
        Some(host) => host.clone(),
        None => match destination(global).await? {
            Destination::One(host) => host,
            Destination::Many(_) => return Err(Failure::one_host_only()),
        },
    };
    Ok(host.connect().await?)
}

/// Resolves the daemon or the hosts of a command.
pub(crate) async fn destination(global: &Global) -> Result<Destination, Failure> {
    let config = Config::read()?;
    let context = config.context(global.context.as_deref())?;
    let asks_for_hosts = !global.hosts.is_empty() || global.host_selector.is_some();
    let tls = tls(global, context.map(|(_, context)| context))?;
    let options = |domain: Option<String>| options(global, tls.as_ref(), domain);
    let read = |text: &str| match tls {
        Some(_) => Target::with_certificates(text),
        None => text.parse(),
    };
    let server = |text: &str, domain| {
        let target = read(text).map_err(ConfigError::Target)?;
        Ok::<_, Failure>(Destination::One(Host { name: text.to_owned(), target, options: options(domain) }))
    };
    if !asks_for_hosts && let Some(text) = &global.server {
        return server(text, None);
    }
    let port = context.and_then(|(_, context)| context.port);
    // The certificate's name may depend on that of the host.
    let host = |named: &NamedHost| {
        let of_all = global.domain.as_ref().or(context.and_then(|(_, context)| context.domain.as_ref()));
        let domain = named.certificate_name(of_all);
        Ok(Host { name: named.name.clone(), target: place(named, port, read)?, options: options(domain) })
    };
    if asks_for_hosts {
        let mut hosts =
            selected(global, context).await?.iter().map(host).collect::<Result<Vec<_>, ConfigError>>()?;
        require_distinct(&hosts)?;
        tell_how_many(&mut hosts);
        return Ok(Destination::Many(Fleet {
            hosts,
            context: context.map(|(name, _)| name.to_owned()),
            parallel: global.parallel.or(context.and_then(|(_, context)| context.parallel)),
            confirm_above: context.and_then(|(_, context)| context.confirm_above),
        }));
    }
    let usual = || {
        let target = Target::default();
        Destination::One(Host { name: target.to_string(), target, options: options(None) })
    };
    let Some((name, context)) = context else { return Ok(usual()) };
    if let Some(text) = &context.server {
        return server(text, name_of_one(global.domain.as_ref(), context.domain.as_ref()));
    }
    match context.named_hosts()?.as_slice() {
        [] => Ok(usual()),
        [one] => Ok(Destination::One(host(one)?)),
        several => Err(ConfigError::SeveralHosts { context: name.to_owned(), hosts: several.len() }.into()),
    }
}

/// The hosts that `--hosts` and `--host-selector` select. A term `-` is those in standard input.
pub(super) async fn selected(
    global: &Global,
    context: Option<(&str, &Context)>,
) -> Result<Vec<NamedHost>, Failure> {
    let reads_input = global.hosts.iter().any(|list| names::split(list).contains(&"-"));
    let input = if reads_input { standard_input().await? } else { String::new() };
    Ok(choose(&global.hosts, global.host_selector.as_ref(), &input, context)?)
}

/// Hosts whose names, addresses and names in certificates are known. The certificates of this side
/// are those of options and configuration.
pub(super) fn at_addresses(
    global: &Global,
    known: &[(String, String, Option<String>)],
) -> Result<Vec<Host>, Failure> {
    let config = Config::read()?;
    let tls = tls(global, config.context(global.context.as_deref())?.map(|(_, context)| context))?;
    let host = |(name, address, domain): &(String, String, Option<String>)| {
        let target = address.parse().map_err(ConfigError::Target)?;
        Ok(Host { name: name.clone(), target, options: options(global, tls.as_ref(), domain.clone()) })
    };
    let mut hosts = known.iter().map(host).collect::<Result<Vec<_>, Failure>>()?;
    tell_how_many(&mut hosts);
    Ok(hosts)
}

/// Refuses two names for one daemon: it would be asked and changed twice, and be in sums twice.
fn require_distinct(hosts: &[Host]) -> Result<(), ConfigError> {
    let mut names = HashMap::new();
    for host in hosts {
        // Behind one address, a proxy can choose the daemon by the name in its certificate.
        let domain = host.options.tls.as_ref().and_then(|tls| tls.domain.as_deref());
        if let Some(first) = names.insert((&host.target, domain), &host.name) {
            let (first, second, target) = (first.clone(), host.name.clone(), host.target.to_string());
            return Err(ConfigError::OneDaemon { first, second, target });
        }
    }
    Ok(())
}

/// Has each host learn how many a command is for.
fn tell_how_many(hosts: &mut [Host]) {
    let count = hosts.len();
    for host in hosts {
        host.options.hosts = count;
    }
}

/// The most hosts that are asked at the same time, if that is set.
pub(super) fn parallel(global: &Global) -> Result<Option<std::num::NonZeroUsize>, Failure> {
    let config = Config::read()?;
    let context = config.context(global.context.as_deref())?;
    Ok(global.parallel.or(context.and_then(|(_, context)| context.parallel)))
}

fn options(global: &Global, tls: Option<&TlsOptions>, domain: Option<String>) -> ConnectOptions {
    ConnectOptions {
        tls: tls.cloned().map(|tls| TlsOptions { domain: domain.or(tls.domain.clone()), ..tls }),
        connect_timeout: global.timeout.min(Duration::from_secs(5)),
        request_timeout: global.timeout,
        ..ConnectOptions::default()
    }
}

/// Certificates: all from options and the environment, or all from the context.
fn tls(global: &Global, context: Option<&Context>) -> Result<Option<TlsOptions>, Failure> {
    let given = global.ca.is_some() || global.cert.is_some() || global.key.is_some();
    let (ca, cert, key) = match context {
        Some(context) if !given => (
            Context::file(context.ca.as_ref())?,
            Context::file(context.cert.as_ref())?,
            Context::file(context.key.as_ref())?,
        ),
        _ => (global.ca.clone(), global.cert.clone(), global.key.clone()),
    };
    let Some(ca) = ca else { return Ok(None) };
    let domain = name_of_one(global.domain.as_ref(), None);
    Ok(Some(TlsOptions { ca_pem: read(&ca)?, identity: identity(cert, key)?, domain }))
}

/// The name in the certificate of one daemon: the option before the context. A pattern with `{}` is a name for each
/// host of the inventory, and is put in where such a host is.
fn name_of_one(option: Option<&String>, of_context: Option<&String>) -> Option<String> {
    option.or(of_context).filter(|domain| !domain.contains("{}")).cloned()
}

fn identity(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Identity>, Failure> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(Identity { cert_pem: read(&cert)?, key_pem: read(&key)? })),
        (None, None) => Ok(None),
        _ => {
            let message = "`--cert` and `--key` belong together, and only one of them is given";
            Err(Failure::usage(message, "give both"))
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|why| Failure::unreadable(path, &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_named_once_and_a_proxy_has_several() {
        let host = |name: &str, domain: Option<&str>| {
            let tls = |domain: &str| TlsOptions {
                ca_pem: Vec::new(),
                identity: None,
                domain: Some(domain.to_owned()),
            };
            let options = ConnectOptions { tls: domain.map(tls), ..ConnectOptions::default() };
            Host { name: name.to_owned(), target: "tcp://127.0.0.1:1".parse().unwrap(), options }
        };
        let refused = require_distinct(&[host("a", None), host("b", None)]).unwrap_err();
        assert_eq!(refused.to_string(), "`a` and `b` are one daemon, at tcp://127.0.0.1:1");
        require_distinct(&[host("a", Some("a.test")), host("b", Some("b.test"))]).unwrap();
    }

    #[test]
    fn the_option_replaces_the_name_of_the_context_and_a_pattern_is_no_name() {
        let (option, context) = ("given.example".to_owned(), "kept.example".to_owned());
        let pattern = "{}.example".to_owned();
        assert_eq!(name_of_one(Some(&option), Some(&context)), Some(option.clone()));
        assert_eq!(name_of_one(None, Some(&context)), Some(context));
        assert_eq!(name_of_one(None, Some(&pattern)), None, "it is of hosts");
        assert_eq!(name_of_one(Some(&pattern), None), None);
    }
}
