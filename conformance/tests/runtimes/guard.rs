//! The guard: nothing that mounts or configures a network may run in the machine's own namespaces.

use std::fs;

/// Both namespaces that must be our own, as /proc names them: `net:[4026531840] mnt:[4026531841]`.
///
/// The parent passes its own to the child. Looking at those of process 1 instead would not do: they may be unreadable
/// even for root, and "not equal to nothing" is always true.
pub(crate) fn namespaces() -> String {
    let link = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).expect("the process's namespaces");
    format!("{} {}", link("net").display(), link("mnt").display())
}

/// Refuses unless `inside` names two namespaces that both differ from those of `outside`.
pub(crate) fn check(outside: &str, inside: &str) -> Result<(), String> {
    let (out_net, out_mnt) = parse(outside)?;
    let (in_net, in_mnt) = parse(inside)?;
    if out_net == in_net || out_mnt == in_mnt {
        return Err(format!(
            "still in a namespace of the machine: {inside}, outside {outside}"
        ));
    }
    Ok(())
}

fn parse(namespaces: &str) -> Result<(u64, u64), String> {
    let refuse = || format!("no pair of namespaces: {namespaces:?}");
    let (net, mnt) = namespaces.split_once(' ').ok_or_else(refuse)?;
    let inode = |text: &str, kind: &str| {
        let digits = text.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?;
        digits.parse().ok()
    };
    inode(net, "net").zip(inode(mnt, "mnt")).ok_or_else(refuse)
}

#[test]
fn guard_refuses_the_machines_own_namespaces() {
    assert!(check(&namespaces(), &namespaces()).is_err(), "this very process");
    let outside = "net:[1] mnt:[2]";
    for inside in [
        "net:[1] mnt:[2]",
        "net:[1] mnt:[3]",
        "net:[3] mnt:[2]",
        "",
        "net:[3]",
        "mnt:[3] net:[4]",
        "net:[] mnt:[4]",
        "net:[3] mnt:[4] pid:[5]",
    ] {
        assert!(check(outside, inside).is_err(), "{inside:?}");
        assert!(
            inside == outside || check(inside, "net:[1] mnt:[2]").is_err(),
            "{inside:?}"
        );
    }
    assert_eq!(check(outside, "net:[3] mnt:[4]"), Ok(()));
}
