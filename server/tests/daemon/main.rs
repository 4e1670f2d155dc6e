//! Tests of the daemon's library as its clients meet it: requests of any kind over real connections, and its
//! parsers with bytes of any kind.

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod attacks;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod places;
#[cfg(test)]
mod reaching;
#[cfg(test)]
mod roles;
#[cfg(test)]
mod server;
#[cfg(test)]
mod start;
#[cfg(test)]
mod stock_clients;
#[cfg(test)]
mod surface;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[cfg(test)]
#[path = "../../fixtures/world.rs"]
mod world;
