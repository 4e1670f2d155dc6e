//! Validation of settings: ranges, combinations, and what to write instead. The size of the host limits some.

use std::ops::RangeInclusive;

use nix::sys::sysinfo::sysinfo;
use nix::unistd::{Group, SysconfVar, sysconf};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::problem::Problem;
use super::{Budget, Config, export, paths, tls};
use crate::start_error::StartError;

/// Longest name of an instance, in bytes: the second one of the two ends with `-next`, and it is
/// the name of a directory.
const INSTANCE_BYTES: usize = 250;

/// How large the host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// CPUs that it can have.
    pub cpus: u64,
    /// Its memory, in KiB.
    pub memory_kib: u64,
}

/// The buffers of all CPUs take at most this part of the memory when the daemon starts. A hand-over
/// needs a second set of them.
const START_SHARE: u64 = 4;

/// The buffers of all CPUs never grow beyond this part of the memory.
const GROWTH_SHARE: u64 = 16;

impl HostSize {
    /// Of this host.
    ///
    /// # Errors
    /// The error of the system.
    pub fn here() -> Result<Self, StartError> {
        let unread = |error| {
            let message = format!("cannot read the number of CPUs and the size of the memory: {error}");
            StartError::new(message)
        };
        let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).map_err(unread)?.unwrap_or(1);
        let cpus = u64::try_from(cpus).unwrap_or(1).max(1);
        Ok(Self { cpus, memory_kib: sysinfo().map_err(unread)?.ram_total() / 1024 })
    }

    /// The largest `tracing.buffer_kib`.
    pub(crate) const fn most_buffer_kib(self) -> u64 {
        self.memory_kib / START_SHARE / self.cpus
    }

    /// Largest size that the buffer of one CPU may grow to, in KiB.
    pub(crate) const fn most_grown_kib(self) -> u64 {
        self.memory_kib / GROWTH_SHARE / self.cpus
    }
}

/// All problems of the settings.
pub(super) fn problems(config: &Config, host: HostSize) -> Vec<Problem> {
    let mut found = listen(config);
    found.extend(paths::labels_file(&config.host));
    found.extend(paths::state(&config.state));
    found.extend(tracing(config, host));
    found.extend(paths::procfs(&config.tracing));
    found.extend(paths::spool(&config.spool, &config.state));
    found.extend(paths::declarations(&config.declarations, &config.state));
    found.extend(numbers(config));
    found.extend(export::problems(config));
    if let Some(why) = wrong_level(&config.log.level) {
        let hint = "use `error`, `warn`, `info`, `debug`, `trace`, or a filter as `RUST_LOG` takes it";
        found.push(Problem::value("log.level", &config.log.level, why, hint));
    }
    found
}

fn listen(config: &Config) -> Vec<Problem> {
    let listen = &config.listen;
    let mut found: Vec<_> = paths::socket(listen).into_iter().collect();
    match (listen.tcp, &listen.tls) {
        (Some(address), None) if !address.ip().is_loopback() => found.push(Problem::value(
            "listen.tcp",
            address,
            "it is open to the network, and every client that connects can read all memory of the kernel",
            "use a loopback address such as `127.0.0.1:7443`, or add `[listen.tls]`",
        )),
        (Some(_), _) if config.role.is_none() => found.push(Problem::warning(
            "listen.tcp",
            "without a `[[role]]` every call over `listen.tcp` is refused: only root and the group of the socket have rights, \
             on the socket",
            "add `[[role]]` sections, as `kprobed.example.toml` shows",
        )),
        (None, Some(_)) => found.push(Problem::warning(
            "listen.tls",
            "`listen.tls` is not used: the daemon does not listen on TCP",
            "set `listen.tcp`",
        )),
        _ => {}
    }
    found.extend(listen.tls.iter().flat_map(|files| tls::problems(&tls::LISTEN, files)));
    if listen.group.is_empty() {
        let hint = "use the name of a group, for example `kprobed`";
        found.push(Problem::value("listen.group", "", "it is empty", hint));
    } else if matches!(Group::from_name(&listen.group), Ok(None)) {
        found.push(Problem::warning(
            "listen.group",
            format!("this host has no group `{}`: only root can use the socket", listen.group),
            "make it: `groupadd --system NAME`, as root",
        ));
    }
    found
}

fn tracing(config: &Config, host: HostSize) -> Vec<Problem> {
    let tracing = &config.tracing;
    let mut found = Vec::new();
    let instance = &tracing.instance;
    let hint = "use letters, digits, `_` and `-`, for example `kprobed`";
    let wrong_instance = if instance.is_empty() {
        Some("it is empty".to_owned())
    } else if instance.len() > INSTANCE_BYTES {
        Some(format!("it has more than {INSTANCE_BYTES} bytes"))
    } else {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let bad = instance.chars().find(|c| !good(*c));
        bad.map(|c| format!("it contains {c:?}, and it is the name of a directory in tracefs"))
    };
    found.extend(wrong_instance.map(|why| {
        let shown = &instance[..instance.floor_char_boundary(60)];
        Problem::value("tracing.instance", shown, why, hint)
    }));
    if tracing.buffer_kib < 16 {
        let why = "it must be at least 16";
        found.push(Problem::value("tracing.buffer_kib", tracing.buffer_kib, why, "use 16"));
    }
    let (cpus, memory_mib) = (host.cpus, host.memory_kib / 1024);
    if tracing.buffer_kib > host.most_buffer_kib().max(16) {
        let total_mib = u128::from(tracing.buffer_kib) * u128::from(cpus) / 1024;
        found.push(Problem::value(
            "tracing.buffer_kib",
            tracing.buffer_kib,
            format!(
                "with {cpus} CPUs the buffers take {total_mib} MiB, and the host has {memory_mib} MiB of memory"
            ),
            format!("use at most {}: a quarter of the memory for all CPUs", host.most_buffer_kib().max(16)),
        ));
    }
    // The default is for hosts of every size: its use limits it to what the host can have.
    if tracing.buffer_max_kib > host.memory_kib
        && tracing.buffer_max_kib != super::Tracing::default().buffer_max_kib
    {
        found.push(Problem::value(
            "tracing.buffer_max_kib",
            tracing.buffer_max_kib,
            format!("that is the size for one CPU, and the host has {memory_mib} MiB of memory"),
            format!("buffers never grow beyond {} here", host.most_grown_kib()),
        ));
    }
    // The kernel takes up to 128 pages (kernel/trace/trace.c:buffer_subbuf_size_write).
    let sub_buffer_kib = tracing.sub_buffer_kib;
    if sub_buffer_kib != 0 && !(sub_buffer_kib.is_power_of_two() && (4..=512).contains(&sub_buffer_kib)) {
        let nearest = sub_buffer_kib.clamp(4, 512).next_power_of_two();
        found.push(Problem::value(
            "tracing.sub_buffer_kib",
            sub_buffer_kib,
            "it must be a power of two from 4 to 512",
            format!("use {nearest}, or 0 for what the kernel chooses"),
        ));
    }
    found
}

fn numbers(config: &Config) -> Vec<Problem> {
    /// A year, in seconds.
    const YEAR_S: u64 = 365 * 24 * 3600;
    let (listen, state, spool) = (&config.listen, &config.state, &config.spool);
    let mut found = Vec::new();
    found.extend(within("listen.max_connections", listen.max_connections, 4..=1_000_000));
    found.extend(within("listen.max_connections_per_peer", listen.max_connections_per_peer, 1..=1_000_000));
    found.extend(within("listen.idle_timeout_s", listen.idle_timeout_s, 1..=YEAR_S));
    found.extend(within("listen.handshake_timeout_s", listen.handshake_timeout_s.into(), 1..=3600));
    found.extend(within("listen.request_timeout_s", listen.request_timeout_s.into(), 1..=3600));
    found.extend(within(
        "listen.max_calls_per_connection",
        listen.max_calls_per_connection.into(),
        4..=10_000,
    ));
    found.extend(within("listen.max_streams", listen.max_streams.into(), 1..=1_000_000));
    found.extend(within("listen.max_message_kib", listen.max_message_kib.into(), 64..=4096));
    found.extend(within("listen.max_header_kib", listen.max_header_kib.into(), 4..=1024));
    found.extend(within("listen.call_memory_mib", listen.call_memory_mib, 16..=1 << 20));
    found.extend(within("listen.queue_memory_mib", listen.queue_memory_mib, 1..=1 << 20));
    found.extend(within("state.sample_interval_s", state.sample_interval_s, 1..=YEAR_S));
    found.extend(within("reconcile.interval_ms", config.reconcile.interval_ms, 0..=YEAR_S * 1000));
    if (1..100).contains(&config.reconcile.interval_ms) {
        let why = "the daemon would do nothing but look";
        let hint = "use 30000, which is 30 seconds, or 0 for none";
        found.push(Problem::value("reconcile.interval_ms", config.reconcile.interval_ms, why, hint));
    }
    found.extend(within("leases.keep_listed_s", config.leases.keep_listed_s, 0..=YEAR_S));
    found.extend(within("audit.max_entries", config.audit.max_entries, 1000..=100_000_000));
    found.extend(budget(&config.budget));
    found.extend(within("state.minute_retention_days", state.minute_retention_days, 0..=36_500));
    found.extend(within("state.hour_retention_days", state.hour_retention_days, 1..=36_500));
    if spool.enabled {
        let off = |problem: Problem| Problem {
            hint: format!("{}; `enabled = false` keeps no events", problem.hint),
            ..problem
        };
        found.extend(within("spool.max_mib", spool.max_mib, 4..=1 << 24).map(off));
        found.extend(within("spool.max_age_hours", spool.max_age_hours, 1..=876_000).map(off));
        found.extend(within("spool.sync_interval_ms", spool.sync_interval_ms, 1..=3_600_000));
    }
    found
}

fn budget(budget: &Budget) -> Vec<Problem> {
    /// Below this, a probe that is hit a thousand times a second would be disarmed.
    const LEAST_NS_PER_S: u64 = 1_000_000;
    /// A whole CPU, a million times.
    const MOST_NS_PER_S: u64 = 1_000_000_000_000_000;
    let limits =
        [("budget.probe_ns_per_s", budget.probe_ns_per_s), ("budget.host_ns_per_s", budget.host_ns_per_s)];
    let limits = limits.into_iter().filter(|(_, ns_per_s)| *ns_per_s > 0);
    let limits = limits
        .filter_map(|(setting, ns_per_s)| within(setting, ns_per_s, LEAST_NS_PER_S..=MOST_NS_PER_S))
        .map(|problem| Problem { hint: format!("{}, or 0 for no limit", problem.hint), ..problem });
    limits.collect()
}

pub(super) fn within(setting: &str, value: u64, range: RangeInclusive<u64>) -> Option<Problem> {
    let (least, most) = (*range.start(), *range.end());
    if range.contains(&value) {
        return None;
    }
    let why = format!("it must be from {least} to {most}");
    Some(Problem::value(setting, value, why, format!("use {}", value.clamp(least, most))))
}

/// Why a text is neither a level nor a filter for `log.level`. `None` if it is one. One word is a level: the parser of
/// the filter crate takes any other word for the name of a module, of which nothing is ever logged.
fn wrong_level(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("it is empty".to_owned());
    }
    for directive in text.split(',').map(str::trim) {
        // Fields of a span may hold anything.
        let level = match (directive.rsplit_once('='), directive.contains('[')) {
            (_, true) => continue,
            (Some((_, level)), false) => level,
            (None, false) => directive,
        };
        if level.parse::<LevelFilter>().is_err() {
            return Some(format!("`{level}` is not a level"));
        }
    }
    EnvFilter::try_new(text).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters() {
        for good in ["info", "WARN", "off", "kprobed=debug", "info,kprobed::store=trace", "info,[task]=debug"]
        {
            assert_eq!(wrong_level(good), None, "{good}");
        }
        for (bad, why) in [
            ("loud", "`loud` is not a level"),
            ("", "it is empty"),
            ("info,chatty", "`chatty` is not a level"),
            ("kprobed=verbose", "`verbose` is not a level"),
        ] {
            assert_eq!(wrong_level(bad).as_deref(), Some(why));
        }
        assert!(wrong_level("info,[task").is_some());
    }
}
