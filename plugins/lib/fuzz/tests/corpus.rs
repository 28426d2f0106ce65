//! Everything that a fuzzer once found worth keeping, read again.

use std::fs;
use std::path::Path;

#[test]
fn every_target_survives_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in fuzz::TARGETS {
        let inputs: Vec<_> = fs::read_dir(corpus.join(target.name))
            .unwrap_or_else(|e| panic!("the corpus of {}: {e}", target.name))
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            let survived = std::panic::catch_unwind(|| fuzz::try_out(target.name, &bytes));
            assert!(survived.is_ok(), "{} is not survived", input.display());
        }
    }
}
