mod oracle;
mod world;
