mod oracle;
mod rules;
mod world;
