//! Reading what a kernel might have sent, for fuzzers and for tests with what they found.

use crate::Family;
use crate::message::Message;
use crate::query::{RuleState, read_base_chain, read_chain, read_elements, read_rule};
use crate::ruleset::Element;

/// Reads a datagram as every kind of answer that this crate understands, and gives the elements and rules that it found.
pub fn rehearse(datagram: &[u8]) -> (Vec<Element>, Vec<RuleState>) {
    let mut rest = datagram;
    let (mut elements, mut rules) = (Vec::new(), Vec::new());
    while let Ok(Some(message)) = Message::next(&mut rest) {
        let _ = message.acknowledgement();
        let Ok(attributes) = message.attributes() else {
            continue;
        };
        let _ = (read_chain(attributes), read_base_chain(Family::Inet, attributes));
        elements.extend(read_elements(attributes).unwrap_or_default());
        rules.extend(read_rule(attributes.to_vec()));
    }
    for rule in &rules {
        let _ = (rule.compared_constants(), rule.loaded_constants());
    }
    (elements, rules)
}
