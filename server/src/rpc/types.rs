//! Messages of functions and types of the kernel, from BTF, which is not read here.

use kprobed_proto::v1;
use tonic::Code;

use kprobed_control::error::{Error, Reason};
use kprobed_host::kernel::KernelFacts;
use kprobed_verdict::message::{diagnostic, length};
use kprobed_verdict::validate::typed::{
    DescribeError, DescribedMember, DescribedParameter, FunctionDescription, MembersDescription,
    describe_function, describe_members,
};

/// Describes a function, and the structure that a path from it leads to.
pub(super) fn describe(
    request: &v1::DescribeFunctionRequest,
    facts: &KernelFacts,
) -> Result<v1::DescribeFunctionResponse, Error> {
    let v1::DescribeFunctionRequest { function: name, module, path } = request;
    let module = Some(module.as_str()).filter(|module| !module.is_empty());
    let failed = |error| {
        let (code, field, text, found) = match &error {
            DescribeError::Function(found) => (Code::NotFound, "function", name, found),
            DescribeError::Path(found) => (Code::InvalidArgument, "path", path, found),
        };
        Error::new(Reason { name: found.code.name(), code }, &found.message)
            .field(field)
            .diagnostics(text, vec![diagnostic(found)])
    };
    let found = describe_function(name, module, facts).map_err(failed)?;
    let structure = if path.is_empty() {
        None
    } else {
        Some(describe_members(name, module, path, facts).map_err(failed)?)
    };
    Ok(v1::DescribeFunctionResponse {
        function: Some(function(found)),
        structure: structure.map(self::structure),
    })
}

fn function(function: FunctionDescription) -> v1::FunctionDescription {
    v1::FunctionDescription {
        name: function.name,
        module: function.module.unwrap_or_default(),
        prototype: function.prototype,
        return_type: function.result,
        return_fetch_type: function.result_type.unwrap_or_default(),
        parameters: function.parameters.into_iter().map(parameter).collect(),
        other_prototypes: function.others,
        same_name: length(function.same_name),
    }
}

fn parameter(parameter: DescribedParameter) -> v1::ParameterDescription {
    v1::ParameterDescription {
        name: parameter.name,
        c_type: parameter.c_type,
        argument: parameter.argument.unwrap_or_default(),
        fetch_type: parameter.fetch_type.unwrap_or_default(),
        has_members: parameter.has_members,
    }
}

fn structure(structure: MembersDescription) -> v1::StructureDescription {
    v1::StructureDescription {
        c_type: structure.c_type,
        size_bytes: structure.bytes,
        members: structure.members.into_iter().map(member).collect(),
    }
}

fn member(member: DescribedMember) -> v1::MemberDescription {
    v1::MemberDescription {
        name: member.name,
        path: member.path,
        c_type: member.c_type,
        offset_bytes: member.bit_offset / 8,
        bit_offset: u32::try_from(member.bit_offset % 8).unwrap_or_default(),
        bits: member.bits.map(u32::from),
        size_bytes: member.bytes,
        fetch_type: member.fetch_type,
        has_members: member.has_members,
    }
}
