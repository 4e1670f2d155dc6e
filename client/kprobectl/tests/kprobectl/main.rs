//! Tests of the client library and the real `kprobectl` against a fake daemon.

// Lints know a helper of tests by `cfg(test)`.
mod accounts;
#[cfg(test)]
mod by_source;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod command;
#[cfg(test)]
mod completion;
#[cfg(test)]
mod costs;
#[cfg(test)]
mod counting;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a daemon of canned answers makes statuses of its own")]
mod fake;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod help;
#[cfg(test)]
mod library;
#[cfg(test)]
mod merging;
#[cfg(test)]
mod observe;
#[cfg(test)]
mod operating;
mod probes;
#[cfg(test)]
mod rates;
mod reach;
#[cfg(test)]
mod rollout;
#[cfg(test)]
mod tracing;
#[cfg(test)]
mod tracing_many;
mod watching;
