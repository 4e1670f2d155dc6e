//! Tests of `describe`.

use insta::assert_snapshot;
use kprobed_host::kernel::btf::TypeId;
use kprobed_host::samples::BtfWriter;

use super::Host;
use crate::server::Setup;

/// The types of the kernel: those of `vfs_read`, and of a function of a module.
fn types() -> Vec<u8> {
    let mut w = BtfWriter::default();
    let int = w.int("int", 4, true);
    let bits = w.int("unsigned int", 4, false);
    let number = w.int("long unsigned int", 8, false);
    let inode = w.structure("inode", 16, &[("i_ino", number, 64, 0)]);
    let inode = w.pointer(inode);
    let file = w.structure("file", 232, &[("f_mode", bits, 34, 3), ("f_inode", inode, 256, 0)]);
    let file = w.pointer(file);
    w.function("vfs_read", int, &[("file", file), ("", TypeId::VOID)]);
    w.finish()
}

async fn host() -> Host {
    Host::with(Setup { types: types(), ..Setup::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function() {
    let host = host().await;
    assert_snapshot!(host.run(&["describe", "vfs_read"]), @"
    exit: 0
    -- stdout
    int vfs_read(struct file *file, ...)

    PARAMETER  ARGUMENT  FETCHED AS  C TYPE
    file       $arg1     x64         struct file *
    -          -         -           ...
    -          $retval   s32         int
    -- stderr
    note: a probe of `vfs_read` is `p vfs_read`
    ");
    assert_snapshot!(host.run(&["describe", "vfs_read", "-o", "yaml"]), @r#"
    exit: 0
    -- stdout
    function:
      name: vfs_read
      module: ""
      prototype: int vfs_read(struct file *file, ...)
      return_type: int
      return_fetch_type: s32
      parameters:
      - name: file
        c_type: struct file *
        argument: $arg1
        fetch_type: x64
        has_members: true
      - name: ""
        c_type: "..."
        argument: ""
        fetch_type: ""
        has_members: false
      other_prototypes: []
      same_name: 1
    -- stderr
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn members() {
    let host = host().await;
    assert_snapshot!(host.run(&["describe", "vfs_read", "file"]), @"
    exit: 0
    -- stdout
    struct file, 232 bytes

    OFFSET  MEMBER         FETCHED AS  C TYPE
         4  file->f_mode   b3@2/32     unsigned int:3
        32  file->f_inode  x64         struct inode *
    -- stderr
    note: a probe of `vfs_read` is `p vfs_read`
    ");
    assert_snapshot!(host.run(&["describe", "vfs_read", "file", "-o", "wide"]), @"
    exit: 0
    -- stdout
    struct file, 232 bytes

    OFFSET  MEMBER         FETCHED AS  C TYPE          SIZE
         4  file->f_mode   b3@2/32     unsigned int:3     0
        32  file->f_inode  x64         struct inode *     8
    -- stderr
    note: a probe of `vfs_read` is `p vfs_read`
    ");
    assert_snapshot!(host.run(&["describe", "vfs_read", "file->f_inode", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {
      "function": {
        "name": "vfs_read",
        "module": "",
        "prototype": "int vfs_read(struct file *file, ...)",
        "return_type": "int",
        "return_fetch_type": "s32",
        "parameters": [
          {
            "name": "file",
            "c_type": "struct file *",
            "argument": "$arg1",
            "fetch_type": "x64",
            "has_members": true
          },
          {
            "name": "",
            "c_type": "...",
            "argument": "",
            "fetch_type": "",
            "has_members": false
          }
        ],
        "other_prototypes": [],
        "same_name": 1
      },
      "structure": {
        "c_type": "struct inode",
        "size_bytes": "16",
        "members": [
          {
            "name": "i_ino",
            "path": "file->f_inode->i_ino",
            "c_type": "long unsigned int",
            "offset_bytes": "8",
            "bit_offset": 0,
            "size_bytes": "8",
            "fetch_type": "u64",
            "has_members": false
          }
        ]
      }
    }
    -- stderr
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there() {
    let host = host().await;
    assert_snapshot!(host.run(&["describe", "vfs_raed"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: the kernel has no function `vfs_raed` [NO_BTF_ENTRY]
      | vfs_raed
      | ^^^^^^^^
    hint: did you mean `vfs_read`?
    ");
    assert_snapshot!(host.run(&["describe", "vfs_read", "fiel"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `vfs_read` has no parameter `fiel` [NO_BTFARG]
      | fiel
      | ^^^^
    hint: did you mean `file`? Its parameters are `file`
    ");
    assert_snapshot!(host.run(&["describe", "vfs_read", "file->f_mdoe"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `struct file` has no member `f_mdoe` [NO_BTF_FIELD]
      | file->f_mdoe
      |       ^^^^^^
    hint: did you mean `f_mode`?
    ");
    assert_snapshot!(host.run(&["describe", "do_sys_openat2"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: the types of `do_sys_openat2` are not in the kernel's BTF [NO_BTF_ENTRY]
      | do_sys_openat2
      | ^^^^^^^^^^^^^^
    hint: write NAME=$argN:TYPE, or a register: the function is not written in C, or the compiler has changed its arguments
    ");
}
