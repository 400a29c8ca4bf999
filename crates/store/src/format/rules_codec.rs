//! The changes of assignments and access rules of a transaction, for questions to other replicas about its effects.

use chancery_model::Transaction;
use chancery_raft_proto::v1 as pb;

use super::codec::{transaction_from_proto, transaction_to_proto};

/// Converts the changes of assignments and access rules of a transaction to a message, without the rest of it.
#[must_use]
pub fn rules_to_proto(transaction: &Transaction) -> pb::Transaction {
    let (assignments, access) = (transaction.assignments.clone(), transaction.access.clone());
    transaction_to_proto(&Transaction { assignments, access, ..Transaction::default() })
}

/// Converts a message to changes of assignments and access rules.
///
/// # Errors
/// Fails with a text if a change is invalid.
pub fn rules_from_proto(message: pb::Transaction) -> Result<Transaction, String> {
    let pb::Transaction { assignments, access, .. } = message;
    let rules = pb::Transaction { assignments, access, ..pb::Transaction::default() };
    transaction_from_proto(rules).map_err(|error| error.to_string())
}
