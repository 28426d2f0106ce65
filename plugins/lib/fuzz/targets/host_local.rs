//! Runs the target `host-local`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::try_out("host-local", input));
