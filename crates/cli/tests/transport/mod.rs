//! How the mounts of a run of the tests get their requests.

/// The transport that this run of the tests is about: `make test` runs them by queues and by the device.
pub fn options() -> String {
    let transport = std::env::var("TAKO_TEST_TRANSPORT");
    format!("transport={}", transport.as_deref().unwrap_or("auto"))
}
