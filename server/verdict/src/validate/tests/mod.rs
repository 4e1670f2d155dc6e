mod boot;
mod harm;
mod optimise;
mod oracle;
mod rules;
pub(crate) mod typed;
#[path = "../../../../fixtures/world.rs"]
mod world;
