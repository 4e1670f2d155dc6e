//! Hosts of a context by name, with addresses, labels and groups; and those that `--hosts` and `--host-selector`
//! select.
//!
//! Owns the terms of `--hosts`: names, globs, ranges, groups, addresses, files, and the hosts
//! that did not answer in the last run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kprobed_client::fleet::names;
use kprobed_client::{Target, TargetError};
use kprobed_lang::model::{Glob, LabelSelector};
use serde::Serialize;

use super::{Config, ConfigError, Context, Inventory, is_name, state_file};

/// A host of the inventory, or an address that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NamedHost {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) domain: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) groups: Vec<String>,
    /// It is an address and nothing else: the inventory does not have it.
    #[serde(skip)]
    is_address: bool,
}

impl NamedHost {
    fn is_called(&self, pattern: &str) -> bool {
        Glob::new(pattern).matches(&self.name)
    }

    /// A host that is an address and nothing else.
    fn of_address(address: &str) -> Self {
        Self {
            name: address.to_owned(),
            address: address.to_owned(),
            domain: None,
            labels: BTreeMap::new(),
            groups: Vec::new(),
            is_address: true,
        }
    }

    /// The name in its certificate, if that is not the host of its address. `of_all` is the name
    /// for all hosts, in which `{}` stands for the host's name in the inventory.
    pub(crate) fn certificate_name(&self, of_all: Option<&String>) -> Option<String> {
        let of_all = of_all.filter(|of_all| !self.is_address || !of_all.contains("{}"));
        self.domain.clone().or_else(|| of_all.map(|domain| domain.replace("{}", &self.name)))
    }
}

impl Context {
    /// Each of its hosts by its own name, sorted, with those of its inventory file. Addresses and domains have the name
    /// in place of `{}`.
    pub(crate) fn named_hosts(&self) -> Result<Vec<NamedHost>, ConfigError> {
        let (mut hosts, mut groups) = (self.hosts.clone(), self.groups.clone());
        if let Some(path) = &self.inventory {
            let path = beside(path)?;
            let text = read(&path)?;
            let file: Inventory =
                super::read_yaml(&text).map_err(|problem| ConfigError::Form { path, problem })?;
            for (name, entry) in file.hosts {
                if hosts.insert(name.clone(), entry).is_some() {
                    return Err(ConfigError::Twice(name));
                }
            }
            groups.extend(file.groups);
        }
        let mut all = BTreeMap::new();
        for (key, entry) in hosts {
            let entry = entry.unwrap_or_default();
            for name in names::expand(&key)? {
                if !is_name(&name) {
                    return Err(ConfigError::Name(name));
                }
                let put = |text: &String| text.replace("{}", &name);
                let host = NamedHost {
                    address: entry.address.as_ref().map_or_else(|| name.clone(), put),
                    domain: entry.domain.as_ref().map(put),
                    labels: entry.labels.clone(),
                    groups: Vec::new(),
                    is_address: false,
                    name: name.clone(),
                };
                if all.insert(name.clone(), host).is_some() {
                    return Err(ConfigError::Twice(name));
                }
            }
        }
        for (group, members) in &groups {
            for member in members {
                let wanted = names::expand(member)?;
                for host in all.values_mut().filter(|host| wanted.iter().any(|wanted| host.is_called(wanted)))
                {
                    if host.groups.last() != Some(group) {
                        host.groups.push(group.clone());
                    }
                }
            }
        }
        Ok(all.into_values().collect())
    }
}

/// A path that is relative to the configuration file.
fn beside(path: &Path) -> Result<PathBuf, ConfigError> {
    let file = Config::path()?;
    Ok(file.parent().map_or_else(|| path.to_owned(), |directory| directory.join(path)))
}

/// The hosts that a command line selects, each once, in the order in which they are named. `input`: what standard input
/// has, for the term `-`.
pub(crate) fn choose(
    terms: &[String],
    selector: Option<&LabelSelector>,
    input: &str,
    context: Option<(&str, &Context)>,
) -> Result<Vec<NamedHost>, ConfigError> {
    let inventory = context.map(|(_, context)| context.named_hosts()).transpose()?.unwrap_or_default();
    let all = ["all".to_owned()];
    let terms = if terms.is_empty() { &all } else { terms };
    let mut chosen = HostChoice { inventory: &inventory, hosts: Vec::new(), seen: BTreeSet::new() };
    for list in terms {
        for term in names::split(list) {
            match term {
                "-" => chosen.add_lines(input)?,
                "@failed" => chosen.add_lines(&failed(context.map(|(name, _)| name))?)?,
                _ => match term.strip_prefix('@') {
                    Some(path) => chosen.add_lines(&read(Path::new(path))?)?,
                    None => chosen.add(term)?,
                },
            }
        }
    }
    let mut hosts = chosen.hosts;
    if hosts.is_empty() {
        return Err(ConfigError::NoMatch(terms.join(",")));
    }
    hosts.retain(|host| {
        let value = |key: &str| host.labels.get(key).map(String::as_str);
        selector.is_none_or(|selector| selector.fits(value))
    });
    if hosts.is_empty() {
        return Err(ConfigError::NoLabels(terms.join(",")));
    }
    Ok(hosts)
}

struct HostChoice<'a> {
    inventory: &'a [NamedHost],
    hosts: Vec<NamedHost>,
    seen: BTreeSet<String>,
}

impl HostChoice<'_> {
    fn add_lines(&mut self, text: &str) -> Result<(), ConfigError> {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            for term in names::split(line) {
                self.add(term)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, term: &str) -> Result<(), ConfigError> {
        for pattern in names::expand(term)? {
            let inventory = self.inventory;
            let mut found = false;
            for host in inventory {
                if pattern == "all" || host.is_called(&pattern) || host.groups.contains(&pattern) {
                    found = true;
                    self.push(host.clone());
                }
            }
            if found {
                continue;
            }
            if inventory.is_empty() && !pattern.contains([':', '/']) {
                return Err(ConfigError::NoHosts);
            }
            if pattern.contains(['*', '?']) || pattern == "all" {
                return Err(ConfigError::NoMatch(pattern));
            }
            if !pattern.contains([':', '/']) {
                return Err(ConfigError::UnknownHost(pattern));
            }
            pattern.parse::<Target>()?;
            self.push(NamedHost::of_address(&pattern));
        }
        Ok(())
    }

    fn push(&mut self, host: NamedHost) {
        if self.seen.insert(host.name.clone()) {
            self.hosts.push(host);
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// The names that the last run saved for `@failed`.
fn failed(context: Option<&str>) -> Result<String, ConfigError> {
    let text = match state_file(context) {
        Some(path) if path.exists() => read(&path)?,
        _ => String::new(),
    };
    if text.trim().is_empty() { Err(ConfigError::NothingFailed) } else { Ok(text) }
}

/// The target of a host; an address without a port gets that of the context. `read` parses it for a
/// client with or without certificates.
pub(crate) fn place(
    host: &NamedHost,
    port: Option<u16>,
    read: impl Fn(&str) -> Result<Target, TargetError>,
) -> Result<Target, ConfigError> {
    let address = host.address.as_str();
    if address.contains('/') || address.starts_with("unix:") {
        return Ok(read(address)?);
    }
    let is_ipv6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    let has_port = !is_ipv6 && address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port {
        return Ok(read(address)?);
    }
    let port = port.ok_or_else(|| ConfigError::NoPort(host.name.clone()))?;
    let text = if is_ipv6 { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
    Ok(read(&text)?)
}

impl Config {
    /// The context of this name, or the current one; none if no context is current.
    pub(crate) fn context<'a>(
        &'a self,
        name: Option<&'a str>,
    ) -> Result<Option<(&'a str, &'a Context)>, ConfigError> {
        let Some(name) = name.or(self.current_context.as_deref()) else { return Ok(None) };
        let context = self.contexts.get(name).ok_or_else(|| ConfigError::NoContext(name.to_owned()))?;
        Ok(Some((name, context)))
    }
}

impl Context {
    /// A path of the context, relative to the working directory.
    pub(crate) fn file(path: Option<&PathBuf>) -> Result<Option<PathBuf>, ConfigError> {
        path.map(|path| beside(path)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        let text = "
port: 7443
hosts:
  web[001-003]: {address: '{}.example.org', labels: {role: web}}
  db1: {address: '10.0.0.1:99', labels: {role: db}}
  six: {address: '::2'}
  bare:
groups:
  front: ['web[001-002]', bare]
";
        serde_saphyr::from_str(text).unwrap()
    }

    fn chosen(terms: &[&str], selector: Option<&str>) -> Result<String, ConfigError> {
        let terms: Vec<_> = terms.iter().map(|term| (*term).to_owned()).collect();
        let selector = selector.map(|text| text.parse().unwrap());
        let input = "db1 # here\n\nweb003\n";
        let context = context();
        let hosts = choose(&terms, selector.as_ref(), input, Some(("test", &context)))?;
        Ok(hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn terms() {
        assert_eq!(chosen(&[], None).unwrap(), "bare db1 six web001 web002 web003");
        assert_eq!(chosen(&["web[002-003],db1,web002"], None).unwrap(), "web002 web003 db1");
        assert_eq!(chosen(&["front", "-"], None).unwrap(), "bare web001 web002 db1 web003");
        assert_eq!(chosen(&["*1"], None).unwrap(), "db1 web001");
        assert_eq!(chosen(&["1.2.3.4:5", "tcp://x:1"], None).unwrap(), "1.2.3.4:5 tcp://x:1");
        assert_eq!(chosen(&[], Some("role in (db)")).unwrap(), "db1");
        assert!(matches!(chosen(&["wbe001"], None), Err(ConfigError::UnknownHost(_))));
        assert!(matches!(chosen(&["x*"], None), Err(ConfigError::NoMatch(_))));
        assert!(matches!(chosen(&["front"], Some("role=db")), Err(ConfigError::NoLabels(_))));
        assert!(matches!(chosen(&[","], Some("role=db")), Err(ConfigError::NoMatch(_))));
        assert!(matches!(chosen(&["web[1"], None), Err(ConfigError::Names(_))));
        // Without a host to list, the advice to list the hosts would lead nowhere.
        for term in ["all", "web*", "web1"] {
            let chosen = choose(&[term.to_owned()], None, "", None);
            assert!(matches!(chosen, Err(ConfigError::NoHosts)), "{term}");
        }
        assert_eq!(choose(&["web1:7443".to_owned()], None, "", None).unwrap().len(), 1);
    }

    #[test]
    fn certificates_have_the_name_of_the_inventory_or_of_the_address() {
        let (pattern, fixed) = ("{}.internal".to_owned(), "kprobed".to_owned());
        let inventory = context().named_hosts().unwrap();
        let bare = inventory.iter().find(|host| host.name == "bare").unwrap();
        let address = NamedHost::of_address("web1.example.org:7443");
        assert_eq!(bare.certificate_name(Some(&pattern)).unwrap(), "bare.internal");
        assert_eq!(bare.certificate_name(Some(&fixed)).unwrap(), "kprobed");
        assert_eq!(bare.certificate_name(None), None);
        assert_eq!(address.certificate_name(Some(&pattern)), None, "that of the address");
        assert_eq!(address.certificate_name(Some(&fixed)).unwrap(), "kprobed");
        let own = NamedHost { domain: Some("own".to_owned()), ..address };
        assert_eq!(own.certificate_name(Some(&fixed)).unwrap(), "own");
    }

    #[test]
    fn addresses_have_a_port() {
        let places: Vec<_> = context()
            .named_hosts()
            .unwrap()
            .iter()
            .map(|host| place(host, Some(7443), str::parse).unwrap().to_string())
            .collect();
        assert_eq!(
            places[..4],
            [
                "https://bare:7443",
                "https://10.0.0.1:99",
                "https://[::2]:7443",
                "https://web001.example.org:7443"
            ]
        );
        assert!(matches!(
            place(&NamedHost::of_address("bare"), None, str::parse),
            Err(ConfigError::NoPort(_))
        ));
    }
}
