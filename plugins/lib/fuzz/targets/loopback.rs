//! Runs the target `loopback`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::try_out("loopback", input));
