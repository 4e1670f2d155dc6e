mod boot;
mod described;
mod harm;
mod optimise;
mod oracle;
mod rules;
pub(crate) mod typed;
mod whole_path;
#[path = "../../../../fixtures/world.rs"]
mod world;
