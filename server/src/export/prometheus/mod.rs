//! `/metrics` for Prometheus.
//!
//! Owns how figures are served and written. What they are is in `figures`.

mod serve;
#[cfg(test)]
mod tests;
mod text;

pub use serve::{Prometheus, PrometheusError};
