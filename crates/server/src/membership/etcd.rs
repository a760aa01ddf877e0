//! The cluster map in etcd, for nodes on several hosts: one key, by the JSON form of etcd's API.
//!
//! A key's version in etcd counts its changes, as the map's version does. So compare and swap on the map's version is one
//! transaction on the key's version. Reads are linearizable: an endpoint without a quorum answers none.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::ClusterMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body, http::Response};

use super::{Membership, MembershipError};

/// Greatest time for an answer of an endpoint.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Duration of one watch: then the next endpoint is watched, since one that is cut off reports nothing.
const WATCH_FOR: Duration = Duration::from_secs(5);

/// Addresses and credentials for etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdOptions {
    /// URLs of its members: `http://host:2379`, or `https://host:2379`.
    pub endpoints: Vec<String>,
    /// Certificate of the authority that its members' certificates are of, as a PEM file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<PathBuf>,
    /// Certificate of this node for etcd, as a PEM file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The key of that certificate, as a PEM file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// The cluster map in etcd.
pub struct EtcdMembership {
    endpoints: Vec<String>,
    /// The endpoint that answered last.
    current: AtomicUsize,
    key: String,
    agent: Agent,
}

#[derive(Default, Deserialize)]
struct Found {
    #[serde(default)]
    kvs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    value: String,
}

#[derive(Deserialize)]
struct Swapped {
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<SwapResponse>,
}

#[derive(Deserialize)]
struct SwapResponse {
    response_range: Option<Found>,
}

impl EtcdMembership {
    /// The map of the cluster with this name.
    ///
    /// # Errors
    /// [`MembershipError::Etcd`]: no endpoint is named, or a certificate is unusable.
    pub fn open(options: &EtcdOptions, cluster: &str) -> Result<EtcdMembership, MembershipError> {
        if options.endpoints.is_empty() {
            let reason = "no endpoint is named; add URLs to `endpoints`";
            return Err(MembershipError::Etcd(reason.into()));
        }
        let tls = tls(options)?;
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_connect(Some(ANSWER_WITHIN))
            .timeout_recv_response(Some(ANSWER_WITHIN))
            .timeout_recv_body(Some(ANSWER_WITHIN));
        let trimmed = options.endpoints.iter().map(|it| it.trim_end_matches('/'));
        Ok(EtcdMembership {
            endpoints: trimmed.map(str::to_owned).collect(),
            current: AtomicUsize::new(0),
            key: STANDARD.encode(format!("/tako/{cluster}/map")),
            agent: config.build().new_agent(),
        })
    }

    /// Asks one endpoint after the other, from the one that answered last.
    fn ask<T>(
        &self,
        path: &str,
        question: &Value,
        read: impl Fn(Response<Body>) -> Result<T, String>,
    ) -> Result<T, MembershipError> {
        let text = question.to_string();
        let first = self.current.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for offset in 0..self.endpoints.len() {
            let index = (first + offset) % self.endpoints.len();
            let endpoint = &self.endpoints[index];
            let asked = self.agent.post(format!("{endpoint}{path}")).send(&text);
            match asked.map_err(|error| error.to_string()).and_then(&read) {
                Ok(answer) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(reason) => reasons.push(format!("{endpoint}: {reason}")),
            }
        }
        let reasons = reasons.join(", ");
        Err(MembershipError::Etcd(format!(
            "{reasons}; check that most members of etcd run and that the URLs are right"
        )))
    }

    fn map_of(&self, found: &Found) -> Result<Option<ClusterMap>, MembershipError> {
        let invalid = |reason: String| MembershipError::Invalid {
            path: "the key in etcd".into(),
            reason,
        };
        let Some(entry) = found.kvs.first() else {
            return Ok(None);
        };
        let text = STANDARD.decode(&entry.value);
        let text = text.map_err(|error| invalid(error.to_string()))?;
        super::parse(&text).map(Some).map_err(invalid)
    }

    /// Waits for an event of the key, at most so long. Its result has no meaning: the map is read afterwards.
    fn watch(&self, known: u64, timeout: Duration) -> Result<Option<ClusterMap>, MembershipError> {
        let index = self.current.load(Ordering::Relaxed) % self.endpoints.len();
        let url = format!("{}/v3/watch", self.endpoints[index]);
        let question = json!({ "create_request": { "key": self.key } }).to_string();
        let request = self.agent.post(url).config();
        let request = request.timeout_recv_body(Some(timeout)).build();
        let start = Instant::now();
        let Ok(response) = request.send(&question) else {
            self.current.store(index + 1, Ordering::Relaxed);
            return self.read();
        };
        let mut lines = BufReader::new(response.into_body().into_reader()).lines();
        // The first line confirms the watch: what changes from then on is reported.
        lines.next();
        if let Some(map) = self.read()?.filter(|map| map.version > known) {
            return Ok(Some(map));
        }
        lines.next();
        if start.elapsed() >= timeout {
            self.current.store(index + 1, Ordering::Relaxed);
        }
        self.read()
    }
}

impl Membership for EtcdMembership {
    fn read(&self) -> Result<Option<ClusterMap>, MembershipError> {
        let found = self.ask("/v3/kv/range", &json!({ "key": self.key }), parse_json)?;
        self.map_of(&found)
    }

    fn propose(&self, map: &ClusterMap) -> Result<ClusterMap, MembershipError> {
        let text = serde_json::to_vec(map).map_err(|error| MembershipError::Invalid {
            path: "the proposed map".into(),
            reason: error.to_string(),
        })?;
        let version = (map.version - 1).to_string();
        let question = json!({
            "compare": [{
                "key": self.key, "target": "VERSION", "result": "EQUAL", "version": version,
            }],
            "success": [{ "request_put": { "key": self.key, "value": STANDARD.encode(text) } }],
            "failure": [{ "request_range": { "key": self.key } }],
        });
        let swapped: Swapped = self.ask("/v3/kv/txn", &question, parse_json)?;
        if swapped.succeeded {
            return Ok(map.clone());
        }
        let found = swapped.responses.into_iter().next();
        let found = found.and_then(|it| it.response_range).unwrap_or_default();
        Ok(self.map_of(&found)?.unwrap_or_default())
    }

    fn wait(&self, known: u64, timeout: Duration) -> Result<Option<ClusterMap>, MembershipError> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let map = self.watch(known, left.min(WATCH_FOR).max(Duration::from_millis(1)))?;
            if let Some(map) = map.filter(|map| map.version > known) {
                return Ok(Some(map));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }
}

fn parse_json<T: for<'de> Deserialize<'de>>(response: Response<Body>) -> Result<T, String> {
    let mut body = response.into_body();
    let text = body.read_to_vec().map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn tls(options: &EtcdOptions) -> Result<TlsConfig, MembershipError> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| unusable(path, &error.to_string()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if let Some(path) = &options.authority {
        let authority = Certificate::from_pem(&read(path)?);
        let authority = authority.map_err(|error| unusable(path, &error.to_string()))?;
        tls = tls.root_certs(RootCerts::new_with_certs(&[authority]));
    }
    if let (Some(path), Some(key_path)) = (&options.certificate, &options.key) {
        let certificate = Certificate::from_pem(&read(path)?);
        let certificate = certificate.map_err(|error| unusable(path, &error.to_string()))?;
        let key = PrivateKey::from_pem(&read(key_path)?);
        let key = key.map_err(|error| unusable(key_path, &error.to_string()))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&[certificate], key)));
    }
    Ok(tls.build())
}

fn unusable(path: &Path, reason: &str) -> MembershipError {
    MembershipError::Etcd(format!(
        "{}: {reason}; name a PEM file that this user may read",
        path.display()
    ))
}
