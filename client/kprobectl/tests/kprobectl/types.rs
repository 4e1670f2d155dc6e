//! Tests of `describe`.

use insta::assert_snapshot;

use super::fake::{Ending, Fake};

#[test]
fn a_function() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["describe", "vfs_read"]), @"
    exit: 0
    -- stdout
    int vfs_read(struct file *file, ...)

    PARAMETER  ARGUMENT  FETCHED AS  C TYPE
    file       $arg1     x64         struct file *
    -          -         -           ...
    -          $retval   s32         int
    -- stderr
    ");
    assert_snapshot!(fake.run(&["describe", "ext4:ext4_read", "-o", "yaml"]), @r#"
    exit: 0
    -- stdout
    function:
      name: ext4_read
      module: ext4
      prototype: int ext4_read(struct file *file, ...)
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

#[test]
fn members() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["describe", "vfs_read", "file"]), @"
    exit: 0
    -- stdout
    struct file, 232 bytes

    OFFSET  MEMBER         FETCHED AS  C TYPE
         4  file->f_mode   b3@2/32     unsigned int:3
        32  file->f_inode  x64         struct inode *
    -- stderr
    ");
    assert_snapshot!(fake.run(&["describe", "vfs_read", "file", "-o", "wide"]), @"
    exit: 0
    -- stdout
    struct file, 232 bytes

    OFFSET  MEMBER         FETCHED AS  C TYPE          SIZE
         4  file->f_mode   b3@2/32     unsigned int:3     0
        32  file->f_inode  x64         struct inode *     8
    -- stderr
    ");
    assert_snapshot!(fake.run(&["describe", "vfs_read", "file", "-o", "json"]), @r#"
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
        "c_type": "struct file",
        "size_bytes": "232",
        "members": [
          {
            "name": "f_mode",
            "path": "file->f_mode",
            "c_type": "unsigned int",
            "offset_bytes": "4",
            "bit_offset": 2,
            "bits": 3,
            "size_bytes": "0",
            "fetch_type": "b3@2/32",
            "has_members": false
          },
          {
            "name": "f_inode",
            "path": "file->f_inode",
            "c_type": "struct inode *",
            "offset_bytes": "32",
            "bit_offset": 0,
            "size_bytes": "8",
            "fetch_type": "x64",
            "has_members": true
          }
        ]
      }
    }
    -- stderr
    "#);
    assert_snapshot!(fake.run(&["describe", "vfs_read", "file+3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | file+3
      | ^^^^^^
    hint: `+5` works
    ");
}
