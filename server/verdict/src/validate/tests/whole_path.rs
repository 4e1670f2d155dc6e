//! Tests of whole paths: which reads a path becomes, and what has none.

use super::typed::{NATIVE, OTHER, kernel};

/// The reads of a path, in the order of the line.
fn reads(args: &str) -> Vec<(&str, &str)> {
    args.split(' ').filter_map(|argument| argument.split_once('=')).collect()
}

#[test]
fn a_path_becomes_the_names_on_the_way_up() {
    for readme in [NATIVE, OTHER] {
        let kernel = kernel(readme);
        let args = kernel.args("p read_file count file:path last=entry:path");
        let read = reads(&args);
        for expected in [
            ("count", "$arg3:u64"),
            ("file__0a0", "+24($arg1):x64"),
            ("file__0n0", "+0(+24(+24($arg1))):string"),
            ("file__0a1", "+32(+24($arg1)):x64"),
            ("file__0n1", "+0(+24(+32(+24($arg1)))):string"),
            ("file__0n7", "+0(+24(+32(+32(+32(+32(+32(+32(+32(+24($arg1)))))))))):string"),
            ("file__0r", "+0(+16($arg1)):x64"),
            ("file__fs", "+0(+0(+40(+8(+16($arg1))))):string"),
            // A `struct vfsmount` begins 32 bytes behind its `struct mount`.
            ("file__1a0", "-8(+16($arg1)):x64"),
            ("file__1n3", "+0(+24(+32(+32(+32(-8(+16($arg1))))))):string"),
            ("file__1r", "+32(-16(+16($arg1))):x64"),
            ("file__2a0", "+24(-16(+16($arg1))):x64"),
            ("file__2r", "+32(+16(-16(+16($arg1)))):x64"),
            ("file__m", "+16(+16(-16(+16($arg1)))):x64"),
            ("file__up", "+16(+16(+16(-16(+16($arg1))))):x64"),
            ("last__0a0", "$arg2:x64"),
            ("last__0n0", "+0(+24($arg2)):string"),
        ] {
            assert!(read.contains(&expected), "{expected:?} is not in {args}");
        }
        assert!(!args.contains("last__fs") && !args.contains("__0n8"), "{args}");
        let resolution = kernel.resolve("p read_file count file:path last=entry:path").unwrap();
        let parts: Vec<_> = resolution.definition.paths.iter().map(|path| path.parts().count()).collect();
        assert_eq!(parts, [2 * 16 + 4 + 1 + 2, 2 * 8]);
        assert_eq!(reads(&args).len(), 1 + parts.iter().sum::<usize>(), "each part is an argument");
        let names = |text: &str| -> Vec<String> {
            let resolution = kernel.resolve(text).unwrap();
            resolution.definition.paths.into_iter().map(|path| path.name).collect()
        };
        assert_eq!(names("p vfs_open path:path"), ["path"]);
        assert_eq!(names("p read_file x=$arg1:path file->f_path:path"), ["x", "f_path"]);
        assert_eq!(names("r read_file $retval:path"), ["arg1"]);
    }
}

#[test]
fn what_has_no_path_is_refused() {
    for readme in [NATIVE, OTHER] {
        let kernel = kernel(readme);
        let hint = kernel.refused("p read_file count:^path", "BAD_TYPE");
        assert!(hint.contains("struct file *"), "{hint}");
        kernel.refused("p read_file x=^%di:path", "BAD_TYPE");
        kernel.refused("p read_file x=^+8($arg1):path", "BAD_TYPE");
        kernel.refused("p 0xffffffff810000a8 x=%di:^path", "NO_BTF_ENTRY");
        kernel.refused("p read_file file:^path[2]", "BAD_TYPE");
        kernel.refused("r read_file arg2=%ax ^$retval:path", "USED_ARG_NAME");
    }
}
