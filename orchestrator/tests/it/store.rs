//! The store keeps its promises, in Postgres and in memory alike.
