//! Lines to judge: of every dialect, good ones, and ones with one mistake or several.

use super::types::PARAMETERS;

/// How many lines there are.
pub(crate) const LINES: usize = 10_000;

/// An endless row of lines, the same in every run.
pub(crate) struct Lines<'a> {
    random: Random,
    functions: &'a [String],
}

impl<'a> Lines<'a> {
    pub(crate) fn new(functions: &'a [String]) -> Self {
        Self { random: Random(0x6b70_726f_6265_6421), functions }
    }
}

impl Iterator for Lines<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        Some(match self.random.below(20) {
            0 | 1 => self.old_line(),
            2 | 3 => self.prototype(),
            4 => self.deletion(),
            5 | 6 => self.damaged(),
            7 => self.odd(),
            8..=12 => self.sound_line(),
            _ => {
                let wrong = self.random.below(4);
                self.kernel_line(wrong)
            }
        })
    }
}

/// Numbers that look random (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or(0) % bound.max(1)
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from.get(self.below(from.len())).copied().unwrap_or_default()
    }

    /// Once in `times`.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

const REGISTERS: [&str; 8] = ["di", "si", "dx", "ax", "r8", "sp", "ip", "orig_ax"];
const TYPES: [&str; 22] = [
    "u8",
    "u64",
    "s32",
    "x16",
    "x64",
    "char",
    "symbol",
    "string",
    "ustring",
    "symstr",
    "b4@2/8",
    "b1@0/32",
    "%pd",
    "%pD",
    "u8[4]",
    "x64[64]",
    "string[3]",
    "ustring[2]",
    "symbol[2]",
    "symstr[2]",
    "b4@4/16[2]",
    "char[8]",
];
const BAD_TYPES: [&str; 17] = [
    "",
    "int",
    "u7",
    "u8[",
    "u8[0]",
    "u8[65]",
    "u8[4]x",
    "u8[x]",
    "b9@0/8",
    "b0@0/8",
    "b1@0/9",
    "b4@4",
    "long",
    "strin",
    "%pX",
    "u8[4294967296]",
    "b9@0/8[2]",
];
const MEMBERS: [&str; 12] = [
    "->dentry",
    "->dentry->d_name.name",
    "->comm",
    "->flag",
    "->dentry->d_inode->i_ino",
    "->mnt",
    "->level",
    "->table",
    "->dentry->d_name.len",
    "->name",
    "->dentry->d_name",
    "->hash",
];
const BAD_MEMBERS: [&str; 9] =
    ["->", ".x", "->nope", "-x", "->dentry->nope", "->dentry-", "->mnt->x", "->dentry.", "->flag->x"];

impl Lines<'_> {
    fn function(&mut self) -> String {
        let index = self.random.below(self.functions.len());
        self.functions.get(index).cloned().unwrap_or_default()
    }

    fn kernel_line(&mut self, wrong: usize) -> String {
        let mut words = Vec::new();
        // Which of the words are to be bad.
        let count = self.random.below(5);
        let mut bad = vec![false; count + 2];
        for _ in 0..wrong {
            let index = self.random.below(bad.len());
            if let Some(bad) = bad.get_mut(index) {
                *bad = true;
            }
        }
        let is_return = self.random.once_in(4);
        words.push(self.head(is_return, bad.first() == Some(&true)));
        words.push(self.place(bad.get(1) == Some(&true)));
        for is_bad in bad.iter().skip(2) {
            words.push(self.argument(*is_bad, is_return));
        }
        let mut line = words.join(if self.random.once_in(10) { "  " } else { " " });
        if self.random.once_in(12) {
            line.push_str(self.random.pick(&[
                " # why",
                " # dialect: kernel",
                "\n",
                " # dialect: 2009",
                "\n# more\n",
            ]));
        }
        if self.random.once_in(30) {
            line.insert_str(0, self.random.pick(&[" ", "\t", "\n", "# first\n  "]));
        }
        line
    }

    /// A line in which nothing is wrong on most kernels.
    fn sound_line(&mut self) -> String {
        const TRACED: [&str; 12] = [
            "do_exit",
            "kfree",
            "schedule",
            "hrtimer_interrupt",
            "do_sys_openat2",
            "ktime_get",
            "io_uring_setup",
            "check_mem_region_access",
            "vfs_read",
            "finish_task_switch.isra.0",
            "virtio_rng:virtrng_scan",
            "other:absent",
        ];
        let is_return = self.random.once_in(3);
        let mut words = vec![self.head(is_return, false)];
        let function = self.random.pick(&TRACED);
        words.push(if self.random.once_in(8) { format!("{function}+4") } else { function.to_owned() });
        for index in 0..self.random.below(5) {
            let fetch = match self.random.below(12) {
                0 | 1 => format!("%{}", self.random.pick(&REGISTERS)),
                2 => format!("$stack{}", self.random.below(12)),
                3 if is_return => "$retval".to_owned(),
                3 | 4 => format!("$arg{}", 1 + self.random.below(3)),
                5 => self.random.pick(&["@jiffies", "@jiffies+8", "\\1", "\\-5", "$comm"]).to_owned(),
                6 => self.random.pick(&PARAMETERS).to_owned(),
                7 => format!("{}{}", self.random.pick(&["path", "task"]), self.random.pick(&MEMBERS)),
                8 => "+8(+0(%di)):u8[4]".to_owned(),
                9 => "+0(%si):string".to_owned(),
                10 => "+u0(%si):ustring".to_owned(),
                _ => format!("+8(%di):{}", self.random.pick(&["u8", "x64", "s32", "b4@2/8", "symbol"])),
            };
            words.push(if self.random.once_in(4) { fetch } else { format!("v{index}={fetch}") });
        }
        words.join(" ")
    }

    fn head(&mut self, is_return: bool, is_bad: bool) -> String {
        let letter = if is_return { "r" } else { "p" };
        if is_bad {
            let long = "n".repeat(70);
            let rest = match self.random.below(15) {
                0 => ":".to_owned(),
                1 => ":/x".to_owned(),
                2 => ":g/".to_owned(),
                3 => ":g.h/e".to_owned(),
                4 => format!(":{long}/e"),
                5 => format!(":g/{long}"),
                6 => ":e.f.g".to_owned(),
                7 => ":g/enable".to_owned(),
                8 => ":header_page/e".to_owned(),
                9 => "junk:e".to_owned(),
                10 => "0:e".to_owned(),
                11 => "99999:e".to_owned(),
                12 => "10".to_owned(),
                13 => "1a:1b".to_owned(),
                _ => ":g-h/e-f".to_owned(),
            };
            return format!("{letter}{rest}");
        }
        let rest = match self.random.below(14) {
            0 | 1 => "",
            2 => ":ev",
            3 => ":g.ev",
            4 => ":taken",
            5 => ":ours",
            6 => ":g-h/e",
            7 => ":g/taken",
            8 if is_return => "16:g/e",
            _ => ":g/e",
        };
        format!("{letter}{rest}")
    }

    fn place(&mut self, is_bad: bool) -> String {
        let function = self.function();
        if is_bad {
            let offset = self.random.below(40);
            return match self.random.below(18) {
                0 | 1 => "nonexistent_function".to_owned(),
                2 => "kferr".to_owned(),
                3 => format!("{function}%what"),
                4 => format!("{function}-4"),
                5 => format!("{function}+x"),
                6 => format!("{function}+4294967296"),
                7 => ":f".to_owned(),
                8 => "virtio_rng:nope".to_owned(),
                9 => "/bin/sh:0x10".to_owned(),
                10 => "0xffffffff81000000%return".to_owned(),
                11 => "9lives".to_owned(),
                12 => "virtio_rng:".to_owned(),
                13 => "name_show".to_owned(),
                14 => "init_once+4".to_owned(),
                15 => "0".to_owned(),
                16 => "hoge-fuga".to_owned(),
                _ => format!("{function}+{offset}%return"),
            };
        }
        let offset = self.random.below(24);
        match self.random.below(20) {
            0..=2 => format!("{function}+{offset}"),
            3 => format!("{function}%return"),
            4 => format!("_stext+{}", offset * 16),
            5 => format!("{function}+100000"),
            6 => "0xffffffff81000000".to_owned(),
            7 => "0x1".to_owned(),
            8 => "other:absent".to_owned(),
            9 => "virtio_rng:virtrng_scan".to_owned(),
            10 => "virtio_rng:remove_common".to_owned(),
            11 => "name_show".to_owned(),
            12 => "vfs_read".to_owned(),
            13 => format!("{function}+4"),
            14 => "other:".to_owned(),
            _ => function,
        }
    }

    fn argument(&mut self, is_bad: bool, is_return: bool) -> String {
        if is_bad {
            return self.bad_argument();
        }
        if self.random.once_in(14) {
            return self
                .random
                .pick(&["$arg*", "$arg1", "$arg2", "$arg1:u8", "$arg2:string", "$arg7"])
                .to_owned();
        }
        let name = match self.random.below(8) {
            0..=3 => String::new(),
            4 => "a=".to_owned(),
            5 => "arg2=".to_owned(),
            6 => "path=".to_owned(),
            _ => format!("n{}=", self.random.below(100)),
        };
        let fetch = self.fetch(3, is_return);
        let ty = match self.random.below(5) {
            0..=2 => String::new(),
            3 => ":u32".to_owned(),
            _ => format!(":{}", self.random.pick(&TYPES)),
        };
        format!("{name}{fetch}{ty}")
    }

    fn fetch(&mut self, depth: usize, is_return: bool) -> String {
        match self.random.below(16) {
            0 | 1 => format!("%{}", self.random.pick(&REGISTERS)),
            2 => format!("$stack{}", self.random.below(12)),
            3 => "$stack".to_owned(),
            4 if is_return => "$retval".to_owned(),
            5 if is_return => format!("$retval{}", self.random.pick(&MEMBERS)),
            4..=6 => format!("$arg{}", 1 + self.random.below(7)),
            7 => "$comm".to_owned(),
            8 => self
                .random
                .pick(&["@jiffies", "@jiffies+8", "@0xffffffff81000000", "@nowhere", "@jiffies-x"])
                .to_owned(),
            9 => self.random.pick(&["\\1", "\\-5", "\\0x10", "\\\"text\"", "\\+3"]).to_owned(),
            10 | 11 => {
                let root = self.random.pick(&PARAMETERS);
                if self.random.once_in(2) {
                    root.to_owned()
                } else {
                    format!("{root}{}", self.random.pick(&MEMBERS))
                }
            }
            _ if depth > 0 => {
                let sign = self.random.pick(&["+", "-", "+u", "+"]);
                let offset = self.random.pick(&["0", "8", "0x10", "16"]);
                format!("{sign}{offset}({})", self.fetch(depth - 1, is_return))
            }
            _ => "%di".to_owned(),
        }
    }

    fn bad_argument(&mut self) -> String {
        let fetch = self.fetch(2, false);
        match self.random.below(36) {
            0 => "%rdi".to_owned(),
            1 => "$none".to_owned(),
            2 => "$stack5000".to_owned(),
            3 => self
                .random
                .pick(&["$arg0", "$arg2049", "$arg99999999999", "$argx", "$arg1x", "$arg*x"])
                .to_owned(),
            4 => {
                format!("x={}", self.random.pick(&["$arg0", "$arg2049", "$argx", "$arg1x", "$arg*", "$arg9"]))
            }
            5 => "$retval".to_owned(),
            6 => "@+10".to_owned(),
            7 => "@12345678abcde".to_owned(),
            8 => "@0x1ffffffffffffffff".to_owned(),
            9 => "x=\\x".to_owned(),
            10 => "x=\\99999999999999999999".to_owned(),
            11 => "x=\\\"abcd".to_owned(),
            12 => "+0@0)".to_owned(),
            13 => "+0ab1(%di)".to_owned(),
            14 => format!("+0(+8({fetch})"),
            15 => "+0($comm)".to_owned(),
            16 => "&1".to_owned(),
            17 => format!("{fetch}:{}", self.random.pick(&BAD_TYPES)),
            18 => format!("x={fetch}:{}", self.random.pick(&BAD_TYPES)),
            19 => format!("{}={fetch}", "n".repeat(33)),
            20 => format!("={fetch}"),
            21 => format!("var.1={fetch}"),
            22 => format!("__probe_ip={fetch}"),
            23 => "x=".to_owned(),
            24 => format!("{}{}", self.random.pick(&PARAMETERS), self.random.pick(&BAD_MEMBERS)),
            25 => format!("+8({}{})", self.random.pick(&PARAMETERS), self.random.pick(&BAD_MEMBERS)),
            26 => "hoge".to_owned(),
            27 => format!("{}x=%di", "__kpd_"),
            28 => "+0x100000000(%di)".to_owned(),
            29 => "+0(%di)junk".to_owned(),
            30 => format!("+0({}@0{}", "+0(".repeat(13), ")".repeat(14)),
            31 => format!("{}@1234{}", "+1234567(".repeat(6), ")".repeat(6)),
            32 => "a=%di".to_owned(),
            33 => self
                .random
                .pick(&["$comm:u8", "\\\"a\":string[2]", "%di:u8[4]", "$stack:symstr", "%si:string"])
                .to_owned(),
            34 => self
                .random
                .pick(&["(task_struct)task->comm", "this_cpu_ptr(x)", "$current", "$retvalx"])
                .to_owned(),
            _ => self.random.pick(&["a0", "sa", "rv", "ra", "s1", "x=ra", "+0(a1)", "a9:u8"]).to_owned(),
        }
    }

    fn old_line(&mut self) -> String {
        let is_return = self.random.once_in(3);
        let mut words = vec![self.head(is_return, false)];
        let is_bad = self.random.once_in(8);
        words.push(self.place(is_bad));
        for _ in 0..=self.random.below(4) {
            let word = match self.random.below(7) {
                0 | 1 => format!("a{}", self.random.below(9)),
                2 => format!("s{}", self.random.below(4)),
                3 => "sa".to_owned(),
                4 => "rv".to_owned(),
                5 => "ra".to_owned(),
                _ => self.random.pick(&["a99999", "s5000", "a4294967295", "s", "a", "a1x"]).to_owned(),
            };
            words.push(match self.random.below(9) {
                0 => format!("x={word}"),
                1 => format!("+8({word})"),
                2 => format!("y=+0(+8({word})):u8"),
                3 => format!("{word}:x32"),
                4 => self.argument(false, is_return),
                5 => format!("long={}{word}{}", "+1234567(".repeat(5), ")".repeat(5)),
                6 if self.random.once_in(3) => self.argument(true, is_return),
                _ => word,
            });
        }
        let mut line = words.join(" ");
        line.push_str(self.random.pick(&[
            "",
            "",
            " # dialect: 2009",
            " # dialect: kernel",
            " # dialect: 1999",
        ]));
        line
    }

    fn prototype(&mut self) -> String {
        let function =
            if self.random.once_in(10) { "nonexistent_function".to_owned() } else { self.function() };
        let mut parameters = Vec::new();
        for _ in 0..self.random.below(5) {
            let items: Vec<String> = (0..=self.random.below(2)).map(|_| self.field()).collect();
            parameters.push(items.join(" | "));
        }
        let mut line = format!("{function}({})", parameters.join(", "));
        match self.random.below(14) {
            0 => {
                line.pop();
            }
            1 => line.push_str(" x"),
            2 => line.push_str(" # dialect: prototype"),
            3 => line = line.replace(',', " "),
            _ => {}
        }
        line
    }

    fn field(&mut self) -> String {
        let ty = self.random.pick(&[
            "u8",
            "x64",
            "s32",
            "int",
            "long",
            "char",
            "symbol",
            "string",
            "size_t",
            "unsigned int",
            "char[16]",
            "u32[4]",
            "u64[200]",
            "x8[64]",
            "unsigned string",
            "short",
            "struct x",
            "string[4]",
            "u64[9000]",
        ]);
        let source = match self.random.below(12) {
            0 => "NULL".to_owned(),
            1 => "a+8".to_owned(),
            2 => "a[2]".to_owned(),
            3 => "b[0][3]".to_owned(),
            4 => "b+8[1]".to_owned(),
            5 => "m=0xffffffff81000000".to_owned(),
            6 => "$jiffies".to_owned(),
            7 => "0xffffffff81000000".to_owned(),
            8 => "a[99999999999]".to_owned(),
            9 => "*p".to_owned(),
            10 => "common_pid".to_owned(),
            _ => self.random.pick(&PARAMETERS).to_owned(),
        };
        if source == "NULL" { source } else { format!("{ty} {source}") }
    }

    fn deletion(&mut self) -> String {
        let place = self.place(false);
        match self.random.below(8) {
            0 => "-:".to_owned(),
            1 => "-:ours".to_owned(),
            2 => "-:g/e".to_owned(),
            3 => "-:g/".to_owned(),
            4 => " -:e".to_owned(),
            5 => "-foo".to_owned(),
            6 => format!("-:e {place} x=%di"),
            _ => "-:/".to_owned(),
        }
    }

    /// A good line with one character changed.
    fn damaged(&mut self) -> String {
        let line = match self.random.below(6) {
            0 => self.old_line(),
            1 => self.prototype(),
            _ => self.kernel_line(0),
        };
        let mut characters: Vec<char> = line.chars().collect();
        let at = self.random.below(characters.len());
        let new = self.random.pick(&[
            "(", ")", ":", "=", " ", "$", "%", "+", "-", "[", "]", "0", "a", "_", "#", "/", ".", "@",
        ]);
        match (self.random.below(3), new.chars().next()) {
            (0, Some(new)) => characters.insert(at, new),
            (1, Some(new)) if at < characters.len() => {
                characters.splice(at..=at, [new]);
            }
            _ if at < characters.len() => {
                characters.remove(at);
            }
            _ => {}
        }
        characters.into_iter().collect()
    }

    /// What hardly anybody writes.
    fn odd(&mut self) -> String {
        let function = self.function();
        match self.random.below(16) {
            0 => String::new(),
            1 => "# nothing".to_owned(),
            2 => format!("p {function}\np {function}"),
            3 => "p".to_owned(),
            4 => "r:x".to_owned(),
            5 => format!("p {function}\0"),
            6 => format!("p {function} \\\"à\""),
            7 => format!("p {function} {}", "%di ".repeat(1100)),
            8 => {
                let names: Vec<String> = (0..129).map(|n| format!("a{n}=%di")).collect();
                format!("p {function} {}{}", names.join(" "), self.random.pick(&["", " %bad", " a=nope"]))
            }
            9 => {
                let large: Vec<String> = (0..7).map(|n| format!("l{n}=+0(%di):u64[64]")).collect();
                format!("p {function} {}{}", large.join(" "), self.random.pick(&["", " %bad", " x=nope"]))
            }
            10 => format!("f {function}"),
            11 => format!("t:x {function}"),
            12 => {
                let first = self.fetch(1, false);
                format!("p:g/e {function} x={first} x={first}")
            }
            13 => format!("p {function} arg2=%di %si"),
            14 => format!("p {function} $arg* $arg*"),
            _ => format!(
                "p {function} {} $arg1 $argx",
                self.random.pick(&["%bad", "nope", "x=nope", "path->nope"])
            ),
        }
    }
}
