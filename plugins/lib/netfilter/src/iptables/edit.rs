//! Changes to a table, collected against what was read and applied in one transaction.

use super::rule::Rule;
use super::saved::Saved;

/// The changes so far, and the table as it will be after them.
///
/// A `:CHAIN` line empties a chain that exists, `--noflush` or not; so only a chain that the read did not show is
/// declared, which is safe as long as read and write happen under one lock.
pub(super) struct Edit {
    table: Saved,
    declared: Vec<String>,
    commands: Vec<String>,
    removed: Vec<Rule>,
}

impl Edit {
    /// No change yet to the table that was read.
    pub(super) fn new(seen: Saved) -> Edit {
        Edit {
            table: seen,
            declared: Vec::new(),
            commands: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// The table as it will be.
    pub(super) fn table(&self) -> &Saved {
        &self.table
    }

    /// Makes a chain unless it exists.
    pub(super) fn ensure_chain(&mut self, chain: &str) {
        if !self.table.has_chain(chain) {
            self.declared.push(chain.to_owned());
            self.table.chain_mut(chain);
        }
    }

    /// Makes a chain unless it exists, for somebody else to fill: should they make it meanwhile, the change is refused
    /// rather than their chain emptied.
    pub(super) fn ensure_foreign_chain(&mut self, chain: &str) {
        if !self.table.has_chain(chain) {
            self.commands.push(format!("-N {chain}"));
            self.table.chain_mut(chain);
        }
    }

    /// Appends a rule unless the chain holds it.
    pub(super) fn ensure_rule(&mut self, chain: &str, rule: Rule) {
        if !self.table.has_rule(chain, &rule) {
            self.commands.push(format!("-A {chain} {rule}"));
            self.table.chain_mut(chain).push(rule);
        }
    }

    /// Puts a rule before all others unless the chain holds it.
    pub(super) fn ensure_first(&mut self, chain: &str, rule: Rule) {
        if !self.table.has_rule(chain, &rule) {
            self.commands.push(format!("-I {chain} {rule}"));
            self.table.chain_mut(chain).insert(0, rule);
        }
    }

    /// Removes a rule if the chain holds it.
    pub(super) fn remove_rule(&mut self, chain: &str, rule: &Rule) {
        if let Some(at) = self.table.rules(chain).iter().position(|held| held == rule) {
            self.commands.push(format!("-D {chain} {rule}"));
            self.removed.push(self.table.chain_mut(chain).remove(at));
        }
    }

    /// Removes a chain, what is in it, and every rule that jumps to it.
    pub(super) fn remove_chain(&mut self, chain: &str) {
        if !self.table.has_chain(chain) {
            return;
        }
        for (from, rule) in self.table.jumps_to(chain) {
            self.remove_rule(&from, &rule);
        }
        self.commands.extend([format!("-F {chain}"), format!("-X {chain}")]);
        self.removed.append(self.table.chain_mut(chain));
        self.table.remove_chain(chain);
    }

    /// The rules that go.
    pub(super) fn removed(&self) -> &[Rule] {
        &self.removed
    }

    /// The input for `iptables-restore --noflush`; `None` where nothing changes.
    pub(super) fn script(&self) -> Option<String> {
        if self.declared.is_empty() && self.commands.is_empty() {
            return None;
        }
        let mut script = format!("*{}\n", self.table.table().name());
        for chain in &self.declared {
            script.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for command in &self.commands {
            script.push_str(command);
            script.push('\n');
        }
        script.push_str("COMMIT\n");
        Some(script)
    }
}

#[cfg(test)]
mod tests {
    use super::super::saved::Table;
    use super::*;

    fn seen() -> Saved {
        Saved::parse(
            Table::Nat,
            "*nat\n:OUTPUT ACCEPT [0:0]\n:A - [0:0]\n-A OUTPUT -j A\n-A A -j ACCEPT\nCOMMIT\n",
        )
    }

    #[test]
    fn what_is_there_is_not_written_again() {
        let mut edit = Edit::new(seen());
        edit.ensure_chain("A");
        edit.ensure_rule("A", Rule::parse("-j ACCEPT"));
        edit.ensure_first("OUTPUT", Rule::parse("-j A"));
        edit.remove_rule("A", &Rule::parse("-j DROP"));
        edit.remove_chain("B");
        assert_eq!(edit.script(), None);
    }

    #[test]
    fn a_chain_goes_with_what_jumps_to_it() {
        let mut edit = Edit::new(seen());
        edit.remove_chain("A");
        assert_eq!(edit.script().unwrap(), "*nat\n-D OUTPUT -j A\n-F A\n-X A\nCOMMIT\n");
        assert_eq!(edit.table(), &Saved::parse(Table::Nat, "*nat\n:OUTPUT ACCEPT [0:0]\n"));
    }

    #[test]
    fn only_new_chains_are_declared() {
        let mut edit = Edit::new(seen());
        edit.ensure_chain("A");
        edit.ensure_chain("B");
        edit.ensure_chain("B");
        edit.ensure_rule("A", Rule::parse("-j B"));
        edit.ensure_first("OUTPUT", Rule::parse("-j B"));
        assert_eq!(
            edit.script().unwrap(),
            "*nat\n:B - [0:0]\n-A A -j B\n-I OUTPUT -j B\nCOMMIT\n"
        );
    }
}
