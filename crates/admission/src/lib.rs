//! From manifests to canonical resources, or a refusal that says what is wrong and where
