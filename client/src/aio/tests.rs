//! The asynchronous client against a supervisor that the case plays itself, on the other end of the socket.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use pappus_proto::frame;
use pappus_proto::handshake::{GREETING_BYTES, Greeting};
use prost::Message;

use super::*;

/// The supervisor's end of a connection.
struct Played(UnixStream);

impl Played {
    /// The next request.
    fn request(&mut self) -> v1::Request {
        let mut header = [0; 8];
        self.0.read_exact(&mut header).unwrap();
        let mut message = vec![0; u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize];
        self.0.read_exact(&mut message).unwrap();
        v1::Request::decode(&message[..]).unwrap()
    }

    fn answer(&mut self, id: u64, body: response::Body) {
        self.0.write_all(&frame::encode(&v1::Response { id, body: Some(body) }, 0)).unwrap();
    }

    fn done(&mut self, id: u64) {
        self.answer(id, response::Body::Done(v1::Done {}));
    }
}

/// Runs a case with a client and a thread that plays the supervisor; what the thread returns comes back.
fn with<T: Send + 'static>(
    case: impl AsyncFnOnce(Client),
    supervisor: impl FnOnce(Played) -> T + Send + 'static,
) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let played = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut greeting = [0; GREETING_BYTES];
        socket.read_exact(&mut greeting).unwrap();
        socket.write_all(&Greeting::OURS.encode()).unwrap();
        supervisor(Played(socket))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { case(Client::connect(&path).await.unwrap()).await });
    drop(runtime);
    played.join().unwrap()
}

fn status() -> request::Body {
    request::Body::Status(v1::Empty {})
}

#[test]
fn answers_in_any_order_reach_who_waits_for_them() {
    let case = async |client: Client| {
        let (first, second) = tokio::join!(client.quota(), client.call(status(), Vec::new()));
        assert_eq!(first.unwrap().name, "acme");
        assert!(matches!(second.unwrap(), response::Body::Done(_)));
        assert_eq!(client.in_flight(), 0);
    };
    with(case, |mut supervisor| {
        let (first, second) = (supervisor.request(), supervisor.request());
        supervisor.done(second.id);
        let info = v1::TenantInfo { name: "acme".into(), ..Default::default() };
        supervisor.answer(first.id, response::Body::Tenant(info));
    });
}

#[test]
fn each_request_says_whose_it_is() {
    let case = async |client: Client| {
        let (a, b) = (client.acting_for(&b"a"[..]), client.acting_for(&b"b"[..]));
        for of in [&a, &client, &b] {
            of.call(status(), Vec::new()).await.unwrap();
        }
    };
    let tokens = with(case, |mut supervisor| {
        [(); 3].map(|()| {
            let request = supervisor.request();
            supervisor.done(request.id);
            request.tenant_token
        })
    });
    assert_eq!(tokens, [&b"a"[..], b"", b"b"]);
}

#[test]
fn a_call_that_is_dropped_is_cancelled_for_its_tenant_and_keeps_its_place_until_it_is_answered() {
    let (given_up, wait) = tokio::sync::oneshot::channel();
    let case = async move |client: Client| {
        let acme = client.acting_for(&b"acme"[..]);
        let call = acme.invoke(Invocation::new("f"));
        let dropped = tokio::time::timeout(Duration::from_millis(1), call).await;
        assert!(dropped.is_err() && client.in_flight() == 2, "the call, and what cancels it");
        given_up.send(()).unwrap();
        // Behind both, so that they are answered.
        client.call(status(), Vec::new()).await.unwrap();
        assert_eq!(client.in_flight(), 0);
    };
    with(case, |mut supervisor| {
        let call = supervisor.request();
        wait.blocking_recv().unwrap();
        let cancel = supervisor.request();
        let expected = request::Body::Cancel(v1::Cancel { request: call.id });
        assert_eq!((cancel.body, &cancel.tenant_token[..]), (Some(expected), &b"acme"[..]));
        let error = v1::Error::new(pappus_proto::Code::Cancelled, "cancelled");
        supervisor.answer(call.id, response::Body::Error(error));
        supervisor.done(cancel.id);
        let last = supervisor.request();
        supervisor.done(last.id);
    });
}

#[test]
fn an_arena_that_nobody_waits_for_any_more_is_closed() {
    let opened = response::Body::Arena(v1::ArenaOpened { arena: 7, bytes: 4096 });
    let close = request::Body::CloseArena(v1::CloseArena { arena: 7 });
    given_up(async |client: &Client| drop(client.open_arena(4096).await), opened, close);
}

#[test]
fn a_session_that_nobody_waits_for_any_more_is_closed() {
    let opened = response::Body::Session(v1::SessionOpened { session: 7, state_bytes: 8 });
    let close = request::Body::CloseSession(v1::CloseSession { session: 7 });
    given_up(async |client: &Client| drop(client.open_session("f").await), opened, close);
}

/// Gives up opening something before this answer comes: the client closes it then.
fn given_up(open: impl AsyncFn(&Client) + Send + 'static, opened: response::Body, close: request::Body) {
    let (given_up, wait) = tokio::sync::oneshot::channel();
    let case = async move |client: Client| {
        assert!(tokio::time::timeout(Duration::from_millis(1), open(&client)).await.is_err());
        given_up.send(()).unwrap();
        client.call(status(), Vec::new()).await.unwrap();
    };
    with(case, |mut supervisor| {
        let open = supervisor.request();
        wait.blocking_recv().unwrap();
        let last = supervisor.request();
        supervisor.answer(open.id, opened);
        let asked = supervisor.request();
        assert_eq!(asked.body, Some(close));
        supervisor.done(asked.id);
        supervisor.done(last.id);
    });
}

#[test]
fn an_arena_whose_answer_came_and_was_not_looked_at_is_closed() {
    let case = async move |client: Client| {
        let mut opening = Box::pin(client.open_arena(4096));
        assert!(polled_once(opening.as_mut()).await.is_none());
        while client.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        drop(opening);
        client.call(status(), Vec::new()).await.unwrap();
    };
    with(case, |mut supervisor| {
        let open = supervisor.request();
        let opened = v1::ArenaOpened { arena: 7, bytes: 4096 };
        supervisor.answer(open.id, response::Body::Arena(opened));
        let close = supervisor.request();
        assert_eq!(close.body, Some(request::Body::CloseArena(v1::CloseArena { arena: 7 })));
        supervisor.done(close.id);
        let last = supervisor.request();
        supervisor.done(last.id);
    });
}

#[test]
fn who_waits_is_told_why_a_connection_ends() {
    for (sent, words) in [
        (
            v1::Response {
                id: 0,
                body: Some(response::Body::Error(v1::Error::new(pappus_proto::Code::Unavailable, "full"))),
            },
            "full",
        ),
        (v1::Response { id: 99, body: Some(response::Body::Done(v1::Done {})) }, "was not sent"),
        (v1::Response { id: 1, body: None }, "empty answer"),
    ] {
        let case = async move |client: Client| {
            let error = client.quota().await.unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(client.is_over());
            let again = client.quota().await.unwrap_err();
            assert_eq!(again.to_string(), error.to_string());
        };
        with(case, move |mut supervisor| {
            supervisor.request();
            supervisor.0.write_all(&frame::encode(&sent, 0)).unwrap();
            // Until the client closes its side.
            let _ = supervisor.0.read(&mut [0]);
        });
    }
}

#[test]
fn what_a_slow_supervisor_does_not_read_is_bounded() {
    const BYTES: usize = 1 << 20;
    let case = async |client: Client| {
        let blob = || request::Body::PutBlob(v1::PutBlob { inline: vec![7; BYTES].into() });
        let all: Vec<_> = (0..32)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.call(blob(), Vec::new()).await.map(drop) })
            })
            .collect();
        while client.in_flight() < 5 {
            tokio::task::yield_now().await;
        }
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        // Some wait in the socket and up to 4 MiB and a frame here; the others were not even encoded.
        assert!(client.in_flight() < 12, "{}", client.in_flight());
        let last = client.call(status(), Vec::new());
        let mut last = std::pin::pin!(last);
        assert!(polled_once(last.as_mut()).await.is_none());
        for one in all {
            one.await.unwrap().unwrap();
        }
        last.await.unwrap();
    };
    with(case, |mut supervisor| {
        // It reads only after the client has had time to fill everything.
        std::thread::park_timeout(Duration::from_millis(100));
        for _ in 0..33 {
            let request = supervisor.request();
            supervisor.done(request.id);
        }
    });
}

/// Polls a future once.
async fn polled_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
