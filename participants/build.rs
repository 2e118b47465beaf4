//! Rebuilds when a migration changes: the migrations are embedded in the library.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
