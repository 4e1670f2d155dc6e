//! The library and the real `kprobectl` against a fake daemon.

// Lints know a helper of tests by `cfg(test)`.
mod accounts;
mod attached;
mod code;
#[cfg(test)]
mod counting;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod help;
#[cfg(test)]
mod labels;
#[cfg(test)]
mod library;
#[cfg(test)]
mod observe;
mod probes;
mod reach;
mod types;
