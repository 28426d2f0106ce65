//! A rule as the arguments that follow `-A CHAIN`.

use std::fmt;

use cni_types::Cidr;

/// The arguments of a rule, in the order in which `iptables-save` prints them, so that what is planned and what is read
/// back are equal exactly when they mean the same.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Rule(Vec<String>);

impl Rule {
    /// A rule that matches everything and says nothing yet.
    pub(super) fn new() -> Rule {
        Rule(Vec::new())
    }

    /// Adds arguments.
    #[must_use]
    pub(super) fn args<I: Into<String>>(mut self, args: impl IntoIterator<Item = I>) -> Rule {
        self.0.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds `-s` or `-d` with a network. A prefix of 0 matches everything, and `iptables-save` leaves such a match out.
    #[must_use]
    pub(super) fn network(self, option: &str, network: Cidr) -> Rule {
        match network.prefix() {
            0 => self,
            _ => self.args([option.to_owned(), network.network().to_string()]),
        }
    }

    /// Adds a comment.
    #[must_use]
    pub(super) fn comment(self, text: &str) -> Rule {
        self.args(["-m", "comment", "--comment", text])
    }

    /// Adds the target.
    #[must_use]
    pub(super) fn jump(self, target: &str) -> Rule {
        self.args(["-j", target])
    }

    /// The arguments of a line of `iptables-save` or of a record, unquoted as `iptables-restore` unquotes them: a
    /// backslash inside double quotes takes the next character literally.
    pub(super) fn parse(line: &str) -> Rule {
        let mut args = Vec::new();
        let mut current: Option<String> = None;
        let mut quoted = false;
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => {
                    quoted = !quoted;
                    current.get_or_insert_default();
                }
                '\\' if quoted => current.get_or_insert_default().extend(chars.next()),
                ' ' | '\t' if !quoted => args.extend(current.take()),
                _ => current.get_or_insert_default().push(c),
            }
        }
        args.extend(current);
        Rule(args)
    }

    /// The argument after the first `option`.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        let at = self.0.iter().position(|arg| arg == option)?;
        self.0.get(at.checked_add(1)?).map(String::as_str)
    }

    /// Whether the first `option` has a `!` before it, which turns its meaning round.
    pub(super) fn is_negated(&self, option: &str) -> bool {
        let at = self.0.iter().position(|arg| arg == option);
        let before = at.and_then(|at| self.0.get(at.checked_sub(1)?));
        before.is_some_and(|arg| arg == "!")
    }

    /// Where the rule sends a packet that it matches.
    pub(super) fn target(&self) -> Option<&str> {
        self.value("-j")
    }

    /// Whether every argument of `other` is among this rule's.
    pub(super) fn covers(&self, other: &Rule) -> bool {
        other.0.iter().all(|arg| self.0.contains(arg))
    }
}

impl fmt::Display for Rule {
    /// The text that `iptables-restore` reads back as the same arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, arg) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(" ")?;
            }
            if !arg.is_empty() && arg.bytes().all(is_plain) {
                f.write_str(arg)?;
            } else {
                write!(f, "\"{}\"", arg.replace('\\', "\\\\").replace('"', "\\\""))?;
            }
        }
        Ok(())
    }
}

/// Whether a character means itself outside quotes. Fewer than could: what is not listed is quoted, which never hurts.
fn is_plain(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-_.,:/[]!+=".contains(&b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_iptables_save_prints() {
        let rule = Rule::parse(r#"-p tcp -m comment --comment "dnat name: \"net1\" id: \"c\'1\"" --dports 80,81 -j X"#);
        assert_eq!(rule.value("--comment"), Some(r#"dnat name: "net1" id: "c'1""#));
        assert_eq!(rule.value("--dports"), Some("80,81"));
        assert_eq!(rule.target(), Some("X"));
        assert_eq!(rule.value("--sports"), None);
        assert_eq!(Rule::parse("-j").target(), None);
    }

    #[test]
    fn a_network_that_is_everything_is_no_match() {
        assert_eq!(
            Rule::new()
                .network("-s", "0.0.0.0/0".parse().unwrap())
                .jump("X")
                .to_string(),
            "-j X"
        );
        assert_eq!(
            Rule::new().network("-s", "10.1.0.5/24".parse().unwrap()).to_string(),
            "-s 10.1.0.0/24"
        );
    }

    proptest! {
        /// No argument can end its quotes and become another one.
        #[test]
        fn arguments_round_trip(args in prop::collection::vec("[^\n]*", 0..6)) {
            let rule = Rule::new().args(args);
            prop_assert_eq!(Rule::parse(&rule.to_string()), rule);
        }

        #[test]
        fn any_line_can_be_read(line in "\\PC*") {
            let rule = Rule::parse(&line);
            prop_assert_eq!(Rule::parse(&rule.to_string()), rule);
        }
    }
}
