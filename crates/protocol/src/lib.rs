//! The xDS protocol as pure code: events in, responses out
