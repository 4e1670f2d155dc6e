//! Contexts, hosts and the configuration: tables, JSON and YAML.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use super::Output;
use super::table::{Cell, Table};
use crate::config::{Config, NamedHost};

#[derive(Serialize)]
struct ContextView<'a> {
    name: &'a str,
    current: bool,
    server: Option<&'a str>,
    hosts: usize,
}

#[derive(Serialize)]
struct HostView<'a> {
    name: &'a str,
    address: &'a str,
    domain: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
    groups: &'a [String],
}

impl Output {
    /// Prints contexts, with the number of hosts of each.
    pub(crate) fn contexts(&mut self, config: &Config, hosts: &[usize]) -> io::Result<()> {
        let views: Vec<_> = config
            .contexts
            .iter()
            .zip(hosts)
            .map(|((name, context), hosts)| ContextView {
                name,
                current: config.current_context.as_ref() == Some(name),
                server: context.server.as_deref(),
                hosts: *hosts,
            })
            .collect();
        if self.structured(&views)? {
            return Ok(());
        }
        let mut table = Table::new(&["CURRENT", "NAME", "HOSTS", "SERVER"]);
        for view in views {
            table.row(vec![
                Cell::text(if view.current { "*" } else { "" }),
                Cell::text(view.name),
                Cell::number(view.hosts as u64),
                Cell::text(view.server.unwrap_or_default()),
            ]);
        }
        self.table(&table)
    }

    /// Prints hosts.
    pub(crate) fn inventory(&mut self, hosts: &[NamedHost]) -> io::Result<()> {
        let views: Vec<_> = hosts
            .iter()
            .map(|host| HostView {
                name: &host.name,
                address: &host.address,
                domain: host.domain.as_deref(),
                labels: &host.labels,
                groups: &host.groups,
            })
            .collect();
        if self.structured(&views)? {
            return Ok(());
        }
        let mut table = Table::new(&["NAME", "ADDRESS", "LABELS", "GROUPS"]);
        for view in views {
            let labels: Vec<_> = view.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            table.row(vec![
                Cell::text(view.name),
                Cell::text(view.address),
                Cell::text(labels.join(",")),
                Cell::text(view.groups.join(",")),
            ]);
        }
        self.table(&table)
    }

    /// Prints the name of the current context.
    pub(crate) fn current_context(&mut self, name: &str) -> io::Result<()> {
        if self.structured(&name)? { Ok(()) } else { self.line(name) }
    }

    /// Prints the configuration as its file has it; paths of keys, and never what is in them.
    pub(crate) fn configuration(&mut self, config: &Config) -> io::Result<()> {
        if self.format == crate::global::Format::Json {
            self.structured(config).map(|_printed| ())
        } else {
            self.yaml(config)
        }
    }
}
