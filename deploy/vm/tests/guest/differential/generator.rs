//! Generator of lines in the kernel's probe language, valid and invalid, from the whole grammar.
//!
//! Never says whether a line is valid: the kernel is asked.

use super::Random;

/// Words of one kind: those that mostly are good, and those that mostly are not. `<>` stands for
/// none.
struct Words {
    good: &'static str,
    bad: &'static str,
}

const COMMANDS: Words = Words {
    good: r"
        p p p p p r r r r1 r64 r4096 r4097
    ",
    bad: r"
        r0 r-1 rx p1 q pp
    ",
};

const GROUPS: Words = Words {
    good: r"
        g g-1 kprobes
    ",
    bad: r"
        1g g+ <> a23456789_123456789_123456789_123456789_123456789_123456789_123
        a23456789_123456789_123456789_123456789_123456789_123456789_1234
    ",
};

const EVENTS: Words = Words {
    good: r"
        e E_9
    ",
    bad: r"
        e.1 9e e-1 e+ <> a23456789_123456789_123456789_123456789_123456789_123456789_123
        a23456789_123456789_123456789_123456789_123456789_123456789_1234
    ",
};

const SYMBOLS: Words = Words {
    good: r"
        vfs_read vfs_write do_sys_openat2 kernel_clone kfree schedule __x64_sys_getppid tcp_sendmsg
    ",
    bad: r"
        __switch_to asm_exc_page_fault notify_die _stext jiffies kprobe_table __func__ non_exist_func hoge-fuga
        virtio_net:virtnet_open virtio_net:vfs_read no_such_module:f virtio_net: :vfs_read a:b:c
    ",
};

const OFFSETS: Words = Words {
    good: r"
        +0 +4 +5
    ",
    bad: r"
        +9 +3 +1 +100 +0x5 +05 +70000 +4294967295 +4294967296 -1 + +abc +1a +-1 +18446744073709551616
    ",
};

const SUFFIXES: Words = Words { good: "%return", bad: "%hoge % %returns" };

const ADDRESSES: Words = Words {
    good: r"
        0x1 12
    ",
    bad: r"
        0 0xffffffffffffffff 0x10000000000000000 017 0x 0xg
    ",
};

const ARGUMENT_NAMES: Words = Words {
    good: r"
        a b c d x y _z arg1 arg2 COMM
    ",
    bad: r"
        9a a-b a.b <> common_pid __probe_ip __probe_func a23456789_123456789_123456789_12
        a23456789_123456789_123456789_123
    ",
};

const ATOMS: Words = Words {
    good: r#"
        %di %si %ax %ip %orig_ax %r15 %flags $stack $stack0 $stack1 $stack16 $arg1 $arg2 $arg6 $retval $comm $COMM
        @jiffies @jiffies+8 @jiffies-8 @vfs_read+0x10 @0xffffffff81000000 \1 \0x10 \-5 \+5 \"abc"
    "#,
    bad: r#"
        %rax %gs % %none_reg $stack2047 $stack2048 $stack2049 $stack-1 $stackx $stack99999999999 $arg7 $arg0 $arg
        $argx $arg-1 $arg128 $retvalx $ret $none_var $ @non_exist_sym @ @+10 @-10 @12 @12345678abcde @jiffies+x
        @9jiffies \x \ \18446744073709551615 \18446744073709551616 \-9223372036854775808 \"" \"abc \abc" \'a' &1 (%di)
        [0] 0 +0 - *%di
    "#,
};

const DEREFERENCES: Words = Words {
    good: r"
        +0 +8 -8 +0x10 -0x10 +u0 +u8 -u8
    ",
    bad: r"
        + - +u +a +0a +2147483647 +2147483648 -2147483648 -2147483649 +4294967296 +99999999999999999999 u0 0
    ",
};

const TYPES: Words = Words {
    good: r"
        u8 u16 u32 u64 s8 s16 s32 s64 x8 x16 x32 x64 char symbol string ustring symstr %pd %pD b1@0/8 b8@0/8 b4@4/8
        b16@16/32 b64@0/64
    ",
    bad: r"
        u u128 s x long int b b0@0/8 b9@0/8 b1@8/8 b1@0/7 b10@a/16 b10/16 b1@1 %p %pe string8 STRING unknown_type <>
    ",
};

const ARRAYS: Words = Words {
    good: r"
        [1] [2] [64] [63]
    ",
    bad: r"
        [65] [0] [256] [] [a] [1 [1]a [-1] ] [1][2]
    ",
};

/// Parameters, members and what only looks like them.
const TYPED: Words = Words {
    good: r"
        file buf count pos filename how args file->f_mode file->f_flags file->f_inode->i_ino file->f_op->read
        how->flags args->exit_signal args->flags file->f_path.dentry file->f_inode->i_rdev
    ",
    bad: r"
        filename->x file->none file->f_inode->none file.f_mode count->x file-> file-f_mode none_var
        file->f_path->dentry $arg* $retval->x $arg1->f_mode file->.f_mode ->f_mode
    ",
};

const ALPHABET: &[u8] = b"pr:/.+-@$%()=[]\\\"0159aexsu_,* ";

impl Words {
    /// A bad one once in so many draws.
    fn draw(&self, random: &mut Random, bad_one_in: usize) -> &'static str {
        let from = if random.below(bad_one_in) == 0 { self.bad } else { self.good };
        let words: Vec<&str> = from.split_ascii_whitespace().collect();
        match *random.pick(&words) {
            "<>" => "",
            word => word,
        }
    }
}

/// One line. Words of BTF are in it only if `with_types`.
pub(crate) fn line(random: &mut Random, with_types: bool) -> String {
    loop {
        let mut line = well_meant(random, with_types);
        for _ in 0..*random.pick(&[0, 0, 0, 1, 2]) {
            mutate(&mut line, random);
        }
        // The log has single blanks, and positions are compared. A deletion is not a definition.
        let line = line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        if !line.is_empty() && !line.starts_with('-') {
            return line;
        }
    }
}

fn well_meant(random: &mut Random, with_types: bool) -> String {
    let (group, event) = (GROUPS.draw(random, 3), EVENTS.draw(random, 3));
    let name = match random.below(12) {
        0 => String::new(),
        1 => format!(":{event}"),
        2 => format!(":{group}.{event}"),
        3 => format!(":{group}/{event}"),
        _ => ":g/e".to_owned(),
    };
    let mut line = format!("{}{name} {}", COMMANDS.draw(random, 10), place(random));
    for _ in 0..*random.pick(&[0, 1, 1, 1, 2, 2, 3, 5]) {
        line.push(' ');
        line.push_str(&argument(random, with_types));
    }
    line
}

fn place(random: &mut Random) -> String {
    if random.below(15) == 0 {
        return ADDRESSES.draw(random, 2).to_owned();
    }
    // Mostly a function that is good, so that what follows it is looked at.
    let mut place = SYMBOLS.draw(random, 4).to_owned();
    if random.below(4) == 0 {
        place.push_str(OFFSETS.draw(random, 2));
    }
    if random.below(10) == 0 {
        place.push_str(SUFFIXES.draw(random, 3));
    }
    place
}

fn argument(random: &mut Random, with_types: bool) -> String {
    let mut text = String::new();
    if random.below(3) != 0 {
        text.push_str(ARGUMENT_NAMES.draw(random, 10));
        text.push('=');
    }
    text.push_str(&fetch(random, 0, with_types));
    if random.below(2) == 0 {
        text.push(':');
        text.push_str(TYPES.draw(random, 6));
        if random.below(4) == 0 {
            text.push_str(ARRAYS.draw(random, 3));
        }
    }
    text
}

fn fetch(random: &mut Random, depth: usize, with_types: bool) -> String {
    // Sometimes deeper than any kernel can go.
    let is_atom = if depth > 2 { random.below(12) != 0 } else { random.below(3) != 0 };
    if is_atom {
        let atoms = if with_types && random.below(3) == 0 { TYPED } else { ATOMS };
        return atoms.draw(random, 5).to_owned();
    }
    let by = DEREFERENCES.draw(random, 8);
    let inner = match random.below(40) {
        0 => format!("{}%di{}", "+0(".repeat(12), ")".repeat(12)),
        _ => fetch(random, depth + 1, with_types),
    };
    let end = match random.below(20) {
        0 => "",
        1 => "))",
        _ => ")",
    };
    format!("{by}({inner}{end}")
}

/// Changes one character.
fn mutate(line: &mut String, random: &mut Random) {
    let at = random.below(line.len());
    let drawn = char::from(*random.pick(ALPHABET));
    match random.below(3) {
        0 => line.insert(at, drawn),
        1 => {
            line.remove(at);
        }
        _ => line.replace_range(at..=at, drawn.encode_utf8(&mut [0; 4])),
    }
    if line.is_empty() {
        line.push(drawn);
    }
}
