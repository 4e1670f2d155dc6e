//! The Prometheus endpoint `/metrics`.
//!
//! Owns serving and writing metrics. Which series exist is decided in [`super::metrics`].

mod serve;
#[cfg(test)]
mod tests;
mod text;

pub use serve::Prometheus;
