//! Runs the target `static`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::try_out("static", input));
