//! Generated code and descriptors: our own APIs, the Envoy API, the discovery messages
