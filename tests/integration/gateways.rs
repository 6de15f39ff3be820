//! Who is which tenant: by uid, by a token from a gateway, and by a configuration that can be read again (ATTACKS 24, 29).

use std::collections::HashMap;

use pappus_client::{Client, Code, Error, Invocation, v1::request};
use rustix::process::Signal;

use crate::fixture::{Supervisor, signal, until};
use crate::house::{config, enter, house, own_uid, token};
use crate::kit::{self, as_user, refused};
use crate::raw::{self, Raw};

/// The connection is over; what the supervisor said last, if anything.
fn is_over(client: &mut Client) {
    match client.status() {
        Err(Error::Lost | Error::Io { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gateway_acts_for_the_tenant_whose_token_it_has() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    kit::add_copy(&mut alice);
    kit::works(&mut alice);
    assert_eq!(bob.list_functions().unwrap(), []);
    refused(kit::copied(&mut bob, b"x"), Code::NotFound, "there is no function");
    // On another connection it is the same tenant, and this user itself is a third.
    kit::works(&mut enter(&supervisor, "alice"));
    let mut own = supervisor.client();
    assert_eq!(own.list_functions().unwrap(), []);
    assert_eq!(own.quota().unwrap().name, own_uid().to_string());
    assert_eq!(alice.quota().unwrap().name, "alice");
    // A gateway that acts for a tenant sees what that tenant sees, though its user is the operator.
    assert!(own.status().unwrap().connections > 0, "the control");
    let status = alice.status().unwrap();
    assert_eq!((status.functions, status.connections, status.uptime_ms), (1, 0, 0));
    assert_eq!((status.devices[0].completed, status.devices[0].workers.len()), (0, 0));
}

#[test]
fn a_wrong_token_ends_the_connection() {
    let supervisor = house(&[("alice", "")]);
    let text = std::fs::read_to_string(supervisor.path("pappus.toml")).unwrap();
    let hash = text.split('"').nth(1).unwrap();
    let long = vec![b'x'; 100_000];
    for wrong in [&b""[..], b"wrong", token("bob").as_bytes(), hash.as_bytes(), &long] {
        let mut client = supervisor.client();
        refused(client.act_for(wrong), Code::PermissionDenied, "this token is no tenant's");
        is_over(&mut client);
    }
    enter(&supervisor, "alice");
    let log = supervisor.log();
    assert!(
        log.contains("its token is no tenant's") && !log.contains("wrong") && !log.contains(hash),
        "{log}"
    );
}

#[test]
fn a_token_counts_once_first_and_from_a_gateway_only() {
    let supervisor = house(&[("alice", "")]);
    let mut client = supervisor.client();
    client.status().unwrap();
    refused(client.act_for(token("alice").as_bytes()), Code::PermissionDenied, "first request");
    let mut twice = enter(&supervisor, "alice");
    refused(twice.act_for(token("alice").as_bytes()), Code::PermissionDenied, "first request");
    assert_eq!(twice.quota().unwrap().name, "alice");
    // Another user, who has the right token, and the operator's own socket.
    if let Some(mut stranger) = as_user(54_322, || supervisor.client()) {
        refused(stranger.act_for(token("alice").as_bytes()), Code::PermissionDenied, "gateway");
        assert_eq!(stranger.quota().unwrap().name, "54322");
    }
    refused(
        supervisor.admin().act_for(token("alice").as_bytes()),
        Code::PermissionDenied,
        "leave the token out",
    );
}

#[test]
fn uids_are_tenants_by_the_configuration() {
    let text = format!("unknown-tenants = 'refuse'\n[tenants.acme]\nuid = [{}, 54323]", own_uid());
    let mut supervisor = Supervisor::configured(&text, &[]);
    let mut own = supervisor.client();
    assert_eq!(own.quota().unwrap().name, "acme");
    kit::add_copy(&mut own);
    if let Some((mut same, mut other)) =
        as_user(54_323, || supervisor.client()).zip(as_user(54_324, || supervisor.client()))
    {
        kit::works(&mut same);
        refused(other.status(), Code::PermissionDenied, "[tenants.NAME] uid = 54324");
        // The supervisor's own user is the operator as the tenant that it is; others of that tenant are not.
        assert_eq!(same.status().unwrap().connections, 0);
    }
    assert!(supervisor.path("state/tenants/acme/functions/copy.json").exists());
    supervisor.kill9();
    supervisor.restart();
    kit::works(&mut supervisor.client());
}

#[test]
fn a_refused_client_is_told_why() {
    let text = format!("unknown-tenants = 'refuse'\n[tenants.acme]\nuid = {}", own_uid() + 1);
    let supervisor = Supervisor::configured(&text, &[]);
    // By name, and by a connection that says nothing.
    as_user(54_324, || {
        refused(supervisor.client().status(), Code::PermissionDenied, "ask the operator to name it");
        let mut silent = Raw::connect(&supervisor.socket());
        assert!(silent.greeting().is_some());
        assert_eq!(silent.error().0, 0);
        silent.is_closed();
    });
    // Nor is this user one, if it is the supervisor's own: it can look on, and do nothing else.
    let mut own = supervisor.client();
    assert!(!own.status().unwrap().devices[0].workers.is_empty());
    refused(own.list_functions(), Code::PermissionDenied, "use the admin socket");
    refused(own.quota(), Code::PermissionDenied, "use the admin socket");
    refused(own.invoke(&Invocation::new("copy")), Code::PermissionDenied, "use the admin socket");
    until("calls can be made", || supervisor.pappus(&["status", "--ready"]).code == 0);
    let told = supervisor.pappus(&["function", "list"]);
    assert!(told.code == 3 && told.stderr.contains("is the supervisor's own user"), "{told:?}");
    // Through the other door the operator does everything.
    let mut admin = supervisor.admin();
    kit::add_copy(&mut admin);
    kit::works(&mut admin);
    // Once strangers are accepted it is a tenant, and afterwards it is none again.
    supervisor.write("pappus.toml", text.replace("refuse", "accept"));
    admin.reload().unwrap();
    let mut tenant = supervisor.client();
    tenant.list_functions().unwrap();
    supervisor.write("pappus.toml", &text);
    admin.reload().unwrap();
    is_over(&mut tenant);
    // No tenant can be the user that stands for all users without a number here.
    if let Some(mut overflow) = as_user(65_534, || supervisor.client()) {
        refused(overflow.status(), Code::PermissionDenied, "not mapped");
    }
}

#[test]
fn a_gateway_that_is_no_tenant_must_say_for_whom_it_acts() {
    let text = format!("unknown-tenants = 'refuse'\n{}", config(&[("alice", "")]));
    let supervisor = Supervisor::configured(&text, &[]);
    let mut silent = supervisor.client();
    refused(silent.list_functions(), Code::PermissionDenied, "say first whom it acts for");
    is_over(&mut silent);
    assert_eq!(enter(&supervisor, "alice").list_functions().unwrap(), []);
    // Requests that were sent behind the token are the tenant's, however few reads they arrive in.
    let mut raw = Raw::greeted(&supervisor.socket());
    let act = pappus_client::v1::ActFor { token: token("alice").into_bytes().into() };
    let both = [raw::request(1, request::Body::ActFor(act), 0), raw::request(2, raw::status(), 0)].concat();
    raw.send(&both);
    assert_eq!([raw.body().0, raw.body().0], [1, 2]);
}

/// A broken file changes nothing; a sound one ends the connections of those who are no tenants any more.
#[test]
fn tenants_are_read_again() {
    let sound = config(&[("alice", ""), ("bob", "arena-bytes = 4096")]);
    let supervisor = Supervisor::configured(&sound, &[]);
    let (mut alice, mut bob) = (enter(&supervisor, "alice"), enter(&supervisor, "bob"));
    kit::add_copy(&mut alice);
    kit::add_copy(&mut bob);
    let mut admin = supervisor.admin();
    for (broken, words) in [
        (format!("{sound}\n[tenants.'a b']\nuid = 7"), "a tenant's name"),
        (format!("{sound}\n[tenants.carol]\ncalls = 1"), "no client could be this tenant"),
        (format!("{sound}\n[tenants.bob"), "pappus.toml"),
        (format!("sokcet = '/s'\n{sound}"), ":1:1: sokcet: no such setting"),
    ] {
        supervisor.write("pappus.toml", broken);
        refused(admin.reload(), Code::InvalidArgument, words);
        kit::works(&mut alice);
        kit::works(&mut enter(&supervisor, "bob"));
    }
    signal(supervisor.pid(), Signal::HUP);
    until("it is in the log", || supervisor.log().contains("SIGHUP"));
    kit::works(&mut alice);
    refused(alice.reload(), Code::PermissionDenied, "admin socket");

    supervisor.write("pappus.toml", config(&[("bob", "arena-bytes = 8192")]));
    admin.reload().unwrap();
    is_over(&mut alice);
    refused(supervisor.client().act_for(token("alice").as_bytes()), Code::PermissionDenied, "no tenant's");
    kit::works(&mut bob);
    let _more = bob.open_arena(8192).unwrap();
    // A tenant that comes back, by a signal this time, has everything that it had.
    supervisor.write("pappus.toml", &sound);
    signal(supervisor.pid(), Signal::HUP);
    until("alice is back", || supervisor.client().act_for(token("alice").as_bytes()).is_ok());
    kit::works(&mut enter(&supervisor, "alice"));
    // The operator's connection belongs to no tenant.
    admin.settings(HashMap::new()).unwrap();
}

#[test]
fn without_a_configuration_there_is_nothing_to_read_again() {
    let supervisor = Supervisor::start();
    refused(supervisor.admin().reload(), Code::InvalidArgument, "--config FILE");
    signal(supervisor.pid(), Signal::HUP);
    until("it is in the log", || supervisor.log().contains("SIGHUP"));
    supervisor.status();
}

#[test]
fn the_command_makes_tokens_and_acts_for_tenants() {
    let supervisor = house(&[("alice", "")]);
    let made = supervisor.pappus(&["token"]);
    let hash = made.stderr.trim();
    assert!(made.code == 0 && hash.starts_with("token-sha256 = \""), "{made:?}");
    supervisor.write("pappus.toml", format!("gateways = [{}]\n[tenants.acme]\n{hash}\n", own_uid()));
    supervisor.write("acme.token", &made.stdout);
    let admin = supervisor.admin_socket();
    supervisor.ok(&["--socket", admin.to_str().unwrap(), "reload"]);
    assert!(supervisor.ok(&["--token-file", "acme.token", "quota"]).contains("tenant acme"));
    assert_eq!(supervisor.pappus(&["--token-file", "nothing", "quota"]).code, 3);
    supervisor.write("other.token", "pappus-0");
    let other = supervisor.pappus(&["--token-file", "other.token", "quota"]);
    assert!(other.code == 3 && other.stderr.contains("no tenant's"), "{other:?}");
}

#[test]
fn a_wrong_token_is_counted_by_itself() {
    let address = crate::metrics::address(9478);
    let supervisor = Supervisor::configured(&config(&[("alice", "")]), &["--metrics", &address]);
    let counts = || {
        let text = crate::metrics::scrape(&address);
        ["pappus_wrong_tokens_total", "pappus_protocol_violations_total"]
            .map(|name| crate::metrics::value(&text, name))
    };
    assert_eq!(counts(), [0.0, 0.0]);
    let mut stranger = supervisor.client();
    refused(stranger.act_for(b"guessed"), Code::PermissionDenied, "this token is no tenant's");
    is_over(&mut stranger);
    until("it is counted", || counts() == [1.0, 0.0]);
    // The control: what is no greeting breaks the protocol.
    Raw::connect(&supervisor.socket()).send(b"GET / HTTP/1.1\r\n\r\n");
    until("that is counted, too", || counts() == [1.0, 1.0]);
}
