//! Compiles `kprobed/v1/*.proto` with protox, so that no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 12] = [
    "kprobed/v1/aggregation.proto",
    "kprobed/v1/aggregation_service.proto",
    "kprobed/v1/code_service.proto",
    "kprobed/v1/diagnostic.proto",
    "kprobed/v1/event.proto",
    "kprobed/v1/event_service.proto",
    "kprobed/v1/host_service.proto",
    "kprobed/v1/probe.proto",
    "kprobed/v1/probe_service.proto",
    "kprobed/v1/source_service.proto",
    "kprobed/v1/spec.proto",
    "kprobed/v1/type_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=kprobed");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure()
        // Columns are handed from the decoder to the connection without a copy.
        .bytes(".kprobed.v1.Column")
        .bytes(".kprobed.v1.EventGroup")
        .compile_fds(descriptors)?;
    Ok(())
}
