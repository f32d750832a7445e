//! Tests across packages.
