//! Changes to a table, collected against what was read and applied in one transaction.

use nft::Batch;

use super::rule::Rule;
use super::saved::{Held, Saved};

/// The changes so far, and the table as it will be after them.
///
/// A `:CHAIN` line empties a chain that exists, `--noflush` or not; so only a chain that the read did not show is
/// declared, which is safe as long as read and write happen under one lock.
pub(super) struct Edit {
    table: Saved,
    declared: Vec<String>,
    commands: Vec<Command>,
    removed: Vec<Rule>,
}

enum Command {
    NewChain(String),
    Append(String, Rule),
    Prepend(String, Rule),
    Delete(String, Held),
    /// With what is in it.
    DeleteChain(String),
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
            self.commands.push(Command::NewChain(chain.to_owned()));
            self.table.chain_mut(chain);
        }
    }

    /// Appends a rule unless the chain holds it.
    pub(super) fn ensure_rule(&mut self, chain: &str, rule: Rule) {
        if !self.table.has_rule(chain, &rule) {
            self.commands.push(Command::Append(chain.to_owned(), rule.clone()));
            self.table.chain_mut(chain).push(Held::text(rule));
        }
    }

    /// Puts a rule before all others unless the chain holds it.
    pub(super) fn ensure_first(&mut self, chain: &str, rule: Rule) {
        if !self.table.has_rule(chain, &rule) {
            self.commands.push(Command::Prepend(chain.to_owned(), rule.clone()));
            self.table.chain_mut(chain).insert(0, Held::text(rule));
        }
    }

    /// Removes a rule if the chain holds it.
    pub(super) fn remove_rule(&mut self, chain: &str, rule: &Rule) {
        self.remove(chain, |held| held.is(rule));
    }

    /// Removes the first rule of a chain that is meant.
    fn remove(&mut self, chain: &str, is_meant: impl Fn(&Held) -> bool) {
        if let Some(at) = self.table.held(chain).iter().position(is_meant) {
            let held = self.table.chain_mut(chain).remove(at);
            self.removed.push(held.rule.clone());
            self.commands.push(Command::Delete(chain.to_owned(), held));
        }
    }

    /// Removes a chain, what is in it, and every rule that jumps to it.
    pub(super) fn remove_chain(&mut self, chain: &str) {
        if !self.table.has_chain(chain) {
            return;
        }
        for (from, jump) in self.table.jumps_to(chain) {
            self.remove(&from, |held| *held == jump);
        }
        self.commands.push(Command::DeleteChain(chain.to_owned()));
        let content = self.table.chain_mut(chain).drain(..).map(|held| held.rule);
        self.removed.extend(content);
        self.table.remove_chain(chain);
    }

    /// The rules that go.
    pub(super) fn removed(&self) -> &[Rule] {
        &self.removed
    }

    /// Whether the table stays as it was read.
    pub(super) fn is_nothing(&self) -> bool {
        self.declared.is_empty() && self.commands.is_empty()
    }

    /// The input for `iptables-restore --noflush`; `None` where nothing changes.
    pub(super) fn script(&self) -> Option<String> {
        if self.is_nothing() {
            return None;
        }
        let mut script = format!("*{}\n", self.table.table().name());
        for chain in &self.declared {
            script.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for command in &self.commands {
            script.push_str(&match command {
                Command::NewChain(chain) => format!("-N {chain}\n"),
                Command::Append(chain, rule) => format!("-A {chain} {rule}\n"),
                Command::Prepend(chain, rule) => format!("-I {chain} {rule}\n"),
                Command::Delete(chain, held) => format!("-D {chain} {}\n", held.rule),
                Command::DeleteChain(chain) => format!("-F {chain}\n-X {chain}\n"),
            });
        }
        script.push_str("COMMIT\n");
        Some(script)
    }

    /// The same as operations on nf_tables, if nothing is added and the kernel itself showed the rules. What it deletes by
    /// its number needs no text.
    pub(super) fn batch(&self, table: &nft::Table) -> Option<Batch> {
        let mut batch = Batch::new();
        for command in &self.commands {
            match command {
                Command::Delete(chain, held) => batch.delete_rule(table, chain, held.handle?),
                Command::DeleteChain(chain) => batch.delete_chain(table, chain),
                Command::NewChain(_) | Command::Append(..) | Command::Prepend(..) => return None,
            }
        }
        self.declared.is_empty().then_some(batch)
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
    fn only_what_the_kernel_showed_is_removed_by_its_number() {
        let table = nft::Table::new(nft::Family::Ipv4, "nat");
        let mut by_program = Edit::new(seen());
        by_program.remove_rule("A", &Rule::parse("-j ACCEPT"));
        assert!(by_program.batch(&table).is_none());

        let mut by_kernel = seen();
        for (at, chain) in (1..).zip(["OUTPUT", "A"]) {
            by_kernel
                .chain_mut(chain)
                .iter_mut()
                .for_each(|held| held.handle = Some(at));
        }
        let mut edit = Edit::new(by_kernel);
        edit.remove_chain("A");
        assert!(edit.batch(&table).is_some());
        edit.ensure_chain("B");
        assert!(edit.batch(&table).is_none(), "what is added is a text for iptables");
    }

    #[test]
    fn a_rule_that_is_not_whole_is_nobodys() {
        let mut table = seen();
        table.chain_mut("A").iter_mut().for_each(|held| held.whole = false);
        let mut edit = Edit::new(table);
        edit.remove_rule("A", &Rule::parse("-j ACCEPT"));
        assert!(edit.is_nothing());
        edit.ensure_rule("A", Rule::parse("-j ACCEPT"));
        assert!(!edit.is_nothing());
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
