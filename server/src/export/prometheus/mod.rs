//! The Prometheus endpoint `/metrics`.
//!
//! Owns serving and writing metrics. Which series exist is decided in [`super::figures`].

mod serve;
#[cfg(test)]
mod tests;
mod text;

pub use serve::{Prometheus, PrometheusError};
