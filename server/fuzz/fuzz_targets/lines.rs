#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| kprobed_fuzz::lines::check(data));
