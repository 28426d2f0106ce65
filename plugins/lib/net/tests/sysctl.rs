//! Sysctls, of the thread's namespace and of another.
#![allow(clippy::unwrap_used, reason = "a test stops where something is missing")]

use std::fs::File;
use std::os::fd::AsFd;

use net::{Net, Outcome};
use testkit::world;

#[test]
fn each_namespace_has_its_own() {
    world(|w| {
        let netns = File::open(w.netns("pod")).unwrap();
        let host = Net::host().unwrap();
        let pod = Net::enter(netns.as_fd()).unwrap();
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let read = format!("cat /proc/sys/net/{key}");
            w.sh_in("pod", &format!("echo 0 > /proc/sys/net/{key}"));
            w.sh(&format!("echo 0 > /proc/sys/net/{key}"));
            assert_eq!(pod.sysctl().set(key, "1").unwrap(), Outcome::Changed("0".to_owned()));
            assert_eq!((w.sh_in("pod", &read), w.sh(&read)), ("1".to_owned(), "0".to_owned()));
            assert_eq!(pod.sysctl().set(key, "1").unwrap(), Outcome::Unchanged);
            assert_eq!(pod.sysctl().get(key).unwrap().as_deref(), Some("1"));
            assert_eq!(host.sysctl().get(key).unwrap().as_deref(), Some("0"));
            assert_eq!(host.sysctl().set(key, "1").unwrap(), Outcome::Changed("0".to_owned()));
            assert_eq!(w.sh(&read), "1");
        }
    });
}

#[test]
fn a_link_that_came_later_is_found_and_a_dot_in_its_name_means_nothing() {
    world(|w| {
        let netns = File::open(w.netns("pod")).unwrap();
        let pod = Net::enter(netns.as_fd()).unwrap();
        let key = "ipv4/conf/eth0.5/arp_notify";
        assert_eq!(pod.sysctl().get(key).unwrap(), None);
        assert_eq!(pod.sysctl().set(key, "1").unwrap(), Outcome::Absent);
        w.sh_in("pod", "ip link add eth0.5 type veth peer name other");
        assert_eq!(pod.sysctl().set(key, "1").unwrap(), Outcome::Changed("0".to_owned()));
        assert_eq!(w.sh_in("pod", "cat /proc/sys/net/ipv4/conf/eth0.5/arp_notify"), "1");
    });
}

#[test]
fn several_numbers_compare_whatever_separates_them() {
    world(|_| {
        let host = Net::host().unwrap();
        let key = "ipv4/ip_local_port_range";
        assert!(matches!(
            host.sysctl().set(key, "20000 30000").unwrap(),
            Outcome::Changed(_)
        ));
        assert_eq!(host.sysctl().get(key).unwrap().as_deref(), Some("20000\t30000"));
        assert_eq!(host.sysctl().set(key, "20000  30000").unwrap(), Outcome::Unchanged);
    });
}

#[test]
fn read_only_and_right_is_no_error_and_read_only_and_wrong_is() {
    world(|w| {
        w.sh("echo 0 > /proc/sys/net/ipv4/ip_forward
              mount -o bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys");
        let netns = File::open(w.netns("pod")).unwrap();
        w.sh_in("pod", "ip link set lo up");
        for net in [Net::host().unwrap(), Net::enter(netns.as_fd()).unwrap()] {
            let key = "ipv4/conf/lo/arp_notify";
            assert_eq!(net.sysctl().set(key, "0").unwrap(), Outcome::Unchanged);
            let error = net.sysctl().set(key, "1").unwrap_err();
            assert_eq!(
                error.to_string(),
                "write sysctl net/ipv4/conf/lo/arp_notify=1: Read-only file system (EROFS)"
            );
            assert_eq!(
                net.sysctl().set("ipv4/conf/none/arp_notify", "1").unwrap(),
                Outcome::Absent
            );
        }
    });
}

#[test]
fn without_ipv6_its_keys_are_absent() {
    world(|w| {
        // What a kernel without IPv6 shows: everything but the directory.
        w.sh("mkdir -p /run/sys/net/ipv4; mount --bind /run/sys /proc/sys");
        let netns = File::open(w.netns("pod")).unwrap();
        for net in [Net::host().unwrap(), Net::enter(netns.as_fd()).unwrap()] {
            assert_eq!(net.sysctl().get("ipv6/conf/all/forwarding").unwrap(), None);
            assert_eq!(
                net.sysctl().set("ipv6/conf/all/forwarding", "1").unwrap(),
                Outcome::Absent
            );
        }
    });
}

#[test]
fn a_refused_value_and_a_bad_key_are_errors() {
    world(|w| {
        let netns = File::open(w.netns("pod")).unwrap();
        let (host, pod) = (Net::host().unwrap(), Net::enter(netns.as_fd()).unwrap());
        for sysctl in [host.sysctl(), pod.sysctl()] {
            assert!(sysctl.set("ipv4/ip_forward", "nonsense").is_err());
            for key in [
                "",
                "/ipv4/ip_forward",
                "ipv4//ip_forward",
                "ipv4/../ipv4/ip_forward",
                "ipv4/.",
                "ipv4/a\0b",
            ] {
                assert_eq!(
                    sysctl.get(key).unwrap_err().errno(),
                    nix::errno::Errno::EINVAL,
                    "{key:?}"
                );
                assert!(sysctl.set(key, "1").is_err(), "{key:?}");
            }
        }
        assert!(host.sysctl().get("core/somaxconn").unwrap().is_some());
        // Not held open for another namespace, so it must not be read from this one.
        assert!(pod.sysctl().get("core/somaxconn").is_err());
    });
}
