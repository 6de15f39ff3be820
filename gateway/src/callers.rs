//! From a request's token to what is known of whoever sent it. A token is checked by the supervisor, with every request; here its hash
//! finds what was learnt before, and how many of its requests are under way. A token that is not known yet is asked about before
//! anything else of its request is read.
//!
//! ```text
//! Authorization ──none──► this program's own tenant, where that is allowed; else UNAUTHENTICATED
//!       └──Bearer──► known: a place among the token's own
//!                └─► not yet: a place among all strangers' ──the supervisor knows the token──► known
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use bytes::Bytes;
use pappus_client::aio::Client;
use pappus_client::v1::{self, request};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::{Failure, Kind, Result};
use crate::jwt::{Jwt, JwtError, looks_signed};
use crate::limits::{
    LOOK_AGAIN, MAX_CALLS_OF_STRANGERS, MAX_CALLS_PER_TOKEN, MAX_JWT_BYTES, MAX_MODELS_PER_TOKEN,
    MAX_TOKEN_BYTES, MAX_TOKENS, READY_FOR,
};
use crate::memory::Owned;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::places::Key;
use crate::sequences::Sequences;
use crate::shared_memory::Regions;
use crate::statistics::{ByVersion, Counts, Statistics};
use crate::traces::Traces;
use crate::upstream::Upstream;

/// Whoever may send requests.
#[derive(Debug)]
pub struct Callers {
    upstream: Upstream,
    /// True if requests without a token are of this program's own user.
    own_tenant: bool,
    /// True if tensors may be in shared memory of this machine.
    shared_memory: bool,
    /// What signed tokens are judged by, where they are taken.
    jwt: RwLock<Option<Arc<Jwt>>>,
    known: Mutex<HashMap<Key, Arc<Known>>>,
    /// What is counted for whoever watches.
    pub metrics: Arc<Metrics>,
    /// Where traces go.
    pub traces: Traces,
    strangers: Arc<Semaphore>,
    /// Whether the supervisor took calls, and when it said so: one request asks at a time, and others have that answer, too.
    ready: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

/// What is known of a token.
#[derive(Debug)]
pub struct Known {
    places: Arc<Semaphore>,
    models: Mutex<HashMap<String, Remembered>>,
    statistics: ByVersion,
    regions: Regions,
    sequences: Sequences,
    memory: Owned,
}

/// A function, and when it was looked for.
#[derive(Debug)]
struct Remembered {
    model: Arc<Model>,
    looked: Instant,
}

impl Default for Known {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(MAX_CALLS_PER_TOKEN));
        let (models, statistics, regions, sequences, memory) = Default::default();
        Self { places, models, statistics, regions, sequences, memory }
    }
}

impl Known {
    /// True if nothing of the token is under way, and no sequence was used lately.
    fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.sequences.are_unused()
    }
}

/// Whoever sent one request, for as long as it is under way.
#[derive(Debug)]
pub struct Caller {
    /// The way to the supervisor, for requests of this caller.
    pub client: Client,
    /// What stands for the caller's token.
    pub key: Key,
    callers: Arc<Callers>,
    known: Arc<Known>,
    _place: OwnedSemaphorePermit,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps are whole after every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callers {
    /// Nobody is known yet.
    pub fn new(
        upstream: Upstream,
        own_tenant: bool,
        shared_memory: bool,
        jwt: Option<Jwt>,
        traces: Traces,
    ) -> Arc<Self> {
        let strangers = Arc::new(Semaphore::new(MAX_CALLS_OF_STRANGERS));
        let jwt = RwLock::new(jwt.map(Arc::new));
        let (known, metrics, ready) = Default::default();
        Arc::new(Self { upstream, own_tenant, shared_memory, jwt, known, metrics, traces, strangers, ready })
    }

    /// Whoever sent a request with this header `Authorization`.
    pub async fn enter(self: &Arc<Self>, authorization: Option<&[u8]>) -> Result<Caller> {
        let token = match authorization {
            Some(header) => Some(self.token(bearer(header)?)?),
            None if self.own_tenant => None,
            None => {
                return Err(Failure::new(
                    Kind::Unauthenticated,
                    "no token: send the header `Authorization: Bearer TOKEN`, with the token that the operator gave you",
                ));
            }
        };
        let key: Key = token.as_ref().map_or([0; 32], |token| Sha256::digest(token).into());
        let known = lock(&self.known).get(&key).cloned();
        let (client, known) = match known {
            Some(known) => (self.upstream.client(token.as_ref()).await?, known),
            None => {
                let _place = place(&self.strangers)?;
                let client = self.upstream.client(token.as_ref()).await?;
                prove(&client).await?;
                (client, self.remember(key))
            }
        };
        let place = place(&known.places)?;
        Ok(Caller { client, key, callers: self.clone(), known, _place: place })
    }

    /// The tenant's own token, of what a client sent.
    fn token(&self, sent: &[u8]) -> Result<Bytes> {
        let jwt = self.jwt.read().unwrap_or_else(PoisonError::into_inner).clone();
        match jwt {
            Some(jwt) if looks_signed(sent) => jwt.token(sent),
            _ if sent.len() > MAX_TOKEN_BYTES => {
                Err(Failure::new(Kind::Unauthenticated, "this token is longer than any"))
            }
            _ => Ok(Bytes::copy_from_slice(sent)),
        }
    }

    /// Reads keys and tokens again by which signed tokens are judged.
    pub fn reload(&self) -> std::result::Result<(), JwtError> {
        let rules = {
            let jwt = self.jwt.read().unwrap_or_else(PoisonError::into_inner);
            jwt.as_ref().map(|jwt| jwt.rules().clone())
        };
        if let Some(rules) = rules {
            let jwt = Arc::new(Jwt::load(rules)?);
            *self.jwt.write().unwrap_or_else(PoisonError::into_inner) = Some(jwt);
        }
        Ok(())
    }

    /// True if tensors may be in shared memory of this machine.
    pub fn has_shared_memory(&self) -> bool {
        self.shared_memory
    }

    /// True if the supervisor is there and takes calls, or did just now.
    pub async fn is_ready(&self) -> bool {
        let mut last = self.ready.lock().await;
        if let Some((_, ready)) = last.filter(|(asked, _)| asked.elapsed() < READY_FOR) {
            return ready;
        }
        let ready = match self.upstream.client(None).await {
            Ok(client) => client.status().await.is_ok_and(|status| status.ready && !status.draining),
            Err(_) => false,
        };
        *last = Some((Instant::now(), ready));
        ready
    }

    /// What is known of a token that the supervisor knows: the same for all of its requests, also those that come at once.
    fn remember(&self, key: Key) -> Arc<Known> {
        let mut all = lock(&self.known);
        if let Some(known) = all.get(&key) {
            return known.clone();
        }
        if all.len() >= MAX_TOKENS
            && let Some(idle) = all.iter().find(|(_, known)| known.is_idle()).map(|(key, _)| *key)
        {
            all.remove(&idle);
        }
        let new = Arc::new(Known::default());
        if all.len() < MAX_TOKENS {
            all.insert(key, new.clone());
        }
        new
    }
}

/// A place for one request more.
fn place(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    places.clone().try_acquire_owned().map_err(|_| {
        Failure::busy("as many requests are under way as the gateway takes of one token: try again")
    })
}

/// Has the supervisor check the token of a client: by cancelling nothing, which it does at once, however much it has to do.
async fn prove(client: &Client) -> Result<()> {
    client.call(request::Body::Cancel(v1::Cancel { request: 0 }), Vec::new()).await?;
    Ok(())
}

/// The token of a header.
fn bearer(header: &[u8]) -> Result<&[u8]> {
    let wrong = |why: &str| Failure::new(Kind::Unauthenticated, why);
    let (scheme, token) = header
        .iter()
        .position(|byte| *byte == b' ')
        .map(|at| (&header[..at], header[at + 1..].trim_ascii()))
        .ok_or_else(|| wrong("the header `Authorization` is not `Bearer TOKEN`"))?;
    match scheme.eq_ignore_ascii_case(b"bearer") {
        true if token.is_empty() => Err(wrong("the header `Authorization` has no token behind `Bearer`")),
        true if token.len() > MAX_JWT_BYTES => Err(wrong("this token is longer than any")),
        true => Ok(token),
        false => Err(wrong("the gateway takes tokens only: `Authorization: Bearer TOKEN`")),
    }
}

impl Caller {
    /// What all of its requests have of the memory for bodies.
    pub fn memory(&self) -> &Owned {
        &self.known.memory
    }

    /// A function as it was when the supervisor told of it last. Now and then none, to one request, where one's own function may have
    /// got the name of another's.
    pub fn remembered(&self, name: &str) -> Option<Arc<Model>> {
        let mut models = lock(&self.known.models);
        let found = models.get_mut(name)?;
        if found.model.function != name && found.looked.elapsed() >= LOOK_AGAIN {
            found.looked = Instant::now();
            return None;
        }
        Some(found.model.clone())
    }

    /// Remembers a function under the name that it was asked for by.
    pub fn remember(&self, name: &str, model: &Arc<Model>) {
        let mut models = lock(&self.known.models);
        if models.len() >= MAX_MODELS_PER_TOKEN && !models.contains_key(name) {
            models.clear();
        }
        models.insert(name.to_owned(), Remembered { model: model.clone(), looked: Instant::now() });
    }

    /// Forgets a function that is another one by now, or none.
    pub fn forget(&self, name: &str) {
        lock(&self.known.models).remove(name);
    }

    /// What is counted for whoever watches.
    pub fn metrics(&self) -> &Metrics {
        &self.callers.metrics
    }

    /// Where traces go.
    pub fn traces(&self) -> &Traces {
        &self.callers.traces
    }

    /// The caller's regions of shared memory.
    pub fn regions(&self) -> Result<&Regions> {
        match self.callers.shared_memory {
            true => Ok(&self.known.regions),
            false => Err(Failure::unsupported(
                "this gateway takes no shared memory (--shared-memory): send the bytes",
            )),
        }
    }

    /// The same for requests that are about regions and nothing else: the supervisor, which has no part in those, checks the token first.
    pub async fn own_regions(&self) -> Result<&Regions> {
        prove(&self.client).await.inspect_err(|failure| self.heed(failure))?;
        self.regions()
    }

    /// Where the supervisor does not know the token any more, its next request is a stranger's.
    pub fn heed(&self, failure: &Failure) {
        if failure.kind == Kind::Unauthenticated {
            lock(&self.callers.known).remove(&self.key);
        }
    }

    /// The caller's sequences.
    pub fn sequences(&self) -> &Sequences {
        &self.known.sequences
    }

    /// The counts of a model's version, which go on.
    pub fn statistics(&self, model: &Model) -> Arc<Statistics> {
        self.known.statistics.of(model.base_function(), model.version)
    }

    /// What was counted of the version that was asked for; where none was, of every version that there is.
    pub fn counts(&self, model: &Model, version: &str) -> Vec<(u32, Counts)> {
        let versions = if version.is_empty() { &model.versions[..] } else { &[model.version] };
        let function = model.base_function();
        let counts = |version: &u32| (*version, self.known.statistics.counts(function, *version));
        versions.iter().map(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_token_or_says_what_is_wrong() {
        assert_eq!(bearer(b"Bearer abc").unwrap(), b"abc");
        assert_eq!(bearer(b"bearer  abc ").unwrap(), b"abc");
        let long = [b"Bearer ".to_vec(), vec![b'x'; MAX_JWT_BYTES + 1]].concat();
        for wrong in [&b""[..], b"abc", b"Bearer ", b"Basic abc", &long] {
            assert_eq!(bearer(wrong).unwrap_err().row().http, 401);
        }
    }

    #[test]
    fn strangers_take_no_places_of_those_who_are_known() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let callers =
                Callers::new(Upstream::new("/nowhere".into(), 1), false, false, None, Traces::default());
            let known = callers.remember(Sha256::digest(b"known").into());
            // Of two requests that come at once, the second one finds what the first one left.
            assert!(Arc::ptr_eq(&known, &callers.remember(Sha256::digest(b"known").into())));
            let _all =
                callers.strangers.clone().try_acquire_many_owned(MAX_CALLS_OF_STRANGERS as u32).unwrap();
            let status = async |header: &[u8]| callers.enter(Some(header)).await.unwrap_err().row().name;
            assert_eq!(status(b"Bearer guessed").await, "BUSY");
            // It has a place, and there is no supervisor.
            assert_eq!(status(b"Bearer known").await, "UNAVAILABLE");
            assert_eq!(callers.enter(None).await.unwrap_err().row().name, "UNAUTHENTICATED");
        });
    }

    #[test]
    fn the_supervisor_is_not_asked_again_and_again_whether_it_is_ready() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let callers =
                Callers::new(Upstream::new("/nowhere".into(), 1), false, false, None, Traces::default());
            let later = Instant::now() + 1000 * READY_FOR;
            *callers.ready.lock().await = Some((later, true));
            assert!(callers.is_ready().await);
            // The control: what it said long ago does not hold, and there is no supervisor.
            *callers.ready.lock().await = later.checked_sub(2000 * READY_FOR).map(|asked| (asked, true));
            assert!(!callers.is_ready().await);
        });
    }
}
