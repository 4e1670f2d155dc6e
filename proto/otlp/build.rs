//! Compiles the files of OpenTelemetry with protox, so that no `protoc` is needed.

use std::error::Error;

const FILES: [&str; 3] = [
    "opentelemetry/proto/collector/logs/v1/logs_service.proto",
    "opentelemetry/proto/collector/metrics/v1/metrics_service.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=opentelemetry");
    tonic_prost_build::configure().include_file("packages.rs").compile_fds(protox::compile(FILES, ["."])?)?;
    Ok(())
}
