//! The reference shop keeps its promises on a real Postgres.

mod audit;
mod barrier;
mod database;
mod db;
mod fault;
mod order;
mod race;
mod shop;
mod stock;
mod testshop;
