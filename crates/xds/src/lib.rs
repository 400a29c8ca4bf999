//! The gRPC discovery services
