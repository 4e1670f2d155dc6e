//! Tests of decoding: against the kernel's own text, a model of how the kernel stores arguments,
//! hand-written records, and any bytes.

mod bytes;
mod compile;
mod corpus;
mod kernel;
mod traps;

use super::*;
use kprobed_host::tracefs::format::Format;

/// The fields that all events have, as every kernel prints them.
const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
     \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
     \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
     \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

const PROBE: &[(&str, usize, usize)] = &[("unsigned long __probe_ip", 8, 8)];

/// A format from declarations with offset and size. What begins with `s` or `__data_loc` is signed.
fn format(fields: &[(&str, usize, usize)], print_fmt: &str) -> Format {
    let mut text = format!("name: e\nID: 1392\nformat:\n{COMMON}");
    for (declaration, offset, size) in fields {
        let signed = u8::from(declaration.starts_with('s') || declaration.starts_with("__data_loc"));
        text.push_str(&field_line(declaration, *offset, *size, signed));
    }
    Format::parse(&format!("{text}\nprint fmt: \"{print_fmt}\"\n")).unwrap()
}

fn field_line(declaration: &str, offset: usize, size: usize, signed: u8) -> String {
    format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
}

fn plan(format: &Format) -> CompiledFormat {
    CompiledFormat::compile(format, &CompileOptions::default()).unwrap()
}

/// The fixed beginning of a record of event 1392.
const HEAD: &[u8] = &[0x70, 0x05, 1, 2, 0x5c, 0, 0, 0, 0x50, 0xa3, 0xf4, 0x86, 0xff, 0xff, 0xff, 0xff];

fn descriptor(offset: usize, length: usize) -> [u8; 4] {
    u32::try_from(length << 16 | offset).unwrap().to_le_bytes()
}
