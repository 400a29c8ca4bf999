//! The admin API: gRPC and HTTP
