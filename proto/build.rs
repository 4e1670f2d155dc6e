//! Compiles `kprobed/v1/*.proto` with protox, so that no `protoc` is needed.

use std::error::Error;
use std::path::PathBuf;

const FILES: &[&str] = &[
    "kprobed/v1/access_service.proto",
    "kprobed/v1/aggregation.proto",
    "kprobed/v1/aggregation_service.proto",
    "kprobed/v1/audit_service.proto",
    "kprobed/v1/diagnostic.proto",
    "kprobed/v1/event.proto",
    "kprobed/v1/event_service.proto",
    "kprobed/v1/host_service.proto",
    "kprobed/v1/kernel_service.proto",
    "kprobed/v1/lease_service.proto",
    "kprobed/v1/probe.proto",
    "kprobed/v1/probe_service.proto",
    "kprobed/v1/reconcile_service.proto",
    "kprobed/v1/spec.proto",
];

const ORDERED: &str = "#[derive(PartialOrd, Ord)]";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=kprobed");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    let events = only_service(&descriptors, "kprobed/v1/event_service.proto");
    let encoded = out.join("encoded");
    std::fs::create_dir_all(&encoded)?;
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(encoded)
        .extern_path(".kprobed.v1.StreamEventsResponse", "crate::encoded::StreamEventsResponse")
        .extern_path(".kprobed.v1", "crate::v1")
        .compile_fds(events)?;
    let mut named = prost_build::Config::new();
    // Descriptors are found by the names of messages.
    named.enable_type_names();
    tonic_prost_build::configure()
        // Columns are handed from the decoder to the connection without a copy.
        .bytes(".kprobed.v1.Column")
        .bytes(".kprobed.v1.EventGroup")
        // Ten times as large as what it can be instead.
        .boxed(".kprobed.v1.ProbeOutcome.outcome.probe")
        // Rows of an aggregation are in the order of their keys.
        .type_attribute(".kprobed.v1.KeyValue.value", ORDERED)
        .type_attribute(".kprobed.v1.UnsignedBucket", ORDERED)
        .type_attribute(".kprobed.v1.SignedBucket", ORDERED)
        .type_attribute(".kprobed.v1.ThreadKey", ORDERED)
        .type_attribute(".kprobed.v1.StackKey", ORDERED)
        .compile_fds_with_config(descriptors, named)?;
    Ok(())
}

/// The same files with the services of one of them only.
fn only_service(descriptors: &prost_types::FileDescriptorSet, name: &str) -> prost_types::FileDescriptorSet {
    let mut descriptors = descriptors.clone();
    for file in descriptors.file.iter_mut().filter(|file| file.name() != name) {
        file.service.clear();
    }
    descriptors
}
