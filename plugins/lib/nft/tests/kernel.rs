//! What the kernel makes of our bytes, as `nft` reads it back, in a network namespace of the test's own.

use nft::{
    Batch, Chain, Connection, Element, Error, Expression, Family, Hook, Meta, NatKind, PayloadBase, Register, Set,
    Table, UserData, Value, Verdict, concatenate, covers, expressions_attribute, types,
};
use testkit::{World, world};

fn table() -> Table {
    Table::new(Family::Inet, "t")
}

fn chain(name: &str, hook: Option<Hook>) -> Chain {
    Chain {
        name: name.to_owned(),
        hook,
    }
}

fn nat(number: u32, priority: i32) -> Option<Hook> {
    Some(Hook {
        kind: "nat",
        number,
        priority,
    })
}

/// `dnat ip to meta l4proto . th dport map @<map>`.
fn dnat_by(map: &str) -> Vec<Expression> {
    let port = Register::FIRST.after(1);
    vec![
        Expression::Meta(Meta::NetworkProtocol, Register::FIRST),
        Expression::Equal(Register::FIRST, vec![Family::Ipv4 as u8]),
        Expression::Meta(Meta::TransportProtocol, Register::FIRST),
        Expression::Payload {
            base: PayloadBase::Transport,
            offset: 2,
            len: 2,
            to: port,
        },
        Expression::MapTo(map.to_owned(), Register::FIRST, Register::FIRST),
        Expression::Nat {
            kind: NatKind::Destination,
            family: Family::Ipv4,
            address: Register::FIRST,
            port: Some(port),
        },
    ]
}

fn source_in(map: &str) -> Vec<Expression> {
    vec![
        Expression::Meta(Meta::NetworkProtocol, Register::FIRST),
        Expression::Equal(Register::FIRST, vec![Family::Ipv4 as u8]),
        Expression::Payload {
            base: PayloadBase::Network,
            offset: 12,
            len: 4,
            to: Register::FIRST,
        },
        Expression::VerdictMap(map.to_owned(), Register::FIRST),
    ]
}

fn tcp(port: u16) -> Vec<u8> {
    concatenate(&[&[6], &port.to_be_bytes()])
}

fn to(last: u8, port: u16) -> Element {
    Element {
        value: Some(Value::Data(concatenate(&[&[10, 0, 0, last], &port.to_be_bytes()]))),
        user_data: UserData::comment("owner"),
        ..Element::key(tcp(8080))
    }
}

fn ports() -> Set {
    let value = [types::IPV4_ADDR, types::INET_SERVICE];
    Set::map("ports", &[types::INET_PROTO, types::INET_SERVICE], &value)
}

/// Everything that the crate can write, in one batch.
fn everything() -> Batch {
    let (t, none) = (table(), UserData::default());
    let mut batch = Batch::new();
    batch.add_table(&t);
    batch.add_set(&t, &ports());
    let keys = [types::INET_PROTO, types::INET_SERVICE];
    batch.add_set(&t, &Set::map("ranges", &keys, &[types::IPV4_ADDR]).with_intervals());
    batch.add_set(&t, &Set::verdict_map("sources", &[types::IPV4_ADDR]));
    batch.add_set(&t, &Set::keys("owners", &[types::IPV6_ADDR, types::MARK]));
    batch.add_chain(&t, &chain("pre", nat(Hook::PREROUTING, -95)));
    batch.add_chain(&t, &chain("post", nat(Hook::POSTROUTING, 105)));
    batch.add_chain(&t, &chain("ports", None));
    batch.add_chain(&t, &chain("net", None));
    let local = [
        Expression::DestinationType(Register::FIRST),
        Expression::Equal(Register::FIRST, 2u32.to_ne_bytes().to_vec()),
        Expression::Verdict(Verdict::Goto("ports".to_owned())),
    ];
    batch.append_rule(&t, "pre", &local, &UserData::comment("local only"));
    batch.append_rule(&t, "ports", &dnat_by("ports"), &none);
    batch.append_rule(&t, "post", &source_in("sources"), &none);
    let subnet = [
        Expression::Payload {
            base: PayloadBase::Network,
            offset: 16,
            len: 4,
            to: Register::FIRST,
        },
        Expression::Mask(Register::FIRST, vec![255, 255, 0, 0]),
        Expression::Equal(Register::FIRST, vec![10, 88, 0, 0]),
        Expression::Verdict(Verdict::Return),
    ];
    batch.append_rule(&t, "net", &[Expression::Masquerade], &none);
    let mut guarded = vec![
        Expression::Meta(Meta::NetworkProtocol, Register::FIRST),
        Expression::Equal(Register::FIRST, vec![Family::Ipv4 as u8]),
    ];
    guarded.extend(subnet);
    batch.prepend_rule(&t, "net", &guarded, &none);
    batch.add_element(&t, "ports", &to(2, 80));
    let range = Element {
        key: tcp(100),
        key_end: Some(tcp(200)),
        value: Some(Value::Data(vec![10, 0, 0, 3])),
        user_data: UserData::default(),
    };
    batch.add_element(&t, "ranges", &range);
    let source = Element {
        value: Some(Value::Verdict(Verdict::Jump("net".to_owned()))),
        ..Element::key(vec![10, 88, 0, 5])
    };
    batch.add_element(&t, "sources", &source);
    batch
}

fn listing(w: &World) -> String {
    w.sh("nft list ruleset")
}

#[test]
fn nft_reads_back_what_was_written() {
    world(|w| {
        Connection::open().unwrap().commit(&everything(), None).unwrap();
        let listing = listing(w);
        for line in [
            "type inet_proto . inet_service : ipv4_addr . inet_service",
            "elements = { tcp . 8080 comment \"owner\" : 10.0.0.2 . 80 }",
            "flags interval",
            "elements = { tcp . 100-200 : 10.0.0.3 }",
            "elements = { 10.88.0.5 : jump net }",
            "type nat hook prerouting priority dstnat + 5; policy accept;",
            "fib daddr type local goto ports comment \"local only\"",
            "dnat ip to meta l4proto . th dport map @ports",
            "ip saddr vmap @sources",
            "ip daddr 10.88.0.0/16 return\n\t\tmasquerade",
        ] {
            assert!(listing.contains(line), "{line} is not in\n{listing}");
        }
        // What nft lists, nft can load.
        w.sh("nft list ruleset > /run/saved; nft flush ruleset; nft -f /run/saved");
    });
}

#[test]
fn what_is_read_is_what_was_written() {
    world(|_| {
        let mut connection = Connection::open().unwrap();
        connection.commit(&everything(), None).unwrap();
        let (t, key) = (table(), tcp(8080));
        let wanted: [(&str, &[u8]); 4] = [
            ("ports", &key),
            ("ports", &tcp(1)),
            ("ranges", &tcp(150)),
            ("nothing", &key),
        ];
        let found = connection.elements(&t, &wanted).unwrap();
        assert_eq!(found[0], Some(to(2, 80)));
        assert_eq!(found[1], None);
        assert_eq!(found[2].as_ref().unwrap().key_end, Some(tcp(200)));
        assert_eq!(found[3], None);
        assert_eq!(connection.all_elements(&t, "ports").unwrap(), [to(2, 80)]);

        let chains = connection.chains(&t, &["net", "nothing"]).unwrap();
        assert_eq!(chains[0].as_ref().unwrap().used, 3, "two rules and an element");
        assert_eq!(chains[1], None);

        let rules = connection.rules(&t, "ports").unwrap();
        assert_eq!(rules.len(), 1);
        assert!(covers(
            expressions_attribute(&dnat_by("ports")).as_bytes(),
            &rules[0].attributes
        ));
        assert!(!covers(
            expressions_attribute(&dnat_by("other")).as_bytes(),
            &rules[0].attributes
        ));
        assert_eq!(
            connection.rules(&t, "pre").unwrap()[0].user_data,
            UserData::comment("local only")
        );
        assert!(
            connection
                .rules(&Table::new(Family::Inet, "no"), "pre")
                .unwrap()
                .is_empty()
        );
        assert!(connection.has_table(&t).unwrap());
        assert!(!connection.has_table(&Table::new(Family::Bridge, "t")).unwrap());
    });
}

#[test]
fn a_batch_is_all_or_nothing_and_names_what_failed() {
    world(|w| {
        let mut connection = Connection::open().unwrap();
        let mut batch = everything();
        batch.delete_chain(&table(), "nothing");
        let error = connection.commit(&batch, None).unwrap_err();
        assert!(error.is_absent(), "{error}");
        assert!(
            error.to_string().starts_with("delete chain nothing of table inet t: "),
            "{error}"
        );
        assert_eq!(listing(w), "");
    });
}

#[test]
fn trying_out_tells_what_would_be_refused_and_does_nothing() {
    world(|w| {
        let mut connection = Connection::open().unwrap();
        connection.try_out(&everything()).unwrap();
        let mut batch = everything();
        batch.append_rule(&table(), "net", &dnat_by("nothing"), &UserData::default());
        let error = connection.try_out(&batch).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("add a rule to chain net of table inet t: "),
            "{error}"
        );
        assert_eq!(listing(w), "");
    });
}

#[test]
fn a_batch_for_an_older_generation_changes_nothing() {
    world(|w| {
        let mut connection = Connection::open().unwrap();
        let generation = connection.generation().unwrap();
        w.sh("nft add table inet somebody");
        let error = connection.commit(&everything(), Some(generation)).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error}");
        let generation = connection.generation().unwrap();
        connection.commit(&everything(), Some(generation)).unwrap();
        assert_ne!(connection.generation().unwrap(), generation);
    });
}

#[test]
fn an_element_is_replaced_within_one_batch() {
    world(|_| {
        let mut connection = Connection::open().unwrap();
        connection.commit(&everything(), None).unwrap();
        let mut twice = Batch::new();
        twice.add_element(&table(), "ports", &to(9, 90));
        assert_eq!(connection.commit(&twice, None).unwrap_err().errno(), Some(libc::EEXIST));

        let mut replace = Batch::new();
        replace.delete_element(&table(), "ports", &to(2, 80));
        replace.add_element(&table(), "ports", &to(9, 90));
        connection.commit(&replace, None).unwrap();
        assert_eq!(connection.all_elements(&table(), "ports").unwrap(), [to(9, 90)]);
    });
}

#[test]
fn a_chain_goes_once_nothing_leads_to_it() {
    world(|w| {
        let mut connection = Connection::open().unwrap();
        connection.commit(&everything(), None).unwrap();
        let mut early = Batch::new();
        early.delete_chain(&table(), "net");
        assert_eq!(connection.commit(&early, None).unwrap_err().errno(), Some(libc::EBUSY));

        let mut batch = Batch::new();
        batch.delete_element(&table(), "sources", &Element::key(vec![10, 88, 0, 5]));
        batch.delete_chain(&table(), "net");
        connection.commit(&batch, None).unwrap();
        assert!(!listing(w).contains("net {"));
    });
}

#[test]
fn ten_thousand_elements_go_into_one_batch_and_come_back() {
    world(|_| {
        let mut connection = Connection::open().unwrap();
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_set(&table(), &ports());
        for port in 1..=10_000 {
            batch.add_element(
                &table(),
                "ports",
                &Element {
                    key: tcp(port),
                    ..to(2, 80)
                },
            );
        }
        connection.commit(&batch, None).unwrap();
        assert_eq!(connection.all_elements(&table(), "ports").unwrap().len(), 10_000);
        let keys: Vec<_> = (1..=200).map(tcp).collect();
        let wanted: Vec<_> = keys.iter().map(|key| ("ports", key.as_slice())).collect();
        assert!(
            connection
                .elements(&table(), &wanted)
                .unwrap()
                .iter()
                .all(Option::is_some)
        );
    });
}

#[test]
fn rules_are_deleted_by_handle() {
    world(|_| {
        let mut connection = Connection::open().unwrap();
        connection.commit(&everything(), None).unwrap();
        let rules = connection.rules(&table(), "net").unwrap();
        let mut batch = Batch::new();
        batch.delete_rule(&table(), "net", rules[1].handle);
        batch.flush_chain(&table(), "pre");
        connection.commit(&batch, None).unwrap();
        assert_eq!(connection.rules(&table(), "net").unwrap(), rules[..1]);
        assert!(connection.rules(&table(), "pre").unwrap().is_empty());
        let mut all = Batch::new();
        all.delete_table(&table());
        connection.commit(&all, None).unwrap();
        assert!(!connection.has_table(&table()).unwrap());
    });
}
