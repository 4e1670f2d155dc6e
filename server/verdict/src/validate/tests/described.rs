//! Tests of descriptions: functions, and the members of what their parameters lead to.

use std::sync::Arc;

use proptest::prelude::*;

use super::typed::{Kernel, OTHER, kernel};
use crate::validate::typed::{DescribeError, describe_function, describe_members};

#[test]
fn functions_are_described() {
    let kernel = kernel(OTHER);
    let function = describe_function("by_value", None, &kernel.facts).unwrap();
    assert_eq!(
        function.prototype,
        "long unsigned int by_value(struct kuid uid, struct large large, struct two two, struct task_struct *last)"
    );
    let shown: Vec<_> = function
        .parameters
        .iter()
        .map(|parameter| {
            let (argument, ty) = (parameter.argument.as_str(), parameter.fetch_type.as_str());
            (parameter.name.as_str(), argument, ty, parameter.has_members)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("uid", "$arg1", "u32", false),
            ("large", "$arg7", "x64", false),
            ("two", "$arg2", "x64", false),
            ("last", "$arg4", "x64", true)
        ]
    );
    assert_eq!(function.return_fetch_type, "u64");
    let variadic = describe_function("printk", None, &kernel.facts).unwrap();
    assert_eq!(
        (variadic.parameters[1].c_type.as_str(), variadic.parameters[1].argument.as_str()),
        ("...", "")
    );
    assert_eq!(describe_function("nothing", None, &kernel.facts).unwrap().return_fetch_type, "");
    let of_module = describe_function("ext4_open", Some("ext4"), &kernel.facts).unwrap();
    assert_eq!(of_module.module, "ext4");
    for (name, expected) in [
        ("vfs_opne", "did you mean `vfs_open`?"),
        ("task_struct", "`struct task_struct` is a type: give a function, and a parameter that leads to one"),
        (
            "close",
            "it is a system call: write `__x64_sys_close`, or record the event `syscalls/sys_enter_close`",
        ),
    ] {
        let Err(DescribeError::Function(problem)) = describe_function(name, None, &kernel.facts) else {
            panic!()
        };
        assert_eq!(problem.hint.as_deref(), Some(expected));
    }
    // A part of this kernel that is a module of others, and a module that is not loaded.
    for (name, expected) in [
        ("vfs_open", "`vfs_open` is in the kernel itself: leave `xfs:` out"),
        ("xfs_absent", "load it first: `modprobe xfs`"),
    ] {
        let Err(DescribeError::Function(problem)) = describe_function(name, Some("xfs"), &kernel.facts)
        else {
            panic!()
        };
        assert_eq!(problem.message, "no module `xfs` is loaded");
        assert_eq!(problem.hint.as_deref(), Some(expected));
    }
}

#[test]
fn members_are_described_as_they_are_read() {
    let kernel = kernel(OTHER);
    let describe = |function, path| describe_members(function, None, path, &kernel.facts);
    let structure = describe("task_look", "task").unwrap();
    assert_eq!((structure.c_type.as_str(), structure.size_bytes), ("struct task_struct", 1024));
    for member in &structure.members {
        let line = kernel.args(&format!("p task_look x={}", member.path));
        assert!(line.ends_with(&format!(":{}", member.fetch_type)), "{line} {member:?}");
    }
    assert!(structure.members.is_sorted_by_key(|member| (member.offset_bytes, member.bit_offset)));
    let name = describe("vfs_open", "path->dentry->d_name").unwrap();
    let paths: Vec<&str> = name.members.iter().map(|member| member.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "path->dentry->d_name.hash_len",
            "path->dentry->d_name.hash",
            "path->dentry->d_name.len",
            "path->dentry->d_name.name"
        ]
    );
    assert_eq!(describe("task_look", "$retval").unwrap().members.len(), 10);
    let array = describe("task_look", "task->numbers").unwrap();
    assert_eq!((array.c_type.as_str(), array.size_bytes), ("unsigned int [3]", 12));
    assert_eq!(
        (array.members[0].path.as_str(), array.members[0].fetch_type.as_str()),
        ("task->numbers[0]", "u32")
    );
    for (function, path, code, at) in [
        ("task_look", "tsk", "NO_BTFARG", 0),
        ("task_look", "task->nam", "NO_BTF_FIELD", 6),
        ("task_look", "task->on_cpu", "BAD_BTF_TID", 0),
        ("task_look", "task x", "NO_BTFARG", 0),
        ("task_look", "task->comm#", "NO_BTFARG", 0),
        ("task_look", "+0(task)", "NO_BTFARG", 0),
        ("task_look", "task-x", "BAD_HYPHEN", 4),
        ("nothing", "$retval", "NO_RETVAL", 0),
        ("by_value", "uid", "BAD_BTF_TID", 0),
    ] {
        let Err(DescribeError::Path(problem)) = describe(function, path) else { panic!("{path}") };
        assert_eq!((problem.code.name(), problem.span.start), (code, at), "{path}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Any path leads to a value, or is refused at a place in it.
    #[test]
    fn any_path_is_survived(path in "(task|\\$retval|.{0,3})((->|[.:=#+-])(flag|comm|pair|numbers|a|.{0,3})(\\[[0-9]{0,3}\\]?){0,2}){0,3}") {
        thread_local! {
            static KERNEL: Arc<Kernel> = Arc::new(kernel(OTHER));
        }
        match describe_members("task_look", None, &path, &KERNEL.with(Arc::clone).facts) {
            Ok(found) => {
                prop_assert!(found.members.iter().all(|member| member.path.starts_with(&path)));
            }
            Err(DescribeError::Path(problem)) => {
                prop_assert!(path.get(problem.span.range()).is_some(), "{:?}", problem);
            }
            Err(DescribeError::Function(problem)) => prop_assert!(false, "{:?}", problem),
        }
    }
}
