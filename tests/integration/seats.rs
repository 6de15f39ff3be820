//! Tenants that share a gateway's connection: each request says whose it is, and meets nothing of another tenant's.

use std::time::Duration;

use pappus_client::aio::Client;
use pappus_client::v1::{self, request, response};
use pappus_client::{Code, Error, Invocation};

use crate::fixture::{Supervisor, until};
use crate::house::{config, enter, house, own_uid, token};
use crate::kit::{self, as_user, refused};

/// Runs a case on a connection of this user, the gateway.
fn on_one_connection<T>(supervisor: &Supervisor, case: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { case(Client::connect(supervisor.socket()).await.unwrap()).await })
}

fn of(client: &Client, tenant: &str) -> Client {
    client.acting_for(token(tenant))
}

fn copy(bytes: &[u8]) -> Invocation {
    Invocation::new("copy").input("in", bytes).output("out")
}

#[test]
fn each_request_is_from_the_tenant_whose_token_it_has() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    kit::add_copy(&mut enter(&supervisor, "alice"));
    on_one_connection(&supervisor, async |client| {
        let (alice, bob) = (of(&client, "alice"), of(&client, "bob"));
        for _ in 0..3 {
            assert_eq!(&alice.invoke(copy(b"x")).await.unwrap().outputs[0].inline[..], b"x");
            refused(bob.invoke(copy(b"x")).await, Code::NotFound, "there is no function");
            assert_eq!(alice.quota().await.unwrap().name, "alice");
            assert_eq!(bob.quota().await.unwrap().name, "bob");
            // Without a token a request is from this user itself.
            assert_eq!(client.quota().await.unwrap().name, own_uid().to_string());
        }
        // Whoever a gateway acts for sees what that tenant sees.
        assert_eq!(alice.status().await.unwrap().functions, 1);
        assert_eq!(bob.status().await.unwrap().functions, 0);
    });
}

#[test]
fn nothing_that_one_tenant_opened_is_there_for_another() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    for tenant in ["alice", "bob"] {
        kit::add_copy(&mut enter(&supervisor, tenant));
    }
    on_one_connection(&supervisor, async |client| {
        let (alice, bob) = (of(&client, "alice"), of(&client, "bob"));
        let mut arena = alice.open_arena(4096).await.unwrap();
        let region = arena.store(b"secret").unwrap();
        let read = || Invocation::new("copy").input("in", region).output("out");
        refused(bob.invoke(read()).await, Code::InvalidArgument, "no arena");
        let overwrite = Invocation::new("copy").input("in", &b"stolen"[..]).output_to("out", region);
        refused(bob.invoke(overwrite).await, Code::InvalidArgument, "no arena");
        let close = || request::Body::CloseArena(v1::CloseArena { arena: arena.id() });
        refused(bob.call(close(), vec![]).await, Code::NotFound, "no arena");
        refused(client.call(close(), vec![]).await, Code::NotFound, "no arena");
        // The control: its tenant reads it.
        assert_eq!(&alice.invoke(read()).await.unwrap().outputs[0].inline[..], b"secret");

        // Bytes that one handed over are not there for another's registration.
        // With a section of its own, so that nobody had this module before.
        let wasm = [kit::probes(), &[0, 2, 1, b'x']].concat();
        let put = request::Body::PutBlob(v1::PutBlob { inline: wasm.into() });
        let response::Body::Blob(stored) = alice.call(put, vec![]).await.unwrap() else { panic!("no blob") };
        let variant = v1::Variant { format: "wasm".into(), arch: String::new(), sha256: stored.sha256 };
        let add = || {
            let module = v1::AddModule { name: "m".into(), variants: vec![variant.clone()] };
            request::Body::AddModule(module)
        };
        assert!(matches!(bob.call(add(), vec![]).await, Err(Error::Refused(_))));
        assert!(matches!(alice.call(add(), vec![]).await, Ok(response::Body::Module(_))), "the control");
    });
}

#[test]
fn no_tenant_cancels_calls_of_another() {
    let supervisor = house(&[("alice", ""), ("bob", "")]);
    kit::add_spin(&mut enter(&supervisor, "alice"));
    on_one_connection(&supervisor, async |client| {
        let (alice, bob) = (of(&client, "alice"), of(&client, "bob"));
        // The first request on the connection has the number 1.
        let call = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::select! {
                ended = alice.invoke(Invocation::new("spin")) => panic!("{ended:?}"),
                () = async {
                    let cancel = |id| request::Body::Cancel(v1::Cancel { request: id });
                    while supervisor.device().running == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    for id in 0..8 {
                        bob.call(cancel(id), vec![]).await.unwrap();
                        client.call(cancel(id), vec![]).await.unwrap();
                    }
                    // It was answered behind all of these, and the call still runs.
                    assert_eq!(alice.quota().await.unwrap().quotas.iter().find(|q| q.name == "calls").unwrap().used, 1);
                } => {}
            }
        });
        call.await.unwrap();
        // Dropped, the call is cancelled for its own tenant: the control.
        let used =
            async || alice.quota().await.unwrap().quotas.iter().find(|q| q.name == "calls").unwrap().used;
        while used().await > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_wrong_token_is_refused_and_the_connection_goes_on() {
    let address = crate::metrics::address(9479);
    let supervisor = Supervisor::configured(&config(&[("alice", "")]), &["--metrics", &address]);
    on_one_connection(&supervisor, async |client| {
        let alice = of(&client, "alice");
        let long = vec![b'x'; 100_000];
        for wrong in [&b"wrong"[..], token("bob").as_bytes(), &long] {
            let error = refused(
                client.acting_for(wrong.to_vec()).quota().await,
                Code::PermissionDenied,
                "no tenant's",
            );
            assert_eq!(error.place, "token");
            assert_eq!(alice.quota().await.unwrap().name, "alice");
        }
    });
    let text = crate::metrics::scrape(&address);
    assert_eq!(crate::metrics::value(&text, "pappus_wrong_tokens_total"), 3.0);
    assert_eq!(crate::metrics::value(&text, "pappus_protocol_violations_total"), 0.0);
}

#[test]
fn only_a_gateways_requests_have_tokens() {
    let supervisor = house(&[("alice", "")]);
    // On a connection that one token began.
    on_one_connection(&supervisor, async |client| {
        let act = v1::ActFor { token: token("alice").into_bytes().into() };
        client.call(request::Body::ActFor(act), vec![]).await.unwrap();
        refused(of(&client, "alice").quota().await, Code::PermissionDenied, "only a gateway");
        assert_eq!(client.quota().await.unwrap().name, "alice");
    });
    // Of a user that is no gateway.
    let strangers = as_user(54_325, || {
        on_one_connection(&supervisor, async |client| {
            refused(of(&client, "alice").quota().await, Code::PermissionDenied, "only a gateway");
            client.quota().await.unwrap().name
        })
    });
    assert!(strangers.is_none_or(|name| name == "54325"));
    // On the operator's socket.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let admin = Client::connect(supervisor.admin_socket()).await.unwrap();
        refused(of(&admin, "alice").quota().await, Code::PermissionDenied, "only a gateway");
    });
}

#[test]
fn a_gateway_that_is_no_tenant_may_ask_for_the_status_alone() {
    let text = format!("unknown-tenants = 'refuse'\n{}", config(&[("alice", "")]));
    let supervisor = Supervisor::configured(&text, &[]);
    on_one_connection(&supervisor, async |client| {
        until("calls can be made", || supervisor.status().ready);
        assert!(client.status().await.unwrap().ready);
        assert_eq!(of(&client, "alice").quota().await.unwrap().name, "alice");
        refused(client.quota().await, Code::PermissionDenied, "say first whom it acts for");
        refused(client.invoke(copy(b"x")).await, Code::PermissionDenied, "say first whom it acts for");
        assert_eq!(of(&client, "alice").quota().await.unwrap().name, "alice");
    });
}

#[test]
fn quotas_are_each_tenants_own() {
    let supervisor = house(&[("alice", "arena-bytes = 4096"), ("bob", "")]);
    on_one_connection(&supervisor, async |client| {
        let (alice, bob) = (of(&client, "alice"), of(&client, "bob"));
        let first = alice.open_arena(4096).await.unwrap();
        refused(alice.open_arena(4096).await, Code::ResourceExhausted, "arena-bytes");
        let _other = bob.open_arena(1 << 20).await.unwrap();
        alice.close_arena(first);
        alice.open_arena(4096).await.unwrap();
        let used =
            bob.quota().await.unwrap().quotas.into_iter().find(|quota| quota.name == "arena-bytes").unwrap();
        assert_eq!(used.used, 1 << 20);
    });
    // What either had open is gone with the connection.
    let mut bob = enter(&supervisor, "bob");
    until("the arenas are closed", || {
        bob.quota().unwrap().quotas.iter().all(|quota| quota.name != "arena-bytes" || quota.used == 0)
    });
}

#[test]
fn memory_of_a_large_request_is_its_tenants() {
    // Enough for a connection of its own, and for no request of a megabyte.
    let supervisor = house(&[("alice", "request-bytes = '512KiB'"), ("bob", "")]);
    for tenant in ["alice", "bob"] {
        kit::add_copy(&mut enter(&supervisor, tenant));
    }
    on_one_connection(&supervisor, async |client| {
        let large = vec![7; 500_000];
        let (alice, bob) = (of(&client, "alice"), of(&client, "bob"));
        refused(alice.invoke(copy(&large)).await, Code::ResourceExhausted, "request-bytes");
        assert_eq!(bob.invoke(copy(&large)).await.unwrap().outputs[0].bytes, 500_000);
        assert_eq!(alice.invoke(copy(b"x")).await.unwrap().outputs[0].bytes, 1);
    });
}

/// Whose token is no tenant's any more loses the seat; the others keep theirs, and every request is answered.
#[test]
fn a_token_that_is_taken_away_ends_what_it_opened() {
    let both = config(&[("alice", ""), ("bob", "")]);
    let supervisor = Supervisor::configured(&both, &[]);
    for tenant in ["alice", "bob"] {
        kit::add_copy(&mut enter(&supervisor, tenant));
    }
    kit::add_spin(&mut enter(&supervisor, "alice"));
    on_one_connection(&supervisor, async |client| {
        let (alice, bob) = (of(&client, "alice"), of(&client, "bob"));
        let _arena = alice.open_arena(4096).await.unwrap();
        let mine = bob.open_arena(4096).await.unwrap();
        let spin = alice.clone();
        let runs = async {
            while supervisor.device().running == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            supervisor.write("pappus.toml", config(&[("bob", "")]));
            supervisor.admin().reload().unwrap();
            refused(alice.quota().await, Code::PermissionDenied, "no tenant's");
            bob.call(request::Body::CloseArena(v1::CloseArena { arena: mine.id() }), vec![]).await.unwrap();
        };
        let (ended, ()) = tokio::join!(spin.invoke(Invocation::new("spin")), runs);
        refused(ended, Code::Cancelled, "");
    });
    // The tenant that comes back has nothing open.
    supervisor.write("pappus.toml", &both);
    supervisor.admin().reload().unwrap();
    let mut alice = enter(&supervisor, "alice");
    until("nothing is open", || {
        alice.quota().unwrap().quotas.iter().all(|quota| quota.name != "arena-bytes" || quota.used == 0)
    });
}

#[test]
fn an_output_that_does_not_fit_tells_its_size() {
    let supervisor = house(&[("alice", "")]);
    kit::add_copy(&mut enter(&supervisor, "alice"));
    on_one_connection(&supervisor, async |client| {
        let alice = of(&client, "alice");
        let mut arena = alice.open_arena(4 << 20).await.unwrap();
        let input = arena.alloc(2 << 20).unwrap();
        let call = || Invocation::new("copy").input("in", input);
        let error = refused(
            alice.invoke(call().output("out")).await,
            Code::InvalidArgument,
            "inline bytes in one call",
        );
        assert_eq!((error.output_bytes, &*error.place), (2 << 20, "output out"));
        let small = arena.alloc(1 << 20).unwrap();
        let error = refused(
            alice.invoke(call().output_to("out", small)).await,
            Code::InvalidArgument,
            "its region only",
        );
        assert_eq!(error.output_bytes, 2 << 20);
        // The control: another mistake has no size.
        let error = refused(alice.invoke(call().output("what")).await, Code::InvalidArgument, "no output");
        assert_eq!(error.output_bytes, 0);
    });
}
