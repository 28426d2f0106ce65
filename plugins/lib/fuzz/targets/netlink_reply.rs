//! Runs the target `netlink-reply`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::try_out("netlink-reply", input));
