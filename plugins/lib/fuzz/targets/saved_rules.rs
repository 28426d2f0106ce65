//! Runs the target `saved-rules`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::try_out("saved-rules", input));
