//! Canned answers about functions and their code.

use kprobed_client::api::*;

/// A function of two parameters, and a structure at any path.
pub(super) fn description(request: &DescribeFunctionRequest) -> DescribeFunctionResponse {
    let parameter = |name: &str, c_type: &str, argument: &str, fetch_type: &str| ParameterDescription {
        name: name.to_owned(),
        c_type: c_type.to_owned(),
        argument: argument.to_owned(),
        fetch_type: fetch_type.to_owned(),
        has_members: c_type.contains('*'),
    };
    let member = |name: &str, c_type: &str, offset_bytes, bits, fetch_type: &str| MemberDescription {
        name: name.to_owned(),
        path: format!("{}->{name}", request.path),
        c_type: c_type.to_owned(),
        offset_bytes,
        bit_offset: if bits > 0 { 2 } else { 0 },
        bits: (bits > 0).then_some(bits),
        size_bytes: if bits > 0 { 0 } else { 8 },
        fetch_type: fetch_type.to_owned(),
        has_members: c_type.contains('*'),
    };
    let structure = StructureDescription {
        c_type: "struct file".to_owned(),
        size_bytes: 232,
        members: vec![
            member("f_mode", "unsigned int", 4, 3, "b3@2/32"),
            member("f_inode", "struct inode *", 32, 0, "x64"),
        ],
    };
    DescribeFunctionResponse {
        function: Some(FunctionDescription {
            name: request.function.clone(),
            module: request.module.clone(),
            prototype: format!("int {}(struct file *file, ...)", request.function),
            return_type: "int".to_owned(),
            return_fetch_type: "s32".to_owned(),
            parameters: vec![
                parameter("file", "struct file *", "$arg1", "x64"),
                parameter("", "...", "", ""),
            ],
            other_prototypes: Vec::new(),
            same_name: 1,
        }),
        structure: (!request.path.is_empty()).then_some(structure),
    }
}

pub(super) fn function(name: &str, place: &str) -> Function {
    Function {
        name: name.to_owned(),
        module: String::new(),
        size_bytes: 32,
        traceable: true,
        blacklisted: false,
        same_name: if place == name { 1 } else { 2 },
        place: place.to_owned(),
    }
}

/// A probe of a line of the kernel in miniature that is held back: the line was another one.
pub(super) const OF_LINE: &str = "kprobes/line";

pub(super) fn of_line() -> Probe {
    let definition = "p:kprobes/line main_entry+99 value=%bx:u64 # source: kernel.c:16 main_entry:2 build:00 at:1/1 \
                      args:value near:1/1/1/d7e1c9ca/f301caa7/70dce4f4/00000000 code:00 text: here += same(value);";
    let difference = MeaningDifference { message: "the code differs".to_owned(), ..Default::default() };
    let change = MeaningChange {
        differences: vec![difference],
        offered_definition: "p:kprobes/line main_entry+98 value=%bx:u64".to_owned(),
        ..Default::default()
    };
    Probe {
        name: OF_LINE.to_owned(),
        definition: definition.to_owned(),
        kernel_definition: String::new(),
        state: ProbeState::HeldBack.into(),
        meaning_change: Some(change),
        ..super::answers::probe("kprobes/open")
    }
}
