//! The loopback plugin, as a runtime sees it.
use crate::suite::Suite;

const CONF: &str = r#"{"cniVersion":"1.0.0","name":"cni-loopback","type":"loopback"}"#;

#[test]
fn add_check_del() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let netns = w.netns("a");
        let call = |verb: &str| suite.call("loopback", verb, "c1", &netns, "lo", CONF);

        assert_eq!(call("CHECK").error().1, "loopback interface is down");
        let result = call("ADD").success();
        assert_eq!(
            result,
            serde_json::json!({
                "cniVersion": "1.0.0",
                "interfaces": [{ "mac": "00:00:00:00:00:00", "name": "lo", "sandbox": netns.to_str().unwrap() }],
                "ips": [{ "address": "127.0.0.1/8", "interface": 0 }, { "address": "::1/128", "interface": 0 }],
            })
        );
        call("CHECK").silent();
        w.sh_in("a", "ping -c1 -W1 127.0.0.1");
        call("DEL").silent();
        assert!(w.sh_in("a", "ip link show lo").contains("state DOWN"));
        call("DEL").silent();
    });
}

#[test]
fn a_previous_result_passes_through() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let netns = w.netns("a");
        let conf = r#"{"cniVersion":"1.1.0","name":"n","type":"loopback",
            "prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400}],"dns":{"domain":"d"}}}"#;
        let result = suite.call("loopback", "ADD", "c1", &netns, "lo", conf).success();
        assert_eq!(
            result,
            serde_json::json!({"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1400}],"dns":{"domain":"d"}})
        );
    });
}

#[test]
fn every_result_version_is_written() {
    testkit::world(|w| {
        let suite = Suite::install(w);
        let netns = w.netns("a");
        for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let conf = CONF.replace("1.0.0", version);
            let result = suite.call("loopback", "ADD", "c1", &netns, "lo", &conf).success();
            assert_eq!(result["cniVersion"], if version.is_empty() { "0.1.0" } else { version });
        }
    });
}
